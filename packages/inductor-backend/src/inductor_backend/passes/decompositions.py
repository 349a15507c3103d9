"""Chooses which ATen operators are decomposed before lowering.

An operator with a lowering of its own is never decomposed (its kernels are better and compile
faster), nor one of the fallback table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend import lowering as _registered  # noqa: F401  (importing fills the table)
from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.ir.target import target_of_cpu
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.kernels.flex_attention import (
    why_no_backward,
    why_no_backward_in_cpp,
    why_no_forward,
    why_not_in_cpp,
)
from inductor_backend.lowering.activations import in_vectors
from inductor_backend.lowering.context import LOWERINGS
from inductor_backend.lowering.scan_loop import SCANNED
from inductor_backend.passes import foreach
from inductor_backend.passes.attention_layers import ATTENTION_LAYERS
from inductor_backend.torch_private import OpOverload, core_decompositions
from tracer_core.plugin_api import (
    ASSOCIATIVE_SCAN,
    FLEX_ATTENTION,
    FLEX_ATTENTION_BACKWARD,
    SCALAR_LOAD,
    SCALAR_SIZE,
    ScalarProgram,
    flex_attention_backward_decomposed,
    flex_attention_decomposed,
    flex_program,
    scalar_function,
    scan_by_tree,
    scan_in_sequence,
    scan_scalars,
)

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's core table without what this backend lowers or calls itself, plus whole
    attention layers."""
    of_aten = {
        op: fn for op, fn in _of_aten().items() if op not in LOWERINGS and op not in FALLBACKS
    }
    return of_aten | ATTENTION_LAYERS | foreach.DECOMPOSITIONS | _REPLACEMENTS


def _smooth_l1_gradient(dy: Any, x: Any, target: Any, reduction: int, beta: float) -> Any:
    """aten.smooth_l1_loss_backward: NaN where a difference is NaN (torch's form takes its sign,
    which is 0)."""
    wide = torch.float32 if x.dtype in _LOW else x.dtype
    far = x.to(wide) - target.to(wide)
    outer = torch.where(far >= beta, 1.0, far / beta)
    slope = torch.where(far <= -beta, -1.0, outer)
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return (share * slope * dy.to(wide)).to(torch.result_type(x, target))


def _soft_margin_gradient(dy: Any, x: Any, target: Any, reduction: int) -> Any:
    """aten.soft_margin_loss_backward, as eager computes it: torch's form subtracts 1 from a sigmoid,
    which leaves few digits where the loss is small."""
    wide = torch.float32 if x.dtype in _LOW else x.dtype
    sign = target.to(wide)
    loss = torch.exp(-sign * x.to(wide))
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return (sign * loss * -share / (loss + 1.0) * dy.to(wide)).to(x.dtype)


def _elu_gradient(
    dy: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any
) -> Any:
    """aten.elu_backward, as vectors of the CPU's kernel compute it: of NaN it is NaN (single elements and
    GPUs have the gradient of a positive number, as torch's form; so of the two below)."""
    if _for_triton(x) or not in_vectors(dy, x, avx512=True):
        return _of_aten()[aten.elu_backward.default](dy, alpha, scale, input_scale, is_result, x)
    wide = torch.float32 if x.dtype in _LOW else x.dtype
    value, slope, depth = x.to(wide), dy.to(wide), alpha * scale
    grown = value + depth if is_result else torch.exp(value * input_scale) * depth
    return torch.where(value > 0, slope * scale, slope * input_scale * grown).to(x.dtype)


def _gelu_gradient(dy: Any, x: Any, *, approximate: str = "none") -> Any:
    """aten.gelu_backward, where no lowering computes it."""
    if x.dtype != torch.float64 and (approximate == "none" or _for_triton(x)):
        return NotImplemented
    return _of_aten()[aten.gelu_backward.default](dy, x, approximate=approximate)


def _hardswish_gradient(dy: Any, x: Any) -> Any:
    """aten.hardswish_backward: see `_elu_gradient`."""
    if _for_triton(x) or not in_vectors(dy, x, avx512=True):
        return _of_aten()[aten.hardswish_backward.default](dy, x)
    wide = torch.float32 if x.dtype in _LOW else x.dtype
    value, slope = x.to(wide), dy.to(wide)
    upper = torch.where(value >= 3, slope, slope * (value / 3 + 0.5))
    return torch.where(value <= -3, 0.0, upper).to(x.dtype)


