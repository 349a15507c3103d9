"""1x1 convolutions with stride 1 on contiguous images, and their gradients: one matmul per image.

Takes float32 CPU tensors and the ATen operators' arguments; returns new contiguous
tensors. `pays` says where the matmul (kernels/cpu/blocked.cpp) is the fastest. Pixels are the
contiguous columns of the matmul, so no operand is reordered; oneDNN reorders each operand in each
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native


def pays(channels: int, count: int, image: Sequence[int], how: Sequence[Any]) -> bool:
    """Returns whether the kernel is fastest for a convolution between `channels` and `count`
    channels on images of size `image`, or one of its gradients. how: kernel_size, stride, padding,
    dilation."""
    kernel_size, stride, padding, _ = (tuple(pair) for pair in how)
    if (kernel_size, stride, padding) != ((1, 1), (1, 1), (0, 0)):
        return False
    pixels = image[0] * image[1]  # in blocks of 64, where padding costs as much as pixels
    return min(channels, count) >= 32 and pixels >= 64 and 8 * (-pixels % 64) <= pixels


def numbers(
    weight: Any,
    sizes: Sequence[Any],
    steps: Sequence[Any],
    images: Sequence[Any],
    read: Any,
    written: Any,
    gradient: bool,
    bias: Any = 0,
) -> list[Any]:
    """Returns the scalar arguments of `run_conv1x1`, forward or for the input's gradient. weight,
    read, written, bias: tensors. sizes, steps: of the weight. images: the sizes of what is read."""
    result, inputs = (1, 0) if gradient else (0, 1)  # dimensions of the weight
    batch, _, height, width = images
    return [
        weight,
        steps[result],
        steps[inputs],
        read,
        batch,
        sizes[result],
        sizes[inputs],
        height * width,
        written,
        bias,
    ]


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *rest: Any
) -> torch.Tensor:
    """aten.convolution, for arguments that `pays` accepts."""
    batch, _, height, width = x.shape
    out = torch.empty(batch, weight.shape[0], height, width)
    native.function("run_conv1x1")(
        *numbers(
            weight,
            weight.shape,
            weight.stride(),
            x.shape,
            x,
            out,
            False,
            0 if bias is None else bias,
        )
    )
    return out


def weight_numbers(
    dy: Any, x: Any, written: Any, result: Sequence[Any], value: Sequence[Any]
) -> list[Any]:
    """Returns the scalar arguments of `run_conv1x1_weight`. dy, x, written: tensors. result, value:
    sizes of dy and of x."""
    batch, count, height, width = result
    return [dy, x, written, batch, count, value[1], height * width]


def convolution_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    """aten.convolution_backward for exactly one gradient, other than the bias's."""
    if rest[-1][1]:
        dw = torch.empty(weight.shape)
        native.function("run_conv1x1_weight")(*weight_numbers(dy, x, dw, dy.shape, x.shape))
        return None, dw, None
    dx = torch.empty(x.shape)
    native.function("run_conv1x1")(
        *numbers(weight, weight.shape, weight.stride(), dy.shape, dy, dx, True)
    )
    return dx, None, None
