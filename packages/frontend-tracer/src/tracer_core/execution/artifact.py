"""Saves captured cache entries to a file and loads them in another process without tracing.

The file is code, and is treated so: see `load`. It holds the generated text of every entry (guards,
fetches, side effects, result), how to find each constant again (`portable`), hashes of the code
that was followed, and the backend's own serialized graph. Nothing is unpickled. A file made by
other versions, or whose code has changed since, is rejected with the reason; so is each entry that
cannot be stored.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import hashlib
import json
import os
import platform
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import markers
from tracer_core.aot import output_aliasing
from tracer_core.aot.frozen_parameters import Frozen
from tracer_core.aot.mutation_tracking import versions_counted
from tracer_core.bytecode.frame_layout import FrameLayout
from tracer_core.contract.backend import resolve
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec, InputSpec, OutputSpec, Phase, Role, SizeSpec
from tracer_core.contract.version import __version__
from tracer_core.dispatch import compile_graph
from tracer_core.errors import BackendError
from tracer_core.execution.artifact_references import Describer, Finder, NotPortable, StoredError
from tracer_core.execution.capture_result import Captured
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.execution.generated_code import define
from tracer_core.execution.generated_namespace import runtime_namespace
from tracer_core.execution.guarded_cache import GuardedCache
from tracer_core.guards.guard_cache import GuardCache
from tracer_core.storage.cache_location import not_private

FORMAT = 6


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Lists the names of the entries that were written (stored) and (name, reason) of the others
    (left_out)."""

    stored: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def save(compiled: Any, path: str | os.PathLike[str]) -> StoreReport:
    """Writes every cache entry that `compiled` (returned by `tracer_core.compile`) has captured so
    far; waits for those that are compiled in the background.

    Replaces the file atomically. Raises StoredError if `compiled` is not a compiled object or its
    backend cannot serialize.
    """
    function = _compiled_function(compiled)
    backend = function.config.backend
    if backend.serialize is None:
        raise StoredError(
            f"backend {backend.name!r} does not offer serialize, so nothing can be stored"
        )
    for compilation in function.compilations:
        compilation.wait()
    entries, left_out = [], []
    for key, segment in [*function._starts.items(), *function._segments.items()]:
        for record in function.records:
            if record.attempt in segment.entries:
                try:
                    entries.append(_entry(key, record, function))
                except NotPortable as error:
                    left_out.append((record.name, str(error)))
    content = json.dumps({"made_by": _versions(function), "entries": entries}, indent=1)
    head = json.dumps({"format": FORMAT, "sha256": hashlib.sha256(content.encode()).hexdigest()})
    _write(path, f"{head}\n{content}")
    return StoreReport(tuple(entry["name"] for entry in entries), tuple(left_out))


def load(compiled: Any, path: str | os.PathLike[str], *, trust: bool = False) -> int:
    """Adds the cache entries stored at `path` to `compiled` and returns their number.

    The file is code: whoever wrote it can run anything in this process. So it must belong to this
    user or to root, and no other user may be able to write to it; `trust` waives that.

    Raises StoredError if the file is another user's, damaged, was made by other versions or for
    another function or backend, or if code that was followed has changed since.
    """
    function = _compiled_function(compiled)
    document = _read(path, trust)
    entries = document["entries"]
    here = _versions(function)
    for what, value in document["made_by"].items():
        if here.get(what) != value:
            raise StoredError(
                f"{path} was made with {what} {value}, here it is {here.get(what)}; store it again"
            )
    loaded = [_load_entry(entry, function, str(path)) for entry in entries]
    for key, attempt, start in loaded:
        table = function._starts if start else function._segments
        table.setdefault(key, GuardedCache(key)).add_loaded(attempt)
    return len(loaded)


def _read(path: str | os.PathLike[str], trust: bool) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            problem = not_private(os.fstat(file.fileno()), root_too=True)
            if problem is not None and not trust:
                raise StoredError(
                    f"{path}: it {problem}, and what is loaded is code: whoever wrote it can run"
                    " anything in this process. load(..., trust=True) loads it all the same"
                )
            first, _, content = file.read().partition(b"\n")
        head = json.loads(first)
        if head["format"] != FORMAT:
            raise StoredError(f"{path}: format {head['format']}, this version reads {FORMAT}")
        if head["sha256"] != hashlib.sha256(content).hexdigest():
            raise ValueError("its checksum is wrong")
        document: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoredError(f"{path} cannot be read ({error}); store the entries again") from error
    return document


def _compiled_function(compiled: Any) -> CompiledFunction:
    behind = markers.compiled(compiled)
    found = behind.function if behind is not None else compiled
    if not isinstance(found, CompiledFunction):
        raise StoredError(f"{compiled!r} was not made by tracer_core.compile")
    return found


