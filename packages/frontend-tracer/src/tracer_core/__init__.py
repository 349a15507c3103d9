"""Captures PyTorch programs as FX graphs while they run, for backends that are plug-ins.

``tracer_core.compile(model, backend=...)`` returns the model, compiled when it is called.
This module only names what is public; importing it imports torch and no backend, and the tracer
itself is imported when something is first compiled. ``tracer_core.registry.discovery`` is the
public function: it is bound after the module of that name was imported, which ``from
tracer_core.registry.discovery import ...`` still reaches.
"""

from __future__ import annotations

from tracer_core import cache, errors
from tracer_core.api import (
    backend_options,
    backends,
    compile,
    compile_many,
    compile_repeated,
    explain,
    get_default_backend,
    last_compile,
    list_backends,
    original,
    progress,
    reset,
    set_default_backend,
    warmup,
)
from tracer_core.contract.version import __version__
from tracer_core.diagnosis import doctor
from tracer_core.inputs import Inputs
from tracer_core.markers import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    substitute_in_graph,
)
from tracer_core.registry.discovery import BackendRow, register
from tracer_core.reporting.report import report
from tracer_core.saving import load, load_package, package, package_library, save
from tracer_core.switch import disabled, set_stance
from tracer_core.verification.repro import repro
from tracer_core.verification.verify import verify


def __dir__() -> list[str]:
    return __all__


__all__ = [
    # compiling, and what became of it
    "compile", "compile_many", "compile_repeated", "warmup", "explain", "last_compile", "report", "progress", "reset",
    "original", "disabled", "set_stance",
    # a wrong result
    "verify", "repro",
    # marks
    "allow_in_graph", "assume_constant_result", "disable", "disallow_in_graph", "graph_break",
    "is_compiling", "mark_dynamic", "mark_static", "substitute_in_graph",
    # other processes
    "load", "load_package", "package", "package_library", "save", "cache",
    # backends and this machine
    "BackendRow", "backends", "backend_options", "list_backends", "register", "doctor",
    "set_default_backend", "get_default_backend",
    # the rest
    "Inputs", "__version__", "errors",
]  # fmt: skip
