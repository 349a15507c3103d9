"""Registers the backend ``onnxrt``: ATen graphs, translated by torch.onnx, run by ONNX Runtime.

Listing the backend imports neither onnx nor onnxruntime. Parameters are inputs of the model,
bound by address, so that the next call sees writes to them, unless the option ``freeze`` makes
them constants.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from tracer_core.plugin_api import Backend, CompileSpec, Runner, hookimpl, stage

if TYPE_CHECKING:
    import torch

NAME = "onnxrt"

#: Required packages: module -> distribution.
REQUIRED = {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}


def available() -> str | None:
    """Returns why the backend cannot run here, or None.

    Looks for the packages without importing them.
    """
    missing = [
        name for module, name in REQUIRED.items() if importlib.util.find_spec(module) is None
    ]
    return (
        f"not installed: {', '.join(missing)} (pip install {' '.join(missing)})"
        if missing
        else None
    )


def check(options: Any, mode: str) -> None:
    """Raises BackendError if a provider that the options name is not available."""
    from onnxrt_backend.session import providers  # heavy: onnxruntime

    if options.providers is not None:
        providers(options, "cpu")


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Returns a runner for a lowered graph. Raises BackendError, or what the exporter raises."""
    from onnxrt_backend.binding import BoundSession  # heavy: torch.onnx
    from onnxrt_backend.export import export  # heavy: torch.onnx
    from onnxrt_backend.freezing import freezable  # heavy: torch.onnx
    from onnxrt_backend.session import session  # heavy: onnxruntime

    with stage("onnxrt export", graph=spec.name):
        exported = export(graph, spec.name)
    if spec.constants:
        return freezable(exported, spec)
    with stage("onnxrt session", graph=spec.name):
        result = session(exported.model, spec.options, spec.device.type)
    return Runner(BoundSession(result, exported, spec), mutated_on_error=frozenset())


@hookimpl
def tracer_backends() -> list[Backend]:
    """Returns the backend's registration."""
    return [
        Backend(
            name=NAME,
            compile=compile_graph,
            description="ATen to ONNX, run by ONNX Runtime",
            ir="aten",
            shapes="symbolic",
            devices=frozenset({"cpu", "cuda"}),
            params="constants",
            modes={
                "default": "ONNX Runtime's own graph optimisations, see the option of that name"
            },
            supports="onnxrt_backend.operator_support:supports",
            options="onnxrt_backend.options:Options",
            reset="onnxrt_backend.operator_support:reset",
            available=available,
            check=check,
        )
    ]
