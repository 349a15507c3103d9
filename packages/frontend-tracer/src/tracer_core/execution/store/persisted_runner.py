"""Makes the runner of a graph that a backend has serialized, for stored cache entries and packages.

Imports nothing of the tracer: a process that runs what is stored starts quickly.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.aot.bound_outputs import bound
from tracer_core.aot.version_counting import versions_counted
from tracer_core.contract.backend import Backend, resolve
from tracer_core.contract.runner import NOTHING, RunFunction, Runner
from tracer_core.contract.specs import CompileSpec, InputSpec, OutputSpec, Phase, Role, SizeSpec


def persisted_runner(data: bytes, spec: CompileSpec, backend: Backend) -> RunFunction:
    """Returns the runner of what `writer.serialized` returned. Raises what the backend
    raises."""
    if not data:
        return NOTHING.run
    assert backend.deserialize is not None  # else `packages.save` and `kept` store nothing
    runner = Runner.of(resolve(backend.deserialize)(data, spec), "deserialize()")
    return versions_counted(runner.run, spec, runner.mutated_on_error)


def with_outputs(stored: dict[str, Any], run: RunFunction) -> RunFunction:
    """Returns a runner with the outputs of the captured graph. stored: the text of its `OutputPlan`
    (``"plan"``, None where it is trivial), and the ``"constants"`` of the plan."""
    if stored["plan"] is None:
        return run
    constants = tuple(map(_constant_from_json, stored["constants"]))
    return bound(stored["plan"], "<tracer outputs, stored>", run, constants)


def _constant_from_json(stored: dict[str, Any]) -> torch.Tensor:
    result = torch.empty(stored["shape"], dtype=getattr(torch, stored["dtype"]))
    data = bytearray(base64.b64decode(stored["data"]))
    if data:
        result.copy_(torch.frombuffer(data, dtype=result.dtype).view(result.shape))
    return result.to(stored.get("device", "cpu"))  # earlier files are all of the CPU


def spec_from_json(stored: dict[str, Any], options: Any) -> CompileSpec:
    """Returns a spec as `writer.spec_to_json` stores it, with the backend's options."""
    return CompileSpec(options=options, **_from_json(stored))


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
