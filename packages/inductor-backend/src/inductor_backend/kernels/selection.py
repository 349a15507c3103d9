"""Selects the kernel of an operator that is not a loop: hand-written, oneDNN's, or ATen's.

From an ATen operator and its operands' sizes, strides (both possibly symbolic) and dtypes, `best`
returns a `KernelChoice`: a callable with the operator's own signature and results, and its import
path for the generated module. The result has eager's sizes, strides and dtype. Unsupported
operators and operands get ATen's kernel. Measurements: docs/lab/cpu_kernels.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import (
    collectives,
    conv1x1,
    linear_algebra,
    native,
    packed_ops,
    packed_weights,
    quantized,
    rng,
    small_gemm,
    strided_copy,
    winograd,
)
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.torch_private import multiplies_16_bits
from tracer_core.plugin_api import operators

__all__ = ["FALLBACKS", "RULES", "KernelChoice", "Operand", "aten_choice", "best"]

aten = operators("aten")

#: From this many rows on both operands are packed block by block; with fewer, weights are read
#: once, unpacked.
BLOCKED_ROWS = 64
#: With more rows than this, packed weights are read no faster than those that are packed block by block
#: (vectors of up to 8 floats).
PACKED_ROWS = 144
#: From this many rows on, a matmul with the columns of several is slower than these are (vectors of up to
#: 8 floats).
MERGED_ROWS = 1024
#: Above this many rows, MKL computes what the blocked kernel does not take (few columns).
OWN_ROWS = 1024
#: With fewer rows than this, [K,N] weights are read faster by MKL, row after row.
KN_ROWS = 3
#: With more rows than this, copies of 16-bit weights in float32 pay (where the processor multiplies no
#: 16-bit floats).
FEW_ROWS = 48
#: The same where it does: ATen's kernels are quicker with more rows (AVX-512 and AMX). Weights of 8 bits
#: cost them a converted copy.
FEW_ROWS_BESIDE_ATEN = {torch.bfloat16: 8, torch.float16: 16}
FEW_ROWS_OF_INTEGERS, FEW_ROWS_OF_GROUPS = 40, 24
#: The forms of matmuls with few rows of 16-bit floats.
FEW_ROWS_FORMS = {torch.bfloat16: "few_rows_bf16", torch.float16: "few_rows_half"}
#: The form for rows in groups, each with a matrix of its own, which ATen multiplies in bfloat16 alone.
GROUPED_FORM = "grouped_bf16"
#: Below this many multiplications call overhead dominates, and ATen's is the lowest.
SMALL_MATMUL = 200_000


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument."""

    #: Ints, or expressions that the `hint` of `best` turns into ints.
    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> Operand:
        """Returns a tensor as an operand, with the sizes and strides of the captured call."""
        return cls(tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype)


class KernelKind(enum.Enum):
    """Which code computes an operator. Each row has its name, `fills` and `is_native`."""

    #: A hand-written kernel.
    NATIVE = "native", True, True
    #: A kernel that is generated with the graph's own.
    GENERATED = "generated", True, True
    #: A loop in C++ over a compiled step.
    LOOP = "loop", True, True
    #: ATen's operator in its ``out=`` variant.
    OUT = "out", True, False
    #: ATen's operator.
    ATEN = "aten", False, False
    #: A Python function of the backend.
    PYTHON = "python", False, False
    #: A loop in Python over a compiled step, or a branch over compiled graphs.
    STEPS = "steps", False, False

    def __init__(self, text: str, fills: bool, is_native: bool) -> None:
        self.text = text
        #: Whether it writes to memory that the graph provides; others return fresh tensors.
        self.fills = fills
        #: Whether it runs without Python and ATen.
        self.is_native = is_native


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel for one operator call."""

    #: What is called with the operator's arguments.
    function: Callable[..., Any]
    #: The import path of `function`, ``"module:attribute"``.
    call: str
    kind: KernelKind
    #: Why this kernel.
    reason: str
    #: The activations that it can apply (keyword ``epilogue``).
    epilogues: frozenset[str] = frozenset()
    #: Whether it takes the keyword ``residual``, a tensor of the result's layout that is added after
    #: the activation.
    residual: bool = False
    #: The launcher, where the operator has several.
    form: str = ""
    #: Whether it takes symbolic sizes for any operator.
    symbolic: bool = False


#: Matrix multiplications.
MATMULS = frozenset({aten.mm.default, aten.addmm.default})

_EPILOGUES = frozenset(small_gemm.EPILOGUES)


def function_in(
    module: ModuleType, name: str, kind: KernelKind, reason: str, **rest: Any
) -> KernelChoice:
    """Returns the choice of a module's function. rest: other fields."""
    return KernelChoice(getattr(module, name), f"{module.__name__}:{name}", kind, reason, **rest)


