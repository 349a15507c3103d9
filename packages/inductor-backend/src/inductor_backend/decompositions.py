"""Which ATen operators are decomposed before lowering.

In: torch's decomposition tables, through `torch_private`. Out: `decompositions()`, operator -> function.
What always holds: an operator with a lowering of its own is never in the table (its kernels are better
and compile faster), nor one on the fallback table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_backend import lowering as _registered  # noqa: F401  (importing fills the table)
from inductor_backend.externs.fallbacks import FALLBACKS
from inductor_backend.lowering.registry import LOWERINGS
from inductor_backend.torch_private import core_decompositions


def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's core table without what this backend lowers or calls itself."""
    table = core_decompositions()
    aten_only = {
        op: fn for op, fn in table.items() if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten"
    }
    return {op: fn for op, fn in aten_only.items() if op not in LOWERINGS and op not in FALLBACKS}
