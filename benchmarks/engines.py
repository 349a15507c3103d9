"""The engines that users reach by exporting: ONNX Runtime and OpenVINO, used by hand.

In: a program's function. Out: a function of the same arguments that exports at its first call, as a
user would, and returns the flat list of output tensors. What always holds: as many threads as torch
has; the fastest setting that the engine documents for one request at a time; tensors are handed
over and back without a copy where the engine can.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

Run = Callable[[list[Any]], list[Any]]


def exported(build: Callable[[Any, tuple[Any, ...], dict[str, Any]], Run]) -> Callable[..., Any]:
    """A compiler: function -> function that builds the engine's model from its first arguments."""

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        made: list[Run] = []

        def call(*args: Any, **kwargs: Any) -> list[Any]:
            if not made:
                made.append(build(function, args, kwargs))
            return made[0]([*args, *kwargs.values()])

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
