"""Matmuls and convolutions with packed weights, on channels-last data, as Python functions.

Takes float32 CPU tensors. Packed weights are flat tensors that only these kernels read. A result is
channels-last: ``after(before(x * w * scale + bias) + residual)``. `kernel_of` names the kernel for
a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.kernels.native import EPILOGUES, function, lanes
from inductor_backend.runtime.huge_pages import in_large_pages

#: Winograd pays from this many tiles (of 2x2 pixels), if they hold this many pixels on average.
TILES, PIXELS_OF_A_TILE = 8, 2.7

#: Sizes of groups that have kernels whose sums stay in registers.
GROUPED = (8, 16, 32)

#: Bytes of a tile, and products of its elements and rows of two of them (kernels/cpu/tiles.cpp).
_TILE, _TILE_SIDE = 1024, 32

#: Convolutions with fewer channels than this read lines of taps from a padded copy.
FEW_CHANNELS = 12


@dataclass(frozen=True, slots=True)
class Geometry:
    """A 2-D convolution apart from its images: total input and output channels, window, stride and
    so on."""

    channels: int
    count: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    #: Whether it uses Winograd's F(2x2, 3x3); `for_result` decides where that is faster.
    tiled: bool = False

    @property
    def taps(self) -> int:
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def bordered(self) -> bool:
        """Returns whether it reads a copy of its input with a border (see `FEW_CHANNELS`); such a
        convolution also takes contiguous input."""
        few = self.groups == 1 and self.channels < FEW_CHANNELS and self.kernel_size[1] > 1
        return few and self.dilation[1] == 1


def kernel_of(g: Geometry) -> str:
    """Returns the kernel for that convolution: dense, first (few channels), winograd, depthwise,
    grouped or narrow (groups of a few channels)."""
    if g.groups == 1:
        if g.bordered and g.stride[1] in (1, 2, 4):
            return "conv_few_channels"
        return "winograd" if g.tiled else "dense"
    inside, outside = g.channels // g.groups, g.count // g.groups
    kh, kw = g.kernel_size
    if inside == outside == 1:
        taken = kw in (3, 5, 7) and kh <= 16 and g.stride[1] in (1, 2) and g.dilation[1] == 1
        return "depthwise" if taken and g.channels >= lanes() else "dense"
    if inside == outside and g.channels % lanes() == 0:
        if inside in GROUPED and (inside >= lanes() or lanes() == 16) and g.stride[1] in (1, 2):
            return "grouped"
        if inside in (2, 4, 8) and inside < lanes() and g.taps <= 49:
            return "conv_small_groups"
    return "dense"


def is_fast(g: Geometry) -> bool:
    """Returns whether the kernel is faster than ATen's: the dense one is not for small groups."""
    return kernel_of(g) != "dense" or g.groups == 1 or g.count // g.groups >= 8


