"""Writes flex_attention as one Triton kernel: attention over the listed blocks of scores, with the
program's functions of scores inside.

A program computes one block of rows of one head. It walks the partly masked blocks (score_mod, then
mask_mod), then the full ones (score_mod only), with a running maximum and sum of exponentials
(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022). Exponentials are powers of two. Rows without a key are 0, and their
logarithm is minus infinity. No block that is not listed is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.scalar_functions import FunctionWriter, Started
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import ExternNode, Layout, Program, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import in_tensor_cores
from inductor_backend.kernels.flex_attention import Tiles, forward_tiles, padded
from tracer_core.plugin_api import flex_attention

LOG2_E = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the operator. tensors: its operands and results by the names that kernels use.
    layouts: theirs."""

    flex: Any
    scale: float
    numbers: Mapping[str, Expr]
    tensors: Mapping[str, Strided]
    dtypes: Mapping[str, torch.dtype]

    def layout(self, name: str) -> Layout:
        return self.tensors[name].layout


def call_of(program: Program, node: ExternNode) -> Call:
    """Returns what an extern node of the forward operator calls."""
    query, key, value, blocks, buffers, numbers, scale, text = node.args
    flex = flex_attention().flex_of(text)
    tensors = {"query": query, "key": key, "value": value}
    for pair, (counts, indices) in zip(
        flex.pairs, zip(blocks[::2], blocks[1::2], strict=True), strict=True
    ):
        tensors |= {f"{pair}_counts": counts, f"{pair}_indices": indices}
    tensors |= {f"t{k}": buffer for k, buffer in enumerate(buffers)}
    for name, output in zip(("out", "lse", "most"), node.outputs, strict=True):
        if output is not None:
            tensors[name] = Strided(output, program.buffers[output].layout)
    dtypes = {name: program.buffers[one.buffer].dtype for name, one in tensors.items()}
    return Call(flex, scale, {f"n{k}": n for k, n in enumerate(numbers)}, tensors, dtypes)


class _Writer:
    """Writes a kernel over blocks of scores. Mutable."""

    def __init__(self, call: Call, sizes: SizeVars, tiles: Tiles) -> None:
        self.call, self.sizes, self.tiles, self.flex = call, sizes, tiles, call.flex
        self.out = CodeWriter()
        self.pointers: dict[str, str] = {}
        self.arguments: dict[Expr, str] = {}
        query, key = call.layout("query"), call.layout("key")
        self.batch, self.heads, self.rows, self.width = query.sizes
        self.key_batch, self.key_heads, self.columns, _ = key.sizes
        self.value_width = call.layout("value").sizes[3]
        limits = {"b": self.batch, "h": self.heads, "q": self.rows, "kv": self.columns}
        operands = {
            name: (call.dtypes[name], call.layout(name))
            for name in call.tensors
            if name[0] == "t" and name[1:].isdigit()
        }
        self.functions = FunctionWriter(
            self.out, sizes, operands, call.numbers, self.pointer, self.size, limits
        )
        self.exact_rows = self._is_multiple(self.rows, tiles.rows)
        self.exact_columns = self._is_multiple(self.columns, tiles.columns)
        masks = {} if self.exact_rows else {"q": "row_ok[:, None]"}
        masks |= {} if self.exact_columns else {"kv": "column_ok[None, :]"}
        self.functions.masks = masks
        self.started: dict[str, Started] = {}

    @staticmethod
    def _is_multiple(size: Expr, block: int) -> bool:
        return isinstance(size, int) and size % block == 0

    # arguments -----------------------------------------------------------------------------------

    def pointer(self, name: str) -> str:
        return self.pointers.setdefault(name, f"p{len(self.pointers)}")

    def size(self, expr: Expr) -> str:
        if isinstance(expr, int):
            return str(expr) if expr >= 0 else f"({expr})"
        return self.arguments.setdefault(expr, f"ks{len(self.arguments)}")

    def line(self, text: str) -> None:
        self.out.line(text)

    # parts of kernels ----------------------------------------------------------------------------

    def start(self, name: str, texts: Sequence[str]) -> str:
        """Returns a pointer to an element of a tensor, by the texts of the first indices; an index of
        a dimension of size 1 is 0. (The argument is a view that begins at its first element.)"""
        layout = self.call.layout(name)
        parts = [self.pointer(name)]
        for size, stride, text in zip(layout.sizes, layout.strides, texts, strict=False):
            if not (isinstance(size, int) and size == 1) and text != "0":
                parts.append(f"{text}.to(tl.int64) * {self.size(stride)}")
        return " + ".join(parts)

    def matrix(
        self, pointer: str, strides: Sequence[Expr], first: str, second: str, masks: Sequence[str]
    ) -> str:
        """Returns the load of a block. first, second: texts of the indices, broadcast."""
        rows, columns = (self.size(stride) for stride in strides)
        mask = " & ".join(one for one in masks if one)
        mask = f", mask={mask}, other=0.0" if mask else ""
        return f"tl.load({pointer} + {first} * {rows} + {second} * {columns}{mask})"

    def dot(self, left: str, right: str, also: str = "") -> str:
        precision = ""
        if self.call.dtypes["query"] is torch.float32:
            kind = "tf32" if in_tensor_cores(torch.float32, convolution=False) else "ieee"
            precision = f', input_precision="{kind}"'
        return f"tl.dot({left}, {right}{f', {also}' if also else ''}{precision})"

    def begin(self) -> None:
        """Writes what score_mod and mask_mod compute once a row."""
        texts = {
            "score": "score",
            "b": "b",
            "h": "h",
            "q": "rows[:, None]",
            "kv": "columns[None, :]",
        }
        self.started = {
            name: self.functions.begin(program, texts, torch.float32)
            for name, program in (("score", self.flex.score), ("mask", self.flex.mask))
            if program is not None
        }

    def scored(self) -> str:
        """Writes score_mod; returns the scores over ln 2."""
        if self.flex.score is None:
            return "score"
        (found,) = self.functions.finish(self.started["score"])
        return f"({found}) * {LOG2_E!r}"

    @property
    def scale(self) -> float:
        """What products are multiplied by."""
        return float(self.call.scale * (LOG2_E if self.flex.score is None else 1.0))

    def masked(self) -> str:
        """Writes mask_mod and returns its result."""
        (found,) = self.functions.finish(self.started["mask"])
        return found

    def text(self, constants: Sequence[tuple[str, int]]) -> str:
        parameters = [*self.pointers.values(), *self.arguments.values()]
        parameters += [f"{name}: tl.constexpr" for name, _ in constants]
        head = CodeWriter()
        head.line("@triton.jit")
        head.line(f"def {NAME}({', '.join(parameters)}):")
        head.lines += self.out.lines
        return head.text()

    def kernel(self, grid: tuple[tuple[Expr, int], ...]) -> TritonKernel:
        constants = (("ROWS", self.tiles.rows), ("COLUMNS", self.tiles.columns))
        return TritonKernel(
            self.text(constants),
            tuple(self.pointers),
            tuple(pointer_type(self.call.dtypes[name]) for name in self.pointers),
            tuple(self.arguments),
            grid,
            constants,
            self.tiles.warps,
            "flex_attention",
            stages=self.tiles.stages,
            asserts=self.functions.asserts,
        )


