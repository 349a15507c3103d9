"""Replaces a graph's launches by CUDA graph replays, through the package cudagraphs-backend.

A runner is wrapped where the mode asks for it, or, in the default mode, under the option
`measured`: which graphs are then captured is decided in ``cudagraphs_backend.policy``. Where the
package is missing or cannot capture, the runner itself is returned; a mode that asks for CUDA graphs
logs the reason. In the default mode, the program's results are ordinary tensors with memory of
their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from inductor_backend.options import InductorOptions
from inductor_backend.runtime.allocation_hooks import placed
from inductor_backend.runtime.generated_module import Artifact
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.runtime.scalars import on_host
from tracer_core.plugin_api import (
    CAPTURING_MODES,
    BackendNotFoundError,
    CompileSpec,
    get_backend,
    logger,
    resolve,
)

#: Modes in which CUDA graphs are captured where it pays.
MEASURED_MODES = frozenset({"default"})


#: Recent graphs that were not captured -> the reason.
_left_alone: dict[str, str] = {}
_REMEMBERED = 1024


def report() -> list[tuple[str, str]]:
    """Returns (graph, reason) for graphs on CUDA devices that run without CUDA graph capture."""
    return [
        (name, f"runs without CUDA graphs: {reason}") for name, reason in tuple(_left_alone.items())
    ]


def reset() -> None:
    """Forgets the reasons: after `tracer_core.reset()` new graphs have the old ones' names."""
    _left_alone.clear()


def with_cuda_graphs(
    runner: ModuleRunner, gm: torch.fx.GraphModule | Mapping[str, Any], spec: CompileSpec
) -> ModuleRunner:
    """Wraps a runner in CUDA graph capture where that applies. gm: the graph, or a stored runner's
    replacement for it (`Runner.graph_traits`)."""
    asked = spec.mode in CAPTURING_MODES
    wrap, reason = None, None if asked else _excluded(spec)
    if reason is None:
        wrap, reason = _recorder()
        if wrap is None and asked:
            logger().warning(
                "%s: mode %r runs without CUDA graphs: %s", spec.name, spec.mode, reason
            )
    if wrap is None:
        _left_alone[spec.name] = str(reason)
        if len(_left_alone) > _REMEMBERED:
            del _left_alone[next(iter(_left_alone))]
        return runner
    make: Any = resolve(get_backend("cudagraphs").options)
    options = make() if asked else make(measured=True, outputs="saved")
    run, numbers = runner.run, None
    if runner.scalars is not None:
        (numbers_of, run), pinned = runner.scalars, spec.device.type == "cuda"
        numbers = lambda inputs: on_host(numbers_of(inputs), pinned)
    inner = runner.with_run(run)
    module = runner.artifact.text if isinstance(runner.artifact, Artifact) else None
    wrapped: ModuleRunner = wrap(
        inner, gm, spec, options, run_in_pools=placed(run), numbers=numbers,
        launches=runner.launches, module=module,
    )  # fmt: skip
    return runner if wrapped is inner else wrapped


def _excluded(spec: CompileSpec) -> str | None:
    """Returns why mode and options make no CUDA graphs, or None."""
    options = spec.options
    if spec.mode not in MEASURED_MODES:
        return f"mode {spec.mode!r} makes none"
    if isinstance(options, InductorOptions) and not options.recordings:
        return "options={'recordings': False}"
    return None


def _recorder() -> tuple[Any, str | None]:
    """Returns the function that wraps a runner, or the reason why there is none."""
    try:
        backend = get_backend("cudagraphs")
    except BackendNotFoundError as error:
        return None, str(error)
    reason = resolve(backend.available)() if backend.available is not None else None
    return (None if reason is not None or backend.wrap is None else resolve(backend.wrap)), reason
