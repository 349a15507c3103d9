"""ctc_loss whose lengths are tensors, as two operators.

The second result of ``aten::_ctc_loss.Tensor``, which only its backward reads, is as wide as the
longest target; ``tracer_core::ctc_loss`` makes it as wide as the targets are, so that no size depends
on data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core.ops.definitions import declare, implement
from tracer_core.torch_private.names import operators

aten = operators("aten")

_GIVEN = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
_OPTIONS = "int blank, bool zero_infinity"
_FORWARD = declare(f"ctc_loss({_GIVEN}, {_OPTIONS}) -> (Tensor, Tensor)")
_BACKWARD = declare(
    f"ctc_loss_backward(Tensor gradient, {_GIVEN}, Tensor loss, Tensor log_alpha, {_OPTIONS})"
    " -> Tensor"
)


def _forward(log_probs: Any, targets: Any, *rest: Any) -> Any:
    loss, log_alpha = aten._ctc_loss.Tensor(log_probs, targets, *rest)
    missing = 2 * targets.shape[-1] + 1 - log_alpha.shape[-1]
    return loss, torch.nn.functional.pad(log_alpha, (0, missing)) if missing else log_alpha


def _backward(
    gradient: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    loss: Any,
    log_alpha: Any,
    *options: Any,
) -> Any:
    longest = int(target_lengths.max()) if target_lengths.numel() else 0
    log_alpha = log_alpha[..., : 2 * longest + 1].contiguous()
    inputs = log_probs, targets, input_lengths, target_lengths, loss, log_alpha
    return aten._ctc_loss_backward.Tensor(gradient, *inputs, *options)


def _forward_fake(log_probs: Any, targets: Any, *rest: Any) -> Any:
    steps, batch, _ = log_probs.shape
    wide = 2 * targets.shape[-1] + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, wide))


def _backward_fake(gradient: Any, log_probs: Any, *rest: Any) -> Any:
    return torch.empty(log_probs.shape, dtype=log_probs.dtype, device=log_probs.device)


implement(_FORWARD, _forward, _forward_fake)
implement(_BACKWARD, _backward, _backward_fake)


def _loss(*value: Any, **options: Any) -> Any:
    return _FORWARD(*value, *_options(value[4:], options))


def _gradient(*value: Any, **options: Any) -> Any:
    return _BACKWARD(*value, *_options(value[7:], options))


def _options(value: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the options behind the tensors that are not given by position."""
    left = (("blank", 0), ("zero_infinity", False))[len(value) :]
    return tuple(named.get(name, default) for name, default in left)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._ctc_loss.Tensor: _loss,
    aten._ctc_loss_backward.Tensor: _gradient,
}
