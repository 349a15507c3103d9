"""Traceable forms of the fused optimizers' operators (torch._fused_adam_, _fused_adamw_, _fused_sgd_,
_fused_adagrad_).

Functionalization has no kernels for these operators, and a backend fuses their arithmetic with what
surrounds them: the last product of a gradient, clipping, the update of a moving average. Each form
computes what the kernel computes, one parameter after another: in float32 for parameters of 16 bits,
rounded once where a tensor is written; nothing is written where `found_inf` is 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tracer_core.ops.higher_order.adafactor import wide
from tracer_core.torch_private.names import names

Tensors = Sequence[torch.Tensor]


def _updates(
    parameters: Tensors,
    grads: Tensors,
    maximize: bool,
    grad_scale: Any,
    found_inf: Any,
    weight_decay: float,
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yields (index, value, gradient) of each parameter. The gradients are unscaled, which is written
    back, with the sign of the update; weight_decay: of a penalty in the loss."""
    for i, grad in enumerate(grads):
        value, inputs = wide(parameters[i]), wide(grad)
        if grad_scale is not None:
            inputs = inputs / grad_scale.reshape(()).to(inputs.dtype)
            _write(grad, inputs, found_inf)
        if maximize:
            inputs = -inputs
        if weight_decay != 0.0:
            inputs = inputs + value * weight_decay
        yield i, value, inputs


def _write(tensor: torch.Tensor, value: torch.Tensor, found_inf: Any) -> None:
    if found_inf is not None:
        value = torch.where(found_inf.reshape(()) == 1, wide(tensor), value)
    tensor.copy_(value)


def _rate(lr: Any, like: torch.Tensor) -> Any:
    """Returns the learning rate as a factor of tensors of this dtype."""
    return lr.reshape(()).to(like.dtype) if isinstance(lr, torch.Tensor) else lr


def _bias_correction(beta: float, step: torch.Tensor) -> Any:
    """Returns ``1 - beta ** step`` without cancellation: the kernels compute it in float64."""
    return -torch.expm1(step * math.log(beta)) if beta > 0.0 else 1.0


def _fused_adam(
    decoupled: bool,
    self: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    """torch._fused_adam_, and with `decoupled` weight decay torch._fused_adamw_"""
    penalty = 0.0 if decoupled else weight_decay
    for i, value, grad in _updates(self, grads, maximize, grad_scale, found_inf, penalty):
        rate = _rate(lr, grad)
        if weight_decay != 0.0 and decoupled:
            value = value - (rate * weight_decay) * value
        first = torch.lerp(wide(exp_avgs[i]), grad, 1.0 - beta1)
        second = beta2 * wide(exp_avg_sqs[i]) + (1.0 - beta2) * grad * grad
        _write(exp_avgs[i], first, found_inf)
        _write(exp_avg_sqs[i], second, found_inf)
        if amsgrad:
            second = torch.maximum(wide(max_exp_avg_sqs[i]), second)
            _write(max_exp_avg_sqs[i], second, found_inf)
        step = state_steps[i].to(value.dtype)
        root = torch.sqrt(_bias_correction(beta2, step)) if beta2 > 0.0 else 1.0
        size = rate / _bias_correction(beta1, step)
        _write(self[i], value - size * first / (torch.sqrt(second) / root + eps), found_inf)


def _fused_sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    """torch._fused_sgd_"""
    for i, value, grad in _updates(self, grads, maximize, grad_scale, found_inf, weight_decay):
        if momentum != 0.0:
            buffer = wide(momentum_buffer_list[i])
            buffer = grad if is_first_step else momentum * buffer + (1.0 - dampening) * grad
            _write(momentum_buffer_list[i], buffer, found_inf)
            grad = grad + momentum * buffer if nesterov else buffer
        _write(self[i], value - _rate(lr, grad) * grad, found_inf)


def _fused_adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    """torch._fused_adagrad_"""
    for i, value, grad in _updates(self, grads, maximize, grad_scale, found_inf, weight_decay):
        total = wide(state_sums[i]) + grad * grad
        _write(state_sums[i], total, found_inf)
        step = state_steps[i].to(value.dtype)
        size = _rate(lr, grad) / (1.0 + (step - 1.0) * lr_decay)
        _write(self[i], value - size * grad / (torch.sqrt(total) + eps), found_inf)


def _of(name: str, form: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """Returns the form by each function of torch that calls the operator."""
    return dict.fromkeys(names(f"{name} ops.aten.{name}.default ops.aten.{name}.tensor_lr"), form)


FORMS: Mapping[Any, Callable[..., Any]] = {
    **_of("_fused_adam_", functools.partial(_fused_adam, False)),
    **_of("_fused_adamw_", functools.partial(_fused_adam, True)),
    **_of("_fused_sgd_", _fused_sgd),
    **_of("_fused_adagrad_", _fused_adagrad),
}