def _versions(function: CompiledFunction) -> dict[str, str]:
    backend = function.config.backend
    return {
        "tracer-core": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "backend": backend.name,
        "mode": function.config.mode,
        "options": repr(function.config.options),
        "function": f"{function.function.__module__}:{function.function.__qualname__}",
    }


def _write(path: str | os.PathLike[str], text: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


# -- one cache entry


def _entry(key: Any, record: Captured, function: CompiledFunction) -> dict[str, Any]:
    describe = Describer(record)
    start = not (isinstance(key, tuple) and key and isinstance(key[0], FrameLayout))
    return {
        "name": record.name,
        "key": list(key) if start else describe.layouts(key),
        "start": start,
        "text": record.text,
        "guards": list(record.guards),
        "constants": {name: describe.constant(name, obj) for name, obj in record.constants.items()},
        "code": [
            [describe.describe(f), code_hash(f.__code__)]
            for f in record.portable.functions
            if describe.known(f)
        ],
        "roots": list(record.portable.roots),
        "graph": _graph(record, function),
    }


def _graph(record: Captured, function: CompiledFunction) -> Any:
    if record.runner is None:
        return None
    if record.pending is not None:
        raise NotPortable("it could not be compiled")
    parts, fallback = record.runner.artifacts, record.runner.fallback
    if parts is None:
        several = (
            "it has several graphs (training, sizes that depend on data, or several backends),"
            " which are not stored"
        )
        raise NotPortable(several if fallback is None else fallback.reason)
    if parts.plan.constants:
        raise NotPortable("its graph holds constant tensors")
    if isinstance(parts.runner.run, Frozen):
        raise NotPortable(
            "its parameters are constants (freeze=True): what was made of them is not stored"
        )
    try:
        data: bytes = resolve(function.config.backend.serialize)(parts.runner)
    except BackendError as error:
        raise NotPortable(error.detail) from error
    return {
        "backend": base64.b64encode(data).decode(),
        "spec": _spec_to_json(parts.spec),
        "plan": None if parts.plan.trivial else parts.plan.text(),
        "modes": list(parts.modes),
    }


def _load_entry(
    entry: dict[str, Any], function: CompiledFunction, path: str
) -> tuple[Any, Callable[..., Any], bool]:
    finder = Finder(path)
    for described, expected in entry["code"]:
        found = finder.find(described)
        if code_hash(found.__code__) != expected:
            raise StoredError(
                f"{path}: {found.__qualname__} has changed since {entry['name']} was stored; store"
                " it again"
            )
    namespace = {**runtime_namespace(), "graph": _load_graph(entry, function)}
    for name, described in entry["constants"].items():
        namespace[name] = finder.find(described)
    attempt = define("attempt", entry["text"], namespace, f"{entry['name']}, stored")
    if "check" in namespace:
        namespace["guard_cache"] = GuardCache(namespace["check"], tuple(entry["roots"]))
    key = tuple(entry["key"]) if entry["start"] else finder.layouts(entry["key"])
    return key, attempt, entry["start"]


def _load_graph(entry: dict[str, Any], function: CompiledFunction) -> Any:
    stored = entry["graph"]
    if stored is None:
        return None
    deserialize = resolve(function.config.backend.deserialize)
    spec = CompileSpec(options=function.config.options, **_from_json(stored["spec"]))
    runner = Runner.of(deserialize(base64.b64decode(stored["backend"]), spec), "deserialize()")
    run = versions_counted(runner.run, spec, runner.mutated_on_error)
    if stored["plan"] is not None:
        run = output_aliasing.bound(stored["plan"], "<tracer outputs, stored>", run, ())
    return compile_graph.without_modes(stored["modes"], run)


def _to_json(value: Any) -> Any:
    """Converts a field of a spec to JSON: rows to dictionaries, symbolic sizes to text."""
    if dataclasses.is_dataclass(value):
        return {one.name: _to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_to_json(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (int, str)):
        return value
    return str(value).removeprefix("torch.")


def _spec_to_json(spec: CompileSpec) -> dict[str, Any]:
    stored: dict[str, Any] = _to_json(dataclasses.replace(spec, options=None))
    del stored["options"]
    return stored


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


def code_hash(code: types.CodeType) -> str:
    """Hashes what a code object does, ignoring its position in a file."""
    digest = hashlib.sha256()

    def add(one: types.CodeType) -> None:
        digest.update(one.co_code)
        names = one.co_names, one.co_varnames, one.co_freevars, one.co_cellvars
        digest.update(repr((*names, one.co_flags)).encode())
        for constant in one.co_consts:
            if isinstance(constant, types.CodeType):
                add(constant)
            elif isinstance(constant, frozenset):
                digest.update(str(sorted(map(repr, constant))).encode())
            else:
                digest.update(repr(constant).encode())

    add(code)
    return digest.hexdigest()
