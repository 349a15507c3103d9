"""Keeps linear interpolation at symbolic sizes one operator.

The C++ code beneath `torch.nn.functional.interpolate` computes sizes as numbers. torch's Python
code for it takes symbols, but adds ``(b - a) * weight`` to ``a``: of infinities that is NaN where
eager has infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.torch_private.names import names, operators

aten = operators("aten")

#: (mode, rank of the input) -> the operator.
_OPERATORS = {
    ("linear", 3): aten.upsample_linear1d.default,
    ("bilinear", 4): aten.upsample_bilinear2d.default,
    ("trilinear", 5): aten.upsample_trilinear3d.default,
}


def _fake(value: torch.Tensor, sizes: Sequence[Any], *rest: Any) -> torch.Tensor:
    return _laid_out_like(value, [*value.shape[:2], *sizes])


def _fake_gradient(
    gradient: torch.Tensor, sizes: Sequence[Any], input_sizes: Sequence[Any], *rest: Any
) -> torch.Tensor:
    return _laid_out_like(gradient, input_sizes)


def _laid_out_like(value: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    """Returns memory of the kernel's layout: contiguous, or channels last like `value`."""
    result = torch.empty(sizes, dtype=value.dtype, device=value.device)
    return result.contiguous(memory_format=torch_private.suggested_memory_format(value))


#: Operator -> its fake for sizes that may be symbols, which torch's meta kernels do not take.
FAKES: dict[Any, Callable[..., torch.Tensor]] = {
    **dict.fromkeys(_OPERATORS.values(), _fake),
    aten.upsample_linear1d_backward.default: _fake_gradient,
    aten.upsample_bilinear2d_backward.default: _fake_gradient,
    aten.upsample_trilinear3d_backward.default: _fake_gradient,
}

#: Functions that `linear` takes the arguments of.
FUNCTIONS = frozenset(names("interpolate upsample", of="nn.functional"))


def linear(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor | None:
    """Computes `torch.nn.functional.interpolate` of arguments that it takes; None for other modes
    than the linear ones."""
    operator = _OPERATORS.get((mode, input.dim()))
    if operator is None or antialias:
        return None
    rank = input.dim() - 2
    factors = _each(scale_factor, rank)
    if size is not None:
        sizes = _each(size, rank)
    else:
        sizes = [_scaled(*pair) for pair in zip(input.shape[2:], factors, strict=True)]
    scales = [None] * rank if recompute_scale_factor else factors
    result: torch.Tensor = operator(input, sizes, bool(align_corners), *scales)
    return result


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * rank


def _scaled(size: Any, factor: float) -> Any:
    """Returns size * factor, rounded down."""
    return size * int(factor) if int(factor) == factor else torch.sym_int(size * factor)
