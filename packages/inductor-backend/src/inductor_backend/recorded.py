"""Modes that replay a graph's launches from a CUDA graph, by the package cudagraphs-backend.

In: a runner, its graph and `CompileSpec`. Out: the runner, recorded where the mode asks for it. What always holds: where
the package is missing or cannot record, the runner itself comes back and the log says why.
"""

from __future__ import annotations

import torch

from tracer_core.plugin_api import BackendNotFoundError, CompileSpec, Runner, get_backend, logger, resolve

#: Modes in which graphs are recorded.
RECORDED_MODES = frozenset({"reduce-overhead"})


def recorded(runner: Runner, gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    if spec.mode not in RECORDED_MODES:
        return runner
    try:
        backend = get_backend("cudagraphs")
    except BackendNotFoundError as error:
        logger().warning("%s: mode %r runs without CUDA graphs: %s", spec.name, spec.mode, error)
        return runner
    reason = resolve(backend.available)() if backend.available is not None else None
    if reason is not None or backend.wrap is None:
        logger().warning("%s: mode %r runs without CUDA graphs: %s", spec.name, spec.mode, reason)
        return runner
    wrapped: Runner = resolve(backend.wrap)(runner, gm, spec)
    return wrapped
