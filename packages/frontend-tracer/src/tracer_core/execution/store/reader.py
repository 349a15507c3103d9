"""Makes cache entries that another process captured, without tracing.

An entry in JSON is its generated text (guards, fetches, side effects, result), also as the code
object of this release of Python, which takes much longer to make than to read; how to find each
constant again (`find`), digests of the code that was followed and of what identity
guards take for granted (`code_identity`), the settings of torch that kernels were chosen under, and
the backend's own serialized graph. Nothing is unpickled. `writer` writes them.
"""

from __future__ import annotations

import base64
import functools
import marshal
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core.aot.ambient_modes import uncast, without_modes
from tracer_core.aot.autograd_node import (
    Backward,
    autograd_function,
    in_grad_mode,
    items,
    node_step,
    with_used_up,
)
from tracer_core.bytecode.generated_code import define
from tracer_core.contract.runner import RunFunction
from tracer_core.errors import StoredError
from tracer_core.execution.capture.result import BreakRecord
from tracer_core.execution.entry.namespace import runtime_namespace
from tracer_core.execution.entry.object_part import add_guard_caches
from tracer_core.execution.store.code_identity import code_hash
from tracer_core.execution.store.describe import Finder, OtherSettings
from tracer_core.execution.store.distributions import differing, installed
from tracer_core.execution.store.persisted_runner import (
    persisted_runner,
    spec_from_json,
    with_outputs,
)
from tracer_core.fx_capture.data_errors import AccumulatorHeld
from tracer_core.limits import MAX_UNKNOWN_BACKWARDS
from tracer_core.options import CompileConfig
from tracer_core.torch_private import direct_apply, is_accumulator_held, settings


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """An entry that another process captured. What has no comment is as in `Captured`."""

    #: As it was stored.
    json: dict[str, Any]
    #: Of its code region.
    key: Any
    #: Whether this is a region where calls begin.
    start: bool
    entry_function: Callable[[Any], Any]
    name: str
    op_count: int
    speculated: tuple[str, ...]
    break_: BreakRecord | None
    shapes: dict[str, tuple[int, ...]]
    numbers: dict[str, int | float]
    #: Of its graph; None without any.
    backwards: StoredBackwards | None

    def conditions(self) -> list[str]:
        """Returns what its guards check, as `Failure.conditions` does."""
        return zlib.decompress(base64.b64decode(self.json["guards"])).decode().split("\n")


def entry_from_json(entry: dict[str, Any], config: CompileConfig, finder: Finder) -> LoadedEntry:
    """Returns an entry in JSON as one of this process. Raises StoredError, or what the backend
    raises, if it does not fit this process."""
    name = entry["name"]
    if differs := differing(entry["settings"], settings.of_kernels()) or differing(
        entry["distributions"], installed()
    ):
        raise OtherSettings(f"{finder.path}: {differs} since {name} was captured")
    for described, expected in entry["code"]:
        result = finder.find(described)
        if code_hash(result.__code__, entry["lines"]) != expected:
            raise StoredError(
                f"{finder.path}: {result.__qualname__} has changed since {name} was stored; store"
                " it again"
            )
    backwards = _backwards_from_json(entry, config)
    graph = _graph_from_json(entry, config, finder, backwards)
    namespace = {**runtime_namespace(entry["text"]), "graph": graph}
    for constant, described in entry["constants"].items():
        namespace[constant] = finder.find(described)
    code = marshal.loads(base64.b64decode(entry["compiled"]))
    cache_entry = define("entry", entry["text"], namespace, f"{name}, stored", code)
    add_guard_caches(namespace, entry["roots"])
    return LoadedEntry(
        json=entry,
        key=tuple(entry["key"]) if entry["start"] else finder.find(entry["key"]),
        start=entry["start"],
        entry_function=cache_entry,
        name=name,
        op_count=entry["op_count"],
        speculated=tuple(entry["speculated"]),
        break_=None if entry["break"] is None else BreakRecord(*entry["break"]),
        shapes={source: tuple(shape) for source, shape in entry["shapes"].items()},
        numbers=entry["numbers"],
        backwards=backwards,
    )