def _native(name: str, reason: str, form: str = "") -> KernelChoice:
    traits: dict[str, Any] = {"epilogues": _EPILOGUES, "residual": True, "form": form}
    return function_in(small_gemm, name, KernelKind.NATIVE, reason, **traits)


def aten_choice(target: Any, reason: str) -> KernelChoice:
    """Returns ATen's kernel, the operator itself."""
    return KernelChoice(target, f"torch:ops.{target!s}", KernelKind.ATEN, reason)


def best(target: Any, args: Sequence[Any], hint: Callable[[Any], int] = int) -> KernelChoice:
    """Returns the kernel to call for `target` on `args`: `Operand` for tensors, the rest as the
    operator takes it.

    hint: returns the value that a symbolic size or stride has in the captured call; the choice is
    correct, though perhaps not fastest, for every other value."""
    rule = RULES.get(target)
    return (
        aten_choice(target, "no alternative kernel") if rule is None else rule(target, args, hint)
    )


def _native_is_faster(m: int, k: int, n: int, layout: str) -> bool:
    if layout == "kn" and m < KN_ROWS:
        return False
    return bool(m <= OWN_ROWS and m * k * n >= SMALL_MATMUL and k >= 16 and n >= 8)


def _blocked_is_faster(m: int, k: int, n: int) -> bool:
    """Columns are processed in blocks of 64, where padding costs as much as columns."""
    return bool(m >= BLOCKED_ROWS and k >= 16 and m * k * n >= SMALL_MATMUL and 4 * (-n % 64) <= n)


def reads_plain_weights(m: int, k: int, n: int) -> bool:
    """Returns whether a blocked matmul of that many rows reads weights as they lie no slower than packed
    ones."""
    if native.multiplies_in_tiles():
        return k >= native.TILED_DEPTH and m * n >= native.TILED_SIDE * (m + n)
    return m > PACKED_ROWS and native.lanes() <= 8


def pays_to_merge(m: int) -> bool:
    """Returns whether one matmul of that many rows is no slower than several that have its columns."""
    return m < MERGED_ROWS or native.multiplies_in_tiles() or native.lanes() > 8


def pays_for_tiles(m: int, k: int, n: int) -> bool:
    """Returns whether a blocked matmul of that many rows is faster with weights that were packed for
    tiles once."""
    large = k >= native.TILED_DEPTH and m * n >= native.PACKED_TILED_SIDE * (m + n)
    return native.multiplies_in_tiles() and large and m <= native.PACKED_TILED_ROWS


def _all_float32(*operands: Operand | None) -> bool:
    return all(o is None or o.dtype == torch.float32 for o in operands)


def _is_widened(m: int, bias: Operand | None, a: Operand, b: Operand) -> bool:
    """Returns whether the matmul is one of few rows of 16-bit floats that the processor does not
    multiply."""
    alike = all(operand is None or operand.dtype == a.dtype for operand in (bias, b))
    return (
        alike
        and a.dtype in FEW_ROWS_FORMS
        and m <= (FEW_ROWS_BESIDE_ATEN[a.dtype] if multiplies_16_bits(a.dtype) else FEW_ROWS)
        and 1 in b.strides
        and native.lanes() > 4
    )


