"""What is compared, by name.

In: ``eager``, ``torch``, ``ours``, or with a backend ``torch:aot_eager``, ``ours:onnxrt``,
``torch:nothing`` / ``ours:nothing`` (a backend that returns what it returned first, so that guards
and rebuilding are left), ``python:nothing`` (ours without the C helper for guards);
``torch+freeze``, ``ours+freeze`` (weights as constants); ``onnxruntime`` and ``openvino`` (the
engines used by hand). Out: a function that compiles. What always holds: a compiler or an engine is
imported when used.

The engines are used as their users do: a program is exported at its first call; as many threads as
torch has; the fastest setting that the engine documents for one request at a time; tensors are
handed over and back without a copy where the engine can.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import Any

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Run = Callable[[list[Any]], list[Any]]

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
    return lambda backend: exported(ENGINES[name])


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
    then on."""
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


# The engines, used by hand ------------------------------------------------------------------------


def exported(build: Callable[[Any, tuple[Any, ...], dict[str, Any]], Run]) -> Callable[..., Any]:
    """A compiler: function -> function that builds the engine's model from its first arguments."""

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        runs: list[Run] = []

        def call(*args: Any, **kwargs: Any) -> list[Any]:
            if not runs:
                runs.append(build(function, args, kwargs))
            return runs[0]([*args, *kwargs.values()])

        return call

    return compile_function


def _module(function: Any) -> Any:
    """A module whose outputs are tensors only, which is what the exporters take."""
    import torch

    from tracer_core.testing.compare import tensors_in

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = function if isinstance(function, torch.nn.Module) else None

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return tuple(tensors_in(function(*args, **kwargs)))

    return Tensors().eval()


def _onnx(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    import torch

    program = torch.onnx.export(_module(function), args, kwargs=kwargs, dynamo=True, verbose=False)
    file = io.BytesIO()
    program.save(file)
    return file.getvalue()


def onnxruntime(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """An InferenceSession with its CPU provider and all graph optimisations (its default)."""
    import numpy
    import onnxruntime as engine
    import torch

    settings = engine.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = engine.InferenceSession(
        _onnx(function, args, kwargs), settings, providers=["CPUExecutionProvider"]
    )
    names = [item.name for item in session.get_inputs()]

    def run(inputs: list[Any]) -> list[Any]:
        results = session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})
        return [torch.from_numpy(numpy.asarray(result)) for result in results]

    return run


def openvino(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    """A compiled model of its CPU plug-in with the hint for latency."""
    import openvino as engine
    import torch

    model = engine.convert_model(io.BytesIO(_onnx(function, args, kwargs)))
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = engine.Core().compile_model(model, "CPU", settings).create_infer_request()

    def run(inputs: list[Any]) -> list[Any]:
        results = request.infer([t.numpy() for t in inputs], share_inputs=True, share_outputs=True)
        return [torch.from_numpy(result) for result in results.values()]

    return run


ENGINES = {"onnxruntime": onnxruntime, "openvino": openvino}
