"""Writes packages and libraries."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tracer_core.aot.compiled_graph import RunnerArtifacts
from tracer_core.contract.backend import wants_constants
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import PackageError
from tracer_core.execution.entry_writer import constant_to_json, serialized, spec_to_json
from tracer_core.execution.object_descriptions import NotPortable
from tracer_core.markers import DYNAMIC_DIMS, mark_dynamic
from tracer_core.options import CompileConfig
from tracer_core.packages.archive import (
    CONSTANTS,
    GRAPH,
    PLAN,
    RUNNER,
    WEIGHTS,
    Data,
    write_archive,
)
from tracer_core.packages.build import Call, Program, State, captured, prepared
from tracer_core.packages.requirements import FORMAT, here
from tracer_core.packages.tensors import row_of, tensors_member

Dynamic = bool | None | Mapping[str, Mapping[int, Any]]


def package(
    fn: Any,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any],
    dynamic: Dynamic,
    weights: bool,
    backend: Any,
    mode: str | None,
    options: Any,
    key: bytes | None,
) -> dict[str, Any]:
    """See `tracer_core.package`."""
    config = build_config(
        backend=backend, fullgraph=True, mode=mode, options=options,
        dynamic=None if isinstance(dynamic, Mapping) else dynamic,
    )  # fmt: skip
    if config.backend.serialize is None or config.backend.deserialize is None:
        raise PackageError(f"backend {config.backend.name!r} does not offer serialize")
    if wants_constants(config.backend, config.options):
        raise PackageError(
            "freeze=True: what is made of frozen parameters is not stored; a package holds the"
            " weights beside the graph"
        )
    call = prepared(fn, tuple(args), dict(kwargs))
    with _marked(call, dynamic if isinstance(dynamic, Mapping) else {}):
        program = captured(call, config)
    members: dict[str, Sequence[Data]] = {}
    manifest = {
        "format": FORMAT,
        "name": call.name,
        "needs": here(config, _device(program), _options(config)),
        "parameters": call.parameters,
        "inputs": program.rows,
        "conditions": program.conditions,
        "strides": program.strides,
        "same": call.same,
        "distinct": program.distinct,
        "graph_inputs": [list(one) for one in program.inputs],
        "outputs": program.outputs,
        "asserted": program.asserted,
        "states": [_state_row(one) for one in program.states.values()],
        "weights_inside": weights,
        "runner": None,
    }
    if program.runner is not None:
        assert program.gm is not None
        assert program.runner.artifacts is not None
        manifest["runner"] = _runner(program.runner.artifacts, config, members, call)
        members[GRAPH] = [str(program.gm.graph).encode()]
    groups = [(CONSTANTS, [one for one in program.states.values() if not one.weight])]
    if weights:
        groups.append((WEIGHTS, [one for one in program.states.values() if one.weight]))
    for member, states in groups:
        if states:
            members[member] = tensors_member({one.name: one.tensor for one in states})
    return write_archive(path, manifest, members, key)


def _runner(
    parts: RunnerArtifacts, config: CompileConfig, members: dict[str, Sequence[Data]], call: Call
) -> dict[str, Any]:
    """Returns what the manifest says of the compiled graph; adds its members."""
    try:
        members[RUNNER] = [serialized(parts, config)]
        constants = [constant_to_json(one) for one in parts.plan.constants]
    except NotPortable as error:
        raise PackageError(f"{call.name}: {error}") from error
    if not parts.plan.trivial:
        members[PLAN] = [parts.plan.text().encode()]
    return {
        "spec": spec_to_json(parts.spec),
        "modes": list(parts.modes),
        "plan_constants": constants,
    }


def _state_row(state: State) -> dict[str, Any]:
    """Returns what the manifest says of a tensor of the program."""
    facts = {"names": list(state.names), "weight": state.weight, "written": state.written}
    return {**row_of(state.name, state.tensor), **facts}


def _device(program: Program) -> torch.device:
    runner = program.runner
    if runner is None or runner.artifacts is None:
        return torch.device("cpu")
    return runner.artifacts.spec.device


def _options(config: CompileConfig) -> dict[str, Any]:
    """Returns the options of the backend, as JSON."""
    if config.options is None:
        return {}
    values = dataclasses.asdict(config.options)
    for name, value in values.items():
        if value is not None and type(value) not in (bool, int, float, str):
            raise PackageError(f"options: {name}={value!r} cannot be stored")
    return values


@contextmanager
def _marked(call: Call, dynamic: Mapping[str, Mapping[int, Any]]) -> Any:
    """Context in which the sizes that `dynamic` names are marked as dynamic."""
    by_name = {leaf.name: leaf.tensor for leaf in call.leaves}
    before = []
    try:
        for name, dims in dynamic.items():
            if name not in by_name:
                names = ", ".join(by_name) or "none"
                raise PackageError(f"dynamic: no input {name!r}; the tensors are {names}")
            tensor = by_name[name]
            before.append((tensor, getattr(tensor, DYNAMIC_DIMS, None)))
            for dim, bounds in dims.items():
                low, high = bounds or (None, None)
                mark_dynamic(tensor, dim, min=low, max=high)
        yield
    finally:
        for tensor, marks in reversed(before):
            if marks is None:
                delattr(tensor, DYNAMIC_DIMS)
            else:
                setattr(tensor, DYNAMIC_DIMS, marks)


def package_library(
    fn: Any,
    args: Sequence[Any],
    directory: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any],
    backend: Any,
    options: Any,
) -> None:
    """See `tracer_core.package_library`."""
    raise NotImplementedError(Path(directory))
