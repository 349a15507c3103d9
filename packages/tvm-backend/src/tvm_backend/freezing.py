"""Binds parameters as constants of the Relax module (``freeze=True``), so that TVM evaluates
what depends on constants alone while it compiles.

The executable may read the tensors' own memory. The core makes a new runner when a constant
changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.plugin_api import BackendError, CompileSpec, Runner, stage
from tvm_backend.build import build, target_of, with_constants
from tvm_backend.virtual_machine import Machine, aligned


def freezable(module: Any, graph: Any, check: Any, spec: CompileSpec) -> Runner:
    """Returns a runner whose `bind_constants` compiles the module; see `CompileSpec.constants`.
    The runner reads all constants, because bound tensors are not copied."""

    def run(inputs: list[Any]) -> Sequence[Any]:
        raise BackendError("tvm", "run", f"{spec.name} is called before its constants are bound")

    def bind_constants(tensors: Sequence[torch.Tensor]) -> Machine:
        names = {index: name for index, name, _ in graph.inputs}
        values = {
            names[index]: aligned(tensor.detach().contiguous())
            for index, tensor in zip(spec.constants, tensors, strict=True)
            if index in names
        }
        with stage("tvm freeze", graph=spec.name):
            target = target_of(spec.options.target, spec.device.type)
            executable = build(with_constants(module, values), target, spec.options, spec.name)
        return Machine(executable, graph, check, spec, frozenset(values), values)

    return Runner(
        run, bind_constants=bind_constants, constants_read=frozenset(range(len(spec.constants)))
    )
