"""Writes the lines of a Triton program that compute its indices and masks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.addressing import NARROW, BlockAddressing
from inductor_backend.codegen.triton.block_sizes import Axis
from inductor_backend.ir.index_expr import contiguous_strides


class IndexWriter:
    """Writes indices and masks by the names that `addressing` gives them."""

    def __init__(self, addressing: BlockAddressing, out: CodeWriter) -> None:
        self.addressing, self.out = addressing, out

    def program(self) -> None:
        """Writes the indices of the block of program `pid`."""
        addressing, tile = self.addressing, self.addressing.tile
        if len(tile.outer) == 2:
            y, x = tile.outer
            self.out.line(f"programs = tl.cdiv({addressing.size(x.numel)}, {x.constant})")
            self.axis(y, "(pid // programs)")
            self.axis(x, "(pid % programs)")
        elif tile.outer:
            self.axis(tile.outer[0], "pid")
        if tile.reduced is not None and not tile.looped:
            self.axis(tile.reduced)

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
        size = self.addressing.size(axis.numel)
        with self.out.block_python(f"for start in range(0, {size}, {axis.constant}):"):
            yield

    def axis(self, axis: Axis, block: str = "") -> None:
        """Writes the indices of a block along an axis. block: its number; "start": it begins at
        `start`; "": it is the only one."""
        addressing, axes = self.addressing, self.addressing.tile.axes
        places = ", ".join(":" if other is axis else "None" for other in axes)
        lanes = f"tl.arange(0, {axis.constant}){f'[{places}]' if len(axes) > 1 else ''}"
        text = {"": lanes, "start": f"start + {lanes}"}.get(
            block, f"{block} * {axis.constant} + {lanes}"
        )
        if addressing.wide and axis.letter in "rq":
            text = f"({text}).to(tl.int64)"
        self.out.line(f"{axis.letter}index = {text}")
        if not axis.exact:
            size = addressing.size(axis.numel)
            self.out.line(f"{axis.letter}mask = {axis.letter}index < {size}")
        self._split(axis)

    def _split(self, axis: Axis) -> None:
        """Writes the index of each loop of an axis of several."""
        if len(axis.loops) < 2:
            return
        addressing = self.addressing
        strides = contiguous_strides([addressing.nest.sizes[k] for k in axis.loops])
        for place, (loop, stride) in enumerate(zip(axis.loops, strides, strict=True)):
            text = flat = f"{axis.letter}index"
            if not (isinstance(stride, int) and stride == 1):
                text = f"{flat} // {addressing.divisor(stride)}"
            if place > 0:
                size = addressing.divisor(addressing.nest.sizes[loop])
                text = f"{text if text == flat else f'({text})'} % {size}"
            self.out.line(f"{addressing.names[loop]} = {text}")
