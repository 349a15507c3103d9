"""Writes packages and libraries."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tracer_core.contract.backend import wants_constants
from tracer_core.debug.logs import logger
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import MarkedSizeError, OptionError, PackageError
from tracer_core.execution.store.values import NotPortable
from tracer_core.execution.store.writer import graph_to_json
from tracer_core.export.build import Call, PackagedProgram, State, captured, prepared, with_leaves
from tracer_core.export.inputs import mismatch_of
from tracer_core.export.requirements import FORMAT, here
from tracer_core.export.tensors import CONSTANTS, WEIGHTS, row_of, tensors_member
from tracer_core.limits import MAX_SIZES_OF_ONE
from tracer_core.markers import DYNAMIC_DIMS, dynamic_dims, mark_dynamic
from tracer_core.options import CompileConfig
from tracer_core.storage.archive import Data, write_archive

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
    architectures: Sequence[str],
) -> dict[str, Any]:
    """See `tracer_core.package`."""
    config = build_config(
        backend=backend, fullgraph=True, mode=mode, options=options,
        dynamic=None if isinstance(dynamic, Mapping) else dynamic,
    )  # fmt: skip
    if config.backend.serialize is None or config.backend.deserialize is None:
        raise PackageError(f"backend {config.backend.name!r} does not offer serialize")
    if architectures and config.backend.serialize_for is None:
        raise OptionError(
            f"architectures={tuple(architectures)}: backend {config.backend.name!r} does not offer"
            " serialize_for"
        )
    if wants_constants(config.backend, config.options):
        raise PackageError(
            "freeze=True: what is made of frozen parameters is not stored; a package holds the"
            " weights beside the graph"
        )
    call = prepared(fn, tuple(args), dict(kwargs))
    with _marked(call, dynamic if isinstance(dynamic, Mapping) else {}):
        programs = _captured(call, config)
    states = _states(programs)
    members: dict[str, Sequence[Data]] = {}
    manifest = {
        "format": FORMAT,
        "name": call.name,
        "needs": here(config, _device(programs[0]), _options(config), architectures),
        "parameters": call.parameters,
        "same": call.same,
        "graphs": [
            _graph(number, program, config, architectures, members)
            for number, program in enumerate(programs)
        ],
        "states": [_state_row(state) for state in states],
        "weights_inside": weights,
    }
    groups = [(CONSTANTS, [state for state in states if not state.weight])]
    if weights:
        groups.append((WEIGHTS, [state for state in states if state.weight]))
    for member, result in groups:
        if result:
            members[member] = tensors_member({item.name: item.tensor for item in result})
    return write_archive(path, manifest, members, key)


def _captured(call: Call, config: CompileConfig) -> list[PackagedProgram]:
    """Returns the graphs of a call: one, and others for sizes of 1 that the user asked for and that
    it does not take (the program would do something else there)."""
    programs = [_checked(call, config, "package_0")]
    for group in _from_one(call):
        tensors = [leaf.tensor for leaf in call.leaves]
        for index, dim in group:
            tensors[index] = _of_one(tensors[index], dim)
        other = with_leaves(call, tensors)
        if any(mismatch_of(call.name, item.rules, call.same, tensors) is None for item in programs):
            continue
        try:
            programs.append(_checked(other, config, f"package_{len(programs)}"))
        except (PackageError, MarkedSizeError) as error:  # as a norm over one value does
            sizes = ", ".join(f"{call.leaves[i].name}.shape[{dim}]" for i, dim in group)
            logger().warning("%s: the package takes no 1 for %s: %s", call.name, sizes, error)
    return programs


def _checked(call: Call, config: CompileConfig, name: str) -> PackagedProgram:
    """Returns the graph of a call, which its own inputs must fit."""
    program = captured(call, config, name)
    tensors = [leaf.tensor for leaf in call.leaves]
    refused = mismatch_of(call.name, program.rules, call.same, tensors)
    if refused is not None:
        raise PackageError(f"the package would not take its own example: {refused}")
    return program


def _from_one(call: Call) -> list[tuple[tuple[int, int], ...]]:
    """Returns the sizes (index of a leaf, dimension) to try 1 for: those whose range begins at 1.
    Sizes that have one value and one range in the example are taken for one size (a batch)."""
    groups: dict[Any, list[tuple[int, int]]] = {}
    for index, leaf in enumerate(call.leaves):
        for dim, bounds in dynamic_dims(leaf.tensor).items():
            size = leaf.tensor.shape[dim]
            if bounds[0] == 1 and size > 1:
                groups.setdefault((size, bounds), []).append((index, dim))
    several = list(groups.values())[:MAX_SIZES_OF_ONE]
    chosen = itertools.chain.from_iterable(
        itertools.combinations(several, count) for count in range(1, len(several) + 1)
    )
    return [tuple(itertools.chain.from_iterable(item)) for item in chosen]


def _of_one(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the beginning of a tensor, of size 1 in a dimension that is no longer dynamic."""
    result = tensor.detach().narrow(dim, 0, 1).clone(memory_format=torch.contiguous_format)
    marks = {other: bounds for other, bounds in dynamic_dims(tensor).items() if other != dim}
    setattr(result, DYNAMIC_DIMS, marks)
    return result


def _states(programs: Sequence[PackagedProgram]) -> list[State]:
    """Returns the tensors of all graphs."""
    result: dict[str, State] = {}
    for state in itertools.chain.from_iterable(program.states.values() for program in programs):
        known = result.setdefault(state.name, state)
        if known.tensor is not state.tensor:
            raise PackageError(f"two tensors of the program have the name {state.name}")
        if state.written:
            result[state.name] = state
    return list(result.values())


def _graph(
    number: int,
    program: PackagedProgram,
    config: CompileConfig,
    architectures: Sequence[str],
    members: dict[str, Sequence[Data]],
) -> dict[str, Any]:
    """Returns what the manifest says of one graph; adds its members."""
    described = {
        **program.rules,
        "graph_inputs": [list(value) for value in program.inputs],
        "outputs": program.outputs,
        "asserted": program.asserted,
        "runner": None,
    }
    if program.runner is None:
        return described
    parts = program.runner.artifacts
    assert parts is not None
    assert program.gm is not None
    try:
        data, record = graph_to_json(parts, config, architectures)
    except NotPortable as error:
        raise PackageError(f"{program.call.name}: {error}") from error
    described["runner"] = {"member": f"runner_{number}.bin", **record}
    members[f"runner_{number}.bin"] = [data]
    members[f"graph_{number}.txt"] = [str(program.gm.graph).encode()]
    return described


def _state_row(state: State) -> dict[str, Any]:
    """Returns what the manifest says of a tensor of the program."""
    facts = {"names": list(state.names), "weight": state.weight, "written": state.written}
    return {**row_of(state.name, state.tensor), **facts}


def _device(program: PackagedProgram) -> torch.device:
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
            if not isinstance(dims, Mapping):
                raise OptionError(f"dynamic[{name!r}]={dims!r}; {{0: (1, 64)}}, or {{0: None}}")
            for dim, bounds in dims.items():
                if bounds is not None and not (isinstance(bounds, tuple) and len(bounds) == 2):
                    raise OptionError(f"dynamic[{name!r}][{dim}]={bounds!r}; (1, 64), or None")
                low, high = bounds or (None, None)
                mark_dynamic(tensor, dim, min=low, max=high)
        yield
    finally:
        for tensor, marks in reversed(before):
            if marks is not None:
                setattr(tensor, DYNAMIC_DIMS, marks)
            elif hasattr(tensor, DYNAMIC_DIMS):
                delattr(tensor, DYNAMIC_DIMS)
