"""Sizes and strides of operators that convolutional networks repeat with ever new sizes.

In: an operator's arguments, all of them plain fakes of one device or plain values. Out: facts as `quick` keeps
them, or None: FakeTensorMode answers. What always holds: only cases whose answer follows from the
sizes alone are answered; where strides are ambiguous (sizes of one) the answer is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def batch_norm(*args: Any) -> Any:
    """Outside training: the input's shape, and two empty statistics."""
    if len(args) != 8 or args[5] is not False:
        return None
    value, *others = args[:5]
    if any(other is None or other.dtype is not value.dtype for other in others):
        return None
    if not value.is_contiguous() or value.dtype not in _FLOATS or value.dim() < 2:
        return None
    if any(other.shape != (value.shape[1],) for other in others):
        return None
    device = value._fake_device
    empty = (torch.Size([0]), (1,), value.dtype, device)
    return tuple, ((value.shape, value.stride(), value.dtype, device), empty, empty)


def convolution(*args: Any) -> Any:
    """Not transposed, two or three dimensions, contiguous."""
    if len(args) != 9:
        return None
    value, weight, bias, stride, padding, dilation, transposed, _, groups = args
    dims = value.dim() - 2
    if transposed or dims not in (2, 3) or weight.dim() != dims + 2:
        return None
    if not (len(stride) == len(padding) == len(dilation) == dims) or value.dtype not in _FLOATS:
        return None
    operands = [value, weight] if bias is None else [value, weight, bias]
    if any(one.dtype is not value.dtype or not one.is_contiguous() for one in operands):
        return None
    if value.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return None
    if bias is not None and bias.shape != (weight.shape[0],):
        return None
    sizes = [
        (value.shape[i + 2] + 2 * padding[i] - dilation[i] * (weight.shape[i + 2] - 1) - 1) // stride[i] + 1
        for i in range(dims)
    ]
    shape = (value.shape[0], weight.shape[0], *sizes)
    if min(shape) < 1 or shape[1] == 1 or math.prod(sizes) == 1 or min(value.shape) < 1:
        return None
    if torch_private.convolution_format(*args) is not torch.contiguous_format:
        return None
    steps = tuple(math.prod(shape[i + 1 :]) for i in range(dims + 2))
    return torch.Tensor, ((torch.Size(shape), steps, value.dtype, value._fake_device),)


RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: batch_norm,
    torch.ops.aten.convolution.default: convolution,
}