def for_result(g: Geometry, batch: int, height: int, width: int) -> Geometry:
    """Returns the geometry whose kernel is fastest for results of these sizes; it is correct for
    all sizes."""
    tiles = batch * -(-height // 2) * -(-width // 2)
    fits = g.groups == 1 and (g.kernel_size, g.stride, g.dilation) == ((3, 3), (1, 1), (1, 1))
    fits = fits and g.channels % lanes() == 0 and g.channels >= 32 and g.count % (2 * lanes()) == 0
    worth = tiles >= TILES and batch * height * width >= PIXELS_OF_A_TILE * tiles
    return replace(g, tiled=True) if fits and worth else g


def _whole(count: int) -> int:
    return -(-count // lanes()) * lanes()


def packed_size(g: Geometry) -> int:
    """Returns the number of floats of the packed weight."""
    kernel = kernel_of(g)
    inside = g.channels // g.groups
    if kernel in ("dense", "conv_few_channels"):
        return g.groups * _whole(g.count // g.groups) * inside * g.taps
    if kernel == "winograd":
        return 16 * g.channels * g.count
    return g.count * inside * g.taps


def pack(weight: torch.Tensor, g: Geometry) -> torch.Tensor:
    """Returns the weight [N, C / groups, kh, kw] (or [N, C / groups, kw], [N, C]) in its kernel's
    layout."""
    packed = torch.empty(packed_size(g), dtype=torch.float32)
    weight = weight.detach() if weight.dim() != 3 else weight.detach().unsqueeze(2)
    if not packable(g, weight.shape, weight.stride()):
        weight = weight.contiguous()
    name, numbers = pack_call(g, weight.shape, weight.stride())
    function(name)(weight, packed, *numbers)
    return packed


def packable(g: Geometry, sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether a weight of these strides can be packed without a copy: taps must be
    contiguous."""
    if packer(g) != "run_pack":
        steps = 1
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            if size != 1 and stride != steps:
                return False
            steps *= size
        return True
    return len(sizes) == 2 or 1 in g.kernel_size or strides[2] == sizes[3] * strides[3]


def packer(g: Geometry) -> str:
    """Returns the name of the function that packs the weight."""
    kernel = kernel_of(g)
    if kernel == "grouped":
        return "run_pack" if g.channels // g.groups >= lanes() else "pack_conv_small_groups"
    return "run_pack" if kernel == "dense" else f"pack_{kernel}"


def pack_call(g: Geometry, sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[str, list[Any]]:
    """Returns (launcher, its scalar arguments after weight and result) for a weight that is
    `packable`."""
    kernel = kernel_of(g)
    inside = g.channels // g.groups
    if kernel == "depthwise":
        return packer(g), [g.count, g.taps]
    if packer(g) == "pack_conv_small_groups":
        return packer(g), [g.count, inside, g.taps]
    if kernel == "conv_few_channels":
        return packer(g), [g.count, inside, *g.kernel_size]
    if kernel == "winograd":
        return packer(g), [g.count, inside, strides[0], strides[1], 1]
    tap = 1 if len(sizes) == 2 else strides[3] if sizes[3] > 1 else strides[2]
    return packer(g), [g.count, inside, g.taps, strides[0], strides[1], tap, g.groups]


def tiles_size(k: int, n: int) -> int:
    """Returns the number of floats that a [k, n] matrix takes as `pack_tiles` packs it."""
    return _TILE // 4 + -(-k // _TILE_SIDE) * -(-n // _TILE_SIDE) * 3 * 2 * _TILE // 4


def pack_tiles(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a matrix that has one unit stride in the parts that kernels/cpu/tiles.cpp multiplies."""
    (k, n), matrix = matrix.shape, matrix.detach()
    packed = in_large_pages(torch.empty(tiles_size(k, n)))
    function("pack_tiles")(matrix, *matrix.stride(), packed, k, n)
    return packed


def convolution(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    g: Geometry,
    *,
    before: str = "none",
    residual: torch.Tensor | None = None,
    after: str = "none",
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolves a channels-last x; residual is channels-last like the result."""
    batch, _, height, width = x.shape
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = g.kernel_size, g.stride, g.padding, g.dilation
    oh = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    out = torch.empty(batch, oh, ow, g.count)
    name, numbers = call(g, (batch, height, width, oh, ow), before, after)
    tensors = [x, packed, *(0 if tensor is None else tensor for tensor in (bias, residual)), out]
    function(name)(*tensors, *numbers, 0 if scale is None else scale)
    return out.permute(0, 3, 1, 2)


def call(
    g: Geometry, sizes: Sequence[Any], before: str, after: str, contiguous: bool = False
) -> tuple[str, list[Any]]:
    """Returns (launcher, its scalar arguments after x, packed weight, bias, residual and result;
    the scale follows). contiguous: x is contiguous, not channels-last; only where `Geometry.bordered`.
    """
    batch, height, width, oh, ow = sizes
    inside = g.channels // g.groups
    kernel = kernel_of(g)
    channels = inside if kernel == "dense" else g.channels
    name = launcher(g)
    image = [batch, channels, height, width]
    shape = [*image, *g.kernel_size, *g.stride, *g.padding, *g.dilation, oh, ow]
    epilogues = [EPILOGUES[before], EPILOGUES[after]]
    border = 0 if not g.bordered else 1 if contiguous else 2
    if kernel == "conv_few_channels":
        return name, [*shape, g.count, *epilogues, border]
    if kernel == "dense":
        count = g.count // g.groups
        return name, [*shape, count, g.channels, g.count, g.count, g.groups, *epilogues, border]
    if kernel in ("conv_small_groups", "grouped"):
        return name, [*shape, g.count, *epilogues, inside]
    return name, [*shape, g.count, *epilogues]


def launcher(g: Geometry) -> str:
    """Returns the name of the kernel's function."""
    kernel = kernel_of(g)
    if kernel == "depthwise":
        return f"run_depthwise_{g.kernel_size[1]}"
    if kernel == "conv_few_channels":
        return f"run_conv_few_channels_{g.stride[1]}"
    if kernel == "winograd":
        return "run_winograd"
    return (
        dense_launcher(g.count // g.groups)
        if kernel == "dense"
        else f"run_{kernel}_{g.channels // g.groups}"
    )


def dense_launcher(count: int) -> str:
    """Returns the launcher of a matmul with `count` columns per group: most are whole panels of
    four vectors."""
    return "run_packed_any" if count % (4 * lanes()) else "run_packed"


def linear_call(
    m: Any, k: Any, n: int, ldx: Any, ldo: Any, ldr: Any, before: str, after: str
) -> list[Any]:
    """Returns the scalar arguments of `call` for a matmul: one image of one line. ldx, ldo, ldr:
    row strides."""
    shape = [1, k, 1, m, 1, 1, 1, 1, 0, 0, 1, 1, 1, m]
    return [*shape, n, ldx, ldo, ldr, 1, EPILOGUES[before], EPILOGUES[after], 0]


def linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    count: int,
    bias: torch.Tensor | None = None,
    *,
    before: str = "none",
    residual: torch.Tensor | None = None,
    after: str = "none",
) -> torch.Tensor:
    """Computes ``x @ weight.t()`` for x [M, K] with dense rows."""
    m, k = x.shape
    out = torch.empty(m, count)
    stride = 0 if residual is None else residual.stride(0)
    numbers = linear_call(m, k, count, x.stride(0), count, stride, before, after)
    function(dense_launcher(count))(
        x,
        packed,
        0 if bias is None else bias,
        0 if residual is None else residual,
        out,
        *numbers,
        0,
    )
    return out
