"""Lowers the check of a factorization (``tracer_core::linalg_checked``) to a call."""

from __future__ import annotations

from typing import Any

from inductor_backend.ir.views import Ref
from inductor_backend.kernels import linear_algebra
from inductor_backend.lowering.context import Lowering, lower
from inductor_backend.lowering.fallback import argument
from tracer_core.plugin_api import LINALG_CHECKED


@lower(LINALG_CHECKED)
def checked(ctx: Lowering, *args: Any) -> Ref:
    pairs = zip(args, ctx.node.args, strict=True)
    return ctx.extern(linear_algebra.checked, [argument(ctx, value, node) for value, node in pairs])
