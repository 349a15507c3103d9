"""Loads packages: `Package` runs one, without the tracer, sympy, or the program's source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracer_core.aot.ambient_modes import uncast, without_modes
from tracer_core.contract.backend import Backend
from tracer_core.dispatch.validation import build_options
from tracer_core.errors import BackendError, InputMismatchError, OptionError, StoredError
from tracer_core.execution.store.persisted_runner import (
    persisted_runner,
    spec_from_json,
    with_outputs,
)
from tracer_core.execution.store.values import Node, maker
from tracer_core.export.inputs import ArgumentReader, Rules
from tracer_core.export.requirements import FORMAT, refuse_others
from tracer_core.export.tensors import CONSTANTS, WEIGHTS, dtype_of, read_tensors, with_layout
from tracer_core.storage.archive import Archive, opened_archive
from tracer_core.storage.processor import processor

#: How the names of members end that hold tensors.
_TENSORS = ".safetensors"


class Graph:
    """One of the graphs of a package. run: its runner."""

    def __init__(
        self,
        manifest: dict[str, Any],
        number: int,
        run: Callable[[list[Any]], Any],
        states: dict[str, torch.Tensor],
    ) -> None:
        self._name, described = manifest["name"], manifest["graphs"][number]
        self.rules = Rules(self._name, described, manifest["same"])
        self._run, self._states = run, states
        self._result = maker(described["outputs"], self._leaf)
        self._inputs = [
            (at if kind == "input" else None, None if kind == "input" else states[at])
            for kind, at in described["graph_inputs"]
        ]
        self._asserted: int | None = described["asserted"]

    def __call__(self, arguments: list[torch.Tensor]) -> Any:
        tensors = self.rules.laid_out(arguments)
        inputs = [state if at is None else tensors[at] for at, state in self._inputs]
        if torch.is_grad_enabled():
            with torch.no_grad():
                outputs = self._run(inputs)
        else:
            outputs = self._run(inputs)
        if self._asserted is not None and not outputs[self._asserted]:
            raise AssertionError(
                f"{self._name}: what the program asserts of its inputs does not hold"
            )
        return self._result((arguments, outputs))

    def _leaf(self, node: Node) -> Callable[[Any], Any]:
        """Returns what reads a leaf of the result from (inputs, outputs of the graph)."""
        ((kind, place),) = node.items()
        if kind == "state":
            state = self._states[place]
            return lambda both: state
        which = ("input", "output").index(kind)
        return lambda both: both[which][place]


class Package:
    """A compiled program, which is called as the program is. manifest: what it was made from and
    for."""

    def __init__(
        self,
        manifest: dict[str, Any],
        runs: Sequence[Callable[[list[Any]], Any]],
        states: dict[str, torch.Tensor],
    ) -> None:
        self.manifest: dict[str, Any] = manifest
        self._reader = ArgumentReader(manifest["name"], manifest)
        self.__signature__ = self._reader.signature
        self._states = states
        self._graphs = [Graph(manifest, i, run, states) for i, run in enumerate(runs)]

    def __repr__(self) -> str:
        return f"<package {self.manifest['name']}{self._reader.signature}>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        inputs = self._reader.read(args, kwargs)
        refused: InputMismatchError | None = None
        for graph in self._graphs:
            mismatch = graph.rules.mismatch(inputs)
            if mismatch is None:
                return graph(inputs)
            refused = refused or mismatch
        assert refused is not None
        raise refused

    def weights(self) -> list[str]:
        """Returns the names of the weights that the graph reads, as in the state_dict of the program;
        tied ones have several."""
        return [name for row in self._weight_rows() for name in row["names"]]

    def update_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Copies other values into the weights and buffers that `state_dict` names. Entries that the
        graph does not read are ignored. Raises StoredError, and changes nothing, if sizes or a dtype
        differ."""
        result = _chosen(self.manifest["name"], self._weight_rows(), state_dict)
        with torch.no_grad():
            for name, tensor in result.items():
                self._states[name].copy_(tensor)

    def _weight_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.manifest["states"] if row["weight"]]


def _chosen(
    name: Any, rows: list[dict[str, Any]], state_dict: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a state_dict that the rows name."""
    result: dict[str, torch.Tensor] = {}
    for row in rows:
        for item in row["names"]:
            if item not in state_dict:
                continue
            tensor = state_dict[item]
            if tensor.dtype is not dtype_of(row) or list(tensor.shape) != row["sizes"]:
                raise StoredError(
                    f"{name}: {item} is {row['dtype']} of sizes {tuple(row['sizes'])}, not"
                    f" {tensor.dtype} of {tuple(tensor.shape)}"
                )
            other = result.setdefault(row["name"], tensor)
            if other is not tensor and not torch.equal(other, tensor):
                raise StoredError(f"{name}: {' and '.join(row['names'])} are one tensor, and the"
                                  " state_dict has different values for them")  # fmt: skip
    return result


def load_package(
    path: str | os.PathLike[str],
    *,
    weights: Mapping[str, torch.Tensor] | None,
    trust: bool,
    key: bytes | None,
) -> Package:
    """See `tracer_core.load_package`."""
    with opened_archive(path, "load_package", FORMAT, trust, key) as archive:
        return _loaded(path, archive, weights)


def _loaded(path: Any, archive: Archive, weights: Mapping[str, torch.Tensor] | None) -> Package:
    manifest = archive.manifest
    backend = refuse_others(path, manifest["needs"])
    # all of it is read and verified before any of it is used
    members = {name: archive.read(name) for name in archive if not name.endswith(_TENSORS)}
    constants = [row for row in manifest["states"] if not row["weight"]]
    rows = [row for row in manifest["states"] if row["weight"]]
    states = read_tensors(archive, CONSTANTS, constants, path) if constants else {}
    if manifest["weights_inside"] and rows:
        states |= read_tensors(archive, WEIGHTS, rows, path)
    if weights is not None or not manifest["weights_inside"]:
        inputs = _chosen(path, rows, weights or {})
        missing = [row["name"] for row in rows if row["name"] not in inputs | states]
        if missing:
            raise StoredError(
                f"{path} was made without weights: load_package(..., weights=state_dict) with"
                f" {', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}"
            )
        for row in rows:
            if row["name"] in inputs:
                own = inputs[row["name"]].detach().clone()
                states[row["name"]] = with_layout(own, row)
    runs = [_runner(path, manifest, manife, members, backend) for manife in manifest["graphs"]]
    return Package(manifest, runs, states)


def _runner(
    path: Any,
    manifest: dict[str, Any],
    graph: dict[str, Any],
    members: dict[str, bytes],
    backend: Backend,
) -> Callable[[list[Any]], Any]:
    """Returns the runner of a graph."""
    stored = graph["runner"]
    if stored is None:
        return lambda inputs: ()
    try:
        options = build_options(backend, manifest["needs"]["backend"]["options"])
        spec = spec_from_json(stored["spec"], options)
        run = persisted_runner(members[stored["member"]], spec, backend)
    except (BackendError, OptionError) as error:
        detail = error.detail if isinstance(error, BackendError) else str(error)
        made_on = manifest["needs"]["processor"]["name"]
        raise StoredError(
            f"{path}: {detail} (it was made on {made_on}, and this is {processor()})"
        ) from error
    run = without_modes(stored["modes"], with_outputs(stored, run))
    return uncast(spec.device, run)  # the graph has its own casts
