"""Lowers the operator ``tracer_core::scan``, a loop over slices, to one call."""

from __future__ import annotations

from typing import Any

from inductor_backend.ir.index_expr import contiguous_strides
from inductor_backend.lowering.registry import Lowering, lower
from tracer_core.plugin_api import scan

_SCAN = scan()


@lower(_SCAN.SCAN)
def loop(ctx: Lowering, *args: Any) -> Any:
    *tensors, numbers, length, reverse, program = args
    made = [[ctx.strided(one, contiguous_strides(one.sizes)) for one in part] for part in tensors]
    return ctx.externs(_SCAN.SCAN, [*made, numbers, length, reverse, program])
