"""What a lowering is asked for (`Request`) and what it returns (`Lowered`), with the specs that
describe a graph to a backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.graph_content_key import cache_key
from tracer_core.aot.output_aliasing import FromGraph, OutputPlan
from tracer_core.aot.symbolic_sizes import as_python_scalar, size_origins, size_specs
from tracer_core.contract.backend import Backend
from tracer_core.contract.specs import CompileSpec, InputSpec, OutputSpec, Phase, Role


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered graph."""

    #: What `Backend.compile` gets.
    graph: torch.fx.GraphModule
    #: The spec that it gets.
    spec: CompileSpec
    #: Makes a runner of the captured graph from a runner of `graph`.
    plan: OutputPlan
    #: The operators in `graph`.
    ir: str

    def with_gradients(self, gradients: Collection[int]) -> Lowered:
        """Marks the outputs that become gradients. gradients: indices of captured outputs."""
        steps = self.plan.steps
        ours = {
            step.index
            for step in (steps[index] for index in gradients)
            if isinstance(step, FromGraph)
        }
        if not ours:
            return self
        outputs = tuple(
            replace(item, gradient=index in ours) for index, item in enumerate(self.spec.outputs)
        )
        return replace(self, spec=replace(self.spec, outputs=outputs))


@dataclass(frozen=True, slots=True)
class Request:
    """The backend for which a graph is lowered, and its settings; see `lower`."""

    backend: Backend
    options: Any
    mode: str
    name: str
    phase: Phase

    def spec(
        self,
        graph: torch.fx.GraphModule,
        inputs: tuple[InputSpec, ...],
        mutations: tuple[int, ...],
        outputs: tuple[OutputSpec, ...],
    ) -> CompileSpec:
        """Returns the CompileSpec of a graph whose nodes carry their values."""
        values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        return CompileSpec(
            backend=self.backend.name,
            name=self.name,
            inputs=inputs,
            outputs=outputs,
            sizes=size_specs(size_origins(values)),
            mutations=mutations,
            phase=self.phase,
            options=self.options,
            mode=self.mode,
            device=main_device(values, graph),
            cache_key=cache_key(graph, self.backend, inputs, self.options, self.mode, self.phase),
        )


def main_device(values: Sequence[Any], graph: torch.fx.GraphModule) -> torch.device:
    """Returns where most inputs live; for a graph without tensor inputs, where most of its values
    live.
    """
    for candidates in (values, [node.meta.get("val") for node in graph.graph.nodes]):
        devices = Counter(v.device for v in candidates if isinstance(v, torch.Tensor))
        if devices:
            return devices.most_common(1)[0][0]
    return torch.device("cpu")


def default_specs(gm: torch.fx.GraphModule, values: Sequence[Any]) -> tuple[InputSpec, ...]:
    """Returns an InputSpec for each placeholder, given only its (fake) value."""
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    pairs = zip(names, values, strict=True)
    return tuple(InputSpec(name, role_of(value), name) for name, value in pairs)


def role_of(value: Any) -> Role:
    """Returns the role of an input, given only its (fake) value."""
    if isinstance(value, (int, torch.SymInt)):
        return Role.SIZE
    return Role.NUMBER if isinstance(value, (float, torch.SymFloat)) else Role.USER_INPUT


def output_specs(values: Sequence[Any], inputs: Sequence[Any]) -> tuple[OutputSpec, ...]:
    """Returns an OutputSpec for each value, with what it aliases."""
    owners: dict[int, int] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            owners.setdefault(torch_private.storage_id(value), index)
    earlier: dict[int, int] = {}
    specs = []
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor) or torch_private.is_jagged(value):
            specs.append(OutputSpec(None, None, None, None))
            continue
        storage = torch_private.storage_id(value)
        shape, stride = (
            tuple(map(as_python_scalar, value.shape)),
            tuple(map(as_python_scalar, value.stride())),
        )
        aliases = owners.get(storage), earlier.get(storage)
        specs.append(OutputSpec(shape, stride, value.dtype, value.device, *aliases))
        earlier.setdefault(storage, index)
    return tuple(specs)