def _graph_from_json(
    entry: dict[str, Any], config: CompileConfig, finder: Finder, backwards: StoredBackwards | None
) -> Any:
    stored = entry["graph"]
    if stored is None:
        return None
    run, device = _runner_from_json(stored, config)
    if backwards is not None:
        run = without_modes(stored["modes"], run)
        run = in_grad_mode(run) if stored["grad_mode"] else run
        name = entry["name"]
        run = _node_from_json(stored["training"], run, name, device, backwards, finder)
        return with_outputs(stored, run)
    run = with_outputs(stored, run)
    run = in_grad_mode(run) if stored["grad_mode"] else run
    run = with_used_up(stored["used_up"], without_modes(stored["modes"], run))
    return _without_held_accumulators(run) if stored["is_step"] else run


def _without_held_accumulators(run: RunFunction) -> RunFunction:
    """Returns what raises AccumulatorHeld where the first call finds what the trace of a whole step
    would have found, and no guard asks for."""
    is_checked = False

    def run_step(inputs: list[Any]) -> Sequence[Any]:
        nonlocal is_checked
        if not is_checked:
            tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
            if is_accumulator_held(
                [tensor for tensor in tensors if tensor.is_leaf and tensor.requires_grad]
            ):
                raise AccumulatorHeld("the program holds the gradient accumulator of a tensor")
            is_checked = True
        return run(inputs)

    return run_step


def _runner_from_json(
    stored: dict[str, Any], config: CompileConfig
) -> tuple[RunFunction, torch.device]:
    """Returns a backend's runner, and the device of its graph."""
    spec = spec_from_json(stored["spec"], config.options)
    return persisted_runner(base64.b64decode(stored["backend"]), spec, config.backend), spec.device


@dataclass(slots=True)
class StoredBackwards:
    """The backwards that were compiled in the process that captured the graph. Mutable."""

    #: By the outputs that have a tangent.
    known: dict[tuple[int, ...], Backward]
    #: The outputs that may have one.
    tangents: tuple[int, ...]
    #: How many calls wanted other backwards.
    unknown: int = 0
    #: Is called once they are too many.
    capture_again: Callable[[], None] | None = None

    @property
    def full(self) -> Backward:
        """The largest one: no other process cuts it into parts."""
        return max(self.known.values(), key=lambda value: len(value.tangents))

    def of(self, tangents: Sequence[torch.Tensor | None]) -> Backward | None:
        outputs = tuple([index for index in self.tangents if tangents[index] is not None])
        result = self.known.get(outputs)
        if result is None:
            self.unknown += 1
            if self.unknown == MAX_UNKNOWN_BACKWARDS and self.capture_again is not None:
                self.capture_again()
        return result


def _backwards_from_json(entry: dict[str, Any], config: CompileConfig) -> StoredBackwards | None:
    stored = None if entry["graph"] is None else entry["graph"]["training"]
    if stored is None:
        return None
    known = {}
    for tangents, gradients, parts in stored["backwards"]:
        run, device = _runner_from_json(parts, config)
        backward = Backward(tuple(tangents), tuple(gradients), uncast(device, run))
        known[backward.tangents] = backward
    return StoredBackwards(known, tuple(stored["tangents"]))


def _node_from_json(
    stored: dict[str, Any],
    run_forward: RunFunction,
    name: str,
    device: torch.device,
    backwards: StoredBackwards,
    finder: Finder,
) -> RunFunction:
    """Returns a graph with a backward as one autograd node."""
    plan, again = finder.find(stored["node"]), finder.find(stored["again"])
    scope = {item: finder.find(described) for item, described in stored["globals"].items()}
    forward = define("forward", again.forward, scope, f"{name}, captured")
    captured = replace(again, forward=functools.partial(forward, None))
    step = node_step(plan, run_forward, backwards, captured, device)
    apply = direct_apply(autograd_function(name, step))
    leaves_of = items(plan.differentiable)

    def run_node(args: list[Any]) -> Sequence[Any]:
        return apply(args, *leaves_of(args))  # type: ignore[no-any-return]

    return plan.watching(run_node)  # type: ignore[no-any-return]
