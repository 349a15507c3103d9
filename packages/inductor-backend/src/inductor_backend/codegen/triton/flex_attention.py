"""Writes flex_attention as one Triton kernel: attention over the listed blocks of scores, with the
program's functions of scores inside.

A program computes one block of rows of one head. It walks the partly masked blocks (score_mod, then
mask_mod), then the full ones (score_mod only), with a running maximum and sum of exponentials
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022). Exponentials are powers of two. Rows without a key are 0, and their
logarithm is minus infinity. No block that is not listed is read.
"""

from __future__ import annotations

from inductor_backend.codegen.common.flex_call import Call
from inductor_backend.codegen.triton.flex_scores import ScoresWriter
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels.flex_attention import forward_tiles, padded


class _Forward(ScoresWriter):
    """Writes the forward kernel."""

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
            self._results()
        return self.kernel(((self.rows, self.tiles.rows), (self.batch * self.heads, 1)))

    def _tile(self, masked: bool) -> None:
        line = self.line
        line("columns = first + in_columns")
        if self.column_ok:
            line(f"column_ok = columns < {self.size(self.columns)}")
        keys, values = self.call.layout("key"), self.call.layout("value")
        line(f"key_block = key_at + {self.long('first')} * {self.size(keys.strides[2])}")
        line(f"key = {self.load('key', 'key_block', 'in_columns', 'width', turned=True)}")
        line(f"score = {self.dot('query', 'key')} * {self.scale!r}")
        line(f"scores = {self.scored()}")
        allowed = self.allowed(masked)
        if allowed:
            line(f'scores = tl.where({allowed}, scores, float("-inf"))')
        line("scores = tl.broadcast_to(scores, [ROWS, COLUMNS])")
        line("higher = tl.maximum(most, tl.max(scores, 1))")
        line('level = tl.where(higher == float("-inf"), 0.0, higher)')
        line("weights = tl.exp2(scores - level[:, None])")
        line("kept = tl.exp2(most - level)")
        line("total = total * kept + tl.sum(weights, 1)")
        line("most = higher")
        line(f"value_block = value_at + {self.long('first')} * {self.size(values.strides[2])}")
        line(f"value = {self.load('value', 'value_block', 'in_columns', 'wide')}")
        line("sums = sums * kept[:, None]")
        line(f"sums = {self.dot('weights.to(value.dtype)', 'value', 'sums')}")

    def _results(self) -> None:
        line = self.line
        line("sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]")
        line(f"out_at = {self.start('out', ('b', 'h', 'start'))}")
        self.store("out", "out_at", "in_rows", "wide", "sums")
        for name, text in (("lse", "most + tl.log2(total)"), ("most", "most")):
            if name in self.call.tensors:
                stride = self.size(self.call.layout(name).strides[2])
                at = self.start(name, ("b", "h", "start"))
                mask = f", mask={self.row_ok}" if self.row_ok else ""
                line(f"tl.store({at} + in_rows * {stride}, {text}{mask})")


def forward_kernel(call: Call, sizes: SizeVars) -> TritonKernel:
    """Returns the kernel of a call of the forward operator."""
    query = call.layout("query")
    widths = query.sizes[3], call.layout("value").sizes[3]
    tiles = forward_tiles(
        call.dtypes["query"], max(widths), sizes.hint(query.sizes[2]), call.flex.block_size,
        call.flex.options,
    )  # fmt: skip
    if tiles is None:
        raise unsupported("codegen", f"flex_attention with blocks of {call.flex.block_size}")
    return _Forward(call, sizes, tiles).write()
