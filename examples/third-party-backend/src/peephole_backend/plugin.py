"""Registers the backend ``peephole``.

In: the hook call. Out: its `Backend`. What always holds: importing this module imports nothing but
tracer_core.plugin_api; the strings are resolved when the backend is used.
"""

from __future__ import annotations

from tracer_core.plugin_api import Backend, hookimpl


@hookimpl
def tracer_backends() -> list[Backend]:
    """The one backend of this package."""
    return [
        Backend(
            name="peephole",
            compile="peephole_backend.engine:compile_graph",
            description="rewrites the ATen graph to fewer operators, and counts what it did",
            ir="aten",
            shapes="symbolic",
            devices=frozenset({"cpu", "cuda"}),
            supports="peephole_backend.support:refuse",
            options="peephole_backend.options:PeepholeOptions",
            reset="peephole_backend.engine:reset",
        )
    ]
