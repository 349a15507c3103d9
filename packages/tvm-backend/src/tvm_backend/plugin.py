"""Registers the backend ``tvm``, which is not built yet.

In: the hook call. Out: a `Backend` whose `available` and `compile` say what is missing. What always
holds: it never pretends to run a graph, and never imports TVM.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NoReturn

from tracer_core.plugin_api import Backend, BackendError, hookimpl

NAME = "tvm"
NOT_BUILT = "not built yet in tvm-backend 0.1.0"


def available() -> str:
    """Why the backend cannot run: always that it is not built, and that TVM is not installed if so."""
    if importlib.util.find_spec("tvm") is not None:
        return NOT_BUILT
    return f"{NOT_BUILT}; and the package apache-tvm is not installed here"


def compile_graph(graph: Any, spec: Any) -> NoReturn:
    """Raises BackendError: the backend is not built yet."""
    raise BackendError(NAME, "compile", available())


@hookimpl
def tracer_backends() -> list[Backend]:
    """The backend's registration."""
    return [
        Backend(
            name=NAME,
            compile=compile_graph,
            description="ATen to Relax to Apache TVM's virtual machine (not built yet)",
            devices=frozenset({"cpu", "cuda"}),
            available=available,
        )
    ]
