"""Registers the backend ``cudagraphs``, which is not built yet.

In: the hook call. Out: a `Backend` whose `available` and `compile` say what is missing. What always
holds: it never pretends to run a graph.
"""

from __future__ import annotations

from typing import Any, NoReturn

from tracer_core.plugin_api import Backend, BackendError, hookimpl

NAME = "cudagraphs"
NOT_BUILT = "not built yet in cudagraphs-backend 0.1.0"


def available() -> str:
    """Why the backend cannot run: always that it is not built, and that there is no CUDA device if so."""
    import torch  # heavy: only asked for when the row is shown

    if torch.cuda.is_available():
        return NOT_BUILT
    return f"{NOT_BUILT}; and there is no CUDA device here"


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
            description="CUDA graphs round a graph's eager or compiled callable (not built yet)",
            devices=frozenset({"cuda"}),
            available=available,
        )
    ]
