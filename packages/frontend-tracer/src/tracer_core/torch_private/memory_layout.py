"""Tensor memory: storages, strides, and the memory formats that operators choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def storage_id(tensor: torch.Tensor) -> int:
    """Returns an id that two live tensors have in common exactly if they share storage."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def memory_range(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """Returns where a strided tensor's storage begins and ends, and whether its memory is not torch's
    own: storages of arrays and of DLPack may overlap with others. (An id of the storage, 0, False)
    without memory."""
    storage = tensor.untyped_storage()
    try:
        start, length = storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # a storage without data, of a fake tensor
        start = 0
    if not start or not length:
        return storage._cdata, 0, False
    return start, start + length, not storage.resizable()


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is non-overlapping and dense in some dimension order."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same strides where these mean something."""
    return same_steps(left.shape, left.stride(), right.stride())


def same_steps(shape: Sequence[int], actual: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether two strides of a shape are the same where these mean something."""
    steps = zip(shape, actual, expected, strict=True)
    return 0 in shape or all(size == 1 or a == e for size, a, e in steps)


def suggested_memory_format(value: torch.Tensor) -> torch.memory_format:
    """Returns the memory format that format-preserving kernels give their result."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)


def elementwise_strides(tensors: Any) -> tuple[int, ...]:
    """Returns the result strides of an elementwise operator on operands of one shape."""
    from torch._prims_common import compute_elementwise_output_strides

    return tuple(compute_elementwise_output_strides(*tensors))


#: The arguments of a convolution after its weight.
_SETTINGS = ["bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups"]


def convolution_format(value: Any, weight: Any, *settings: Any) -> torch.memory_format:
    """Returns the memory format of a convolution's result on the fakes' device. settings: the other
    arguments of ``aten.convolution``, in order."""
    named = dict(zip(_SETTINGS, settings, strict=True))
    backend = torch._C._select_conv_backend(value, weight, **named)
    choose: Any = torch._C._conv_determine_backend_memory_format
    result: torch.memory_format = choose(value, weight, backend)
    return result
