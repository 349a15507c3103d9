"""What is compared, by name.

In: ``eager``, ``torch``, ``ours``, or with a backend ``torch:aot_eager``, ``ours:onnxrt``,
``torch:nothing`` / ``ours:nothing`` (a backend that returns what it returned first, so that guards
and rebuilding are left), ``python:nothing`` (ours without the C helper for guards);
``torch+freeze``, ``ours+freeze`` (weights as constants); ``onnxruntime`` and ``openvino`` (the
engines used by hand). Out: a function that compiles. What always holds: a compiler is imported when
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT = ("eager", "torch", "ours")

TITLES = {"eager": "eager", "torch": "torch.compile", "ours": "tracer_core",
"torch+freeze": "torch.compile freezing",
          "ours+freeze": "tracer_core freeze", "onnxruntime": "ONNX Runtime",
          "openvino": "OpenVINO",
          "python": "tracer_core in pure Python"}  # fmt: skip


def title(name: str) -> str:
    """The name for tables: ``tracer_core (onnxrt)``."""
    kind, _, backend = name.partition(":")
    return f"{TITLES[kind]} ({backend})" if backend else TITLES[kind]


def compiler(name: str) -> Compile:
    """The compiler of that name. Raises ValueError for an unknown one."""
    kind, _, backend = name.partition(":")
    if kind not in _MAKERS or (backend and kind not in _TAKE_BACKENDS):
        raise ValueError(
            f"no compiler {name!r}; {', '.join(_MAKERS)}, and"
            f" {', '.join(f'{k}:<backend>' for k in _TAKE_BACKENDS)}"
        )
    return _MAKERS[kind](backend or "inductor")


def _eager(backend: str) -> Compile:
    return lambda function: function


def _torch(backend: str) -> Compile:
    import torch

    chosen: Any = nothing_for_torch if backend == "nothing" else backend
    return lambda function: torch.compile(function, backend=chosen)


def _ours(backend: str) -> Compile:
    import tracer_core

    chosen: Any = nothing_for_ours() if backend == "nothing" else backend
    return lambda function: tracer_core.compile(function, backend=chosen)


def _torch_freeze(backend: str) -> Compile:
    """torch.compile's freezing: for the whole process."""
    import torch
    import torch._inductor.config as config

    config.freezing = True
    return lambda function: torch.compile(function, backend=backend)


def _ours_freeze(backend: str) -> Compile:
    import tracer_core

    return lambda function: tracer_core.compile(function, backend=backend, options={"freeze": True})


def _engine(name: str) -> Callable[[str], Compile]:
    def maker(backend: str) -> Compile:
        from benchmarks import engines

        return engines.exported(getattr(engines, name))

    return maker


def _python(backend: str) -> Compile:
    """Ours, its guards without the C helper: for the whole process."""
    os.environ["TRACER_PYTHON_GUARDS"] = "1"
    return _ours(backend)


_MAKERS: dict[str, Callable[[str], Compile]] = {
    "eager": _eager, "torch": _torch, "ours": _ours, "python": _python,
    "torch+freeze": _torch_freeze,
    "ours+freeze": _ours_freeze, "onnxruntime": _engine("onnxruntime"),
    "openvino": _engine("openvino"),
}  # fmt: skip

_TAKE_BACKENDS = ("torch", "ours", "python")


def nothing_for_torch(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """torch.compile's convention: runs the graph at the first call; returns the same outputs from
    then on.
    """
    kept: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not kept:
            kept.append(gm(*inputs))
        return kept[0]

    return run


def nothing_for_ours() -> Any:
    """The same as a `Backend` of tracer_core."""
    from tracer_core.plugin_api import Backend

    def compile_graph(graph: Any, spec: Any) -> Callable[[list[Any]], Any]:
        forward = graph.forward
        kept: list[Any] = []

        def run(inputs: list[Any]) -> Any:
            if not kept:
                kept.append(forward(*inputs))
            return kept[0]

        return run

    return Backend(name="nothing", compile=compile_graph, ir="torch", shapes="symbolic")
