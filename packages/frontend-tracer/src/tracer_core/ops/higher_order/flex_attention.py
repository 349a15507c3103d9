"""flex_attention as two operators, ``tracer_core::flex_attention`` and its backward.

Attention whose scores pass through functions of the program (score_mod, mask_mod), over the blocks
of a BlockMask. The functions stand in the operators' argument `program` (`Flex`). A backend with
kernels for them names the operators in its `preserved_ops`; for all others they are decomposed
here, into ATen operators over the whole matrix of scores.

A block that the BlockMask does not list is masked; mask_mod is applied to listed blocks, and not to
those listed as full. (PyTorch's eager flex_attention applies mask_mod everywhere
and does not look at the blocks, its compiled one does as stated here. The two differ only where a
BlockMask was made by hand.)
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer_core.ops.definitions import declare, implement
from tracer_core.ops.higher_order.scalar_program import (
    LOAD,
    SIZE,
    Ref,
    ScalarProgram,
    evaluate,
    function_of,
    parsed,
)
from tracer_core.torch_private.names import operators

__all__ = ["BACKWARD", "FORWARD", "LOAD", "SIZE", "WHOLE", "Flex", "Ref", "ScalarProgram",
           "decomposed", "decomposed_backward", "flex_of", "function_of"]  # fmt: skip

aten = operators("aten")

#: Pairs of tensors in a BlockMask: the number of blocks in a row, and which.
PAIRS = ("kv", "full_kv", "q", "full_q")
#: The size of blocks of a BlockMask that masks nothing.
WHOLE = 1 << 30

FORWARD = declare(
    "flex_attention(Tensor query, Tensor key, Tensor value, Tensor[] blocks, Tensor[] buffers,"
    " SymInt[] numbers, float scale, str program) -> (Tensor, Tensor, Tensor)"
)
BACKWARD = declare(
    "flex_attention_backward(Tensor query, Tensor key, Tensor value, Tensor lse, Tensor delta,"
    " Tensor grad_out, Tensor[] blocks, Tensor[] buffers, SymInt[] numbers, float scale,"
    " str program) -> Tensor[]"
)


@dataclass(frozen=True)
class Flex:
    """The argument `program` of the operators."""

    #: The function of scores; None where they stay as they are.
    score: ScalarProgram | None
    #: The mask function; None where no position is masked.
    mask: ScalarProgram | None
    #: The gradient of `score`, or None.
    gradient: ScalarProgram | None
    #: Which of `PAIRS` the tensors ``blocks`` are, two tensors each.
    pairs: tuple[str, ...]
    #: The numbers of queries and keys of a block.
    block_size: tuple[int, int]
    #: The kernel_options of the call.
    options: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        programs = (self.score, self.mask, self.gradient)
        score, mask, gradient = (None if item is None else item.as_json() for item in programs)
        return json.dumps({
            "score": score, "mask": mask, "gradient": gradient, "pairs": self.pairs,
            "block_size": self.block_size, "options": dict(self.options),
        }, sort_keys=True)  # fmt: skip

    @property
    def masks_blocks(self) -> bool:
        """Whether some block may be missing in the BlockMask."""
        return self.block_size != (WHOLE, WHOLE)

    @property
    def differentiated(self) -> tuple[int, ...]:
        """Returns the positions of the tensors `buffers` that get a gradient, in order."""
        if self.gradient is None:
            return ()
        return tuple(sorted({int(item.buffer[1:]) for item in self.gradient.contributions}))


@functools.lru_cache(maxsize=256)
def flex_of(text: str) -> Flex:
    """Returns what `Flex.text` wrote."""
    data = parsed(text)
    score, mask, gradient = (
        None if data[name] is None else ScalarProgram.of(data[name])
        for name in ("score", "mask", "gradient")
    )
    rows, columns = data["block_size"]
    return Flex(score, mask, gradient, tuple(data["pairs"]), (rows, columns), data["options"])


# -- layouts --


def _order_of(query: torch.Tensor) -> list[int]:
    """Returns the dimensions from the outermost to the innermost: as in the query's memory, but the
    last one innermost."""
    last = query.dim() - 1
    order = sorted(range(last), key=lambda dim: (query.stride(dim), -dim))
    return [*order[::-1], last]


def like_query(sizes: Sequence[Any], query: torch.Tensor) -> tuple[Any, ...]:
    """Returns the strides of a result: dense, the dimensions in `_order_of` the query."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for dim in reversed(_order_of(query)):
        strides[dim] = step
        step = step * sizes[dim]
    return tuple(strides)


