"""Replaces a graph's launches by CUDA graph replays, through the package cudagraphs-backend.

A runner is wrapped where the mode asks for it, or, in the default mode, where capture is safe and
timed calls show that it pays. Where the package is missing or cannot capture, the runner itself is
returned; a mode that asks for CUDA graphs logs the reason. In the default mode, the program's
results are ordinary tensors with memory of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from inductor_backend.limits import MIN_CALLS_OF_A_SIZE, MIN_GRAPH_LAUNCHES
from inductor_backend.options import CAPTURED_MODES, InductorOptions
from inductor_backend.runtime.allocation_hooks import placed
from inductor_backend.runtime.generated_module import Artifact
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.runtime.scalars import on_host
from tracer_core.plugin_api import (
    BackendNotFoundError,
    CacheLocationError,
    CompileSpec,
    Store,
    get_backend,
    logger,
    resolve,
)

#: Modes in which CUDA graphs are captured where it pays.
MEASURED_MODES = frozenset({"default"})


#: Why CUDA graphs do not pay, or "" where they do, by module and sizes.
_VERDICTS = Store("cuda-graph-verdicts")

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
    asked = spec.mode in CAPTURED_MODES
    wrap, reason = None, None if asked else _left_alone_because(runner, spec)
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
    options = make() if asked else make(measured=True, outputs="saved", warmup=_warmup(spec))
    run, numbers = runner.run, None
    if runner.scalars is not None:
        (numbers_of, run), pinned = runner.scalars, spec.device.type == "cuda"
        numbers = lambda inputs: on_host(numbers_of(inputs), pinned)
    inner = runner.with_run(run)
    verdicts = None
    if not asked and spec.device.type == "cuda" and isinstance(runner.artifact, Artifact):
        verdicts = _Verdicts(runner.artifact.text, spec.device, from_store=isinstance(gm, Mapping))
    wrapped: ModuleRunner = wrap(
        inner, gm, spec, options, run_placed=placed(run), numbers=numbers, verdicts=verdicts
    )
    return runner if wrapped is inner else wrapped


class _Verdicts:
    """What timed calls of a module said. from_store: the module is one that an earlier process made,
    and goes by that process's verdicts."""

    def __init__(self, text: str, device: torch.device, *, from_store: bool) -> None:
        self._module = torch.__version__, torch.cuda.get_device_name(device), text
        self._from_store = from_store

    def _name(self, size: str) -> str:
        return hashlib.sha256(repr((self._module, size)).encode()).hexdigest()[:32]

    def known(self, size: str) -> str | None:
        try:
            result = _VERDICTS.read(self._name(size)) if self._from_store else None
            return None if result is None else result.decode()
        except (CacheLocationError, ValueError):
            return None

    def keep(self, size: str, verdict: str) -> None:
        try:
            _VERDICTS.write(self._name(size), verdict.encode())
        except CacheLocationError as error:
            logger().info("whether CUDA graphs pay is timed again by the next process: %s", error)


def _left_alone_because(runner: ModuleRunner, spec: CompileSpec) -> str | None:
    """Returns why, in the default mode, a graph is not captured, or None."""
    options, launches = spec.options, runner.launches
    if spec.mode not in MEASURED_MODES:
        return f"mode {spec.mode!r} makes none"
    if isinstance(options, InductorOptions) and not options.recordings:
        return "options={'recordings': False}"
    few = f"{launches} launches, and in mode 'default' it takes {MIN_GRAPH_LAUNCHES}"
    return few if launches < MIN_GRAPH_LAUNCHES else None


def _recorder() -> tuple[Any, str | None]:
    """Returns the function that wraps a runner, or the reason why there is none."""
    try:
        backend = get_backend("cudagraphs")
    except BackendNotFoundError as error:
        return None, str(error)
    reason = resolve(backend.available)() if backend.available is not None else None
    return (None if reason is not None or backend.wrap is None else resolve(backend.wrap)), reason


def _warmup(spec: CompileSpec) -> int:
    return MIN_CALLS_OF_A_SIZE if spec.sizes else 1
