"""Computes a Triton program's indices, masks and addresses.

Static sizes and strides are literals (cheap divisions, loads provably contiguous), symbolic ones
are arguments. A program masks only the axes that may exceed their end and that an access depends
on. Offsets are 64 bits wide where 32 might not suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.index_source import index_source
from inductor_backend.codegen.common.loop_nest import LoopNest, loop_nest, walk
from inductor_backend.codegen.common.op_table import TRITON
from inductor_backend.codegen.triton.block_sizes import FLAT, Axis, Tile
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


def nest_of(
    program: LoopProgram, body: KernelBody, sizes: SizeVars
) -> tuple[LoopNest, Index | None]:
    """Returns the loops of a kernel, and over them an element's position within its row, in the
    order of the tensor's dimensions; None where no reduction or scan gives positions."""
    stores = [store for phase in body.phases for store in phase.loop]
    if not any((store.reduce or store.scan) in _WITH_POSITIONS for store in stores):
        return loop_nest(program, body, sizes, False, by_volume=True), None
    domain = body.domain
    places = [p for p, r in enumerate(domain.reduced) if r]
    strides = contiguous_strides([domain.sizes[p] for p in places])
    loops, position = variables(domain.sizes), Index()
    for place, stride in zip(places, strides, strict=True):
        position = position + loops[place] * stride
    nest = loop_nest(program, body, sizes, False, extra=(position,), by_volume=True)
    return nest, walk(position, nest)


class BlockAddressing:
    """Where the elements of a program's block are. Arguments are added on first use."""

    def __init__(
        self, program: LoopProgram, body: KernelBody, sizes: SizeVars, nest: LoopNest, tile: Tile
    ) -> None:
        self.program, self.sizes, self.nest = program, sizes, nest
        self.arguments = KernelArguments("ks")
        self.size = self.arguments.size
        #: Storage -> pointer type.
        self.types: dict[str, str] = {}
        #: Storages that the kernel stores to.
        self.written: set[str] = set()
        #: The text of each loop's and axis's index.
        self.names: dict[int, str] = {}
        #: Whether offsets need 64 bits.
        self.wide = _needs_wide(program, body, sizes, nest)
        self.enter(tile)

    def enter(self, tile: Tile) -> None:
        """Switches to the dimensions of this tile."""
        self.tile = tile
        self.axis_of = {loop: axis for axis in tile.axes for loop in axis.loops}
        for number, axis in enumerate(tile.axes):
            several = len(axis.loops) > 1
            for place, loop in enumerate(axis.loops):
                self.names[loop] = f"{axis.letter}{place}" if several else f"{axis.letter}index"
            self.names[FLAT + number] = f"{axis.letter}index"

    def pointer(self, buffer: str) -> str:
        """Returns a buffer's pointer argument. All buffers of a storage share their dtype."""
        owner = self.program.buffers[buffer]
        kind = pointer_type(owner.dtype)
        if self.types.setdefault(owner.storage, kind) != kind:
            raise unsupported(
                "codegen", f"{owner.storage} is read as {kind} and as {self.types[owner.storage]}"
            )
        return self.arguments.pointer(owner.storage)

    def collapsed(self, index: Index) -> Index:
        """Returns the index with an axis's loops replaced by its flat index where the index is
        contiguous over them."""
        for number, axis in enumerate(self.tile.axes):
            if len(axis.loops) < 2:
                continue
            strides = contiguous_strides([self.nest.sizes[k] for k in axis.loops])
            last = index.coefficient(axis.loops[-1])
            wanted = [simplify(last * stride) for stride in strides]
            if last == 0 or any(
                index.coefficient(k) != w for k, w in zip(axis.loops, wanted, strict=True)
            ):
                continue
            others = {
                a: c
                for a, c in index.terms.items()
                if not (isinstance(a, Var) and a.position in axis.loops)
            }
            index = Index(index.const, {**others, Var(FLAT + number, axis.numel): last})
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
        return index_source(
            self.collapsed(index), loops, names.__getitem__, self.size, TRITON.floor
        )

    def value_text(self, index: Index, names: dict[Value, str]) -> str:
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

    def broadcast_address(
        self, buffer: str, index: Sequence[Index], address: str, axes: tuple[Axis, ...]
    ) -> str:
        """Returns an address as a block over all of `axes`, also where its stride is 0."""
        have = self.axes(self.program.buffers[buffer].layout.flat(index).variables())
        return address if set(have) >= set(axes) else self.spread(address, axes)

    def in_row(self, value: Value) -> bool:
        """Returns whether a value differs from element to element of a row."""
        return any(axis.letter == "r" for axis in self.axes(value.variables))

    def mask(self, axes: Iterable[Axis], also: str = "") -> str:
        parts = [f"{axis.letter}mask" for axis in axes if not axis.exact]
        return " & ".join([*parts, *([also] if also else [])])

    def shape(self, axes: Iterable[Axis]) -> str:
        wanted = set(axes)
        return "[" + ", ".join(a.constant if a in wanted else "1" for a in self.tile.axes) + "]"

    def spread(self, text: str, axes: tuple[Axis, ...]) -> str:
        """Returns an index or value broadcast to a block over all of `axes`."""
        return f"({text}) + tl.zeros({self.shape(axes)}, tl.int32)"

    def divisor(self, size: Expr) -> str:
        """Returns a valid divisor for a size that may be 0: nothing is computed then, but the
        division runs."""
        text = self.size(size)
        return (
            text
            if (isinstance(size, int) and size > 0) or self.sizes.is_positive(size)
            else f"tl.maximum({text}, 1)"
        )


def _needs_wide(program: LoopProgram, body: KernelBody, sizes: SizeVars, nest: LoopNest) -> bool:
    extents: list[Expr] = [product(nest.sizes)]
    for name in (*body.reads(), *body.writes):
        layout = program.buffers[name].layout
        extents.append(simplify(layout.extent + layout.offset))
    bounds = [sizes.upper(extent) for extent in extents]
    return any(bound is None or bound > NARROW for bound in bounds)


def _is_one(size: Expr) -> bool:
    return isinstance(size, int) and size == 1
