"""Computes a Triton program's indices, masks and addresses, and writes the lines that begin it.

Static sizes and strides are literals (cheap divisions, loads provably contiguous), symbolic ones
are arguments. A program masks only the axes that may exceed their end and that an access depends
on. Offsets are 64 bits wide where 32 might not suffice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from inductor_backend.codegen.common.index_source import index_source
from inductor_backend.codegen.common.loop_nest import LoopNest, loop_nest, walk
from inductor_backend.codegen.common.value_writer import ValueWriter
from inductor_backend.codegen.triton.block_sizes import FLAT, Axis, Tile, choose_tile
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import (
    Expr,
    FloorDiv,
    Index,
    Mod,
    Var,
    contiguous_strides,
    product,
    range_of,
    simplify,
    variables,
)
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value
from inductor_backend.schedule.fused_body import KernelBody

#: Offsets beyond this need 64 bits.
NARROW = 2**31 - 2**16

#: Reductions and scans that give indices.
_WITH_POSITIONS = frozenset({"argmax", "argmin", "max_at", "min_at"})


class Addressing(ValueWriter):
    """Addresses of one kernel's elements; arguments are added on first use. tile: None: chosen by
    the access pattern."""

    def __init__(
        self, program: LoopProgram, body: KernelBody, sizes: SizeVars, tile: Tile | None = None
    ) -> None:
        super().__init__(program, body, sizes)
        self._given = tile
        position = self._row_position() if self._counts_positions() else None
        self.nest: LoopNest = loop_nest(
            program, body, sizes, False, extra=() if position is None else (position,)
        )
        self.position = None if position is None else walk(position, self.nest)
        self.tile: Tile = self._choose_tile()
        self.wide = self._needs_wide()
        self.types: dict[str, str] = {}
        self.arguments: dict[Expr, str] = {}
        self.names: dict[int, str] = {}
        self.enter(self.tile)

    def _choose_tile(self) -> Tile:
        return self._given or choose_tile(self.program, self.body, self.nest, self.sizes)

    def enter(self, tile: Tile) -> None:
        """Switches to the dimensions of this tile."""
        self.tile = tile
        self.axis_of = {loop: axis for axis in tile.axes for loop in axis.loops}
        for number, axis in enumerate(tile.axes):
            several = len(axis.loops) > 1
            for place, loop in enumerate(axis.loops):
                self.names[loop] = f"{axis.letter}{place}" if several else f"{axis.letter}index"
            self.names[FLAT + number] = f"{axis.letter}index"

    # what the body needs -------------------------------------------------------------------------

    def _counts_positions(self) -> bool:
        return any(
            (s.reduce or s.scan) in _WITH_POSITIONS
            for phase in self.body.phases
            for s in phase.loop
        )

    def _row_position(self) -> Index:
        """Returns an element's position within its row, in the order of the tensor's dimensions."""
        domain = self.body.domain
        places = [p for p, r in enumerate(domain.reduced) if r]
        strides = contiguous_strides([domain.sizes[p] for p in places])
        loops = variables(domain.sizes)
        result = Index()
        for place, stride in zip(places, strides, strict=True):
            result = result + loops[place] * stride
        return result

    def _needs_wide(self) -> bool:
        extents: list[Expr] = [product(self.nest.sizes)]
        for name in (*self.body.reads(), *self.body.writes):
            layout = self.program.buffers[name].layout
            extents.append(simplify(layout.extent + layout.offset))
        bounds = [self.sizes.upper(extent) for extent in extents]
        return any(bound is None or bound > NARROW for bound in bounds)

    # sizes and addresses -------------------------------------------------------------------------

    def size(self, expr: Expr) -> str:
        if isinstance(expr, int):
            return str(expr) if expr >= 0 else f"({expr})"
        return self.arguments.setdefault(expr, f"ks{len(self.arguments)}")

    def pointer(self, buffer: str) -> str:
        """Returns a buffer's pointer argument. All buffers of a storage share their dtype."""
        owner = self.program.buffers[buffer]
        kind = pointer_type(owner.dtype)
        if self.types.setdefault(owner.storage, kind) != kind:
            raise unsupported(
                "codegen", f"{owner.storage} is read as {kind} and as {self.types[owner.storage]}"
            )
        return super().pointer(buffer)

    def collapsed(self, index: Index) -> Index:
        """Returns the index with an axis's loops replaced by its flat index where the index is
        contiguous over them."""
        for number, axis in enumerate(self.tile.axes):
            if len(axis.loops) < 2:
                continue
            steps = contiguous_strides([self.nest.sizes[k] for k in axis.loops])
            last = index.coefficient(axis.loops[-1])
            wanted = [simplify(last * step) for step in steps]
            if last == 0 or any(
                index.coefficient(k) != w for k, w in zip(axis.loops, wanted, strict=True)
            ):
                continue
            kept = {
                a: c
                for a, c in index.terms.items()
                if not (isinstance(a, Var) and a.position in axis.loops)
            }
            index = Index(index.const, {**kept, Var(FLAT + number, axis.numel): last})
        terms = {
            (
                type(atom)(self.collapsed(atom.base), atom.divisor)
                if isinstance(atom, (FloorDiv, Mod))
                else atom
            ): c
            for atom, c in index.terms.items()
        }
        return Index(index.const, terms)

    def index_source(self, index: Index, names: dict[Value, str], wide: bool = False) -> str:
        """index: over the loops of the nest. wide: its result may need 64 bits, though no offset of
        the kernel does."""
        loops = (
            {loop: f"{name}.to(tl.int64)" for loop, name in self.names.items()}
            if wide
            else self.names
        )
        return index_source(self.collapsed(index), loops, names.__getitem__, self.size, "//")  # type: ignore[arg-type]

    def number_text(self, index: Index, names: dict[Value, str]) -> str:
        """Returns an index used as a value: unlike an offset it may have any magnitude (arange)."""
        bounds = range_of(index) or ("unknown",)
        wide = any(not isinstance(bound, int) or abs(bound) > NARROW for bound in bounds)
        return self.index_source(walk(index, self.nest), names, wide and not self.wide)

    def address(self, buffer: str, index: Sequence[Index], names: dict[Value, str]) -> str:
        return self.index_source(
            walk(self.program.buffers[buffer].layout.flat(index), self.nest), names
        )

    # axes, masks, shapes -------------------------------------------------------------------------

    def axes(self, positions: Iterable[int]) -> tuple[Axis, ...]:
        """Returns the axes that variables of the domain belong to."""
        loops = {self.nest.place[p] for p in positions}
        result = {
            self.axis_of[k] for k in loops if k in self.axis_of and not _is_one(self.nest.sizes[k])
        }
        return tuple(axis for axis in self.tile.axes if axis in result)

    def whole(
        self, buffer: str, index: Sequence[Index], address: str, axes: tuple[Axis, ...]
    ) -> str:
        """Returns an address as a block over all of `axes`, also where its stride is 0."""
        have = self.axes(self.program.buffers[buffer].layout.flat(index).variables())
        return address if set(have) >= set(axes) else self.spread(address, (), axes)

    def in_row(self, value: Value) -> bool:
        return any(axis.letter == "r" for axis in self.axes(value.variables))

    def mask(self, axes: Iterable[Axis], also: str = "") -> str:
        parts = [f"{axis.letter}mask" for axis in axes if not axis.exact]
        return " & ".join([*parts, *([also] if also else [])])

    def shape(self, axes: Iterable[Axis]) -> str:
        wanted = set(axes)
        return "[" + ", ".join(a.constant if a in wanted else "1" for a in self.tile.axes) + "]"

    def spread(self, text: str, have: tuple[Axis, ...], need: tuple[Axis, ...]) -> str:
        """Returns an index or value broadcast to a block over all of `need`."""
        if have == need and have:
            return text
        return f"({text}) + tl.zeros({self.shape(need)}, tl.int32)"

    # the lines that begin a program --------------------------------------------------------------

    def write_indices(self) -> None:
        self.out.line("pid = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        outer = self.tile.outer
        if len(outer) == 2:
            y, x = outer
            self.out.line(f"programs = tl.cdiv({self.size(x.numel)}, {x.constant})")
            self.write_axis(y, "(pid // programs)")
            self.write_axis(x, "(pid % programs)")
        elif outer:
            self.write_axis(outer[0], "pid")
        reduced = self.tile.reduced
        if reduced is not None and not self.tile.looped:
            self.write_axis(reduced, "")

    @contextlib.contextmanager
    def passes(self, axis: Axis) -> Iterator[None]:
        """Opens a loop over an axis, block by block, with each block's first index in `start`.
        Triton types an end of 2^31 and more as an unsigned 32-bit integer, which the loop's
        comparison reads as negative: such a loop counts its iterations instead."""
        if isinstance(axis.numel, int) and axis.numel > NARROW:
            with self.out.block_python(f"for number in range(0, {-(-axis.numel // axis.block)}):"):
                self.out.line(f"start = (number + tl.zeros([], tl.int64)) * {axis.constant}")
                yield
            return
        with self.out.block_python(
            f"for start in range(0, {self.size(axis.numel)}, {axis.constant}):"
        ):
            yield

    def write_axis(self, axis: Axis, program: str) -> None:
        place = self.tile.axes.index(axis)
        around = ""
        if len(self.tile.axes) > 1:
            around = (
                "["
                + ", ".join(":" if k == place else "None" for k in range(len(self.tile.axes)))
                + "]"
            )
        lanes = f"tl.arange(0, {axis.constant}){around}"
        if program == "":
            text = lanes
        elif program == "start":
            text = f"start + {lanes}"
        else:
            text = f"{program} * {axis.constant} + {lanes}"
        if self.wide and axis.letter in "rq":
            text = f"({text}).to(tl.int64)"
        self.out.line(f"{axis.letter}index = {text}")
        if not axis.exact:
            self.out.line(f"{axis.letter}mask = {axis.letter}index < {self.size(axis.numel)}")
        self._split_axis(axis)

    def _split_axis(self, axis: Axis) -> None:
        if len(axis.loops) < 2:
            return
        steps = contiguous_strides([self.nest.sizes[k] for k in axis.loops])
        for place, (loop, step) in enumerate(zip(axis.loops, steps, strict=True)):
            flat = f"{axis.letter}index"
            text = (
                flat if isinstance(step, int) and step == 1 else f"{flat} // {self._positive(step)}"
            )
            if place > 0:
                text = (
                    f"{text} % {self._positive(self.nest.sizes[loop])}"
                    if text == flat
                    else (f"({text}) % {self._positive(self.nest.sizes[loop])}")
                )
            self.out.line(f"{self.names[loop]} = {text}")

    def _positive(self, size: Expr) -> str:
        """Returns a valid divisor for a size that may be 0: nothing is computed then, but the
        division runs."""
        text = self.size(size)
        return (
            text
            if (isinstance(size, int) and size > 0) or self.sizes.is_positive(size)
            else f"tl.maximum({text}, 1)"
        )


def _is_one(size: Expr) -> bool:
    return isinstance(size, int) and size == 1
