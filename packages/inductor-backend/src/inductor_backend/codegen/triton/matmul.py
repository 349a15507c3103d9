"""Writes a matmul, with its fused prologue and epilogue, as one Triton kernel.

The body's first reduction is the matmul (`schedule/matmul_loops.py`). Operands are rounded to the
dtype in which the operator would read them; accumulation is float32; elements out of bounds count
as 0. Programs that share rows or columns run close together, for the L2 cache. Operands without a
prologue may be loaded by TMA (`tensor_descriptors.py`); such a kernel also has the plain loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inductor_backend.codegen.common.loop_nest import walk
from inductor_backend.codegen.triton.block_sizes import Axis, Tile
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.kernel import TritonKernelWriter, needed
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
        ways = ("bulk" if self.bulk else "", f"{self.programs} programs" if self.programs else "")
        return ", ".join([text, *filter(None, ways)])


@dataclass(frozen=True, slots=True)
class TermAxis(Axis):
    """The K axis, as the rows of the right operand's block (letter q), with the same block size."""

    @property
    def constant(self) -> str:
        return "RBLOCK"


class MatmulKernelWriter(TritonKernelWriter):
    """Writes one kernel. operands: the element type in which operands are multiplied."""

    def __init__(
        self,
        program: LoopProgram,
        body: KernelBody,
        sizes: SizeVars,
        blocks: Blocks,
        operands: torch.dtype,
    ) -> None:
        self.blocks, self.operands, self.stages = blocks, operands, blocks.stages
        self.most = blocks.programs
        self.product, self.factors = _product_of(body)
        super().__init__(program, body, sizes)
        for place, loop in enumerate(self.batch):
            self.names[loop] = f"z{place}"

    def _choose_tile(self) -> Tile:
        nest, blocks = self.nest, self.blocks
        left, right = ({nest.place[p] for p in factor.variables} for factor in self.factors)
        outer = range(len(nest.outer))
        rows = tuple(k for k in outer if k in left and k not in right)
        columns = tuple(k for k in outer if k in right and k not in left)
        self.batch = tuple(k for k in outer if k not in (*rows, *columns))
        terms = tuple(range(len(nest.outer), len(nest.sizes)))
        if not rows or not columns or not terms:
            raise unsupported("codegen", "a product without rows, columns or terms")

        def numel(loops: tuple[int, ...]) -> Expr:
            return product(nest.sizes[k] for k in loops)

        y = Axis("y", rows, numel(rows), blocks.rows)
        x = Axis("x", columns, numel(columns), blocks.columns)
        r = Axis("r", terms, numel(terms), blocks.terms)
        q = TermAxis("q", terms, numel(terms), blocks.terms)
        self.left_tile = Tile((y, r), blocks.warps, True)
        self.right_tile = Tile((q, x), blocks.warps, True)
        return Tile((y, x), blocks.warps, True)

    def _constants(self) -> tuple[tuple[str, int], ...]:
        y, x = self.tile.axes
        return ((y.constant, y.block), (x.constant, x.block), ("RBLOCK", self.blocks.terms))

    def _grid(self) -> tuple[tuple[Expr, int], ...]:
        y, x = self.tile.axes
        return (
            (y.numel, y.block),
            (x.numel, x.block),
            (product(self.nest.sizes[k] for k in self.batch), 1),
        )

    def _body(self) -> None:
        if not self.blocks.programs:
            super()._body()
            return
        parts = [f"tl.cdiv({self.size(axis.numel)}, {axis.constant})" for axis in self.tile.axes]
        parts += [self.size(self.nest.sizes[k]) for k in self.batch]
        self.out.line(f"blocks = {' * '.join(parts)}")
        with self.out.block_python(
            "for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), flatten=True):"
        ):
            super()._body()

    def _program(self) -> str:
        if self.blocks.programs:
            return "block + tl.zeros([], tl.int64)" if self.wide else "block"
        return "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")

    def write_indices(self) -> None:
        y, x = self.tile.axes
        line = self.out.line
        line(f"pid = {self._program()}")
        line(f"rows = tl.cdiv({self.size(y.numel)}, {y.constant})")
        line(f"columns = tl.cdiv({self.size(x.numel)}, {x.constant})")
        if self.batch:
            line("zindex = pid // (rows * columns)")
            line("pid = pid % (rows * columns)")
            self._batch_loops()
        line(f"first = pid // ({GROUP} * columns) * {GROUP}")
        line(f"height = tl.minimum(rows - first, {GROUP})")
        line(f"inside = pid % ({GROUP} * columns)")
        line("yblock = first + inside % height")
        line("xblock = inside // height")
        self.write_axis(y, "yblock")
        self.write_axis(x, "xblock")

    def _batch_loops(self) -> None:
        steps = contiguous_strides([self.nest.sizes[k] for k in self.batch])
        for place, (loop, step) in enumerate(zip(self.batch, steps, strict=True)):
            self.out.line(
                f"z{place} = zindex // {self._positive(step)} %"
                f" {self._positive(self.nest.sizes[loop])}"
            )

    def _phases(self) -> None:
        names: dict[Value, str] = {}
        results = self.tile
        for phase in self.body.phases:
            if phase.stores or phase.scans:
                raise unsupported("codegen", "a product's kernel stores its results only")
            self.emit(needed(phase.row), 1, names)
            for store in phase.row:
                self.store(store, names, results.axes)
            if phase.reductions:
                self._sum()

    def _sum(self) -> None:
        results = self.tile
        y, x = results.axes
        terms = self.left_tile.axes[1]
        line = self.out.line
        line(f"total = tl.zeros([{y.constant}, {x.constant}], tl.float32)")
        with self.passes(terms):
            texts = [
                self._factor(factor, tile, name)
                for factor, tile, name in zip(
                    self.factors, (self.left_tile, self.right_tile), ("left", "right"), strict=True
                )
            ]
            precision = ', input_precision="tf32"' if self.operands == torch.float32 else ""
            line(f"total = tl.dot({texts[0]}, {texts[1]}, total{precision})")
        self.enter(results)
        (name,) = self.product.buffers
        self.registers[name] = "total"

    def _factor(self, factor: Value, tile: Tile, name: str) -> str:
        """Returns the block of an operand, in the operands' dtype, 0 beyond the end of K."""
        self.enter(tile)
        place = self.place(factor, tile) if self.blocks.bulk else None
        if place is None:
            return self._loaded_factor(factor, tile, name)
        with self.out.block_python(f"if {BULK}:"):
            self.out.line(f"{name} = {self._copied(factor, tile, place)}")
        with self.out.block_python("else:"):
            self._loaded_factor(factor, tile, name)
        return name

    def place(self, factor: Value, tile: Tile) -> DescriptorPlace | None:
        """Returns where the blocks of an operand lie, if TMA can load them directly."""
        if factor.name != "load" or factor.buffer in self.body.registers:
            return None
        buffer = self.program.buffers[factor.buffer]
        if buffer.dtype != self.operands:
            return None
        self.enter(tile)
        index = self.collapsed(walk(buffer.layout.flat(factor.attr[1]), self.nest))
        return place_of(index, tile.axes, self.batch, self.nest.sizes, buffer.dtype.itemsize)

    def bulk_operands(self) -> int:
        """Returns how many operands TMA can load."""
        results = self.tile
        pairs = zip(self.factors, (self.left_tile, self.right_tile), strict=True)
        count = sum(self.place(factor, tile) is not None for factor, tile in pairs)
        self.enter(results)
        return count

    def _copied(self, factor: Value, tile: Tile, place: DescriptorPlace) -> str:
        """Returns the text of a block loaded by TMA, transposed where the matrix is."""
        buffer = self.program.buffers[factor.buffer]
        width = buffer.dtype.itemsize
        matrix = Matrix(
            f"d{len(self.matrices)}",
            int(self.pointer(factor.buffer).removeprefix("p")),
            pointer_type(buffer.dtype).lstrip("*"),
            place.start * width,
            place.sizes,
            place.stride * width,
            (place.rows.block, place.columns.block),
        )
        self.matrices.append(matrix)
        down, across = self._corner(place.rows), self._corner(place.columns)
        for loop, step in place.batch:
            down = f"{down} + {self.names[loop]} * {step}"
        text = f"{matrix.name}.load([tl.cast({down}, tl.int32), tl.cast({across}, tl.int32)])"
        return text if place.rows is tile.axes[0] else f"{text}.T"

    def _corner(self, axis: Axis) -> str:
        return "start" if axis.letter in "rq" else f"{axis.letter}block * {axis.constant}"

    def _loaded_factor(self, factor: Value, tile: Tile, name: str) -> str:
        terms = next(axis for axis in tile.axes if axis.letter in "rq")
        self.write_axis(terms, "start")
        inside = not terms.exact
        direct = self._direct(factor, tile) if factor.name in ("load", "masked_load") else None
        if direct is not None:
            self.out.line(f"{name} = {direct}")
            return name
        names: dict[Value, str] = {}
        self.emit(topological([factor]), 1, names)
        shape = self.shape(tile.axes)
        text = f"tl.broadcast_to({names[factor]}, {shape})"
        if inside:
            text = f"tl.where({terms.letter}mask, {text}, 0)"
        kind = {
            torch.float32: "tl.float32",
            torch.bfloat16: "tl.bfloat16",
            torch.float16: "tl.float16",
        }
        self.out.line(f"{name} = {text}.to({kind[self.operands]})")
        return name

    def _direct(self, factor: Value, tile: Tile) -> str | None:
        """Returns a load whose block can be multiplied as it comes from memory; None where it must
        be computed."""
        buffer = self.program.buffers[factor.buffer]
        if factor.buffer in self.body.registers or buffer.dtype != self.operands:
            return None
        names: dict[Value, str] = {}
        condition = ""
        if factor.name == "masked_load":
            test, other = factor.args
            if other.name != "constant" or other.attr[0] != 0:
                return None
            self.emit(topological([test]), 1, names)
            condition = names[test]
        indirect = [v for i in factor.attr[1] for v in i.indirect_values()]
        self.emit(topological(indirect), 1, names)
        address = self.address(factor.buffer, factor.attr[1], names)
        if len(self.axes(factor.variables)) < len(tile.axes):
            address = self.spread(address, (), tile.axes)
        address = self.whole(factor.buffer, factor.attr[1], address, tile.axes)
        mask = self.mask(tile.axes, condition)
        return (
            f"tl.load({self.pointer(factor.buffer)} +"
            f" ({address}){f', {mask}, other=0.0' if mask else ''})"
        )


def _product_of(body: KernelBody) -> tuple[Store, tuple[Value, Value]]:
    """Returns the sum, and its two operands."""
    reductions = [store for phase in body.phases for store in phase.reductions]
    if len(reductions) != 1 or reductions[0].reduce != "sum" or reductions[0].value.name != "mul":
        raise unsupported("codegen", "a product's kernel with other reductions")
    left, right = reductions[0].value.args
    return reductions[0], (left, right)
