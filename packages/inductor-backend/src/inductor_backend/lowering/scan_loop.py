"""Lowers the operators ``tracer_core::scan``, a loop over slices, and ``associative_scan`` to one call
each.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.index_expr import contiguous_strides
from inductor_backend.lowering.registry import Lowering, lower
from tracer_core.plugin_api import scan

_SCAN = scan()

#: Dtypes that the Triton kernel of an associative scan takes: blocks of one byte are not supported.
SCANNED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


@lower(_SCAN.SCAN)
def loop(ctx: Lowering, *args: Any) -> Any:
    *tensors, numbers, length, reverse, program = args
    made = [[ctx.strided(one, contiguous_strides(one.sizes)) for one in part] for part in tensors]
    return ctx.externs(_SCAN.SCAN, [*made, numbers, length, reverse, program])


@lower(_SCAN.ASSOCIATIVE)
def associative(ctx: Lowering, rows: Any, program: str) -> Any:
    made = [ctx.strided(one, contiguous_strides(one.sizes)) for one in rows]
    return ctx.externs(_SCAN.ASSOCIATIVE, [made, program])
