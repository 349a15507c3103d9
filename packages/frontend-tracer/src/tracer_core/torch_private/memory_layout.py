"""Where tensors stand in memory: storages, strides, memory formats that operators choose."""

from __future__ import annotations

from typing import Any

import torch


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for two live tensors exactly if they share their storage."""
    return int(tensor.untyped_storage()._cdata)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill their memory without gaps, each once, in whatever order of
    dimensions.
    """
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def suggested_memory_format(value: torch.Tensor) -> torch.memory_format:
    """What kernels that keep a memory format give their result."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)


def elementwise_strides(tensors: Any) -> tuple[int, ...]:
    """The strides that an operator by element gives its result, from operands of one shape."""
    from torch._prims_common import compute_elementwise_output_strides

    return tuple(compute_elementwise_output_strides(*tensors))


def convolution_format(value: Any, weight: Any, bias: Any, stride: Any, padding: Any,
dilation: Any, transposed: Any,
                       output_padding: Any, groups: Any) -> torch.memory_format:  # fmt: skip
    """The memory format of a convolution's result on the fakes' device."""
    backend = torch._C._select_conv_backend(
        value, weight, bias=bias, stride=stride, padding=padding, dilation=dilation,
        transposed=transposed,
        output_padding=output_padding, groups=groups,
    )  # fmt: skip
    found: torch.memory_format = torch._C._conv_determine_backend_memory_format(
        value, weight, backend
    )
    return found
