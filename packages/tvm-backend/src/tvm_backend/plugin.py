"""Registers the backend ``tvm``: runs ATen graphs, as Relax, in Apache TVM's virtual machine.

Listing the backend does not import TVM. Parameters are inputs of the module, so that the next
call sees writes to them, unless the option ``freeze`` makes them constants.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from tracer_core.plugin_api import (
    Backend,
    CompileSpec,
    Runner,
    add_value_check,
    contiguous_graph,
    hookimpl,
    promote,
    stage,
)

if TYPE_CHECKING:
    import torch

NAME = "tvm"


def available() -> str | None:
    """Returns why the backend cannot run here, or None.

    Looks for the package without importing it.
    """
    if importlib.util.find_spec("tvm") is None:
        return "not installed: apache-tvm (pip install apache-tvm)"
    return None


def check(options: Any, mode: str) -> None:
    """Raises BackendError for text that is no TVM target."""
    if options.target is not None:
        from tvm_backend.build import target_of  # heavy: tvm

        target_of(options.target, "cpu")


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Returns a runner for a lowered graph.

    Raises:
        BackendError: TVM cannot run the graph. What TVM's importer or compiler raises is raised as
            it is.
    """
    from tvm_backend.build import build, target_of  # heavy: tvm
    from tvm_backend.freezing import freezable  # heavy: torch
    from tvm_backend.indexing import fault  # heavy: torch
    from tvm_backend.translate import relax_module  # heavy: tvm
    from tvm_backend.virtual_machine import Machine  # heavy: torch

    with stage("tvm import", graph=spec.name):
        result = contiguous_graph(graph)
        check = add_value_check(result.graph, fault, graph)
        promote(result.graph)
        constants = frozenset(spec.constants)
        module = relax_module(
            result.graph, [name for index, name, _ in result.inputs if index in constants]
        )
    if spec.constants:
        return freezable(module, result, check, spec)
    with stage("tvm build", graph=spec.name):
        target = target_of(spec.options.target, spec.device.type)
        executable = build(module, target, spec.options, spec.name)
    return Runner(Machine(executable, result, check, spec), mutated_on_error=frozenset())


@hookimpl
def tracer_backends() -> list[Backend]:
    """Returns the backend's registration."""
    return [
        Backend(
            name=NAME,
            compile=compile_graph,
            description="ATen to Relax, run by Apache TVM",
            ir="core_aten",
            shapes="symbolic",
            devices=frozenset({"cpu", "cuda"}),
            params="constants",
            modes={"default": "TVM's rules and recorded schedules; tuning by the option trials"},
            supports="tvm_backend.operator_support:supports",
            options="tvm_backend.options:Options",
            reset="tvm_backend.operator_support:reset",
            available=available,
            check=check,
        )
    ]
