"""Makes cache entries that another process captured, without tracing.

An entry in JSON is its generated text (guards, fetches, side effects, result), also as the code
object of this release of Python, which takes much longer to make than to read; how to find each
constant again (`object_references`), digests of the code that was followed and of what identity
guards take for granted (`code_identity`), the settings of torch that kernels were chosen under, and
the backend's own serialized graph. Nothing is unpickled. `entry_writer` writes them.
"""

from __future__ import annotations

import base64
import marshal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.aot.ambient_modes import without_modes
from tracer_core.aot.bound_outputs import bound
from tracer_core.aot.mutation_tracking import versions_counted
from tracer_core.contract.backend import resolve
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec, InputSpec, OutputSpec, Phase, Role, SizeSpec
from tracer_core.execution.capture_result import BreakRecord
from tracer_core.execution.code_identity import code_hash
from tracer_core.execution.generated_code import define
from tracer_core.execution.generated_namespace import runtime_namespace
from tracer_core.execution.object_references import Finder, OtherSettings, StoredError
from tracer_core.guards.guard_cache import GuardCache
from tracer_core.options import CompileConfig
from tracer_core.torch_private import settings


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """An entry that another process captured. json: as it was stored. key: of its code region, among
    the starts if `start`. attempt, break_, shapes, numbers, name, op_count: as `Captured` has them.
    """

    json: dict[str, Any]
    key: Any
    start: bool
    attempt: Callable[[Any], Any]
    name: str
    op_count: int
    break_: BreakRecord | None
    shapes: dict[str, tuple[int, ...]]
    numbers: dict[str, int | float]


def entry_from_json(entry: dict[str, Any], config: CompileConfig, finder: Finder) -> LoadedEntry:
    """Returns an entry in JSON as one of this process. Raises StoredError, or what the backend
    raises, if it does not fit this process."""
    name, now = entry["name"], settings.of_kernels()
    for setting, value in entry["settings"].items():
        if now.get(setting) != value:
            said = (
                f"{setting} was {value} where {name} was captured, and here is {now.get(setting)}"
            )
            raise OtherSettings(f"{finder.path}: {said}")
    for described, expected in entry["code"]:
        found = finder.find(described)
        if code_hash(found.__code__, entry["lines"]) != expected:
            raise StoredError(
                f"{finder.path}: {found.__qualname__} has changed since {name} was stored; store"
                " it again"
            )
    namespace = {**runtime_namespace(entry["text"]), "graph": _graph_from_json(entry, config)}
    for constant, described in entry["constants"].items():
        namespace[constant] = finder.find(described)
    code = marshal.loads(base64.b64decode(entry["compiled"]))
    attempt = define("attempt", entry["text"], namespace, f"{name}, stored", code)
    if "check" in namespace:
        namespace["guard_cache"] = GuardCache(namespace["check"], tuple(entry["roots"]))
    return LoadedEntry(
        json=entry,
        key=tuple(entry["key"]) if entry["start"] else finder.layouts(entry["key"]),
        start=entry["start"],
        attempt=attempt,
        name=name,
        op_count=entry["op_count"],
        break_=None if entry["break"] is None else BreakRecord(*entry["break"]),
        shapes={source: tuple(shape) for source, shape in entry["shapes"].items()},
        numbers=entry["numbers"],
    )


def _graph_from_json(entry: dict[str, Any], config: CompileConfig) -> Any:
    stored = entry["graph"]
    if stored is None:
        return None
    deserialize = resolve(config.backend.deserialize)
    spec = CompileSpec(options=config.options, **_from_json(stored["spec"]))
    runner = Runner.of(deserialize(base64.b64decode(stored["backend"]), spec), "deserialize()")
    run = versions_counted(runner.run, spec, runner.mutated_on_error)
    if stored["plan"] is not None:
        run = bound(stored["plan"], "<tracer outputs, stored>", run, ())
    return without_modes(stored["modes"], run)


#: Fields of the rows of a spec that JSON cannot hold directly -> function that restores the field's
#: value, where it is not None.
_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "role": Role, "shape": tuple, "stride": tuple,
    "dtype": lambda name: getattr(torch, name),
    "device": torch.device, "phase": Phase, "mutations": tuple, "constants": tuple,
    "inputs": lambda rows: tuple(InputSpec(**_from_json(row)) for row in rows),
    "outputs": lambda rows: tuple(OutputSpec(**_from_json(row)) for row in rows),
    "sizes": lambda rows: tuple(SizeSpec(**row) for row in rows),
}  # fmt: skip


def _from_json(row: dict[str, Any]) -> dict[str, Any]:
    """Restores the fields of a row. Symbolic sizes of outputs are text (``"s0 + 1"``)."""
    restored = dict(row)
    for name, value in row.items():
        if value is not None and name in _FROM_JSON:
            restored[name] = _FROM_JSON[name](value)
    return restored
