"""Writes the gradients of flex_attention as two Triton kernels over the listed blocks of scores.

One program of the first computes the gradient of a block of queries and walks over keys; one of the
second that of a block of keys and values, and walks over queries. Both compute the weights again from
the logarithms of their sums (Dao et al., "FlashAttention", 2022), so no score is stored. Gradients of
tensors that score_mod reads are added atomically by the first.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.codegen.common.flex_call import Call, is_gradient_of_buffer
from inductor_backend.codegen.triton.flex_scores import ScoresWriter
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels.flex_attention import backward_tiles, padded
from tracer_core.plugin_api import ScalarProgram, ScalarRef


class _Backward(ScoresWriter):
    """Writes what both kernels have in common."""

    def begin_functions(self) -> None:
        self.begin("score", "mask", "gradient")

    def levels(self, at: str, mask: str) -> None:
        """Writes the logarithm of the sum of each row's exponentials, and its delta."""
        line = self.line
        line(f"lse = {self.load_of_rows('lse', 'lse_at', at, mask)}")
        line('level = tl.where(lse == float("-inf"), 0.0, lse)')
        line(f"delta = {self.load_of_rows('delta', 'delta_at', at, mask)}")

    def weights(self, masked: bool) -> str:
        """Writes the weights of the scores `score`; returns where they count."""
        line = self.line
        line(f"scores = {self.scored()}")
        line(f"weights = tl.broadcast_to(tl.exp2(scores - level{self.row}), {self.shape})")
        allowed = self.allowed(masked)
        if allowed:
            line(f"allowed = {allowed}")
            line("weights = tl.where(allowed, weights, 0.0)")
        return allowed and "allowed"

    @property
    def gradient(self) -> ScalarProgram:
        """The gradient of `Flex.score`, without which `why_no_backward` refuses the kernel."""
        assert self.flex.gradient is not None
        return self.flex.gradient

    def gradient_of_scores(self, allowed: str) -> None:
        """Writes the gradient `grad` of the scaled products, from `towards`, that of the weights."""
        self.line(f"grad = weights * (towards - delta{self.row})")
        if self.flex.score is None:
            return
        result = self.functions.finish(self.started["gradient"])
        gradient = self.gradient
        own = result[:1] if gradient.output is not None else []
        self.contributions(result[len(own) :], allowed)
        created = own[0] if own else "0.0"
        self.line(f"grad = tl.zeros({self.shape}, tl.float32) + {self.where(allowed, created)}")

    def where(self, allowed: str, text: str) -> str:
        return f"tl.where({allowed}, {text}, 0.0)" if allowed else text

    def contributions(self, texts: list[str], allowed: str) -> None:
        """Writes what the gradients of captured tensors get. texts: texts of the values, then of
        their indices."""


