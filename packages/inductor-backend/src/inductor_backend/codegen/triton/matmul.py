"""Writes a matmul, with its fused prologue and epilogue, as one Triton kernel.

The body's first reduction is the matmul (`schedule/matmul_loops.py`). Operands are rounded to the
dtype in which the operator would read them; accumulation is float32; elements out of bounds count
as 0. Programs that share rows or columns run close together, for the L2 cache. Operands without a
prologue may be loaded by TMA (`tensor_descriptors.py`); such a kernel also has the plain loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from inductor_backend.codegen.common.loop_nest import walk
from inductor_backend.codegen.triton.addressing import BlockAddressing, nest_of
from inductor_backend.codegen.triton.block_sizes import Axis, Tile
from inductor_backend.codegen.triton.block_writer import BlockWriter, needed
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.index_writer import IndexWriter
from inductor_backend.codegen.triton.kernel import TritonKernel, kernel_of
from inductor_backend.codegen.triton.tensor_descriptors import (
    BULK,
    DescriptorPlace,
    Matrix,
    place_of,
)
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, contiguous_strides, product
from inductor_backend.ir.nodes import LoopProgram, Store
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody

#: Rows of blocks that are grouped for the L2 cache.
GROUP = 8


@dataclass(frozen=True, slots=True)
class Blocks:
    """rows, columns, terms: block_m, block_n, block_k. warps, stages: see `TritonKernel`. bulk:
    load operands by TMA where possible. programs: number of programs of a persistent kernel, which
    overlaps the next block's loads with a store (0: one program per block)."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int
    bulk: bool = False
    programs: int = 0

    def __str__(self) -> str:
        text = (
            f"blocks of {self.rows} x {self.columns} x {self.terms} x {self.warps} x {self.stages}"
        )
        options = (
            "bulk" if self.bulk else "",
            f"{self.programs} programs" if self.programs else "",
        )
        return ", ".join([text, *filter(None, options)])


@dataclass(frozen=True, slots=True)
class TermAxis(Axis):
    """The K axis, as the rows of the right operand's block (letter q), with the same block size."""

    @property
    def constant(self) -> str:
        return "RBLOCK"