def _hardtanh_gradient(dy: Any, x: Any, low: float, high: float) -> Any:
    """aten.hardtanh_backward: 0 of NaN; see `_elu_gradient`."""
    if _for_triton(x) or not in_vectors(dy, x):
        return _of_aten()[aten.hardtanh_backward.default](dy, x, low, high)
    value = x.to(torch.float32) if x.dtype in _LOW else x
    return torch.where((value > low) & (value < high), dy, 0.0)


def _logit_gradient(dy: Any, x: Any, eps: float | None = None) -> Any:
    """aten.logit_backward: of -0.0 it is inf for single elements on the CPU, -inf in vectors."""
    unsigned = x if _for_triton(x) or in_vectors(dy, x, avx512=True) else x + 0.0
    return _of_aten()[aten.logit_backward.default](dy, unsigned, eps)


def _jagged_to_padded(values: Any, offsets: Any, lengths: Any, padding: float = 0.0) -> Any:
    """aten._jagged_to_padded_dense_forward: a read of rows, and the padding past each end."""
    if len(offsets) != 1 or values.shape[0] == 0:
        return NotImplemented
    starts, ends = offsets[0][:-1].unsqueeze(1), offsets[0][1:].unsqueeze(1)
    places = starts + torch.arange(lengths[0], device=values.device)
    inside = places < ends
    rows = aten.index.Tensor(values, [torch.where(inside, places, 0)])
    fill = torch.full((), padding, dtype=values.dtype, device=values.device)
    return torch.where(inside.reshape(*inside.shape, *[1] * (values.dim() - 1)), rows, fill)


#: Rows up to which a product of int8 is computed by sums, and those that cuBLAS takes.
_SUMMED_ROWS, _MIN_ROWS = 4, 17


def _int_product(a: Any, b: Any) -> Any:
    """aten._int_mm of few rows on a GPU, which cuBLAS refuses: sums of products, or more rows."""
    rows = a.shape[0]
    if not _for_triton(a) or (isinstance(rows, int) and rows >= _MIN_ROWS):
        return NotImplemented
    if isinstance(rows, int) and rows <= _SUMMED_ROWS:
        terms = a.to(torch.int32).unsqueeze(1) * b.t().to(torch.int32).unsqueeze(0)
        return terms.sum(-1, dtype=torch.int32)
    padded = aten.constant_pad_nd(a, [0, 0, 0, _MIN_ROWS - 1])
    return aten._int_mm(padded, b)[:rows]


#: The most elements that one kernel finds in a row for aten.topk, and the longest row.
_FEW_LARGEST, _SHORT_ROW = 16, 1024


def _few_largest(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """aten.topk of few elements of short rows on a GPU (the experts of a token): k times the largest
    remaining element and its first index. ATen selects and then sorts, in two kernels."""
    length = x.shape[dim] if x.dim() else None
    if not (largest and _for_triton(x) and isinstance(length, int) and isinstance(k, int)):
        return NotImplemented
    known = x.dtype in (*_LOW, torch.float32)
    if not known or not 1 <= k <= min(_FEW_LARGEST, length) or length > _SHORT_ROW:
        return NotImplemented
    rows, places = x.movedim(dim, -1), torch.arange(length, device=x.device)
    remaining = torch.full_like(places, True, dtype=torch.bool)
    values, indices = [], []
    for _ in range(k):
        value = torch.where(remaining, rows, -math.inf).amax(-1, keepdim=True)
        # NaN is the largest. Selected elements equal a maximum of -inf, too.
        equal = remaining & ((rows == value) | (rows.isnan() & value.isnan()))
        index = torch.where(equal, places, length - 1).amin(-1, keepdim=True)
        remaining = remaining & (places != index)
        values.append(value)
        indices.append(index)
    return tuple(torch.cat(parts, -1).movedim(-1, dim).contiguous() for parts in (values, indices))


_LOW = (torch.float16, torch.bfloat16)
_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    # as eager's: torch's form multiplies a zero by an alpha of infinity
    aten.celu.default: lambda x, alpha=1.0: aten.elu(x, alpha, 1.0, 1.0 / alpha),
    aten.elu_backward.default: _elu_gradient,
    aten.gelu_backward.default: _gelu_gradient,
    aten.hardswish_backward.default: _hardswish_gradient,
    aten.hardtanh_backward.default: _hardtanh_gradient,
    aten.logit_backward.default: _logit_gradient,
    aten._int_mm.default: _int_product,
    aten.topk.default: _few_largest,
    aten._jagged_to_padded_dense_forward.default: _jagged_to_padded,
    aten.smooth_l1_loss_backward.default: _smooth_l1_gradient,
    aten.soft_margin_loss_backward.default: _soft_margin_gradient,
}


