"""Operators that only the backend's rewrites create: weight packing, matmuls and convolutions with
packed weights, attention.

`freezing` writes them into the ATen graph. Each has a lowering, or is evaluated once when weights
are prepared. As Python functions they are the reference of their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from inductor_backend.kernels import packed_weights, small_gemm
from inductor_backend.kernels.attention import attention as attention
from inductor_backend.kernels.attention import decoding_attention as decoding_attention
from inductor_backend.kernels.native import function
from inductor_backend.kernels.packed_weights import Geometry
from inductor_backend.kernels.quantized import quantized_mm


def name_of(target: Any) -> str:
    """Returns the name of an operator: ATen's, one of these functions, or another Python function
    of the backend."""
    if target in OPERATORS:
        return f"packed.{target.__name__}"
    if isinstance(target, FunctionType):
        return f"{target.__module__.rpartition('.')[2]}.{target.__name__}"
    return str(target)


def geometry(numbers: Sequence[Any]) -> Geometry:
    """Returns the geometry from a graph node's arguments: see `numbers_of`."""
    channels, count, kernel_size, stride, padding, dilation, groups, tiled = numbers
    pairs = [(int(a), int(b)) for a, b in (kernel_size, stride, padding, dilation)]
    return Geometry(
        int(channels), int(count), pairs[0], pairs[1], pairs[2], pairs[3], int(groups), bool(tiled)
    )


def numbers_of(g: Geometry) -> list[Any]:
    """Returns a geometry as the arguments of a graph node."""
    pairs = [list(pair) for pair in (g.kernel_size, g.stride, g.padding, g.dilation)]
    return [g.channels, g.count, *pairs, g.groups, g.tiled]


def matrix_geometry(k: int, n: int) -> Geometry:
    """Returns the geometry of a matmul with a [k, n] matrix."""
    return Geometry(k, n, (1, 1), (1, 1), (0, 0), (1, 1), 1)


def pack(weight: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
    """Returns the weight in its kernel's layout."""
    return packed_weights.pack(weight, geometry(numbers))


def pack_tiles(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix [K, N] in parts for the blocked kernel's tiles. A matrix that is no constant
    is never packed so: the kernel does it as it reads."""
    return packed_weights.pack_tiles(matrix)


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    numbers: Sequence[Any],
    epilogue: str = "none",
    residual: torch.Tensor | None = None,
    last_epilogue: str = "none",
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes ``last_epilogue(epilogue(convolution(x, weight) * scale + bias) + residual)``,
    channels-last, for images, or sequences [N, C, L]; scale: one per channel."""
    if x.dim() == 3:
        added = None if residual is None else residual.unsqueeze(2)
        rest = (weight, bias, numbers, epilogue, added, last_epilogue, scale)
        return convolution(x.unsqueeze(2), *rest).squeeze(2)
    last = torch.channels_last
    inputs = None if residual is None else residual.contiguous(memory_format=last)
    g = geometry(numbers)
    return packed_weights.convolution(
        x.contiguous(memory_format=last),
        weight,
        bias,
        g,
        before=epilogue,
        residual=inputs,
        after=last_epilogue,
        scale=scale,
    )


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    count: int,
    epilogue: str = "none",
    residual: torch.Tensor | None = None,
    last_epilogue: str = "none",
    matrix: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes ``last_epilogue(epilogue(x @ weight + bias) + residual)`` with x [M, K]. matrix: the
    weight as it lies, where `pack_tiles` packed it (then without last_epilogue)."""
    inputs = None if residual is None else residual.contiguous()
    if matrix is not None:
        return small_gemm.blocked_addmm(
            bias, x, matrix, epilogue=epilogue, residual=inputs, tiles=weight
        )
    return packed_weights.linear(
        x.contiguous(), weight, count, bias, before=epilogue, residual=inputs, after=last_epilogue
    )


def lstm(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    cells: torch.Tensor,
    steps: int,
    backwards: bool,
) -> torch.Tensor:
    """Runs all steps of an LSTM layer: returns results [steps, batch, units] and then the last cell
    states [batch, units], in one flat tensor.

    inputs [steps * batch, 4 * units]: what the input and the biases add to the gates, in torch's
    order. The columns of the packed [units, 4 * units] weight are ordered (group of `lanes()`
    units, gate, unit of the group). hidden, cells [batch, units]."""
    batch, units = hidden.shape
    out = torch.empty((steps + 1) * batch * units)
    tensors = [tensor.contiguous() for tensor in (inputs, weight, hidden, cells)]
    function("run_lstm")(*tensors, out, steps, batch, units, int(backwards))
    return out


OPERATORS: frozenset[Callable[..., Any]] = frozenset(
    {pack, convolution, linear, lstm, attention, decoding_attention, quantized_mm}
)
