"""One update of torch.optim.Adafactor as one operator of the captured graph.

The optimizer reads two norms of each parameter on the host. In the captured graph its update is a call
of `_fused_adafactor_`, which computes what the optimizer does, bit by bit, when the graph runs as
captured. Lowering traces the form without reads, whose norms stay tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.torch_private.names import name
from tracer_core.torch_private.needed import dispatch_modes

_MULTIPLY = name("_foreach_mul_")


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in the dtype that the kernels compute in."""
    low = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(torch.float32) if low else tensor


def _fused_adafactor_(*tensors: Any, **numbers: Any) -> None:
    """Updates a parameter and its averages of squared gradients, in place (arguments as `_update`
    has them)."""
    # fakes, and what records operators, have no numbers
    reads = type(tensors[0]) in torch_private.BASE_TENSOR_TYPES and not dispatch_modes()
    _update(*tensors, **numbers, reads=reads)


def traceable(*tensors: Any, **numbers: Any) -> None:
    """`_fused_adafactor_` without reads on the host."""
    _update(*tensors, **numbers, reads=False)


def _update(
    param: torch.Tensor,
    grad: torch.Tensor,
    row_var: torch.Tensor | None,
    col_var: torch.Tensor | None,
    variance: torch.Tensor | None,
    *,
    weight: float,
    rho: float,
    decay: float,
    eps1: float,
    eps2: float,
    d: float,
    in_lists: bool,
    reads: bool,
) -> None:
    """Updates a parameter. weight: of the new squares in the averages. rho: the relative step. decay:
    factor of the parameter before. d: the clipping threshold. in_lists: rounds as the optimizer's
    form for lists of tensors does. reads: reads the norms on the host."""
    size = _root_mean_square(param, 1.0, reads)
    alpha = _at_least(eps2, size) * rho
    if decay != 1.0:
        param.mul_(decay)
    if row_var is None or col_var is None:
        assert variance is not None
        variance.lerp_(grad * grad, weight)
        estimate = variance.clone()
    else:
        for average, dim in ((row_var, -1), (col_var, -2)):
            norm = torch.norm(grad, dim=dim, keepdim=True)
            squared = norm * norm if in_lists else norm.square()
            average.lerp_(squared / grad.size(dim), weight)
        estimate = row_var @ col_var
        estimate /= row_var.mean(dim=-2, keepdim=True).clamp_(min=eps1)
    update = estimate.clamp_(min=eps1 * eps1).rsqrt_() * grad
    factor = -alpha / _at_least(1.0, _root_mean_square(update, d, reads))
    if in_lists and reads:
        _MULTIPLY([update], [factor])  # rounds otherwise than a product with 16 bits
        param.add_(update)
    elif in_lists:
        param.add_(update * factor)
    elif isinstance(factor, torch.Tensor):
        value = wide(param)
        param.copy_(value + wide(update) * factor.to(value.dtype))
    else:
        param.add_(update, alpha=factor)


def _root_mean_square(tensor: torch.Tensor, d: float, reads: bool) -> Any:
    """Returns the root mean square of a tensor's elements divided by `d`, computed in float64 of the
    norm; reads: as a number."""
    norm = tensor.norm(2)
    return (norm.item() if reads else norm.double()) / ((tensor.numel() ** 0.5) * d)


def _at_least(least: float, value: Any) -> Any:
    """Returns ``max(least, value)``, whose value for NaN is `least`."""
    if isinstance(value, torch.Tensor):
        return torch.where(value > least, value, least)
    return max(least, value)