def _flex_attention(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    """flex_attention in ATen operators, where no kernel computes it."""
    why_not = why_no_forward if _for_triton(query) else why_not_in_cpp
    if _has_kernel(why_not, query, key, value, *rest):
        return NotImplemented
    return flex_attention_decomposed(query, key, value, *rest)


def _flex_attention_backward(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    """flex_attention's gradients in ATen operators, where no kernels compute them."""
    why_not = why_no_backward if _for_triton(query) else why_no_backward_in_cpp
    if _has_kernel(why_not, query, key, value, *rest):
        return NotImplemented
    return flex_attention_backward_decomposed(query, key, value, *rest)


def _for_triton(query: Any) -> bool:
    return bool(query.device.type == "cuda" or target_of_cpu().triton)


def _has_kernel(why_not: Callable[..., str | None], *args: Any) -> bool:
    """Returns whether kernels compute one of flex_attention's operators. why_not: of the operator."""
    query, key, value, *_, buffers, _, _, program = args
    flex = flex_program(program)
    known = all(map(_is_lowered, (flex.score, flex.mask, flex.gradient)))
    return known and why_not(query, key, value, buffers, flex) is None


def _is_lowered(program: ScalarProgram | None) -> bool:
    """Returns whether every operator of a function of scores has a lowering."""
    if program is None:
        return True
    functions = [scalar_function(name) for name, _, _ in program.steps
                 if name not in (SCALAR_LOAD, SCALAR_SIZE)]  # fmt: skip
    return all(function in LOWERINGS for function in functions if isinstance(function, OpOverload))


_REPLACEMENTS[FLEX_ATTENTION] = _flex_attention
_REPLACEMENTS[FLEX_ATTENTION_BACKWARD] = _flex_attention_backward


def _associative_scan(rows: Any, program: str) -> Any:
    """An associative scan as a loop on CPUs; on GPUs as a tree of operators, where no kernel computes
    it."""
    if not (rows[0].device.type == "cuda" or target_of_cpu().triton):
        return scan_in_sequence(rows, program)
    known = all(row.dtype in SCANNED for row in rows) and _is_lowered_graph(program, rows)
    return NotImplemented if known else scan_by_tree(rows, program)


def _is_lowered_graph(program: str, rows: Any) -> bool:
    graph = scan_scalars(program, [row.dtype for row in rows]).graph
    return all(node.target in LOWERINGS for node in graph.nodes if node.op == "call_function")


_REPLACEMENTS[ASSOCIATIVE_SCAN] = _associative_scan


@functools.cache
def _of_aten() -> dict[Any, Callable[..., Any]]:
    """Returns torch's core table without operators of other namespaces (torchvision's, for
    instance)."""
    table = core_decompositions()
    return {
        op: fn for op, fn in table.items() if isinstance(op, OpOverload) and op.namespace == "aten"
    }


#: Products of more multiplications than this stay ATen's, whose blocking pays for Python's call.
_LOOP_PRODUCT = 1 << 18


def step_matmuls() -> dict[Any, Callable[..., Any]]:
    """Returns decompositions of the matmuls in a step of a loop that no hand-written kernel takes
    (`kernels.selection.native_matmul`), into sums of products."""
    return {
        aten.mm.default: _as_sums,
        aten.bmm.default: _as_sums,
        aten.addmm.default: _added,
        aten.addmv.default: _added,
        aten.mv.default: lambda a, b: _as_sums(a, b.unsqueeze(-1)).squeeze(-1),
        aten.dot.default: lambda a, b: (a * b).sum(),
    }


def _as_sums(a: torch.Tensor, b: torch.Tensor) -> Any:
    count = math.prod(map(hint, (*a.shape, b.shape[-1])))
    if (a.dtype is torch.float32 and a.dim() == 2) or count > _LOOP_PRODUCT:
        return NotImplemented
    wide = torch.float32 if a.dtype in (torch.float16, torch.bfloat16) else a.dtype
    terms = a.to(wide).unsqueeze(-1) * b.to(wide).unsqueeze(-3)
    return terms.sum(-2, dtype=wide).to(a.dtype)


def _added(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    if (beta, alpha) != (1, 1) or (bias.dim() == 1 and b.dim() == 2 and a.dtype is torch.float32):
        return NotImplemented
    return bias + (a @ b)
