"""``torch.utils.checkpoint`` in a captured graph: how a region of it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_Function = Callable[..., Any]

#: `tracer_core.aot.rng_checkpoint.RecomputedRng.region` of this thread's lowering, for checkpoints
#: that preserve the rng state.
REGIONS: ContextVar[Callable[[_Function], _Function] | None] = ContextVar(
    "tracer_checkpoint_regions", default=None
)
