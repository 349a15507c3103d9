"""Writes flex_attention as one C++ kernel, and its gradients as another: over the listed blocks of
scores, with the program's functions of scores inside.

A task of the forward computes one block of rows of one head. It walks the partly masked blocks (score_mod, then
mask_mod), then the full ones (score_mod only), `TC_COLUMNS` keys at a time, with a running maximum and
sum of exponentials; products are of blocks that stay in the thread's cache (`prelude_attention.h`).
Scores and sums are float32. Rows without a key are 0, and their logarithm is minus infinity. No block
that is not listed is read. A task of the backward computes the gradients of one head of keys, and of
the queries that share it, from weights that it computes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.flex_call import Call, call_of
from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.common.op_table import CPP, SPECIAL_OPS
from inductor_backend.codegen.common.scalar_programs import FunctionWriter, Started
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.element_writer import SPECIAL_HEADER
from inductor_backend.codegen.cpp.expressions import (
    C_TYPES,
    TO_MEMORY,
    constant_source,
    memory_type,
)
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import ExternNode, LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import DIVISIONS, Value
from inductor_backend.kernels.flex_attention import rows_of_task
from tracer_core.plugin_api import FLEX_ATTENTION, ScalarProgram

HEADER = "prelude_attention.h"
#: Products below which a second thread does not pay.
PARALLEL_WORK = 150_000


class CppFunctionWriter(FunctionWriter):
    """Writes scalar programs element by element. fails: whether an index may be out of range, or a
    divisor 0."""

    language = CPP

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.headers: set[str] = set()
        self.fails = False

    def as_long(self, text: str) -> str:
        return f"(int64_t){text}"

    def rounded(self, text: str, dtype: torch.dtype) -> str:
        return f"tc_to_float({TO_MEMORY[dtype]}({text}))"

    def definition(self, value: Value, name: str, text: str) -> str:
        return f"const {C_TYPES[value.dtype]} {name} = ({C_TYPES[value.dtype]})({text});"

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        return f"(int64_t)({self._index(index, names)})"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        """An index out of range is noted in `bad`, so that a loop stays one of vectors."""
        self.fails = True
        inside = f"(uint64_t){index} < (uint64_t){size}"
        self.out.line(f"bad |= !({inside});")
        return f"{inside} ? {index} : 0"

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        if value.name in SPECIAL_OPS:
            self.headers.add(SPECIAL_HEADER)
        if value.name in DIVISIONS and not value.dtype.is_floating_point:
            self.fails = True
        return super().value_source(value, names)

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        if value.name == "masked_load":
            raise unsupported("codegen", "a masked load in a function of scores")
        _, layout = self.operands[value.buffer]
        long = {value: f"(int64_t){text}" for value, text in names.items()}
        address = self._index(layout.flat(value.attr[1]), long)
        return f"tc_load({self.pointer_of(value.buffer)}, {address})"


class _Kernel:
    """Writes a kernel over blocks of scores. Mutable. most: rows that a thread holds. allocates:
    whether memory may be lacking."""

    label: str
    most: int
    allocates = False

    def __init__(self, program: LoopProgram, call: Call, sizes: SizeVars) -> None:
        self.program, self.call, self.flex = program, call, call.flex
        self.out = CodeWriter()
        self.arguments = KernelArguments("s", cast="(int64_t)")
        self.size = self.arguments.size
        query, key = call.layout("query"), call.layout("key")
        self.batch, self.heads, self.rows, self.width = query.sizes
        self.key_batch, self.key_heads, self.columns, _ = key.sizes
        self.value_width = call.layout("value").sizes[3]
        widest = max(self.width, self.value_width)
        self.block = rows_of_task(self.most, widest, self.flex.block_size[0])
        limits = {"b": self.batch, "h": self.heads, "q": self.rows, "kv": self.columns}
        self.functions = CppFunctionWriter(
            self.out, sizes, call.captured(), call.numbers, self.pointer, self.size, limits
        )

    # arguments -----------------------------------------------------------------------------------

    def pointer(self, name: str) -> str:
        storage = self.program.buffers[self.call.tensors[name].buffer].storage
        return self.arguments.pointer(storage)

    def start(self, name: str, *texts: str) -> str:
        """Returns a pointer to an element of a tensor, by the texts of the first indices; an index of
        a dimension of size 1 is 0."""
        layout = self.call.layout(name)
        parts = [self.pointer(name)]
        if not (isinstance(layout.offset, int) and layout.offset == 0):
            parts.append(self.size(layout.offset))
        for size, stride, text in zip(layout.sizes, layout.strides, texts, strict=False):
            if not (isinstance(size, int) and size == 1):
                parts.append(f"{text} * {self.size(stride)}")
        return " + ".join(parts)

    def strides(self, name: str) -> str:
        """Returns the strides of a head's rows and of their elements."""
        return ", ".join(map(self.size, self.call.layout(name).strides[2:]))

    # text ----------------------------------------------------------------------------------------

    def kernel(self, position: str, loop: str, results: tuple[str, ...]) -> KernelSource:
        """Returns the kernel. position: parameters of a task's function. loop: lines that call it, in
        which ``{}`` stands for the call's arguments after the position. results: names of tensors."""
        parameters = [
            f"{memory_type(self.program.buffers[storage].dtype)}* {name}"
            for storage, name in self.arguments.pointers.items()
        ]
        sizes = (
            f"const int64_t B = {self.size(self.batch)}, H = {self.size(self.heads)}, R ="
            f" {self.size(self.rows)}, N = {self.size(self.columns)}, KB ="
            f" {self.size(self.key_batch)}, KH = {self.size(self.key_heads)};"
        )
        parameters += [f"int64_t {name}" for name in self.arguments.sizes.values()]
        text = ", ".join(self.arguments.names)
        writer = CodeWriter()
        writer.line(
            f"static __attribute__((noinline)) void {NAME}_task({position}, {', '.join(parameters)})"
        )
        writer.lines[-1] += " {"
        writer.lines += self.out.lines
        writer.line("}")
        with writer.block(f"static void {NAME}({', '.join(parameters)})"):
            writer.line(sizes)
            writer.line(
                f"const bool many = B * H * R * N * {self.width + self.value_width} >"
                f" {PARALLEL_WORK};"
            )
            for line in loop.splitlines():
                writer.line(line.replace("{}", text))
        names = list(self.arguments.pointers.values())
        written = [self.pointer(name) for name in results if name in self.call.tensors]
        return KernelSource(
            writer.text(), tuple(self.arguments.pointers), tuple(self.arguments.sizes), self.label,
            tuple(sorted(names.index(name) for name in written)), self.functions.fails or self.allocates,
            headers=frozenset({HEADER, *self.functions.headers}),
        )  # fmt: skip

    @staticmethod
    def padded(width: int) -> int:
        """Returns the width of a row in whole vectors of any processor."""
        return -(-width // 16) * 16

    def function(self, program: ScalarProgram, result: Callable[[str], str]) -> None:
        """Writes a function of scores over the row `s` of a tile. result: returns a statement."""
        texts = {
            "score": "s[c]", "grad": "g[c]", "b": "(int32_t)b", "h": "(int32_t)h", "q": "row",
            "kv": "(from + (int32_t)c)",
        }  # fmt: skip
        line = self.out.line
        with self.out.block(""):
            line("int bad = 0;")
            started: Started = self.functions.begin(program, texts, torch.float32)
            line("#pragma omp simd reduction(| : bad)")
            with self.out.block("for (int64_t c = 0; c < count; ++c)"):
                (results,) = self.functions.finish(started)
                line(result(results))
            line("if (bad) tc_fail(TC_BAD_INDEX);")

    def walk(self) -> None:
        line = self.out.line
        if not self.flex.pairs:
            self._tiles("0", self.size(self.columns), True)
            return
        rows, columns = self.flex.block_size
        pairs = [pair for pair in ("kv", "full_kv") if pair in self.flex.pairs]
        at = ("b", "h", f"(start / {rows})")
        for pair in pairs:
            line(f"const int64_t {pair}_count = *({self.start(f'{pair}_counts', *at)});")
            line(f"const auto* {pair}_blocks = {self.start(f'{pair}_indices', *at)};")
        stride = {pair: self.size(self.call.layout(f"{pair}_indices").strides[3]) for pair in pairs}
        for pair in pairs:
            with self.out.block(f"for (int64_t k = 0; k < {pair}_count; ++k)"):
                line(f"const int64_t block = {pair}_blocks[k * {stride[pair]}];")
                if pair == "kv" and len(pairs) == 2:  # a block that is listed twice is full
                    line("bool twice = false;")
                    line(
                        "for (int64_t i = 0; i < full_kv_count; ++i)"
                        f" twice |= full_kv_blocks[i * {stride['full_kv']}] == block;"
                    )
                    line("if (twice) continue;")
                end = f"tc_least((block + 1) * {columns}, {self.size(self.columns)})"
                self._tiles(f"block * {columns}", end, pair == "kv")

    def _tiles(self, start: str, end: str, masked: bool) -> None:
        self.out.line(f"const int64_t end = {end};")
        with self.out.block(f"for (int64_t first = {start}; first < end; first += TC_COLUMNS)"):
            masked_text = "true" if masked else "false"
            self.out.line(f"tile(first, tc_least(TC_COLUMNS, end - first), {masked_text});")


class _Forward(_Kernel):
    """Writes the forward kernel."""

    label = "flex_attention"
    most = 128

    def write(self) -> KernelSource:
        with self.out.indented():
            self._task()
        # the last rows first: under a causal mask they have most to do
        loop = f"""const int64_t blocks = (R + {self.block - 1}) / {self.block}, tasks = B * H * blocks;
#pragma omp parallel for schedule(dynamic, 1) if (tasks > 1 && many)
for (int64_t task = tasks - 1; task >= 0; --task)
    {NAME}_task(task / (H * blocks), task / blocks % H, task % blocks * {self.block}, {{}});"""
        return self.kernel("int64_t b, int64_t h, int64_t start", loop, ("out", "lse", "most"))

    def _task(self) -> None:
        line, width, wide = self.out.line, self.width, self.padded(self.value_width)
        line(f"const int64_t rows = tc_least({self.block}, {self.size(self.rows)} - start);")
        line(f"const int64_t shared = h / {self.heads // self.key_heads};")
        line(f"alignas(64) float query[{self.block} * {width}], keys[{width} * TC_COLUMNS];")
        line(f"alignas(64) float scores[{self.block} * TC_COLUMNS], sums[{self.block} * {wide}];")
        line(f"alignas(64) float buffer[TC_COLUMNS * {max(width, wide)}];")
        line(f"float most[{self.block}], total[{self.block}];")
        query = self.start("query", "b", "h", "start")
        scale = constant_source(self.call.scale, torch.float32)
        line(f"tc_rows({query}, {self.strides('query')}, rows, {width}, {width}, {scale}, query);")
        line(f"memset(sums, 0, rows * {wide} * 4);")
        line("for (int64_t i = 0; i < rows; ++i) { most[i] = -TC_INF_F; total[i] = 0.0f; }")
        key, value = (self.start(name, "b", "shared") for name in ("key", "value"))
        line(f"const auto* key = {key};")
        line(f"const auto* value = {value};")
        with self.out.block(
            "const auto tile = [&](const int64_t first, const int64_t count, const bool masked)"
        ):
            self._tile()
        self.out.lines[-1] += ";"
        self.walk()
        self._results()

    def _tile(self) -> None:
        line, width, wide = self.out.line, self.width, self.padded(self.value_width)
        rows, stride = self.strides("key").split(", ")
        line(f"tc_columns(key + first * {rows}, {rows}, {stride}, count, {width}, keys, buffer);")
        line("const int64_t vectors = (count + TC_LANES - 1) / TC_LANES;")
        line(
            f"tc_multiply(query, {width}, 1, keys, TC_COLUMNS, rows, vectors, {width}, scores,"
            " TC_COLUMNS, false);"
        )
        with self.out.block("for (int64_t i = 0; i < rows; ++i)"):
            line("float* const s = scores + i * TC_COLUMNS;")
            line("const int32_t row = (int32_t)(start + i), from = (int32_t)first;")
            if self.flex.score is not None:
                self.function(self.flex.score, lambda result: f"s[c] = {result};")
            if self.flex.mask is not None:
                with self.out.block("if (masked)"):
                    self.function(
                        self.flex.mask, lambda result: f"s[c] = {result} ? s[c] : -TC_INF_F;"
                    )
            line("const float kept = tc_softmax_step(s, count, most + i, total + i);")
            line(f"if (kept != 1.0f) tc_scale_row(sums + i * {wide}, {wide}, kept);")
        rows, stride = self.strides("value").split(", ")
        line("int64_t apart;")
        line(
            f"const float* values = tc_values(value + first * {rows}, {rows}, {stride}, count,"
            f" {self.value_width}, {wide}, buffer, &apart);"
        )
        line(
            f"tc_multiply(scores, TC_COLUMNS, 1, values, apart, rows, {wide} / TC_LANES, count,"
            f" sums, {wide}, true);"
        )

    def _results(self) -> None:
        line = self.out.line
        line(f"auto* out = {self.start('out', 'b', 'h', 'start')};")
        rows, stride = self.strides("out").split(", ")
        with self.out.block("for (int64_t i = 0; i < rows; ++i)"):
            line("const float share = total[i] == 0.0f ? 0.0f : 1.0f / total[i];")
            with self.out.block(f"for (int64_t d = 0; d < {self.value_width}; ++d)"):
                place = f"out, i * {rows} + d * {stride}"
                line(f"tc_store({place}, sums[i * {self.padded(self.value_width)} + d] * share);")
            for name, text in (("lse", "most[i] + tc_log(total[i])"), ("most", "most[i]")):
                if name in self.call.tensors:
                    at = self.start(name, "b", "h", "(start + i)")
                    line(f"*({at}) = ({text}) * 0x1.715476p+0f;")


class _Backward(_Kernel):
    """Writes the kernel of the gradients of query, key and value."""

    label = "flex_attention_backward"
    most = 64
    allocates = True

    def write(self) -> KernelSource:
        with self.out.indented():
            self._task()
        loop = f"""#pragma omp parallel for schedule(dynamic, 1) if (KB * KH > 1 && many)
for (int64_t task = 0; task < KB * KH; ++task)
    {NAME}_task(task / KH, task % KH, {{}});"""
        results = ("grad_query", "grad_key", "grad_value")
        return self.kernel("int64_t key_b, int64_t shared", loop, results)

    def _has(self, name: str) -> bool:
        return f"grad_{name}" in self.call.tensors

    def _task(self) -> None:
        line, width, wide = self.out.line, self.padded(self.width), self.padded(self.value_width)
        block, columns = self.block, self.size(self.columns)
        line(f"alignas(64) float query[{block} * {width}], towards_out[{block} * {wide}];")
        line(f"alignas(64) float scores[{block} * TC_COLUMNS], weights[{block} * TC_COLUMNS];")
        line(f"alignas(64) float towards[{block} * TC_COLUMNS], grad_query[{block} * {width}];")
        line(f"alignas(64) float turned[{max(width, wide)} * TC_COLUMNS];")
        line(f"alignas(64) float buffer[TC_COLUMNS * {max(width, wide)}];")
        line(f"float level[{block}], delta[{block}];")
        line(f"float* const grad_key = (float*)__builtin_calloc({columns}, {width + wide} * 4);")
        line("if (grad_key == nullptr) { tc_fail(TC_NO_MEMORY); return; }")
        line(f"float* const grad_value = grad_key + {columns} * {width};")
        line(f"const auto* key = {self.start('key', 'key_b', 'shared')};")
        line(f"const auto* value = {self.start('value', 'key_b', 'shared')};")
        group = self.heads // self.key_heads
        same_batch = self.key_batch == self.batch
        first, last = ("key_b", "key_b + 1") if same_batch else ("0", self.size(self.batch))
        with (
            self.out.block(f"for (int64_t b = {first}; b < {last}; ++b)"),
            self.out.block(f"for (int64_t h = shared * {group}; h < (shared + 1) * {group}; ++h)"),
            self.out.block(
                f"for (int64_t start = 0; start < {self.size(self.rows)}; start += {block})"
            ),
        ):
            self._rows()
        for name, size, each in (("key", self.width, width), ("value", self.value_width, wide)):
            if self._has(name):
                self._result(name, "key_b, shared", columns, size, each, "1.0f")
        line("__builtin_free(grad_key);")

    def _result(
        self, name: str, at: str, count: str, size: int, padded: int, factor: str, *first: str
    ) -> None:
        """Writes the stores of rows of a gradient."""
        result = f"grad_{name}"
        rows, stride = self.strides(result).split(", ")
        with self.out.block(""):
            self.out.line(f"auto* out = {self.start(result, *at.split(', '), *first)};")
            with (
                self.out.block(f"for (int64_t i = 0; i < {count}; ++i)"),
                self.out.block(f"for (int64_t d = 0; d < {size}; ++d)"),
            ):
                value = f"{result}[i * {padded} + d] * {factor}"
                self.out.line(f"tc_store(out, i * {rows} + d * {stride}, {value});")

    def _rows(self) -> None:
        """Writes what one block of rows adds."""
        line, width, wide = self.out.line, self.padded(self.width), self.padded(self.value_width)
        scale = constant_source(self.call.scale, torch.float32)
        line(f"const int64_t rows = tc_least({self.block}, {self.size(self.rows)} - start);")
        for name, to, size, padded, factor in (
            ("query", "query", self.width, width, scale),
            ("grad_out", "towards_out", self.value_width, wide, "1.0f"),
        ):
            at = self.start(name, "b", "h", "start")
            line(f"tc_rows({at}, {self.strides(name)}, rows, {size}, {padded}, {factor}, {to});")
        line(f"memset(grad_query, 0, rows * {width} * 4);")
        with self.out.block("for (int64_t i = 0; i < rows; ++i)"):
            line(f"const float lse = *({self.start('lse', 'b', 'h', '(start + i)')});")
            line("level[i] = lse == -TC_INF_F ? 0.0f : lse * 0x1.62e430p-1f;")
            line(f"delta[i] = *({self.start('delta', 'b', 'h', '(start + i)')});")
        with self.out.block(
            "const auto tile = [&](const int64_t first, const int64_t count, const bool masked)"
        ):
            self._tile()
        self.out.lines[-1] += ";"
        self.walk()
        if self._has("query"):
            self._result("query", "b, h", "rows", self.width, width, scale, "start")

    def _tile(self) -> None:
        line, width, wide = self.out.line, self.padded(self.width), self.padded(self.value_width)
        line("const int64_t vectors = (count + TC_LANES - 1) / TC_LANES;")
        for name, left, size, padded, to in (
            ("key", "query", self.width, width, "scores"),
            ("value", "towards_out", self.value_width, wide, "towards"),
        ):
            rows, stride = self.strides(name).split(", ")
            line(
                f"tc_columns({name} + first * {rows}, {rows}, {stride}, count, {size}, turned, buffer);"
            )
            line(
                f"tc_multiply({left}, {padded}, 1, turned, TC_COLUMNS, rows, vectors, {size}, {to},"
                " TC_COLUMNS, false);"
            )
        with self.out.block("for (int64_t i = 0; i < rows; ++i)"):
            self._row()
        if self._has("value"):
            line(
                f"tc_multiply(weights, 1, TC_COLUMNS, towards_out, {wide}, count, {wide} / TC_LANES,"
                f" rows, grad_value + first * {wide}, {wide}, true);"
            )
        if self._has("key"):
            line(
                f"tc_multiply(towards, 1, TC_COLUMNS, query, {width}, count, {width} / TC_LANES,"
                f" rows, grad_key + first * {width}, {width}, true);"
            )
        if self._has("query"):
            rows, stride = self.strides("key").split(", ")
            line("int64_t apart;")
            line(
                f"const float* keys = tc_values(key + first * {rows}, {rows}, {stride}, count,"
                f" {self.width}, {width}, buffer, &apart);"
            )
            line(
                f"tc_multiply(towards, TC_COLUMNS, 1, keys, apart, rows, {width} / TC_LANES, count,"
                f" grad_query, {width}, true);"
            )

    def _row(self) -> None:
        """Writes a row's weights, and the gradients of its products."""
        line, block = self.out.line, self.out.block
        line("float *const s = scores + i * TC_COLUMNS, *const w = weights + i * TC_COLUMNS;")
        line("float* const g = towards + i * TC_COLUMNS;")
        line("const int32_t row = (int32_t)(start + i), from = (int32_t)first;")
        if self.flex.score is not None:
            self.function(self.flex.score, lambda result: f"w[c] = {result};")
        else:
            line("memcpy(w, s, count * 4);")
        if self.flex.mask is not None:
            with block("if (masked)"):
                self.function(self.flex.mask, lambda result: f"w[c] = {result} ? w[c] : -TC_INF_F;")
        line("const float from_level = level[i], from_delta = delta[i];")
        if self.flex.score is None:
            line("#pragma omp simd")
            with block("for (int64_t c = 0; c < count; ++c)"):
                line("const bool none = w[c] == -TC_INF_F;")
                line("w[c] = tc_weight(w[c] - from_level);")
                line("g[c] = none ? 0.0f : w[c] * (g[c] - from_delta);")
            return
        line("float none[TC_COLUMNS];")
        line("#pragma omp simd")
        with block("for (int64_t c = 0; c < count; ++c)"):
            line("none[c] = w[c] == -TC_INF_F;")
            line("w[c] = tc_weight(w[c] - from_level);")
            line("g[c] = w[c] * (g[c] - from_delta);")
        gradient = self.flex.gradient
        assert gradient is not None  # see `kernels.flex_attention.why_no_backward_in_cpp`
        if gradient.output is None:
            line("memset(g, 0, count * 4);")
            return
        self.function(gradient, lambda result: f"g[c] = none[c] != 0.0f ? 0.0f : {result};")


def kernel_of(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> KernelSource:
    """Returns the kernel of a call of one of flex_attention's operators."""
    writer = _Forward if node.target is FLEX_ATTENTION else _Backward
    return writer(program, call_of(program, node), sizes).write()
