"""Makes the runner of a graph that a backend has serialized, for stored cache entries and packages.

Imports nothing of the tracer: a process that runs what is stored starts quickly.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import torch

from tracer_core.aot.bound_outputs import bound
from tracer_core.aot.version_counting import versions_counted
from tracer_core.contract import specs
from tracer_core.contract.backend import Backend, resolve
from tracer_core.contract.runner import NOTHING, RunFunction, Runner
from tracer_core.contract.specs import CompileSpec
from tracer_core.execution.store.values import Node, restore


def persisted_runner(data: bytes, spec: CompileSpec, backend: Backend) -> RunFunction:
    """Returns the runner of what `writer.serialized` returned. Raises what the backend
    raises."""
    if not data:
        return NOTHING.run
    assert (
        backend.deserialize is not None
    )  # else `export.save` and the persistent cache store nothing
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


def spec_from_json(stored: Node, options: Any) -> CompileSpec:
    """Returns a spec as `writer.spec_to_json` stores it, with the backend's options."""
    spec: CompileSpec = restore(stored, _spec_leaf)
    return replace(spec, options=options)


def _spec_leaf(node: Node) -> Any:
    ((cls, value),) = node.items()
    return getattr(specs, cls)(value)
