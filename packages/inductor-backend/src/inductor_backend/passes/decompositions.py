"""Chooses which ATen operators are decomposed before lowering.

An operator with a lowering of its own is never decomposed (its kernels are better and compile
faster), nor one of the fallback table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from inductor_backend import lowering as _registered  # noqa: F401  (importing fills the table)
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering.registry import LOWERINGS
from inductor_backend.passes.attention_layers import ATTENTION_LAYERS
from inductor_backend.torch_private import OpOverload, core_decompositions


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns torch's core table without what this backend lowers or calls itself, plus whole
    attention layers."""
    own = {op: fn for op, fn in _of_aten().items() if op not in LOWERINGS and op not in FALLBACKS}
    return own | ATTENTION_LAYERS


@functools.cache
def _of_aten() -> dict[Any, Callable[..., Any]]:
    """Returns torch's core table without operators of other namespaces (torchvision's, for
    instance)."""
    table = core_decompositions()
    return {
        op: fn for op, fn in table.items() if isinstance(op, OpOverload) and op.namespace == "aten"
    }