class _Forward(_Writer):
    """Writes the forward kernel."""

    def write(self) -> TritonKernel:
        with self.out.indented():
            self._position()
            self._query()
            self.begin()
            self.line("most = tl.full([ROWS], float('-inf'), tl.float32)")
            self.line("total = tl.zeros([ROWS], tl.float32)")
            self.line(f"sums = tl.zeros([ROWS, {padded(self.value_width)}], tl.float32)")
            if "kv" in self.flex.pairs:
                self._listed("kv", masked=self.flex.mask is not None)
            else:
                with self.out.block_python(
                    f"for first in range(0, {self.size(self.columns)}, COLUMNS):"
                ):
                    self._block(masked=self.flex.mask is not None)
            if "full_kv" in self.flex.pairs:
                self._listed("full_kv", masked=False)
            self._results()
        return self.kernel(((self.rows, self.tiles.rows), (self.batch * self.heads, 1)))

    def _position(self) -> None:
        line = self.line
        line("pid = tl.program_id(0)")
        line(f"blocks = tl.cdiv({self.size(self.rows)}, ROWS)")
        line("start = (pid % blocks) * ROWS")
        line(f"h = (pid // blocks) % {self.size(self.heads)}")
        line(f"b = pid // (blocks * {self.size(self.heads)})")
        shared = self.heads // self.key_heads
        line(f"shared = h // {shared}" if shared > 1 else "shared = h")
        line("rows = start + tl.arange(0, ROWS)")
        line("in_rows = tl.arange(0, ROWS)")
        line("in_columns = tl.arange(0, COLUMNS)")
        if not self.exact_rows:
            line(f"row_ok = rows < {self.size(self.rows)}")

    def _query(self) -> None:
        layout = self.call.layout("query")
        start = self.start("query", ("b", "h", "start"))
        self.line(f"width = tl.arange(0, {padded(self.width)})")
        self.line(f"wide = tl.arange(0, {padded(self.value_width)})")
        self.line(f"query_at = {start}")
        masks = ["" if self.exact_rows else "row_ok[:, None]", self._of_width("width", "[None, :]")]
        loaded = self.matrix(
            "query_at", layout.strides[2:], "in_rows[:, None]", "width[None, :]", masks
        )
        self.line(f"query = {loaded}")
        batch = "b" if not self._is_one(self.key_batch) else "0"
        self.line(f"key_at = {self.start('key', (batch, 'shared'))}")
        self.line(f"value_at = {self.start('value', (batch, 'shared'))}")

    @staticmethod
    def _is_one(size: Expr) -> bool:
        return isinstance(size, int) and size == 1

    def _of_width(self, name: str, around: str) -> str:
        """Returns where a head's element exists, "" for everywhere."""
        size = self.width if name == "width" else self.value_width
        return "" if padded(size) == size else f"({name}{around} < {size})"

    def _listed(self, pair: str, masked: bool) -> None:
        """Writes the loop over the listed blocks, in parts of COLUMNS keys."""
        rows, columns = self.flex.block_size
        each = columns // self.tiles.columns
        at = ("b", "h", f"(start // {rows})")
        self.line(f"count = tl.load({self.start(f'{pair}_counts', at)})")
        self.line(f"listed = {self.start(f'{pair}_indices', at)}")
        stride = self.size(self.call.layout(f"{pair}_indices").strides[3])
        with self.out.block_python(f"for step in range(0, count * {each}):"):
            self.line(f"block = tl.load(listed + (step // {each}) * {stride})")
            self.line(f"first = block * {columns} + (step % {each}) * COLUMNS")
            if not self.exact_columns or columns % self.tiles.columns:
                self.line("first = first.to(tl.int32)")
            self._block(masked)

    def _block(self, masked: bool) -> None:
        line = self.line
        line("columns = first + in_columns")
        if not self.exact_columns:
            line(f"column_ok = columns < {self.size(self.columns)}")
        keys, values = self.call.layout("key"), self.call.layout("value")
        ok = "" if self.exact_columns else "column_ok"
        line(f"key_block = key_at + {self._long('first')} * {self.size(keys.strides[2])}")
        loaded = self.matrix(
            "key_block", (keys.strides[3], keys.strides[2]), "width[:, None]", "in_columns[None, :]",
            [self._of_width("width", "[:, None]"), ok and f"{ok}[None, :]"],
        )  # fmt: skip
        line(f"key = {loaded}")
        line(f"score = {self.dot('query', 'key')} * {self.scale!r}")
        line(f"scores = {self.scored()}")
        if masked:
            line(f'scores = tl.where({self.masked()}, scores, float("-inf"))')
        if not self.exact_columns:
            line('scores = tl.where(column_ok[None, :], scores, float("-inf"))')
        line("scores = tl.broadcast_to(scores, [ROWS, COLUMNS])")
        line("higher = tl.maximum(most, tl.max(scores, 1))")
        line('level = tl.where(higher == float("-inf"), 0.0, higher)')
        line("weights = tl.exp2(scores - level[:, None])")
        line("kept = tl.exp2(most - level)")
        line("total = total * kept + tl.sum(weights, 1)")
        line("most = higher")
        line(f"value_block = value_at + {self._long('first')} * {self.size(values.strides[2])}")
        loaded = self.matrix(
            "value_block", values.strides[2:], "in_columns[:, None]", "wide[None, :]",
            [ok and f"{ok}[:, None]", self._of_width("wide", "[None, :]")],
        )  # fmt: skip
        line(f"value = {loaded}")
        line("sums = sums * kept[:, None]")
        line(f"sums = {self.dot('weights.to(value.dtype)', 'value', 'sums')}")

    def _long(self, text: str) -> str:
        return (
            f"{text}.to(tl.int64)"
            if "kv" in self.flex.pairs
            else f"(tl.zeros([], tl.int64) + {text})"
        )

    def _results(self) -> None:
        line, call = self.line, self.call
        ok = "" if self.exact_rows else "row_ok"
        line("sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]")
        out = call.layout("out")
        line(f"out_at = {self.start('out', ('b', 'h', 'start'))}")
        masks = [ok and f"{ok}[:, None]", self._of_width("wide", "[None, :]")]
        mask = " & ".join(one for one in masks if one)
        line(
            f"tl.store(out_at + in_rows[:, None] * {self.size(out.strides[2])} + wide[None, :] *"
            f" {self.size(out.strides[3])}, sums{f', mask={mask}' if mask else ''})"
        )
        for name, text in (("lse", "most + tl.log2(total)"), ("most", "most")):
            if name in call.tensors:
                stride = self.size(call.layout(name).strides[2])
                line(
                    f"tl.store({self.start(name, ('b', 'h', 'start'))} + in_rows * {stride}, {text}"
                    f"{f', mask={ok}' if ok else ''})"
                )


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