class _Queries(_Backward):
    """Writes the kernel of the query's gradient, and of captured tensors'."""

    label = "flex_attention_backward_query"

    def write(self) -> TritonKernel:
        line = self.line
        with self.out.indented():
            self.place_of_rows()
            for name, element in (("query", "width"), ("grad_out", "wide")):
                line(f"{name}_at = {self.start(name, ('b', 'h', 'start'))}")
                line(f"{name} = {self.load(name, f'{name}_at', 'in_rows', element)}")
            for name in ("lse", "delta"):
                line(f"{name}_at = {self.start(name, ('b', 'h', 'start'))}")
            self.levels("in_rows", self.row_ok)
            for name in ("key", "value"):
                line(f"{name}_at = {self.start(name, ('b', 'shared'))}")
            self.begin_functions()
            line(f"sums = tl.zeros([ROWS, {padded(self.width)}], tl.float32)")
            self.walk(self._tile)
            if "grad_query" in self.call.tensors:
                line(f"sums = sums * {float(self.call.scale)!r}")
                line(f"grad_query_at = {self.start('grad_query', ('b', 'h', 'start'))}")
                self.store("grad_query", "grad_query_at", "in_rows", "width", "sums")
        return self.kernel(((self.rows, self.tiles.rows), (self.batch * self.heads, 1)))

    def _tile(self, masked: bool) -> None:
        line = self.line
        line("columns = first + in_columns")
        if self.column_ok:
            line(f"column_ok = columns < {self.size(self.columns)}")
        for name in ("key", "value"):
            stride = self.size(self.call.layout(name).strides[2])
            line(f"{name}_block = {name}_at + {self.long('first')} * {stride}")
        line(f"key = {self.load('key', 'key_block', 'in_columns', 'width', transposed=True)}")
        line(f"score = {self.dot('query', 'key')} * {self.scale!r}")
        allowed = self.weights(masked)
        line(f"value = {self.load('value', 'value_block', 'in_columns', 'wide', transposed=True)}")
        line(f"towards = {self.dot('grad_out', 'value')}")
        self.gradient_of_scores(allowed)
        line(f"sums = {self.dot('grad.to(key.dtype)', 'tl.trans(key)', 'sums')}")

    def contributions(self, texts: list[str], allowed: str) -> None:
        inputs = self.gradient.contributions
        values, indices = texts[: len(inputs)], iter(texts[len(inputs) :])
        reads = _reads(self.gradient)
        for number, (contribution, value) in enumerate(zip(inputs, values, strict=True)):
            at = [next(indices) for _ in contribution.at]
            name = f"g{contribution.buffer[1:]}"
            if name in self.call.tensors:
                changes = frozenset[str]().union(*(reads[ref.number] for ref in contribution.at))
                self._add(f"part{number}", name, at, self.where(allowed, value), changes)

    def _add(
        self, part: str, name: str, at: list[str], value: str, changes: frozenset[str]
    ) -> None:
        """Writes the atomic addition of a tile's values to elements of a tensor, of those with one
        address once. changes: the positions that the address depends on."""
        line, layout = self.line, self.call.layout(name)
        rows, columns = "q" in changes, "kv" in changes
        line(f"{part} = tl.zeros([ROWS, COLUMNS], tl.float32) + {value}")
        if self.row_ok:
            line(f"{part} = tl.where({self.row_ok}{self.row}, {part}, 0.0)")
        if not columns:
            line(f"{part} = tl.sum({part}, 1)[:, None]")
        if not rows:
            line(f"{part} = tl.sum({part}, 0)[None, :]")
        shape = f"[{'ROWS' if rows else 1}, {'COLUMNS' if columns else 1}]"
        line(f"{part}_at = tl.zeros({shape}, tl.int64)")
        for text, size, stride in zip(at, layout.sizes, layout.strides, strict=True):
            line(f"index = tl.zeros({shape}, tl.int64) + {text}")
            wrapped = f"tl.where(index < 0, index + {self.size(size)}, index)"
            line(f"{part}_at += {wrapped} * {self.size(stride)}")
        masks = [f"{self.row_ok}{self.row}"] if self.row_ok and rows else []
        masks += [f"{self.column_ok}{self.column}"] if self.column_ok and columns else []
        mask = f", mask={' & '.join(masks)}" if masks else ""
        line(f'tl.atomic_add({self.pointer(name)} + {part}_at, {part}{mask}, sem="relaxed")')


