"""Dropout masks (``aten.bernoulli.p``, ``aten.native_dropout``), kept as bools.

On the CPU an extern node (`kernels.rng`) generates bools, which a loop inlined into its readers
casts; the mask saved for the backward is the bools. On a GPU (`Lowering.rng_nodes`) loops compute each
random number from a seed and its position, fused with the code around them; the first dropout
generates the seeds of all from torch's generator. On the CPU, and with ``fallback_random``, the
random numbers are eager's, in eager's order; where ours would differ, or the memory order is not
row-major, ATen's operator runs. On a GPU masks depend on the generator's state alone, which
advances with each call, also in CUDA graph replay, since an operator generates the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index, contiguous_strides, flatten
from inductor_backend.ir.nodes import BufferKind
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.kernels import rng
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten


@lower(aten.bernoulli.p)
def bernoulli(ctx: Lowering, x: Ref, p: float = 0.5, generator: Any = None) -> Ref:
    sizes, dtype = ctx.shape(), ctx.meta().dtype
    if ctx.rng_nodes and is_rng_of_kernels(ctx.node):
        mask = _keep_mask(ctx, p)
        return ctx.pointwise(lambda at: cast(mask.at(at), dtype), label="bernoulli")
    if not (_is_ours(ctx) and isinstance(p, float) and 0 <= p <= 1 and generator is None):
        inputs = {} if generator is None else {"generator": generator}
        return call_aten(ctx, x, p, **inputs)
    buffer = ctx.buffer(sizes, torch.bool, kind=BufferKind.EXTERN)
    ctx.add_call(rng.bernoulli, [tuple(sizes), p], [buffer], label="bernoulli", sequential=True)
    bits = Ref.of(buffer)
    if dtype is torch.bool:
        return bits
    numbers = ctx.pointwise(lambda at: cast(bits.at(at), dtype), label="bernoulli")
    ctx.bits[numbers.buffer.name] = bits
    return numbers


@lower(aten.native_dropout.default)
def native_dropout(ctx: Lowering, x: Ref, p: float, train: bool | None) -> Any:
    if not (ctx.rng_nodes and is_rng_of_kernels(ctx.node)):
        return call_aten(ctx, x, p, train)
    dtype = compute_dtype(x.dtype)
    mask = _keep_mask(ctx, 1.0 - p)

    def body(at: Sequence[Index]) -> Value:
        element = make("mul", cast(x.at(at), dtype), cast(mask.at(at), dtype))
        return make("mul", element, const(1.0 / (1.0 - p), dtype))

    return ctx.pointwise(body, x.sizes, x.dtype, ctx.strides(0), label="dropout"), mask


def is_rng_of_kernels(node: torch.fx.Node) -> bool:
    """Checks for a probability between 0 and 1 and torch's own generator: kernels need a seed for
    it."""
    if node.target is aten.native_dropout.default:
        probability, simple = node.args[1], node.args[2] is True
    elif node.target is aten.bernoulli.p:
        probability, simple = (*node.args, 0.5)[1], node.kwargs.get("generator") is None
        simple = simple and node.meta["val"].dtype.is_floating_point
    else:
        return False
    return simple and isinstance(probability, float) and 0 < probability < 1


def _keep_mask(ctx: Lowering, p: float) -> Ref:
    """Returns bools that are True with probability p, in the layout of the node's (last) result."""
    value = ctx.node.meta["val"]
    last = len(value) - 1 if isinstance(value, (tuple, list)) else None
    seeds, number = _seeds(ctx), ctx.rng_count
    ctx.rng_count += 1
    sizes = ctx.shape(last)
    steps = contiguous_strides(sizes)

    def body(at: Sequence[Index]) -> Value:
        place = make("index", attr=flatten(at, steps))
        return make("lt", make("philox", seeds.at([Index(number)]), place), const(p, torch.float32))

    return ctx.pointwise(body, sizes, torch.bool, ctx.strides(last), label="dropout")


def _seeds(ctx: Lowering) -> Ref:
    """Returns one seed per dropout of the graph, generated at the first dropout."""
    if ctx.seeds is None:
        result = ctx.buffer((ctx.rng_nodes,), torch.int64, kind=BufferKind.EXTERN)
        like = {"dtype": torch.int64, "device": ctx.program.device}
        bounds = (0, 2**63 - 1, [ctx.rng_nodes])
        ctx.add_call(aten.randint.low, bounds, [result], like, "seeds", sequential=True)
        ctx.seeds = Ref.of(result)
    return ctx.seeds


def _is_ours(ctx: Lowering) -> bool:
    value = ctx.meta()
    row_major = tuple(ctx.strides()) == contiguous_strides(ctx.shape())
    return row_major and not ctx.gpu and value.device.type == "cpu" and rng.same_stream(value.dtype)
