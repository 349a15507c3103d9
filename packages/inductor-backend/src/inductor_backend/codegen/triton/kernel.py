"""Writes one fused body as one Triton kernel.

A value is computed once where a row is in registers, so each row is read once. `addressing`
computes where the elements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inductor_backend.codegen.common.module import NAME, kernel_label
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.addressing import BlockAddressing, nest_of
from inductor_backend.codegen.triton.block_sizes import Tile, choose_tile
from inductor_backend.codegen.triton.block_writer import BlockWriter, needed
from inductor_backend.codegen.triton.index_writer import IndexWriter
from inductor_backend.codegen.triton.row_writer import RowWriter
from inductor_backend.codegen.triton.tensor_descriptors import BULK, Matrix
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import LoopProgram, Store, loads_of
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, topological
from inductor_backend.runtime.cuda.triton_compile import TileEffect
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.inplace_reuse import overtakes


@dataclass(frozen=True, slots=True)
class KernelPart:
    """A kernel as a function of the number of its program, for one launch with others (`horizontal`)."""

    #: Those of the kernel.
    parameters: tuple[str, ...]
    #: Its statements; `program` is the number.
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """text: the function, with `@NAME@` for its name. pointers: storages, in argument order; types:
    their element types. sizes: the int64 arguments that follow. grid: number of programs, (numel,
    block) of each axis. constants: block sizes. warps: of one program. label: for the name. looped:
    a point may be computed more than once. stages: of software pipelining. reusable: (written
    pointer, pointers only read, at the same points), by their numbers. matrices: tensor
    descriptors, arguments after the sizes. most: limit on programs of a persistent kernel (0: one
    program per block). written: numbers of the pointers that it stores to. asserts: it
    checks indices by device assertions. searched: see `triton_compile.Kernel`. part: None where it
    must be launched alone. nbytes: that it must move."""

    text: str
    pointers: tuple[str, ...]
    types: tuple[str, ...]
    sizes: tuple[Expr, ...]
    grid: tuple[tuple[Expr, int], ...]
    constants: tuple[tuple[str, int], ...]
    warps: int
    label: str
    looped: bool = False
    stages: int = 1
    reusable: tuple[tuple[int, tuple[int, ...]], ...] = ()
    matrices: tuple[Matrix, ...] = ()
    most: int = 0
    written: tuple[int, ...] = ()
    asserts: bool = field(default=False, repr=False)  # the kernel's name is made from its repr
    searched: TileEffect = field(default="", repr=False)
    part: KernelPart | None = field(default=None, repr=False, compare=False)
    nbytes: int = field(default=0, repr=False, compare=False)


class TritonKernelWriter:
    """Writes one pointwise or reducing kernel. tile: None: chosen by the access pattern."""

    def __init__(
        self, program: LoopProgram, body: KernelBody, sizes: SizeVars, tile: Tile | None = None
    ) -> None:
        nest, self.position = nest_of(program, body, sizes)
        self.tile = tile or choose_tile(program, body, nest, sizes)
        self.block = BlockWriter(body, BlockAddressing(program, body, sizes, nest, self.tile))
        self.indices = IndexWriter(self.block.addressing, self.block.out)

    def write(self) -> TritonKernel:
        """Returns the kernel."""
        out, wide = self.block.out, ".to(tl.int64)" if self.block.addressing.wide else ""
        with out.indented():
            out.line(f"pid = tl.program_id(0){wide}")
            self.indices.program()
            self._phases()
        constants = tuple((axis.constant, axis.block) for axis in self.tile.axes)
        grid = tuple((axis.numel, axis.block) for axis in self.tile.outer)
        kernel = kernel_of(self.block, constants, grid)
        parameters = parameters_of(self.block, constants)
        lines = (f"    pid = program{wide}", *out.lines[1:])
        return replace(kernel, part=KernelPart(tuple(parameters), lines))

    def _phases(self) -> None:
        names: dict[Value, str] = {}
        reduced = self.tile.reduced
        if reduced is None:
            (phase,) = self.block.body.phases
            self._stores((*phase.row, *phase.stores), 1, names)
            return
        self.block.emit(self._row_loads(), 0, names)
        rows = RowWriter(self.block, self.indices, reduced, self.position)
        for phase in self.block.body.phases:
            self._stores(phase.row, 0, names)
            if phase.loop:
                rows.write(phase, names)

    def _row_loads(self) -> list[Value]:
        """Returns what is loaded once a row for after its reductions, a bias or a residual: these
        loads need not wait for the reductions."""
        body, buffers = self.block.body, self.block.program.buffers
        written = {buffers[name].storage for name in body.writes}
        loads = [
            load
            for load in loads_of(
                value for phase in body.phases for s in phase.row for value in s.roots
            )
            if load.name == "load"
            and load.buffer not in body.registers
            and buffers[load.buffer].storage not in written
            and not any(True for index in load.indices() for _ in index.indirect_values())
        ]
        return topological(loads)

    def _stores(self, stores: Sequence[Store], level: int, names: dict[Value, str]) -> None:
        """Writes stores of elements, or once per row. A barrier comes before stores to what the block
        reads: a thread may store elements that another one loads."""
        block, once_a_row = self.block, self.tile.reduced is not None
        block.emit(needed(stores), level, names)
        if overtakes(block.program, block.body, stores, once_a_row=once_a_row):
            block.out.line("tl.debug_barrier()")
        for store in stores:
            block.store(store, names, self.tile.outer)


def kernel_of(
    block: BlockWriter,
    constants: tuple[tuple[str, int], ...],
    grid: tuple[tuple[Expr, int], ...],
    stages: int = 1,
    most: int = 0,
    matrices: Sequence[Matrix] = (),
) -> TritonKernel:
    """Returns the kernel whose statements are written. For the fields see `TritonKernel`."""
    addressing = block.addressing
    arguments = addressing.arguments
    return TritonKernel(
        function_text(parameters_of(block, constants, matrices), block.out),
        tuple(arguments.pointers),
        tuple(addressing.types[storage] for storage in arguments.pointers),
        tuple(arguments.sizes),
        grid,
        constants,
        addressing.tile.warps,
        kernel_label(block.body.origins),
        addressing.tile.looped,
        stages,
        matrices=tuple(matrices),
        most=most,
        asserts=block.asserts,
        written=tuple(
            n for n, storage in enumerate(arguments.pointers) if storage in addressing.written
        ),
    )


def parameters_of(
    block: BlockWriter, constants: Sequence[tuple[str, int]], matrices: Sequence[Matrix] = ()
) -> list[str]:
    """Returns the parameters of a kernel's function."""
    parameters = [*block.addressing.arguments.names, *(matrix.name for matrix in matrices)]
    parameters += [f"{name}: tl.constexpr" for name, _ in constants]
    if matrices:
        parameters.append(f"{BULK}: tl.constexpr")
    return parameters


def function_text(parameters: Sequence[str], body: CodeWriter) -> str:
    """Returns the text of a kernel's function."""
    head = CodeWriter()
    head.line("@triton.jit")
    head.line(f"def {NAME}({', '.join(parameters)}):")
    head.lines += body.lines
    return head.text()
