"""Saves captured cache entries to a file and loads them in another process without tracing.

The file is code, and is treated so: see `load`. It holds entries as `store.writer` writes them, which
`store.persistent_cache` stores automatically in another place. A file made by other versions, or
whose code has changed since, is rejected with the reason; so is each entry that cannot be stored.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import markers
from tracer_core.contract.version import __version__
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.errors import StoredError
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.execution.store.describe import Finder, NotPortable
from tracer_core.execution.store.distributions import differing
from tracer_core.execution.store.reader import entry_from_json
from tracer_core.execution.store.writer import entry_to_json
from tracer_core.storage.archive import opened_archive, write_archive

FORMAT = "entries 14"
_ENTRIES = "entries.json"


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Which cache entries `save` has written."""

    #: The names of the entries that were written.
    stored: tuple[str, ...]
    #: (Name, reason) of the others.
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
    for key, record in function.captured():
        try:
            entries.append(entry_to_json(key, record, function.function, function.config))
        except NotPortable as error:
            left_out.append((record.name, str(error)))
    entries += [item.json for item in function.loaded]
    manifest = {"format": FORMAT, "made_by": _versions(function)}
    write_archive(path, manifest, {_ENTRIES: [json.dumps(entries, indent=1).encode()]})
    return StoreReport(tuple(entry["name"] for entry in entries), tuple(left_out))


@collector_paused()
def load(compiled: Any, path: str | os.PathLike[str], *, trust: bool = False) -> int:
    """Adds the cache entries stored at `path` to `compiled` and returns their number.

    The file is code: whoever wrote it can run anything in this process. So it must belong to this
    user or to root, and no other user may be able to write to it; `trust` waives that.

    Raises StoredError if the file is another user's, damaged, was made by other versions or for
    another function or backend, or if code that was followed has changed since.
    """
    function = _compiled_function(compiled)
    with opened_archive(path, "load", FORMAT, trust) as archive:
        differs = differing(archive.manifest["made_by"], _versions(function))
        entries = json.loads(archive.read(_ENTRIES))
    if differs:
        raise StoredError(f"{path}: {differs} since it was stored; store it again")
    finder = Finder(str(path), function.function)
    loaded = [entry_from_json(entry, function.config, finder) for entry in entries]
    for item in loaded:
        function.insert(item)
    return len(loaded)


def _compiled_function(compiled: Any) -> CompiledFunction:
    behind = markers.compiled(compiled)
    function = behind.function if behind is not None else compiled
    if not isinstance(function, CompiledFunction):
        raise StoredError(f"{compiled!r} was not made by tracer_core.compile")
    return function


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
