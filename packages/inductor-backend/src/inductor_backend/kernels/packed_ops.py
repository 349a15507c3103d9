"""Operators that only our rewrites make: packing a weight, products and convolutions with packed
weights, attention.

In: tensors, as `freezing` writes them into an ATen graph. Out: what the operator that they stand
for returns. What always holds: each has a lowering, or is computed once when weights are prepared;
called as Python functions they are the reference of what their kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from inductor_backend.kernels import packed
from inductor_backend.kernels.attention import attention as attend
from inductor_backend.kernels.native import function
from inductor_backend.kernels.packed import Geometry


def name_of(target: Any) -> str:
    """An operator's name: of ATen's, of one of these functions, or of another Python function of
    ours.
    """
    if target in OPERATORS:
        return f"packed.{target.__name__}"
    if isinstance(target, FunctionType):
        return f"{target.__module__.rpartition('.')[2]}.{target.__name__}"
    return str(target)


def geometry(numbers: Sequence[Any]) -> Geometry:
    """From the numbers of a graph node: see `numbers_of`."""
    channels, count, window, stride, padding, dilation, groups, tiled = numbers
    pairs = [(int(a), int(b)) for a, b in (window, stride, padding, dilation)]
    return Geometry(
        int(channels), int(count), pairs[0], pairs[1], pairs[2], pairs[3], int(groups), bool(tiled)
    )


def numbers_of(g: Geometry) -> list[Any]:
    """A geometry as a graph node can hold it."""
    pairs = [list(pair) for pair in (g.window, g.stride, g.padding, g.dilation)]
    return [g.channels, g.count, *pairs, g.groups, g.tiled]


def matrix_geometry(k: int, n: int) -> Geometry:
    """Of a product with a [k, n] matrix."""
    return Geometry(k, n, (1, 1), (1, 1), (0, 0), (1, 1), 1)


def pack(weight: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
    """The weight as its kernel reads it."""
    return packed.pack(weight, geometry(numbers))


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: Sequence[Any],
    post: str = "none",
    residual: torch.Tensor | None = None,
    final: str = "none",
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """``final(post(convolution(x, weight) * scale + bias) + residual)``, channels-last; scale: one
    a channel.
    """
    last = torch.channels_last
    given = None if residual is None else residual.contiguous(memory_format=last)
    g = geometry(numbers)
    return packed.convolution(
        x.contiguous(memory_format=last),
        weight,
        bias,
        g,
        before=post,
        residual=given,
        after=final,
        scale=scale,
    )


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    count: int,
    post: str = "none",
    residual: torch.Tensor | None = None,
    final: str = "none",
) -> torch.Tensor:
    """``final(post(x @ weight + bias) + residual)`` with x [M, K]."""
    given = None if residual is None else residual.contiguous()
    return packed.linear(
        x.contiguous(), weight, count, bias, before=post, residual=given, after=final
    )


def lstm(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cells: torch.Tensor,
    steps: int,
    backwards: bool,
) -> torch.Tensor:
    """All steps of an LSTM layer: results [steps, batch, units] and then the last cells [batch,
    units], in one flat tensor.

    inputs [steps * batch, 4 * units]: what the input and the biases add to the gates, in torch's
    order. The columns of the packed [units, 4 * units] weight are ordered (group of `lanes()`
    units, gate, unit of the group). hidden, cells [batch, units].
    """
    batch, units = hidden.shape
    out = torch.empty((steps + 1) * batch * units)
    tensors = [tensor.contiguous() for tensor in (inputs, weight, hidden, cells)]
    function("run_lstm")(*tensors, out, steps, batch, units, int(backwards))
    return out


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    causal: bool,
    empty: bool,
) -> torch.Tensor:
    """``softmax(query @ key.mT * scale + mask) @ value`` of four dimensions: see
    `kernels.attention`.
    """
    return attend(query, key, value, mask, scale, causal, empty)


OPERATORS: frozenset[Callable[..., Any]] = frozenset({pack, convolution, linear, lstm, attention})
