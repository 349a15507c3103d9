"""Writes flex_attention as Triton kernels: attention over the listed blocks of scores, with the
program's functions of scores inside.

A program computes one block of rows of one head. It walks the partly masked blocks (score_mod, then
mask_mod), then the full ones (score_mod only), with a running maximum and sum of exponentials
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022). Exponentials are powers of two. Rows without a key are 0, and their
logarithm is minus infinity. No block that is not listed is read.

Where there are too few blocks of rows for a GPU (decoding has one a head), several programs share a
block: each walks over a part of the keys, and a second kernel combines what they found (Dao et al.,
"Flash-Decoding for long-context inference", 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from inductor_backend.codegen.common.flex_call import Call
from inductor_backend.codegen.triton.flex_scores import RUNNING_SOFTMAX, ScoresWriter
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import contiguous_strides
from inductor_backend.ir.nodes import BufferLayout, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels.flex_attention import Tiles, forward_splits, forward_tiles, padded

#: What a program of a split walk leaves for the kernel that combines.
_PARTS = ("part_sums", "part_total", "part_most")


class _Forward(ScoresWriter):
    """Writes the forward kernel."""

    def __init__(self, call: Call, sizes: SizeVars, tiles: Tiles, splits: int) -> None:
        super().__init__(call, sizes, tiles)
        self.splits = splits

    def write(self) -> TritonKernel:
        line = self.line
        with self.out.indented():
            self.place_of_rows()
            line(f"query_at = {self.start('query', ('b', 'h', 'start'))}")
            line(f"query = {self.load('query', 'query_at', 'in_rows', 'width')}")
            for name in ("key", "value"):
                line(f"{name}_at = {self.start(name, ('b', 'shared'))}")
            self.begin("score", "mask")
            line("most = tl.full([ROWS], float('-inf'), tl.float32)")
            line("total = tl.zeros([ROWS], tl.float32)")
            line(f"sums = tl.zeros([ROWS, {padded(self.value_width)}], tl.float32)")
            self.walk(self._tile)
            if self.splits > 1:
                self._parts()
            else:
                line("sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]")
                line(f"out_at = {self.start('out', ('b', 'h', 'start'))}")
                self.store("out", "out_at", "in_rows", "wide", "sums")
                self._levels("start", " + in_rows", self.row_ok)
        grid = ((self.rows, self.tiles.rows), (self.batch * self.heads, 1), (self.splits, 1))
        return self.kernel(grid)

    def _tile(self, masked: bool) -> None:
        line = self.line
        line("columns = first + in_columns")
        if self.column_ok:
            line(f"column_ok = columns < {self.size(self.columns)}")
        keys, values = self.call.layout("key"), self.call.layout("value")
        line(f"key_block = key_at + {self.long('first')} * {self.size(keys.strides[2])}")
        line(f"key = {self.load('key', 'key_block', 'in_columns', 'width', transposed=True)}")
        line(f"score = {self.dot('query', 'key')} * {self.scale!r}")
        line(f"scores = {self.scored()}")
        allowed = self.allowed(masked)
        if allowed:
            line(f'scores = tl.where({allowed}, scores, float("-inf"))')
        line("scores = tl.broadcast_to(scores, [ROWS, COLUMNS])")
        for text in RUNNING_SOFTMAX:
            line(text)
        line(f"value_block = value_at + {self.long('first')} * {self.size(values.strides[2])}")
        line(f"value = {self.load('value', 'value_block', 'in_columns', 'wide')}")
        line(f"sums = {self.dot('weights.to(value.dtype)', 'value', 'sums')}")

    def _levels(self, start: str, within: str, ok: str) -> None:
        """Writes the stores of the logarithm of each row's sum, and of its largest score."""
        for name, text in (("lse", "most + tl.log2(total)"), ("most", "most")):
            if name in self.call.tensors:
                stride = self.size(self.call.layout(name).strides[2])
                at = self.start(name, ("b", "h", start)) + (within and f"{within} * {stride}")
                self.line(f"tl.store({at}, {text}{f', mask={ok}' if ok else ''})")

    def _parts(self) -> None:
        at = ("b", f"(h * {self.splits} + split)", "start")
        mask = f", mask={self.row_ok}" if self.row_ok else ""
        self.line(f"sums_at = {self.start('part_sums', at)}")
        self.store("part_sums", "sums_at", "in_rows", "wide", "sums")
        for name, text in (("part_total", "total"), ("part_most", "most")):
            self.line(f"tl.store({self.start(name, at)} + in_rows, {text}{mask})")