def working_dtype(query: torch.Tensor) -> torch.dtype:
    """The dtype of scores."""
    return torch.float64 if query.dtype is torch.float64 else torch.float32


# -- as ATen operators --


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores and masks of a call."""

    #: The scaled products of queries and keys.
    raw: torch.Tensor
    #: The programs' inputs.
    inputs: dict[str, Any]
    #: Where a score counts; None: everywhere.
    allowed: torch.Tensor | None
    #: The scores after score_mod and the mask.
    out: torch.Tensor


def _grouped(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns the query with the heads that share a key's head in one dimension with the rows."""
    batch, heads, rows, width = query.shape
    shared = key.shape[1]
    return query.reshape(batch, shared, heads // shared * rows, width)


def _scores(
    flex: Flex,
    query: torch.Tensor,
    key: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    scale: float,
) -> _Scores:
    wide = working_dtype(query)
    (batch, heads, rows, _), columns = query.shape, key.shape[2]
    logits = _grouped(query, key).to(wide) @ key.to(wide).transpose(-2, -1)
    raw = logits.view(batch, heads, rows, columns) * scale
    sizes = {"b": batch, "h": heads, "q": rows, "kv": columns}
    inputs: dict[str, Any] = {"score": raw}
    for dim, (name, size) in enumerate(sizes.items()):
        shape = [size if number == dim else 1 for number in range(4)]
        inputs[name] = torch.arange(size, device=query.device).view(shape)
    inputs |= {f"t{k}": buffer for k, buffer in enumerate(buffers)}
    inputs |= {f"n{k}": number for k, number in enumerate(numbers)}
    out = raw
    if flex.score is not None:
        assert flex.score.output is not None
        result = evaluate(flex.score, inputs, query.device)[flex.score.output]
        out = result.to(wide).expand(raw.shape)
    allowed = _allowed(flex, blocks, inputs, query.device)
    if allowed is not None:
        out = torch.where(allowed, out, -math.inf)
    return _Scores(raw, inputs, allowed, out)


def _allowed(
    flex: Flex, blocks: Sequence[torch.Tensor], value: Mapping[str, Any], device: torch.device
) -> torch.Tensor | None:
    """Returns where scores count, None for everywhere."""
    mask = None
    if flex.mask is not None:
        assert flex.mask.output is not None
        mask = evaluate(flex.mask, value, device)[flex.mask.output]
    if not flex.masks_blocks:
        return mask
    listed = dict(zip(flex.pairs, zip(blocks[::2], blocks[1::2], strict=True), strict=True))
    partial = _of_blocks(listed["kv"], flex.block_size, value)
    allowed = partial if mask is None else partial & mask
    if "full_kv" in listed:
        allowed = allowed | _of_blocks(listed["full_kv"], flex.block_size, value)
    return allowed


def _of_blocks(
    pair: tuple[torch.Tensor, torch.Tensor], block_size: tuple[int, int], value: Mapping[str, Any]
) -> torch.Tensor:
    """Returns which positions lie in the listed blocks."""
    counts, indices = pair
    rows, columns = block_size
    batch, heads = (torch.zeros_like(value[name]) if size == 1 else value[name]
                    for name, size in zip("bh", counts.shape[:2], strict=True))  # fmt: skip
    at = [batch, heads, value["q"] // rows, value["kv"] // columns]
    return aten.index.Tensor(dense_blocks(counts, indices), at)  # type: ignore[no-any-return]


def dense_blocks(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns a matrix that is True at the listed blocks. The indices after a row's count are
    undefined."""
    width = indices.shape[-1]
    place = torch.arange(width, device=indices.device)
    listed = torch.where(place < counts.unsqueeze(-1), indices.to(torch.int64), width)
    empty = torch.zeros((*indices.shape[:-1], width + 1), dtype=torch.bool, device=indices.device)
    return empty.scatter(-1, listed, True)[..., :width]


def decomposed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    scale: float,
    program: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The forward operator in ATen operators: (out, log2 of the sums of exponentials, largest
    score over ln 2)."""
    flex = flex_of(program)
    key, value = _for_each_batch(query, key), _for_each_batch(query, value)
    scores = _scores(flex, query, key, blocks, buffers, numbers, scale).out
    (batch, heads, rows, columns), width = scores.shape, value.shape[-1]
    largest = scores.amax(dim=-1)
    empty = largest == -math.inf
    exponentials = torch.exp(scores - torch.where(empty, 0.0, largest).unsqueeze(-1))
    sums = exponentials.sum(dim=-1)
    weights = exponentials / torch.where(empty, 1.0, sums).unsqueeze(-1)
    lse = (torch.log(sums) + largest) / math.log(2)
    grouped = weights.to(query.dtype).view(batch, value.shape[1], -1, columns)
    out = (grouped @ value.to(query.dtype)).view(batch, heads, rows, width)
    return _restrided(out, query), lse, largest / math.log(2)


def _for_each_batch(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Returns keys of one batch for all batches of the query."""
    if key.shape[0] == 1 and query.shape[0] != 1:
        return key.expand(query.shape[0], *key.shape[1:])
    return key


def _restrided(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns a dense tensor with the strides of `like_query`."""
    order = _order_of(query)
    packed = out.permute(order).contiguous()
    return packed.permute([order.index(dim) for dim in range(4)])


def delta_of(
    out: torch.Tensor, grad_out: torch.Tensor, grad_lse: torch.Tensor | None
) -> torch.Tensor:
    """Returns delta, a number a row: the gradient of a score is its weight times (the gradient of the
    weight - delta)."""
    wide = working_dtype(out)
    delta = (out.to(wide) * grad_out.to(wide)).sum(-1)
    return delta if grad_lse is None else delta - grad_lse.to(wide) / math.log(2)


def decomposed_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    grad_out: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    scale: float,
    program: str,
) -> list[torch.Tensor]:
    """The backward operator in ATen operators: the gradients of query, key, value, then, in the
    dtype of scores, of `Flex.differentiated`. delta: `delta_of`."""
    flex, wide = flex_of(program), working_dtype(query)
    one_key, one_value = key, value
    key, value = _for_each_batch(query, key), _for_each_batch(query, value)
    scores = _scores(flex, query, key, blocks, buffers, numbers, scale)
    (batch, _, _, columns), shared = scores.raw.shape, key.shape[1]
    empty = (lse == -math.inf).unsqueeze(-1)
    level = torch.where(empty, 0.0, lse.unsqueeze(-1) * math.log(2))
    weights = torch.where(empty, 0.0, torch.exp(scores.out - level))
    grouped_out = _grouped(grad_out, key)
    in_groups = weights.view(batch, shared, -1, columns)
    grad_value = in_groups.to(query.dtype).transpose(-2, -1) @ grouped_out.to(query.dtype)
    towards = (grouped_out.to(wide) @ value.to(wide).transpose(-2, -1)).view(weights.shape)
    incoming = weights * (towards - delta.unsqueeze(-1))
    if scores.allowed is not None:
        incoming = torch.where(scores.allowed, incoming, 0.0)
    grad_scores = incoming
    tensors: list[torch.Tensor] = []
    if flex.score is not None:
        grad_scores, tensors = _through_score(flex, scores, incoming, buffers, query.device)
    grad_scores = (grad_scores * scale).to(query.dtype)
    grad_grouped = grad_scores.view(batch, shared, -1, columns)
    grad_query = (grad_grouped @ key).view(query.shape)
    grad_key = grad_grouped.transpose(-2, -1) @ _grouped(query, key)
    if one_key.shape[0] != batch:
        grad_key = grad_key.sum(0, keepdim=True)
    if one_value.shape[0] != batch:
        grad_value = grad_value.sum(0, keepdim=True)
    return [grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), *tensors]


def _through_score(
    flex: Flex,
    scores: _Scores,
    incoming: torch.Tensor,
    buffers: Sequence[torch.Tensor],
    device: torch.device,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the gradients of the scaled products and of the tensors that score_mod read."""
    if flex.gradient is None:  # the scores of no position depend on a tensor with a gradient
        return torch.zeros_like(incoming), []
    values = evaluate(flex.gradient, {**scores.inputs, "grad": incoming}, device)

    def masked(value: torch.Tensor) -> torch.Tensor:
        value = value.to(incoming.dtype).expand(incoming.shape)
        return value if scores.allowed is None else torch.where(scores.allowed, value, 0.0)

    output = flex.gradient.output
    grad_scores = torch.zeros_like(incoming) if output is None else masked(values[output])
    result = {
        k: torch.zeros(buffers[k].shape, dtype=incoming.dtype, device=device)
        for k in flex.differentiated
    }
    for item in flex.gradient.contributions:
        k = int(item.buffer[1:])
        result[k] = _added(result[k], [values[at] for at in item.at], masked(values[item.value]))
    return grad_scores, [result[k] for k in flex.differentiated]


def _added(total: torch.Tensor, at: list[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Adds values to the elements of a tensor that they were read from."""
    fixed = [dim for dim in range(4) if all(_is_one(index.shape[dim]) for index in at)]
    if fixed:
        value = value.sum(fixed, keepdim=True)
    if not at:
        return total + value.view(total.shape)
    places = [index.expand(value.shape) for index in at]
    return aten.index_put.default(total, places, value, True)  # type: ignore[no-any-return]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    FORWARD: decomposed,
    BACKWARD: decomposed_backward,
}


# -- the operators --


def _forward_fake(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    batch, heads, rows, _ = query.shape
    sizes = (batch, heads, rows, value.shape[-1])
    out = query.new_empty_strided(sizes, like_query(sizes, query))
    statistics = (query.new_empty(sizes[:3], dtype=working_dtype(query)) for _ in range(2))
    return out, *statistics


def _backward_fake(
    query: Any,
    key: Any,
    value: Any,
    lse: Any,
    delta: Any,
    grad_out: Any,
    blocks: Any,
    buffers: Any,
    numbers: Any,
    scale: float,
    program: str,
) -> Any:
    read = [buffers[k] for k in flex_of(program).differentiated]
    inputs = [(item, item.dtype) for item in (query, key, value)]
    inputs += [(item, working_dtype(query)) for item in read]
    return [torch.empty(item.shape, dtype=dtype, device=item.device) for item, dtype in inputs]


def _backward_kernel(*args: Any) -> Any:
    return [item.contiguous() for item in decomposed_backward(*args)]


implement(FORWARD, decomposed, _forward_fake)
implement(BACKWARD, _backward_kernel, _backward_fake)


class _Attention(torch.autograd.Function):
    """The operators' autograd formula."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Any,
        key: Any,
        value: Any,
        blocks: Any,
        numbers: Any,
        scale: float,
        program: str,
        *buffers: Any,
    ) -> Any:
        ctx.set_materialize_grads(False)
        out, lse, largest = FORWARD(query, key, value, blocks, buffers, numbers, scale, program)
        ctx.mark_non_differentiable(largest)
        ctx.save_for_backward(query, key, value, out, lse, *blocks, *buffers)
        ctx.rest = len(blocks), numbers, scale, program
        return out, lse, largest

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_out, grad_lse, _ = grads
        count, numbers, scale, program = ctx.rest
        query, key, value, out, lse, *others = ctx.saved_tensors
        blocks, buffers = others[:count], others[count:]
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        result = BACKWARD(
            query,
            key,
            value,
            lse,
            delta_of(out, grad_out, grad_lse),
            grad_out,
            blocks,
            buffers,
            numbers,
            scale,
            program,
        )
        of_buffers: list[Any] = [None] * len(buffers)
        for k, gradient in zip(flex_of(program).differentiated, result[3:], strict=True):
            of_buffers[k] = gradient.to(buffers[k].dtype)
        return *result[:3], None, None, None, None, *of_buffers


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    scale: float,
    program: str,
) -> Any:
    """flex_attention with gradients."""
    tensors = (query, key, value, *buffers)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Attention.apply(  # type: ignore[no-untyped-call]
            query, key, value, tuple(blocks), tuple(numbers), scale, program, *buffers
        )
    return FORWARD(query, key, value, blocks, buffers, numbers, scale, program)


def mask(
    sizes: Sequence[Any],
    buffers: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    device: torch.device,
    program: str,
) -> torch.Tensor:
    """Evaluates a program at all positions of (batch, head, query, key), with scores of zero."""
    result = ScalarProgram.of(parsed(program))
    inputs: dict[str, Any] = {"score": torch.zeros(list(sizes), device=device)}
    for dim, (name, size) in enumerate(zip(("b", "h", "q", "kv"), sizes, strict=True)):
        shape = [size if number == dim else 1 for number in range(4)]
        inputs[name] = torch.arange(size, device=device).view(shape)
    inputs |= {f"t{k}": buffer for k, buffer in enumerate(buffers)}
    inputs |= {f"n{k}": number for k, number in enumerate(numbers)}
    assert isinstance(result.output, Ref)
    tensor: torch.Tensor = evaluate(result, inputs, device)[result.output]
    return tensor.expand(list(sizes))
