"""Splits work on CPU tensors (step counters of optimizers) off a graph of a CUDA device and runs it
beside the device's kernels.

Neither side reads what the other computes or writes, so their order does not matter. Operators that
use the CPU's random numbers are on the host's side in their order, or none of them is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx import map_arg

from inductor_backend.ir.target import main_device
from inductor_backend.torch_private import OpOverload
from tracer_core.plugin_api import CompileSpec, Runner, is_random, logger, operators

aten = operators("aten")

Node = torch.fx.Node

_FOUND: WeakKeyDictionary[torch.fx.Graph, frozenset[Node]] = WeakKeyDictionary()


def host_side(graph: torch.fx.Graph) -> frozenset[Node]:
    """Returns the nodes that run on the host, all of whose tensors lie on the CPU; none in a graph of
    the CPU. Cached by graph, which must not change afterwards."""
    if graph not in _FOUND:
        _FOUND[graph] = _host_nodes(graph)
    return _FOUND[graph]


def _host_nodes(graph: torch.fx.Graph) -> frozenset[Node]:
    if main_device(graph).type == "cpu":
        return frozenset()
    nodes = _closed(graph, random=True)
    random = {node for node in graph.nodes if is_random(node.target) and _on_cpu(node)}
    return frozenset(nodes if random <= nodes else _closed(graph, random=False))


def _on_cpu(node: Node) -> bool:
    return any(tensor.device.type == "cpu" for tensor in _tensors(node))


def _closed(graph: torch.fx.Graph, random: bool) -> set[Node]:
    """random: operators that use random numbers may be among the nodes."""
    tensors = {node: _tensors(node) for node in graph.nodes}
    cpu = {
        node
        for node, tensor in tensors.items()
        if all(result.device.type == "cpu" for result in tensor)
    }
    nodes = {
        node
        for node in graph.nodes
        if node.op == "call_function"
        and node in cpu
        and tensors[node]
        and cpu.issuperset(node.all_input_nodes)
        and (random or not is_random(node.target))
    }
    while True:
        written = {node.args[0] for node in _writes(graph) if node not in nodes}
        wrong = {node for node in nodes if not _alone(node, nodes, written)}
        if not wrong:
            return nodes
        nodes -= wrong


def _alone(node: Node, nodes: set[Node], written: set[Any]) -> bool:
    """Checks that the node reads only host results and inputs that the device does not write to,
    and that only host nodes and the output read it."""
    for source in node.all_input_nodes:
        if source not in nodes and (source.op != "placeholder" or source in written):
            return False
    return all(user in nodes or user.op == "output" for user in node.users)


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [
        element
        for element in (value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(element, torch.Tensor)
    ]


def _writes(graph: torch.fx.Graph) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=aten.copy_.default))


@dataclass(frozen=True, slots=True)
class Split:
    """graph, spec: the device's side, with the inputs of the whole graph. join: turns a runner of
    the device's side into one for both sides."""

    graph: torch.fx.GraphModule
    spec: CompileSpec
    join: Callable[[Runner], Runner]


def split(gm: torch.fx.GraphModule, spec: CompileSpec) -> Split | None:
    """Splits the graph; None where it has no host side."""
    host = host_side(gm.graph)
    if not host:
        return None
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    (output,) = gm.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    ours = [place for place, value in enumerate(outputs) if value not in host]
    device = torch.fx.Graph()
    result: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node is not output and node not in host:
            result[node] = device.node_copy(node, result.__getitem__)
    device.output(tuple(_copied(outputs[place], result) for place in ours))
    graph = torch.fx.GraphModule(gm, device, "DeviceSide")
    written = [placeholders.index(node.args[0]) for node in _writes(gm.graph) if node in host]
    rest = dataclasses.replace(
        spec,
        outputs=tuple(spec.outputs[place] for place in ours),
        mutations=tuple(index for index in spec.mutations if index not in written),
    )
    names = sorted({str(node.target) for node in host if isinstance(node.target, OpOverload)})
    logger().info("%s: %d operators on CPU tensors run beside the graph of %s: %s",
                  spec.name, len(host), main_device(gm.graph), ", ".join(names))  # fmt: skip
    run_host = _host_runner(gm, host, placeholders, outputs)
    return Split(graph, rest, lambda runner: _both(runner, run_host, ours, len(outputs)))


