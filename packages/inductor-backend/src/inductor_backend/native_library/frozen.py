"""Makes the tensors that a graph holds its constants: they become placeholders, so that freezing
prepares them as it does parameters.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.passes.fx_edit import copy_node
from tracer_core.plugin_api import CompileSpec, InputSpec, Role


@dataclass(frozen=True, slots=True)
class Weighted:
    """A graph whose weights are its last inputs."""

    graph: torch.fx.GraphModule
    spec: CompileSpec
    #: Their values.
    constants: tuple[torch.Tensor, ...]


def with_weights_as_inputs(gm: torch.fx.GraphModule, spec: CompileSpec) -> Weighted:
    """Returns the graph with its ``get_attr`` nodes as constant inputs. Raises BackendError where
    the values of other constants are not known."""
    if spec.constants:
        names = ", ".join(spec.inputs[index].source for index in spec.constants[:5])
        raise unsupported(
            "native library",
            f"{spec.name}: the values of {names} are no tensors of the graph (get_attr)",
        )
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    placeholders = gm.graph.find_nodes(op="placeholder")
    for node in placeholders:
        result[node] = copy_node(graph, node, result.__getitem__)
    first: dict[int, torch.fx.Node] = {}  # a tensor of several names is one input
    inputs, constants = list(spec.inputs), []
    for node in gm.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value = operator.attrgetter(name)(gm)
        if not isinstance(value, torch.Tensor):
            raise unsupported("native library", f"{name} is a {type(value).__name__}", node)
        if id(value) not in first:
            first[id(value)] = graph.placeholder(node.name)
            first[id(value)].meta = dict(node.meta)
            inputs.append(InputSpec(node.name, Role.PARAMETER, name, stable_address=True))
            constants.append(value)
        result[node] = first[id(value)]
    for node in gm.graph.nodes:
        if node not in result:
            result[node] = copy_node(graph, node, result.__getitem__)
    count = len(placeholders)
    numbers = tuple(range(count, count + len(constants)))
    changed = replace(spec, inputs=tuple(inputs), constants=numbers)
    return Weighted(torch.fx.GraphModule(gm, graph), changed, tuple(constants))