class MatmulKernelWriter:
    """Writes one kernel. dtype: the element type in which operands are multiplied."""

    def __init__(
        self,
        program: LoopProgram,
        body: KernelBody,
        sizes: SizeVars,
        blocks: Blocks,
        dtype: torch.dtype,
    ) -> None:
        self.blocks, self.dtype = blocks, dtype
        self.matmul, self.operands = _matmul_of(body)
        self.nest, _ = nest_of(program, body, sizes)
        self._choose_tiles()
        self.addressing = BlockAddressing(program, body, sizes, self.nest, self.tile)
        for place, loop in enumerate(self.batch):
            self.addressing.names[loop] = f"z{place}"
        self.block = BlockWriter(body, self.addressing)
        self.out = self.block.out
        self.indices = IndexWriter(self.addressing, self.out)
        self.matrices: list[Matrix] = []

    def _choose_tiles(self) -> None:
        """Chooses the blocks of the result and of both operands."""
        nest, blocks = self.nest, self.blocks
        left, right = ({nest.place[p] for p in operand.variables} for operand in self.operands)
        outer = range(len(nest.outer))
        rows = tuple(k for k in outer if k in left and k not in right)
        columns = tuple(k for k in outer if k in right and k not in left)
        self.batch = tuple(k for k in outer if k not in (*rows, *columns))
        terms = tuple(range(len(nest.outer), len(nest.sizes)))
        if not rows or not columns or not terms:
            raise unsupported("codegen", "a matmul without rows, columns or terms")

        def numel(loops: tuple[int, ...]) -> Expr:
            return product(nest.sizes[k] for k in loops)

        y = Axis("y", rows, numel(rows), blocks.rows)
        x = Axis("x", columns, numel(columns), blocks.columns)
        r = Axis("r", terms, numel(terms), blocks.terms)
        q = TermAxis("q", terms, numel(terms), blocks.terms)
        self.tile = Tile((y, x), blocks.warps, True)
        self.operand_tiles = (Tile((y, r), blocks.warps, True), Tile((q, x), blocks.warps, True))

    @property
    def terms(self) -> Axis:
        """Returns the K axis."""
        return self.operand_tiles[0].axes[1]

    def write(self) -> TritonKernel:
        """Returns the kernel."""
        with self.out.indented():
            if self.blocks.programs:
                with self._persistent():
                    self._block()
            else:
                self._block()
        y, x = self.tile.axes
        batch = product(self.nest.sizes[k] for k in self.batch)
        return kernel_of(
            self.block,
            ((y.constant, y.block), (x.constant, x.block), ("RBLOCK", self.blocks.terms)),
            ((y.numel, y.block), (x.numel, x.block), (batch, 1)),
            self.blocks.stages,
            self.blocks.programs,
            self.matrices,
        )

    @contextlib.contextmanager
    def _persistent(self) -> Iterator[None]:
        """Opens the loop of a persistent kernel's program over its blocks."""
        size = self.addressing.size
        parts = [f"tl.cdiv({size(axis.numel)}, {axis.constant})" for axis in self.tile.axes]
        parts += [size(self.nest.sizes[k]) for k in self.batch]
        self.out.line(f"blocks = {' * '.join(parts)}")
        with self.out.block_python(
            "for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), flatten=True):"
        ):
            yield

    def _block(self) -> None:
        """Writes what computes one block of the result."""
        self._indices()
        names: dict[Value, str] = {}
        for phase in self.block.body.phases:
            if phase.stores or phase.scans:
                raise unsupported("codegen", "a matmul's kernel stores its results only")
            self.block.emit(needed(phase.row), 1, names)
            for store in phase.row:
                self.block.store(store, names, self.tile.axes)
            if phase.reductions:
                self._sum()

    def _program(self) -> str:
        if self.blocks.programs:
            return "block + tl.zeros([], tl.int64)" if self.addressing.wide else "block"
        return "tl.program_id(0)" + (".to(tl.int64)" if self.addressing.wide else "")

    def _indices(self) -> None:
        y, x = self.tile.axes
        line, size = self.out.line, self.addressing.size
        line(f"pid = {self._program()}")
        line(f"rows = tl.cdiv({size(y.numel)}, {y.constant})")
        line(f"columns = tl.cdiv({size(x.numel)}, {x.constant})")
        if self.batch:
            line("zindex = pid // (rows * columns)")
            line("pid = pid % (rows * columns)")
            self._batch_loops()
        line(f"first = pid // ({GROUP} * columns) * {GROUP}")
        line(f"height = tl.minimum(rows - first, {GROUP})")
        line(f"inside = pid % ({GROUP} * columns)")
        line("yblock = first + inside % height")
        line("xblock = inside // height")
        self.indices.axis(y, "yblock")
        self.indices.axis(x, "xblock")

    def _batch_loops(self) -> None:
        strides = contiguous_strides([self.nest.sizes[k] for k in self.batch])
        divisor = self.addressing.divisor
        for place, (loop, stride) in enumerate(zip(self.batch, strides, strict=True)):
            size = self.nest.sizes[loop]
            self.out.line(f"z{place} = zindex // {divisor(stride)} % {divisor(size)}")

    def _sum(self) -> None:
        y, x = self.tile.axes
        line = self.out.line
        line(f"total = tl.zeros([{y.constant}, {x.constant}], tl.float32)")
        with self.indices.passes(self.terms):
            pairs = zip(self.operands, self.operand_tiles, ("left", "right"), strict=True)
            left, right = (self._operand(operand, tile, name) for operand, tile, name in pairs)
            precision = ', input_precision="tf32"' if self.dtype == torch.float32 else ""
            line(f"total = tl.dot({left}, {right}, total{precision})")
        self.addressing.enter(self.tile)
        (name,) = self.matmul.buffers
        self.block.registers[name] = "total"

    def _operand(self, operand: Value, tile: Tile, name: str) -> str:
        """Returns the block of an operand, in the operands' dtype, 0 beyond the end of K."""
        place = self._place(operand, tile) if self.blocks.bulk else None
        self.addressing.enter(tile)
        if place is None:
            return self._loaded(operand, tile, name)
        with self.out.block_python(f"if {BULK}:"):
            self.out.line(f"{name} = {self._copied(operand, tile, place)}")
        with self.out.block_python("else:"):
            self._loaded(operand, tile, name)
        return name

    def _place(self, operand: Value, tile: Tile) -> DescriptorPlace | None:
        """Returns where the blocks of an operand lie, if TMA can load them directly."""
        if operand.name != "load" or operand.buffer in self.block.in_registers:
            return None
        buffer = self.block.program.buffers[operand.buffer]
        if buffer.dtype != self.dtype:
            return None
        self.addressing.enter(tile)
        index = self.addressing.collapsed(walk(buffer.layout.flat(operand.attr[1]), self.nest))
        return place_of(index, tile.axes, self.batch, self.nest.sizes, buffer.dtype.itemsize)

    def bulk_operands(self) -> int:
        """Returns how many operands TMA can load."""
        pairs = zip(self.operands, self.operand_tiles, strict=True)
        count = sum(self._place(operand, tile) is not None for operand, tile in pairs)
        self.addressing.enter(self.tile)
        return count

    def _copied(self, operand: Value, tile: Tile, place: DescriptorPlace) -> str:
        """Returns the text of a block loaded by TMA, transposed where the matrix is."""
        buffer = self.block.program.buffers[operand.buffer]
        width = buffer.dtype.itemsize
        matrix = Matrix(
            f"d{len(self.matrices)}",
            int(self.addressing.pointer(operand.buffer).removeprefix("p")),
            pointer_type(buffer.dtype).lstrip("*"),
            place.start * width,
            place.sizes,
            place.stride * width,
            (place.rows.block, place.columns.block),
        )
        self.matrices.append(matrix)
        down, across = self._corner(place.rows), self._corner(place.columns)
        for loop, rows in place.batch:
            down = f"{down} + {self.addressing.names[loop]} * {rows}"
        text = f"{matrix.name}.load([tl.cast({down}, tl.int32), tl.cast({across}, tl.int32)])"
        return text if place.rows is tile.axes[0] else f"{text}.T"

    def _corner(self, axis: Axis) -> str:
        return "start" if axis.letter in "rq" else f"{axis.letter}block * {axis.constant}"

    def _loaded(self, operand: Value, tile: Tile, name: str) -> str:
        terms = next(axis for axis in tile.axes if axis.letter in "rq")
        self.indices.axis(terms, "start")
        direct = self._direct(operand, tile) if operand.name in ("load", "masked_load") else None
        if direct is not None:
            self.out.line(f"{name} = {direct}")
            return name
        names: dict[Value, str] = {}
        self.block.emit(topological([operand]), 1, names)
        text = f"tl.broadcast_to({names[operand]}, {self.addressing.shape(tile.axes)})"
        if not terms.exact:
            text = f"tl.where({terms.letter}mask, {text}, 0)"
        kind = str(self.dtype).replace("torch", "tl")
        self.out.line(f"{name} = {text}.to({kind})")
        return name

    def _direct(self, operand: Value, tile: Tile) -> str | None:
        """Returns a load whose block can be multiplied as it comes from memory; None where it must
        be computed."""
        at, index = self.addressing, operand.attr[1]
        buffer = self.block.program.buffers[operand.buffer]
        if operand.buffer in self.block.in_registers or buffer.dtype != self.dtype:
            return None
        names: dict[Value, str] = {}
        condition = ""
        if operand.name == "masked_load":
            test, other = operand.args
            if other.name != "constant" or other.attr[0] != 0:
                return None
            self.block.emit(topological([test]), 1, names)
            condition = names[test]
        indirect = [value for part in index for value in part.indirect_values()]
        self.block.emit(topological(indirect), 1, names)
        address = at.address(operand.buffer, index, names)
        if len(at.axes(operand.variables)) < len(tile.axes):
            address = at.spread(address, tile.axes)
        address = at.broadcast_address(operand.buffer, index, address, tile.axes)
        mask = at.mask(tile.axes, condition)
        load = f"{at.pointer(operand.buffer)} + ({address})"
        return f"tl.load({load}{f', {mask}, other=0.0' if mask else ''})"


def _matmul_of(body: KernelBody) -> tuple[Store, tuple[Value, Value]]:
    """Returns the sum, and its two operands."""
    reductions = [store for phase in body.phases for store in phase.reductions]
    if len(reductions) != 1 or reductions[0].reduce != "sum" or reductions[0].value.name != "mul":
        raise unsupported("codegen", "a matmul's kernel with other reductions")
    left, right = reductions[0].value.args
    return reductions[0], (left, right)