def _copied(value: Any, result: dict[Node, Node]) -> Any:
    return result[value] if isinstance(value, Node) else value


def _host_runner(
    gm: torch.fx.GraphModule,
    host: frozenset[Node],
    placeholders: Sequence[Node],
    outputs: Sequence[Any],
) -> Callable[[list[Any]], Callable[[], list[tuple[int, Any]]]]:
    """Returns inputs -> work; calling work runs the host side and returns (position, value) of each
    of its outputs."""
    graph = torch.fx.Graph()
    read = [
        index for index, node in enumerate(placeholders) if any(user in host for user in node.users)
    ]
    result = {placeholders[index]: graph.placeholder(placeholders[index].name) for index in read}
    in_place = {node: form for node in host if (form := _in_place(node, host)) is not None}
    writes = [node for node in _writes(gm.graph) if node in host]
    for node in gm.graph.nodes:
        if node in in_place:
            received = map_arg((node.args, node.kwargs), result.__getitem__)
            graph.call_function(in_place[node], *received)
        elif node in host and node not in writes and node.args[0] not in in_place:
            result[node] = graph.node_copy(node, result.__getitem__)
    writes = [node for node in writes if node.args[1] in result]
    mine = [
        place for place, value in enumerate(outputs) if isinstance(value, Node) and value in host
    ]
    values = [node.args[1] for node in writes] + [outputs[place] for place in mine]
    graph.output([result[value] for value in values])
    forward = torch.fx.GraphModule(torch.nn.Module(), graph, "HostSide")
    targets = [read.index(placeholders.index(node.args[0])) for node in writes]

    def prepare(inputs: list[Any]) -> Callable[[], list[tuple[int, Any]]]:
        arguments = [inputs[index] for index in read]

        def work() -> list[tuple[int, Any]]:
            with torch.no_grad():
                results = forward.forward(*arguments)
                if targets:
                    aten._foreach_copy_.default(
                        [arguments[place] for place in targets], results[: len(targets)]
                    )
            return list(zip(mine, results[len(targets) :], strict=True))

        return work

    return prepare


def _place(node: Node) -> int:
    """Returns the position of a ``getitem`` of an operator's results."""
    place = node.args[1]
    assert isinstance(place, int)
    return place


def _in_place(node: Node, host: frozenset[Node]) -> Any:
    """Returns the form in place of a foreach operator all of whose results are only written to its
    first operands, inputs that nothing else on the host reads; None where it has none."""
    name = getattr(node.target, "__name__", "")
    target, _, overload = name.partition(".")
    if not target.startswith("_foreach_") or not isinstance(node.args[0], (list, tuple)):
        return None
    packet = getattr(aten, f"{target}_", None)
    if packet is None or overload not in packet.overloads():
        return None
    results = sorted(node.users, key=_place)
    if len(results) != len(node.args[0]):
        return None
    for operand, result in zip(node.args[0], results, strict=True):
        users = set(result.users)
        if operand.op != "placeholder" or len(users) != 1 or not users <= host:
            return None
        (write,) = users
        if write.target is not aten.copy_.default or write.args != (operand, result):
            return None
        if not {user for user in operand.users if user in host} <= {node, write}:
            return None
    return getattr(packet, overload)


def _both(
    runner: Runner, host: Callable[[list[Any]], Any], ours: Sequence[int], count: int
) -> Runner:
    run_device = runner.run

    def run(inputs: list[Any]) -> list[Any]:
        work = host(inputs)
        results: list[Any] = [None] * count
        for place, value in zip(ours, run_device(inputs), strict=True):
            results[place] = value
        for place, value in work():
            results[place] = value
        return results

    return Runner(run, channels_last=frozenset(ours[place] for place in runner.channels_last))
