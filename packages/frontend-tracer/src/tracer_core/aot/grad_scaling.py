"""Traceable forms of the operators of torch.amp.GradScaler.

`torch._amp_foreach_non_finite_check_and_unscale_` has no functional kernel, and backends have no
kernels for either. Each form computes what the CPU and CUDA kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracer_core.ops.higher_order.adafactor import wide
from tracer_core.torch_private.names import names


def _unscale(
    self: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    """torch._amp_foreach_non_finite_check_and_unscale_: multiplies the gradients `self` by
    `inv_scale`, and sets `found_inf` to 1 if one of them is not finite."""
    finite = [torch.isfinite(wide(grad)).all() for grad in self]
    for grad in self:
        value = wide(grad)
        grad.copy_(value * inv_scale.reshape(()).to(value.dtype))
    if finite:
        found_inf.copy_(torch.where(torch.stack(finite).all(), found_inf, 1.0))


def _update_scale(
    self: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> torch.Tensor:
    """torch._amp_update_scale_: the scale `self` shrinks where a gradient was not finite, and grows
    after `growth_interval` steps without one, unless the product leaves float32."""
    skipped, scale = found_inf != 0, self.double()
    steps = growth_tracker + 1
    grows = steps == growth_interval
    grown = (scale * scale_growth_factor).to(self.dtype)
    new_scale = torch.where(torch.logical_and(grows, torch.isfinite(grown)), grown, self)
    value = torch.where(skipped, (scale * scale_backoff_factor).to(self.dtype), new_scale)
    growth_tracker.copy_(torch.where(torch.logical_or(skipped, grows), 0, steps))
    return self.copy_(value)


def _of(name: str, form: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Returns the form by each function of torch that calls the operator."""
    return dict.fromkeys(names(f"{name} ops.aten.{name}.default"), form)


FORMS: Mapping[Any, Callable[..., Any]] = {
    **_of("_amp_foreach_non_finite_check_and_unscale_", _unscale),
    **_of("_amp_update_scale_", _update_scale),
}