class _Keys(_Backward):
    """Writes the kernel of the gradients of key and value."""

    label = "flex_attention_backward_key"
    walked = "q"

    def write(self) -> TritonKernel:
        line = self.line
        with self.out.indented():
            line("pid = tl.program_id(0)")
            self.place("shared", "key_b", self.key_heads, (self.columns, "COLUMNS"))
            self.ranges()
            line("columns = start + in_columns")
            if self.column_ok:
                line(f"column_ok = columns < {self.size(self.columns)}")
            for name, element in (("key", "width"), ("value", "wide")):
                line(f"{name}_at = {self.start(name, ('key_b', 'shared', 'start'))}")
                line(f"{name} = {self.load(name, f'{name}_at', 'in_columns', element)}")
                width = padded(self.width if name == "key" else self.value_width)
                line(f"sums_{name} = tl.zeros([COLUMNS, {width}], tl.float32)")
            self._batches()
            line(f"sums_key = sums_key * {float(self.call.scale)!r}")
            for name, element in (("key", "width"), ("value", "wide")):
                result = f"grad_{name}"
                if result in self.call.tensors:
                    line(f"{result}_at = {self.start(result, ('key_b', 'shared', 'start'))}")
                    self.store(result, f"{result}_at", "in_columns", element, f"sums_{name}")
        grid = ((self.columns, self.tiles.columns), (self.key_batch * self.key_heads, 1))
        return self.kernel(grid)

    def _batches(self) -> None:
        """Writes the loops over the batches and heads that share a head of keys."""
        if self.key_batch == self.batch:
            self.line("b = key_b")
            self._heads()
            return
        with self.out.block_python(f"for batch in range(0, {self.size(self.batch)}):"):
            self.line("b = tl.zeros([], tl.int32) + batch")
            self._heads()

    def _heads(self) -> None:
        shared = self.heads // self.key_heads
        if shared == 1:
            self.line("h = shared")
            self._queries()
            return
        with self.out.block_python(f"for head in range(0, {shared}):"):
            self.line(f"h = shared * {shared} + head")
            self._queries()

    def _queries(self) -> None:
        for name in ("query", "grad_out", "lse", "delta"):
            self.line(f"{name}_at = {self.start(name, ('b', 'h'))}")
        self.begin_functions()
        self.walk(self._tile)

    def _tile(self, masked: bool) -> None:
        line = self.line
        line("rows = first + in_rows")
        if self.row_ok:
            line(f"row_ok = rows < {self.size(self.rows)}")
        for name in ("query", "grad_out"):
            stride = self.size(self.call.layout(name).strides[2])
            line(f"{name}_block = {name}_at + {self.long('first')} * {stride}")
        line(f"query = {self.load('query', 'query_block', 'in_rows', 'width', transposed=True)}")
        line(f"score = {self.dot('key', 'query')} * {self.scale!r}")
        self.levels("rows", self.row_ok)
        allowed = self.weights(masked)
        line(f"grad_out = {self.load('grad_out', 'grad_out_block', 'in_rows', 'wide')}")
        line(f"sums_value = {self.dot('weights.to(value.dtype)', 'grad_out', 'sums_value')}")
        line(f"towards = {self.dot('value', 'tl.trans(grad_out)')}")
        self.gradient_of_scores(allowed)
        line(f"sums_key = {self.dot('grad.to(key.dtype)', 'tl.trans(query)', 'sums_key')}")


def _reads(program: ScalarProgram) -> list[frozenset[str]]:
    """Returns for each value of a scalar program the positions that it depends on, ``q`` and ``kv``."""
    every = frozenset({"q", "kv"})
    of_inputs = {"score": every, "grad": every, "q": frozenset({"q"}), "kv": frozenset({"kv"})}
    result = [of_inputs.get(name, frozenset[str]()) for name in program.inputs]
    for _, args, inputs in program.steps:
        result.append(_union(result, (args, [value for _, value in inputs])))
    return result


def _union(texts: list[frozenset[str]], value: Any) -> frozenset[str]:
    if isinstance(value, (tuple, list)):
        return frozenset[str]().union(*(_union(texts, element) for element in value))
    return texts[value.number] if isinstance(value, ScalarRef) else frozenset()


def backward_kernels(call: Call, sizes: SizeVars) -> list[TritonKernel]:
    """Returns the kernels of a call of the backward operator: of results that are read."""
    query, key = call.layout("query"), call.layout("key")
    lengths = sizes.hint(query.sizes[2]), sizes.hint(key.sizes[2])
    widths = query.sizes[3], call.layout("value").sizes[3]
    tiles = backward_tiles(
        call.dtypes["query"], max(widths), lengths, call.flex.block_size, call.flex.options
    )
    if tiles is None:
        raise unsupported("codegen", f"flex_attention with blocks of {call.flex.block_size}")
    kernels: list[TritonKernel] = []
    if any(name == "grad_query" or is_gradient_of_buffer(name) for name in call.tensors):
        kernels.append(_Queries(call, sizes, tiles[0]).write())
    if not {"grad_key", "grad_value"}.isdisjoint(call.tensors):
        kernels.append(_Keys(call, sizes, tiles[1]).write())
    return kernels
