"""Forms of functions that functional values cannot pass through, made of operators that they can.

The C++ code of `one_hot` reads tensor values on the host: functional values show neither that they
are fakes nor that they are traced, so that it takes the way of real tensors. What it would raise, the
graph raises when it runs. A number that is stored becomes a tensor of the CPU there, a constant that
each call would copy to the device. The fused optimizers and GradScaler's operators have no functional
kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer_core.aot import fused_optimizers, grad_scaling
from tracer_core.ops.higher_order import adafactor
from tracer_core.torch_private.names import names

_NUMBERS = (bool, int, float, complex)
_ONE_HOT = names("_C._nn.one_hot ops.aten.one_hot.default")


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """torch.nn.functional.one_hot"""
    if num_classes == -1:  # the greatest value and one more: a size that depends on data
        return torch.nn.functional.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, device=tensor.device)
    # looked up, so that the graph raises for what is no class; eager mode then says so in its words
    known = torch.nn.functional.embedding(tensor, classes.unsqueeze(1))
    return torch.eq(known, classes).to(torch.int64)


def _setitem(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """torch.Tensor.__setitem__"""
    if type(value) in _NUMBERS:
        value = torch.scalar_tensor(value, dtype=tensor.dtype, device=tensor.device)
    tensor[index] = value


FORMS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(_ONE_HOT, _one_hot),
    **dict.fromkeys((operator.setitem, *names("Tensor.__setitem__")), _setitem),
    **fused_optimizers.FORMS,
    **grad_scaling.FORMS,
    adafactor._fused_adafactor_: adafactor.traceable,
}
