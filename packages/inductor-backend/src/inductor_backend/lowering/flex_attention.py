"""Lowers flex_attention's operators to calls of kernels, where `kernels.flex_attention` has some; its
decompositions into ATen operators come first for all others.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.lowering.context import Lowering, lower
from inductor_backend.lowering.fallback import argument
from tracer_core.plugin_api import FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD


@lower(FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD)
def attention(ctx: Lowering, *args: Any) -> Any:
    nodes = ctx.node.args
    result = [argument(ctx, value, node) for value, node in zip(args, nodes, strict=True)]
    used = ctx.used_outputs() if ctx.node.target is FLEX_ATTENTION_BACKWARD else None
    return ctx.externs(ctx.node.target, result, used=used)
