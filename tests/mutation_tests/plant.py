"""Puts one fault into tracer_core while it is imported.

In: a fault's name, or the environment variable MUTATION. Out: an import hook that changes the
source of one module. What always holds: no file is changed and no bytecode is cached; without the
variable nothing happens. pytest loads this as a plug-in (``-p tests.mutation_tests.plant``) before
anything imports the tracer.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutation_tests.faults import FAULTS, Fault


def source_root() -> Path:
    """The folder of the package tracer_core, found without importing it."""
    spec = importlib.util.find_spec("tracer_core")
    assert spec is not None and spec.origin is not None, "tracer_core is not installed"
    return Path(spec.origin).parent


def planted(fault: Fault, text: str) -> str:
    """The source with the fault. Raises LookupError where the old text does not stand exactly
    once.
    """
    if text.count(fault.old) != 1:
        raise LookupError(
            f"{fault.name}: its text stands {text.count(fault.old)} times in {fault.file}"
        )
    return text.replace(fault.old, fault.new)


class _Loader(importlib.machinery.SourceFileLoader):
    fault: Fault

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(planted(self.fault, Path(path).read_text()), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.name = "tracer_core." + fault.file.removesuffix(".py").replace("/", ".")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.fault = self.fault
        spec.loader = loader
        return spec


def plant(name: str) -> None:
    """Plants a fault; the tracer must not have been imported."""
    finder = _Finder(FAULTS[name])
    if finder.name in sys.modules:
        raise RuntimeError(f"{finder.name} was imported before the fault could be planted")
    sys.meta_path.insert(0, finder)


if os.environ.get("MUTATION"):
    plant(os.environ["MUTATION"])
