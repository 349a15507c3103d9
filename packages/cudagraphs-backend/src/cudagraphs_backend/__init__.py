"""The backend ``cudagraphs`` of tracer_core: replays a graph's kernels with one launch.

``tracer_core.compile(f, backend="cudagraphs")`` uses it alone; other backends reach it as
``plugin_api.get_backend("cudagraphs").wrap``. `report` says what became of each graph.
"""

from __future__ import annotations

from typing import Any

__all__ = ["report", "reset", "wrap"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from cudagraphs_backend import wrapping  # heavy: torch

        return getattr(wrapping, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
