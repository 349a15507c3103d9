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


def symbolic_convolution_format(mode: Any, *args: Any) -> torch.memory_format | None:
    """The memory format of a convolution whose input has symbolic sizes, where it is the same for small and large
    ones; None where it may depend on them."""
    value, weight, bias, *options = args
    device, dims = torch_private.device_of_fake(value), value.dim() - 2
    parameters = [one for one in (weight, bias) if one is not None]
    if (
        dims != 2
        or weight.dim() != 4
        or any(torch_private.device_of_fake(one) != device for one in parameters)
    ):
        return None
    if any(one._has_symbolic_sizes_strides or one.dtype is not value.dtype for one in parameters):
        return None
    if any(
        isinstance(number, torch.SymInt)
        for option in options
        if isinstance(option, (list, tuple))
        for number in option
    ):
        return None
    if any(isinstance(size, torch.SymInt) and size.node.hint is None for size in value.shape):
        return None  # it depends on data
    layout = _layout(value)
    if layout is None:
        return None
    formats = set()
    for batch, scale in ((None, 1), (2, 1), (16, 1), (None, 8)):
        sizes = list(map(_hint, value.shape))
        for dim in (0, 2, 3):
            if isinstance(value.shape[dim], torch.SymInt):
                sizes[dim] = batch if batch and dim == 0 else sizes[dim] * scale
        meta = _meta(sizes, value.dtype, layout)
        given = torch_private.wrap_meta(mode, meta, device)
        formats.add(torch_private.convolution_format(given, weight, bias, *options))
    return formats.pop() if len(formats) == 1 else None


def _layout(value: Any) -> torch.memory_format | None:
    """Contiguous or channels last, if that is what a tensor with four dimensions is exactly."""
    sizes, strides = list(map(_hint, value.shape)), tuple(map(_hint, value.stride()))
    if min(sizes) < 1:
        return None
    formats = (torch.contiguous_format, torch.channels_last)
    return next((one for one in formats if _meta(sizes, value.dtype, one).stride() == strides), None)


def _meta(sizes: list[int], dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    with torch_private.no_python_dispatch():
        return torch.empty(sizes, dtype=dtype, device="meta", memory_format=layout)


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: batch_norm,
    torch.ops.aten.convolution.default: convolution,
}