def _grouped(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    a, b, _ = args
    rows = hint(a.sizes[0]) if multiplies_16_bits(torch.bfloat16) else 1
    if not _is_widened(rows, None, a, replace(b, sizes=b.sizes[1:], strides=b.strides[1:])):
        return aten_choice(target, "the processor multiplies such floats")
    reason = "matrices of groups with rows are read once and widened in registers"
    return KernelChoice(target, "", KernelKind.NATIVE, reason, form=GROUPED_FORM, symbolic=True)


def reads_integers(m: int, dtype: torch.dtype, scaled: bool = False) -> bool:
    """Returns whether a matmul of few rows of this dtype has a kernel that reads integers, which are
    scaled by group or alone."""
    if dtype not in quantized.ELEMENTS or native.lanes() == 4:
        return False
    beside = dtype != torch.float32 and multiplies_16_bits(dtype)
    most = FEW_ROWS_OF_GROUPS if scaled else FEW_ROWS_OF_INTEGERS
    return m <= (most if beside else FEW_ROWS)


def _quantized_mm(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    x, weight = args[:2]
    reason = f"{hint(x.sizes[0])} rows: integers are read once"
    form = quantized.form(x.dtype, weight.dtype, args[8])
    return KernelChoice(target, "", KernelKind.NATIVE, reason, _EPILOGUES, form=form, symbolic=True)


def _dense_rows(operand: Operand) -> bool:
    return bool(operand.strides[-1] == 1)


def _is_weight(operand: Operand) -> bool:
    """Returns whether the matrix is dense, [N,K] or [K,N]: one stride is 1, the other is the row
    length."""
    rows, columns = operand.sizes
    return operand.strides in ((1, rows), (columns, 1))


def _mm(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    return _matmul(target, None, args[0], args[1], hint)


def _addmm(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    if tuple(args[3:]) not in ((), (1,), (1, 1)):
        return aten_choice(target, "scaled by beta or alpha")
    bias = args[0]
    if len(bias.sizes) != 1 or bias.strides[0] != 1 or bias.sizes[0] != args[2].sizes[1]:
        return aten_choice(target, "the bias is not one dense row")
    return _matmul(target, bias, args[1], args[2], hint)


def _matmul(
    target: Any, bias: Operand | None, a: Operand, b: Operand, hint: Callable[[Any], int]
) -> KernelChoice:
    suffix = "addmm" if bias is not None else "mm"
    m, k = (hint(size) for size in a.sizes)
    if _is_widened(m, bias, a, b):
        reason = f"{m} rows: weights are read once and widened in registers"
        form = FEW_ROWS_FORMS[a.dtype]
        return KernelChoice(target, "", KernelKind.NATIVE, reason, _EPILOGUES, form=form)
    if not _all_float32(bias, a, b):
        return aten_choice(target, "not float32")
    n = hint(b.sizes[1])
    if 1 in a.strides and 1 in b.strides and _blocked_is_faster(m, k, n):
        return _native(
            f"blocked_{suffix}", f"{m} rows: operands are packed block by block", "blocked"
        )
    if not (_dense_rows(a) and _is_weight(b)):
        return aten_choice(target, "operands are not dense")
    if _native_is_faster(m, k, n, "nk" if b.strides[0] == 1 else "kn"):
        return _native(suffix, f"{m} rows: weights are read once")
    return aten_choice(target, f"{m}x{k}x{n}: no faster alternative measured")


def native_matmul(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice | None:
    """Returns the hand-written kernel for a matmul, however few multiplications it has; None where
    the operands have none. For calls from native code, where ATen's overhead is Python's."""
    bias, a, b = args if len(args) == 3 else (None, *args)
    suffix = "mm" if bias is None else "addmm"
    biased = bias is None or (
        len(bias.sizes) == 1 and bias.strides[0] == 1 and bias.sizes[0] == b.sizes[1]
    )
    if len(args) not in (2, 3) or not biased or not _all_float32(bias, a, b):
        return None
    if _dense_rows(a) and _is_weight(b):
        return _native(suffix, "a matmul in a loop")
    if 1 in a.strides and 1 in b.strides:
        return _native(f"blocked_{suffix}", "a matmul in a loop", "blocked")
    return None


def native_kernel(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice | None:
    """Returns the hand-written kernel for a batch of matmuls or a 2-D convolution, of whatever
    sizes; None where the operands have none. For graphs that are to need no ATen."""
    rule = _ANYWHERE.get(target)
    return None if rule is None else rule(target, args, hint)


def _native_batch(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice | None:
    a, b = args
    fits = _all_float32(a, b) and 1 in a.strides[1:] and 1 in b.strides[1:]
    return _native("blocked_bmm", "a matmul for each matrix", "batch") if fits else None


def _native_convolution(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice | None:
    x, weight, bias, *_, transposed, _, groups = args
    simple = len(x.sizes) == 4 and not transposed and groups == 1 and _all_float32(x, weight, bias)
    if not simple or not (_is_image(x) and _is_image(weight)):
        return None
    return _native("convolution", "no other kernel of ours takes it")


def _convolution(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    x, weight, bias = args[:3]
    transposed, _, groups = args[6:9]
    stride, padding, dilation = ([hint(number) for number in numbers] for numbers in args[3:6])
    if not _all_float32(x, weight, bias):
        return aten_choice(target, "not float32")
    if len(x.sizes) != 4 or transposed or groups != 1:
        return aten_choice(target, "not a simple 2-D convolution")
    if not (_is_image(x) and _is_image(weight)):
        return aten_choice(target, "operands are not dense")
    batch, channels, height, width = (hint(size) for size in x.sizes)
    count, _, kh, kw = (hint(size) for size in weight.sizes)
    if is_last_only(weight) and not is_last_only(x) and (kh, kw) != (1, 1) and channels == 1:
        return aten_choice(target, "ambiguous layout")
    oh, ow = (
        (size + 2 * pad - dil * (kernel - 1) - 1) // step + 1
        for size, pad, dil, kernel, step in zip(
            (height, width), padding, dilation, (kh, kw), stride, strict=True
        )
    )
    pixels, depth = batch * oh * ow, channels * kh * kw
    contiguous = not (is_last_only(x) or is_last_only(weight))
    simple = _is_contiguous(x) and _is_contiguous(weight)
    if simple and winograd.pays(channels, count, (oh, ow), ((kh, kw), stride, padding, dilation)):
        return _winograd("convolution")
    how = ((kh, kw), stride, padding, dilation)
    if simple and pixels > 256 and conv1x1.pays(channels, count, (oh, ow), how):
        return _conv1x1("convolution")
    form = small_gemm.form(pixels, oh * ow, count, kh * kw, contiguous)
    if form is not None and pixels * depth * count >= SMALL_MATMUL and depth >= 16:
        return _native("convolution", f"{pixels} output pixels: {form}")
    return aten_choice(target, f"{pixels} output pixels: oneDNN's is the fastest")


def _convolution_backward(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice:
    """Selects the kernel for one of the gradients of convolution_backward, other than the bias's."""
    dy, x, weight, _, *steps, transposed, _, groups, mask = args
    stride, padding, dilation = ([hint(number) for number in numbers] for numbers in steps)
    if sum(map(bool, mask)) != 1 or mask[2]:
        return aten_choice(target, "several gradients in one call")
    if not _all_float32(dy, x, weight) or len(x.sizes) != 4 or transposed or groups != 1:
        return aten_choice(target, "not a simple 2-D convolution of float32")
    if not all(_is_image(operand) for operand in (dy, x, weight)):
        return aten_choice(target, "operands are not dense")
    batch, count, oh, ow = (hint(size) for size in dy.sizes)
    depth = math.prod(hint(size) for size in weight.sizes[1:])
    taps = hint(weight.sizes[2]) * hint(weight.sizes[3])
    pixels = batch * oh * ow
    how = (tuple(hint(size) for size in weight.sizes[2:]), stride, padding, dilation)
    has_all = all(map(_is_contiguous, (dy, x, weight)))
    if has_all and mask[0] and winograd.pays(hint(x.sizes[1]), count, (oh, ow), how):
        return _winograd("convolution_backward")
    if (
        has_all
        and pixels > (128 if mask[0] else 255)
        and conv1x1.pays(hint(x.sizes[1]), count, (oh, ow), how)
    ):
        return _conv1x1("convolution_backward")
    if pixels * depth * count < SMALL_MATMUL or depth < 16 or count < 16:
        return aten_choice(target, "small")
    if small_gemm.backward_is_faster(bool(mask[0]), pixels, taps, max(stride), depth * count):
        reason = f"{pixels} pixels: weights as they lie"
        return function_in(small_gemm, "convolution_backward", KernelKind.NATIVE, reason)
    return aten_choice(target, f"{pixels} pixels: oneDNN's is the fastest")


def _winograd(name: str) -> KernelChoice:
    reason = "fewer multiplications (Winograd)"
    return function_in(
        winograd, name, KernelKind.NATIVE, reason, form="winograd_planes", symbolic=True
    )


def _conv1x1(name: str) -> KernelChoice:
    reason = "a matmul for each image"
    return function_in(conv1x1, name, KernelKind.NATIVE, reason, form="conv1x1", symbolic=True)


def _is_contiguous(operand: Operand) -> bool:
    return _same_strides(operand, _contiguous_strides(operand.sizes))


def _contiguous_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [1]
    for size in reversed(sizes[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


def _last_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    _, channels, height, width = sizes
    return (channels * height * width, 1, channels * width, channels)


def _same_strides(operand: Operand, strides: Sequence[Any]) -> bool:
    """Compares strides; those of dimensions of size 1 do not matter."""
    return all(
        a == b
        for a, b, size in zip(operand.strides, strides, operand.sizes, strict=True)
        if size != 1
    )


def _is_image(operand: Operand) -> bool:
    return _same_strides(operand, _contiguous_strides(operand.sizes)) or is_last_only(operand)


def is_last_only(operand: Operand) -> bool:
    """Returns whether the strides are channels-last and not also contiguous."""
    return _same_strides(operand, _last_strides(operand.sizes)) and not _same_strides(
        operand, _contiguous_strides(operand.sizes)
    )


def _pack(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    return function_in(packed_ops, "pack", KernelKind.NATIVE, "a weight that is no constant")


def _packed(name: str) -> Callable[[Any, Sequence[Any], Callable[[Any], int]], KernelChoice]:
    traits: dict[str, Any] = {"epilogues": _PACKED_EPILOGUES, "residual": True}
    choice = function_in(packed_ops, name, KernelKind.NATIVE, "packed weights", **traits)
    return lambda target, args, hint: choice


def _lstm(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    reason = "packed weights stay in each thread's cache"
    return function_in(packed_ops, "lstm", KernelKind.NATIVE, reason)


def _attention(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    reason = "scores stay in the cache"
    return function_in(packed_ops, "attention", KernelKind.NATIVE, reason, symbolic=True)


def _decoding_attention(
    target: Any, args: Sequence[Any], hint: Callable[[Any], int]
) -> KernelChoice:
    reason = "keys and values are read once"
    return function_in(packed_ops, "decoding_attention", KernelKind.NATIVE, reason, symbolic=True)


def _bernoulli(target: Any, args: Sequence[Any], hint: Callable[[Any], int]) -> KernelChoice:
    reason = "torch's own stream, in vectors"
    return KernelChoice(target, f"{rng.__name__}:{target.__name__}", KernelKind.PYTHON, reason)


#: On every device.
WAIT = function_in(
    collectives, "wait", KernelKind.PYTHON, "it keeps the operands alive", symbolic=True
)
CHECK = function_in(
    linear_algebra, "checked", KernelKind.PYTHON, "it raises as eager mode does", symbolic=True
)
COPY = function_in(
    strided_copy, "copy", KernelKind.PYTHON, "a dtype that loops do not hold", symbolic=True
)
_PACKED_EPILOGUES = frozenset(packed_weights.EPILOGUES)

#: operator -> rule for `native_kernel`.
_ANYWHERE = {aten.bmm.default: _native_batch, aten.convolution.default: _native_convolution}

#: operator -> rule. Every other operator that is not lowered to loops runs ATen's kernel.
RULES: dict[Any, Callable[[Any, Sequence[Any], Callable[[Any], int]], KernelChoice]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten._grouped_mm.default: _grouped,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    packed_ops.convolution: _packed("convolution"),
    packed_ops.linear: _packed("linear"),
    packed_ops.pack: _pack,
    quantized.quantized_mm: _quantized_mm,
    packed_ops.lstm: _lstm,
    packed_ops.attention: _attention,
    packed_ops.decoding_attention: _decoding_attention,
    rng.bernoulli: _bernoulli,
    collectives.wait: lambda target, args, hint: WAIT,
    linear_algebra.checked: lambda target, args, hint: CHECK,
    strided_copy.copy: lambda target, args, hint: COPY,
}
