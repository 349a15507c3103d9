"""Winograd F(2x2, 3x3): 3x3 convolutions with stride 1 on contiguous images, and the input's
gradient.

Takes float32 CPU tensors and the ATen operators' arguments; returns new contiguous tensors. `pays`
says for which convolutions the kernel (kernels/cpu/winograd_planes.cpp) is the fastest. Errors are
at most about twice those of direct sums of products.

Training uses this kernel: it changes no memory format, so saved tensors, ATen operators and weight
gradients keep eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native
from inductor_backend.limits import MAX_WINOGRAD_WEIGHTS


def pays(channels: int, count: int, image: Sequence[int], how: Sequence[Any]) -> bool:
    """Returns whether the kernel is fastest for a convolution from `channels` to `count` channels
    whose result has the size `image`, or its input's gradient. how: kernel_size, stride, padding,
    dilation."""
    kernel_size, stride, padding, dilation = (tuple(pair) for pair in how)
    if (
        (kernel_size, stride, dilation) != ((3, 3), (1, 1), (1, 1))
        or max(padding) > 2
        or min(padding) < 0
    ):
        return False
    if min(channels, count) < 32 or channels * count > MAX_WINOGRAD_WEIGHTS:
        return False
    pixels = image[0] * image[1]
    return image[1] >= 14 and (pixels >= 784 or (pixels >= 196 and min(channels, count) >= 128))


def numbers(
    sizes: Sequence[Any],
    result: Sequence[Any],
    padding: Sequence[int],
    weight: Sequence[Any],
    gradient: bool,
) -> list[Any]:
    """Returns the scalar arguments of `run_winograd_planes`, which follow its tensors. sizes,
    result: of what is read and what is written. padding: of the convolution. weight: its
    strides."""
    batch, channels, height, width = sizes
    _, count, oh, ow = result
    around = [2 - pad for pad in padding] if gradient else list(padding)
    steps = (weight[1], weight[0]) if gradient else (weight[0], weight[1])
    return [batch, channels, height, width, count, *around, oh, ow, *steps, int(gradient)]


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Sequence[int],
    *rest: Any,
) -> torch.Tensor:
    """aten.convolution, for arguments that `pays` accepts."""
    sides = [size + 2 * pad - 2 for size, pad in zip(x.shape[2:], padding, strict=True)]
    out = torch.empty(x.shape[0], weight.shape[0], *sides)
    inputs = numbers(x.shape, out.shape, padding, weight.stride(), False)
    native.function("run_winograd_planes")(x, weight, 0 if bias is None else bias, out, *inputs)
    return out


def convolution_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Sequence[int],
    *rest: Any,
) -> tuple[torch.Tensor, None, None]:
    """aten.convolution_backward for the input's gradient only."""
    dx = torch.empty(x.shape)
    native.function("run_winograd_planes")(
        dy, weight, 0, dx, *numbers(dy.shape, x.shape, padding, weight.stride(), True)
    )
    return dx, None, None
