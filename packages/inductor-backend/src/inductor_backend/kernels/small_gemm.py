"""Hand-written float32 CPU matmuls and convolutions for few rows: drop-in aten.mm, addmm,
convolution.

Arguments are those of the ATen operator, plus ``epilogue`` (an activation, see `EPILOGUES`) and
``residual`` (added after it); the result is a new tensor, or `out`. Arguments are not checked:
`selection.best` selects these functions only for arguments that they support.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_backend.kernels import native
from inductor_backend.kernels.native import EPILOGUES as ALL_EPILOGUES

#: Activations that the matmul fuses, by name: the number in kernels/cpu/tensors.h.
EPILOGUES = {
    name: ALL_EPILOGUES[name]
    for name in ("none", "relu", "gelu_erf", "gelu_tanh", "silu", "tanh", "sigmoid")
}

_NK, _KN = 0, 1


def form(pixels: int, image: int, count: int, taps: int, contiguous: bool) -> str | None:
    """Returns the algorithm of a convolution, or None where oneDNN's is faster
    (docs/lab/cpu_kernels.md).

    "unfolded": one row per pixel, for few pixels, so that the weights are read once, unpacked.
    "direct": pixels along the vector registers and weights broadcast, for contiguous operands.
    pixels: of all images' results; image: of one; count: channels of the result; taps: of the
    window; contiguous: of input and weight."""
    if pixels <= 128 or (taps == 1 and pixels <= 256 and image < 64):
        return "unfolded"
    if contiguous and image >= 64 and count >= 64 and pixels <= (5000 if taps == 1 else 300):
        return "direct"
    return None


def backward_is_faster(of_input: bool, pixels: int, taps: int, stride: int, weights: int) -> bool:
    """Returns whether this kernel computes a gradient faster than oneDNN, which reorders weights
    (docs/lab/cpu_kernels.md). of_input: the input's gradient, else the weight's. pixels:
    of all images' results; weights: their number."""
    if of_input:
        return pixels <= 64 or (taps == 1 and pixels <= (256 if stride > 1 else 128))
    return (
        pixels <= 128
        or (taps == 1 and stride > 1 and pixels <= 256)
        or (pixels <= 512 and weights >= 1 << 20)
    )


def addmm(
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: str = "none",
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes ``act(a @ b + bias) + residual``: a [M,K] with dense rows, b [K,N] with one unit
    stride, bias [N] dense, residual [M,N] with dense rows. float32."""
    row, column = b.stride()
    layout, ldw = (_NK, column) if row == 1 else (_KN, row)
    return _matmul(
        "run_linear", (layout, a, a.stride(0), b, ldw), bias, a, b, epilogue, residual, out
    )


def blocked_addmm(
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    epilogue: str = "none",
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    tiles: torch.Tensor | None = None,
) -> torch.Tensor:
    """`addmm` for many rows: a and b may be transposed (each has one unit stride). tiles: b as
    `packed_weights.pack_tiles` packs it."""
    operands: tuple[torch.Tensor | int, ...] = (a, *a.stride(), b, *b.stride())
    packed = (0 if tiles is None else tiles,)
    return _matmul("run_blocked", operands, bias, a, b, epilogue, residual, out, packed)


def _matmul(
    launcher: str,
    operands: tuple[torch.Tensor | int, ...],
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    epilogue: str,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
    rest: tuple[torch.Tensor | int, ...] = (),
) -> torch.Tensor:
    """Calls a launcher with its operands, the arguments that both launchers share, and the rest."""
    m, k = a.shape
    n = b.shape[1]
    if out is None:
        out = torch.empty_strided((m, n), (n, 1))
    native.function(launcher)(
        *operands, out, out.stride(0), m, n, k,
        0 if bias is None else bias, 0 if residual is None else residual,
        0 if residual is None else residual.stride(0), ALL_EPILOGUES[epilogue], *rest,
    )  # fmt: skip
    return out


def mm(a: torch.Tensor, b: torch.Tensor, **more: object) -> torch.Tensor:
    """Computes ``a @ b``: see `addmm`."""
    return addmm(None, a, b, **more)  # type: ignore[arg-type]


def blocked_bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Computes ``torch.bmm(a, b)``, a matmul for each matrix: see `blocked_addmm`."""
    out = torch.empty((a.shape[0], a.shape[1], b.shape[2]))
    for left, right, result in zip(a, b, out, strict=True):
        blocked_mm(left, right, out=result)
    return out


def blocked_mm(a: torch.Tensor, b: torch.Tensor, **more: object) -> torch.Tensor:
    """Computes ``a @ b``: see `blocked_addmm`."""
    return blocked_addmm(None, a, b, **more)  # type: ignore[arg-type]


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0),
    groups: int = 1,
    *,
    epilogue: str = "none",
    residual: torch.Tensor | None = None,
    channels_last: bool | None = None,
    direct: bool | None = None,
) -> torch.Tensor:
    """2-D convolution, groups 1, not transposed: x and weight contiguous or channels-last, float32.
    The result is channels-last if `channels_last`, by default if one operand is, like eager's;
    residual has its layout. direct: whether to use "direct", which needs contiguous operands; by
    default `form` decides."""
    batch, channels, height, width = x.shape
    count, _, kh, kw = weight.shape
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    oh = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    x_last, w_last = _is_last(x), _is_last(weight)
    last = (x_last or w_last) if channels_last is None else channels_last
    strides = (oh * ow * count, 1, ow * count, count) if last else (count * oh * ow, oh * ow, ow, 1)
    out = torch.empty_strided((batch, count, oh, ow), strides)
    contiguous = not (x_last or w_last or last)
    if direct is None:
        direct = form(batch * oh * ow, oh * ow, count, kh * kw, contiguous) == "direct"
    native.function("run_convolution")(
        x, weight, 0 if bias is None else bias, 0 if residual is None else residual, out,
        batch, channels, height, width, kh, kw, sh, sw, ph, pw, dh, dw, oh, ow, count, EPILOGUES[epilogue],
        x_last, w_last, int(last),
        int(direct and contiguous),
    )  # fmt: skip
    return out


def convolution_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    """aten.convolution_backward for a 2-D convolution, groups 1, not transposed, without the bias's
    gradient. Operands are contiguous or channels-last, float32; a gradient has the layout of its
    tensor."""
    count, _, kh, kw = weight.shape
    numbers = (*x.shape, kh, kw, *stride, *padding, *dilation, *dy.shape[2:], count, _is_last(dy))
    dx = dw = None
    if mask[0]:
        dx = torch.empty_like(x)
        native.function("run_convolution_backward_input")(
            dy, weight, dx, *numbers, _is_last(weight), _is_last(x)
        )
    if mask[1]:
        dw = torch.empty_like(weight)
        native.function("run_convolution_backward_weight")(
            dy, x, dw, *numbers, _is_last(x), _is_last(weight)
        )
    return dx, dw, None


def _is_last(t: torch.Tensor) -> int:
    """Returns 1 for channels-last strides that are not also contiguous."""
    return int(not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last))