class _Combination(_Forward):
    """Writes the kernel that combines the parts of one row in each program."""

    label = "flex_attention_combine"

    def write(self) -> TritonKernel:
        line, splits = self.line, self.splits
        with self.out.indented():
            line("pid = tl.program_id(0)")
            line(f"row = pid % {self.size(self.rows)}")
            line(f"h = (pid // {self.size(self.rows)}) % {self.size(self.heads)}")
            line(f"b = pid // ({self.size(self.rows)} * {self.size(self.heads)})")
            line(f"parts = tl.arange(0, {splits})")
            line(f"wide = tl.arange(0, {padded(self.value_width)})")
            at = ("b", f"(h * {splits})", "row")
            for name in ("most", "total"):
                stride = self.size(self.call.layout(f"part_{name}").strides[1])
                line(f"{name}s = tl.load({self.start(f'part_{name}', at)} + parts * {stride})")
            line("most = tl.max(mosts, 0)")
            line('level = tl.where(most == float("-inf"), 0.0, most)')
            line("rescale = tl.exp2(mosts - level)")
            line("total = tl.sum(totals * rescale, 0)")
            stride = self.size(self.call.layout("part_sums").strides[1])
            line(f"sums_at = {self.start('part_sums', at)} + parts[:, None] * {stride}")
            exact = padded(self.value_width) == self.value_width
            mask = "" if exact else f"wide < {self.value_width}"
            masked = mask and f", mask=({mask})[None, :], other=0.0"
            line(f"sums = tl.sum(tl.load(sums_at + wide[None, :]{masked}) * rescale[:, None], 0)")
            line("sums = sums / tl.where(total == 0.0, 1.0, total)")
            stride = self.size(self.call.layout("out").strides[3])
            out = f"{self.start('out', ('b', 'h', 'row'))} + wide * {stride}"
            line(f"tl.store({out}, sums{mask and f', mask={mask}'})")
            self._levels("row", "", "")
        return self.kernel(((self.rows, 1), (self.batch * self.heads, 1)))


def forward_kernels(
    call: Call, sizes: SizeVars
) -> tuple[list[TritonKernel], Mapping[str, BufferLayout]]:
    """Returns the kernels of a call of the forward operator, and the float32 tensors that they need
    besides."""
    query = call.layout("query")
    batch, heads, rows, width = query.sizes
    value_width = call.layout("value").sizes[3]
    columns = sizes.hint(call.layout("key").sizes[2])
    tiles = forward_tiles(
        call.dtypes["query"], max(width, value_width), sizes.hint(rows), call.flex.block_size,
        call.flex.options,
    )  # fmt: skip
    if tiles is None:
        raise unsupported("codegen", f"flex_attention with blocks of {call.flex.block_size}")
    programs = sizes.hint(batch) * sizes.hint(heads) * -(-sizes.hint(rows) // tiles.rows)
    splits = forward_splits(programs, columns, tiles)
    if splits == 1:
        return [_Forward(call, sizes, tiles, 1).write()], {}
    shape = (batch, heads * splits, rows)
    shapes = dict.fromkeys(_PARTS, shape) | {"part_sums": (*shape, value_width)}
    parts = {name: BufferLayout(size, contiguous_strides(size)) for name, size in shapes.items()}
    call = replace(
        call,
        tensors={**call.tensors, **{name: Strided(name, part) for name, part in parts.items()}},
        dtypes={**call.dtypes, **dict.fromkeys(parts, torch.float32)},
    )
    writers = (_Forward, _Combination)
    return [writer(call, sizes, tiles, splits).write() for writer in writers], parts
