"""Which installed distributions a cache entry depends on, and which of them differ in this process.

The code that a trace has followed is hashed, but it may run functions of packages eagerly, or read
what they have made when they were imported: there the version of the distribution stands for what it
does. Names are normalized as in PyPI's index: ``huggingface-hub``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Top-level packages whose version the key of a document has, or which have none.
_IN_KEY = frozenset({"torch", "numpy", "triton", "tracer_core", "__main__"})
_STANDARD = _IN_KEY | sys.stdlib_module_names
_SUFFIXES = (".dist-info", ".egg-info")


def installed() -> Mapping[str, str]:
    """Returns the versions of the distributions on the path, by name, from the names of their folders:
    every process reads them."""
    return _installed(tuple(sys.path))


def of_modules(modules: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the distributions that modules are from, and of what these require."""
    result: dict[str, str] = {}
    waiting = [
        name
        for package in {module.partition(".")[0] for module in modules} - _STANDARD
        for name in _providers(package)
    ]
    while waiting:
        name = waiting.pop()
        version = installed().get(name)
        if version is not None and name not in result:
            result[name] = version
            waiting += _required(name)
    return result


def differing(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Returns in words what is another version or setting here than was recorded, or ""."""
    for name, value in recorded.items():
        if here.get(name) != value:
            return f"{name} was {value} and is {here.get(name, 'missing')}"
    return ""


def modules_in(described: Any) -> Iterator[str]:
    """Yields the modules that the description of an object names (`describe`)."""
    if isinstance(described, dict):
        for kind, value in described.items():
            if kind in ("import", "class_of"):
                yield str(value[0]).partition(":")[0]
            else:
                yield from modules_in(value)
    elif isinstance(described, list):
        if len(described) == 2 and described[0] == "module" and isinstance(described[1], str):
            yield described[1]
        for part in described:
            yield from modules_in(part)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def _installed(path: tuple[str, ...]) -> Mapping[str, str]:
    result: dict[str, str] = {}
    for folder in path:  # of two, the first one on the path is imported
        try:
            entries = os.listdir(folder or ".")
        except OSError:  # a zip file, or no folder at all
            continue
        for entry in sorted(entries):
            stem, suffix = os.path.splitext(entry)
            if suffix in _SUFFIXES:
                name, _, version = stem.partition("-")
                result.setdefault(_normalized(name), version)
    return result


def _providers(package: str) -> list[str]:
    """Returns the names of the distributions that a top-level package may be from; none for what lies
    in a folder of the program."""
    name = _normalized(package)
    if name in installed():
        return [name]
    spec = getattr(sys.modules.get(package), "__spec__", None)
    places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
    if not any(_has_distributions(os.path.dirname(place)) for place in places):
        return []
    return [_normalized(item) for item in _by_package(tuple(sys.path)).get(package, ())]


@functools.cache
def _has_distributions(folder: str) -> bool:
    return os.path.isdir(folder) and any(item.endswith(_SUFFIXES) for item in os.listdir(folder))


@functools.cache
def _by_package(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Returns the distributions of each top-level package, which takes tenths of a second."""
    return importlib.metadata.packages_distributions()


@functools.cache
def _required(name: str) -> list[str]:
    """Returns the names of what a distribution requires without any of its extras."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    named = (re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line)
    return [_normalized(match[0]) for match in named if match is not None]
