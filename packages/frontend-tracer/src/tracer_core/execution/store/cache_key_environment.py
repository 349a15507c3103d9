"""The part of a cache key that describes process and machine: versions, own sources, processor."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

import torch

from tracer_core.contract.backend import Backend
from tracer_core.contract.version import __version__
from tracer_core.execution.store.distributions import installed
from tracer_core.registry.discovery import registry
from tracer_core.storage.processor import built_for

#: Files of a package whose contents decide what it generates.
_SOURCES = (".py", ".c", ".h", ".cpp", ".cu")


def environment(backend: Backend) -> dict[str, str]:
    """Returns what must be equal where an entry is used, by a name for messages. Of other packages an
    entry itself says on which it depends."""
    reference = backend.compile
    package = reference.partition(".")[0] if isinstance(reference, str) else ""
    return {
        "Python": f"{platform.python_version()} {sys.implementation.cache_tag}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
        **{name: installed().get(name, "not installed") for name in ("numpy", "triton")},
        "plug-ins": _plugins(),
        "tracer-core": f"{__version__} {_sources('tracer_core')}",
        "backend": f"{backend.name} {_sources(package)} {_sources('cudagraphs_backend')}",
        "processor": f"{platform.machine()} {built_for()}",
    }


def _plugins() -> str:
    """Returns the distributions of all plug-ins, with their versions."""
    groups = registry().candidates.values()
    origins = {item.origin for group in groups for item in group if item.distribution is not None}
    return ", ".join(sorted(origins))


@functools.cache
def _sources(package: str) -> str:
    """Returns a digest of the contents of a package's files: a checkout changes without its
    version."""
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.submodule_search_locations is None:
        return ""
    digest = hashlib.sha256()
    for folder in spec.submodule_search_locations:
        for path in _files(folder):
            digest.update(path[len(folder) :].encode("utf-8", "surrogateescape"))
            with open(path, "rb", buffering=0) as file:  # half of the time of `Path.read_bytes`
                digest.update(file.read())
    return digest.hexdigest()[:16]


def _files(folder: str) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(_SOURCES):
                yield os.path.join(where, name)
