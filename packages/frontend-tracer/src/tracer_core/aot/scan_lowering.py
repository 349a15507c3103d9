"""Lowers the steps of captured scans and loops and the branches of conds, for backends that keep the
operator ``tracer_core::scan``.

In: a captured graph. Out: for each of them a `Scan`, `Cond` or `While`, the programs of its steps
and of the steps of its gradient. What has none (random numbers, constants, writes) runs as
captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.dead_code import remove_dead_nodes
from tracer_core.aot.fake_values import captured_values
from tracer_core.aot.joint_graph import Joint, JointLowering
from tracer_core.aot.lower import Lowering, output_args
from tracer_core.aot.request import Request, default_specs
from tracer_core.aot.symbolic_sizes import as_expression
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.specs import Phase
from tracer_core.ops.higher_order.control_flow import CapturedCond, CapturedWhile, Cond, While
from tracer_core.ops.higher_order.scan import SCANS, CapturedScan, Scan, program_of, settings
from tracer_core.ops.traits import is_pointwise, is_random
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node


@contextlib.contextmanager
def lowered_control_flow(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], request: Request, differentiate: bool
) -> Iterator[None]:
    """Context in which the control flow of a captured graph is lowered to operators."""
    values = captured_values(gm, inputs, grad=differentiate)
    result = dict(SCANS.get())
    for node in gm.graph.nodes:
        rule = next((rule for kind, rule in _RULES.items() if isinstance(node.target, kind)), None)
        if rule is not None:
            arguments = [values[arg] if isinstance(arg, Node) else arg for arg in node.args]
            result[node.target] = _reason_or(rule, node, arguments, request, differentiate)
    token = SCANS.set(result)
    try:
        yield
    finally:
        SCANS.reset(token)


def _reason_or(
    rule: Any, node: Node, value: list[Any], request: Request, differentiate: bool
) -> Any:
    """Returns how a captured call runs as an operator, or why it does not."""
    try:
        with torch_private.settings_restored():
            return rule(node, value, request, differentiate)
    except LoweringUnsupported as error:
        return str(error)
    except torch_private.fake_failures() as error:
        return f"{type(error).__name__}: {error}"


def _scan(node: Node, parts: list[Any], request: Request, differentiate: bool) -> Scan:
    target: Any = node.target
    with torch_private.fake_mode_of(node.meta["val"][0]), torch.set_grad_enabled(True):
        parts = target.parts_of(parts)
    return _ScanStep(target, parts, request).scan(differentiate)


def _cond(node: Node, value: list[Any], request: Request, differentiate: bool) -> Cond:
    target: Any = node.target
    _, *inputs = value
    with torch_private.fake_mode_of(node.meta["val"][0]), torch.no_grad():
        strides = [
            [item.stride() for item in target.branch(side, inputs)] for side in (True, False)
        ]
    if strides[0] != strides[1]:
        raise LoweringUnsupported("branches of a cond whose results have other strides")
    branches = (target.if_true, target.true_inputs), (target.if_false, target.false_inputs)
    result = []
    for graph, positions in branches:
        created = _Composed(inputs)
        results = created.add(graph, [created.inputs[place] for place in positions])
        step = CapturedScan(created.module(results), len(inputs), 0)
        result.append(_ScanStep(step, inputs, request).scan(differentiate, read=False))
    item, other = result
    if (item.fixed, item.outer_gradients) != (other.fixed, other.outer_gradients):
        raise LoweringUnsupported("branches of a cond with gradients of different tensors")
    return Cond(item, other)


def _while(node: Node, value: list[Any], request: Request, differentiate: bool) -> While:
    target: Any = node.target
    if differentiate and any(
        isinstance(item, torch.Tensor) and item.requires_grad for item in value
    ):
        raise LoweringUnsupported("a while_loop with gradients")
    (again,) = output_args(target.condition)
    answer = again.meta["val"]
    if answer.dtype is not torch.bool or answer.dim():
        raise LoweringUnsupported("a while_loop whose condition is no 0-d bool")
    n_outer = target.n_condition + target.n_body
    n_live = len(value) - n_outer
    built = _Composed(value)
    condition, body = built.inputs[: target.n_condition], built.inputs[target.n_condition : n_outer]
    after = built.add(target.body, [*body, *built.inputs[n_outer:]])
    more = built.add(target.condition, [*condition, *after])
    step = CapturedScan(built.module([*after, *more]), n_outer, n_live)
    if not all(isinstance(item, torch.Tensor) for item in value[n_outer:]):
        raise LoweringUnsupported("a while_loop that carries numbers")
    return While(_ScanStep(step, value, request).scan(differentiate=False))


_RULES = {CapturedScan: _scan, CapturedCond: _cond, CapturedWhile: _while}


class _Composed:
    """A captured graph made of others. Mutable."""

    def __init__(self, operands: Sequence[Any]) -> None:
        self.graph = torch.fx.Graph()
        self.inputs = [self.graph.placeholder(f"input_{k}") for k in range(len(operands))]

    def add(self, part: torch.fx.GraphModule, nodes: Sequence[Node]) -> list[Node]:
        """Adds the nodes of a graph; returns its results."""
        copies = dict(zip(part.graph.find_nodes(op="placeholder"), nodes, strict=True))
        for node in part.graph.nodes:
            if node.op == "get_attr":
                raise LoweringUnsupported("a function that holds a tensor")
            if node.op not in ("placeholder", "output"):
                copies[node] = self.graph.node_copy(node, copies.__getitem__)
        return [copies[arg] for arg in output_args(part)]

    def module(self, results: Sequence[Node]) -> torch.fx.GraphModule:
        self.graph.output(tuple(results))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


@dataclass(frozen=True, slots=True)
class _Traced:
    """A copy of the captured step whose placeholders are in the order of a program, and whose
    results are copies. inputs: fakes of them. values: of its nodes."""

    gm: torch.fx.GraphModule
    inputs: list[Any]
    values: Mapping[Node, Any]

    @property
    def results(self) -> list[torch.Tensor]:
        return [self.values[arg] for arg in output_args(self.gm)]


class _ScanStep:
    """Lowers the step of one scan. operands: the values of the captured node's arguments."""

    def __init__(self, target: CapturedScan, operands: Sequence[Any], request: Request) -> None:
        self.target, self.operands = target, operands
        self.request = replace(request, phase=Phase.JOINT, name=f"{request.name}_step")
        places = range(len(operands))
        self.numbers = [k for k in places if not isinstance(operands[k], torch.Tensor)]
        if not all(isinstance(operands[k], (int, torch.SymInt)) for k in self.numbers):
            raise LoweringUnsupported("a scan reads a number that is no whole one")
        self.tensors = [k for k in places if k not in self.numbers]
        self.first_row = target.n_outer + target.n_live
        self.n_outer = sum(k < target.n_outer for k in self.tensors)
        self.n_rows = sum(k >= self.first_row for k in self.tensors)
        self.order = (*self.tensors, *self.numbers)

    def scan(self, differentiate: bool, read: bool = True) -> Scan:
        """Returns the programs. read: only outer tensors that the step reads have gradients. Raises
        LoweringUnsupported where there are none."""
        n_live = self.target.n_live
        simple = self._traced([False] * len(self.tensors))
        counts = self.n_outer, n_live, self.n_rows
        devices = {value.device for value in (*simple.inputs, *simple.results) if _is_tensor(value)}
        if len(devices) > 1:
            raise LoweringUnsupported("control flow over tensors on several devices")
        forward, graph = self._forward(simple, [])
        pointwise = not self.n_outer and not self.numbers and _is_pointwise(graph)
        result = Scan(self.order, *counts, forward, settings(), pointwise=pointwise)
        wanted = [self.operands[k].requires_grad for k in self.tensors]
        if not differentiate or not any(wanted):
            return result
        traced = self._with_gradients(wanted)
        results = traced.results
        fixed = tuple(k for k, result in enumerate(results) if not result.requires_grad)
        if len(fixed) == len(results):
            return result
        carries = range(self.n_outer, self.n_outer + n_live)
        saving, _ = self._forward(simple, [self.order.index(self.tensors[k]) for k in carries])
        with lowered_control_flow(traced.gm, traced.inputs, self.request, differentiate=True):
            lowering = JointLowering(traced.gm, traced.values, self.request, traced.inputs)
            joint = lowering.joint(default_specs(traced.gm, traced.inputs))
        if joint.mutations or len(joint.inputs) != len(traced.inputs):
            raise LoweringUnsupported("a scan whose step writes to tensors or holds some")
        gradients = dict(zip(joint.differentiable, joint.gradients, strict=True))
        if any(wanted[k] and k - self.n_outer in fixed for k in carries):
            raise LoweringUnsupported("a scan that carries on without the gradient it began with")
        outer = tuple(
            k for k in range(self.n_outer) if (gradients.get(k) is not None if read else wanted[k])
        )
        start = self.n_outer + n_live
        rows = tuple(k for k in range(self.n_rows) if gradients.get(start + k) is not None)
        backward = _backward(joint, gradients, (*counts, fixed), (outer, rows))
        return replace(result, saving=saving, backward=backward, outer_gradients=outer,
                       row_gradients=rows, fixed=fixed)  # fmt: skip

    def _with_gradients(self, wanted: list[bool]) -> _Traced:
        """Returns the step where what it carries requires a gradient as it does after some
        steps."""
        wanted = list(wanted)
        while True:
            traced = self._traced(wanted)
            after = list(wanted)
            for k, result in enumerate(traced.results[: self.target.n_live], self.n_outer):
                after[k] = after[k] or result.requires_grad
            if after == wanted:
                return traced
            wanted = after

    def _traced(self, wanted: Sequence[bool]) -> _Traced:
        """Returns a copy of the step. wanted: which of its tensors require a gradient."""
        step = self.target.step.graph
        graph = torch.fx.Graph()
        old = step.find_nodes(op="placeholder")
        copies: dict[Node, Node] = {}
        for k in self.order:
            copies[old[k]] = graph.placeholder(old[k].name)
        for node in step.nodes:
            if node.op == "get_attr":
                raise LoweringUnsupported("a scan whose step holds a tensor")
            if node.op not in ("placeholder", "output"):
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {k: v for k, v in node.meta.items() if k != "val"}
        results = [
            graph.call_function(torch.clone, (copies[arg],), _dense())
            for arg in output_args(self.target.step)
        ]
        graph.output(tuple(results))
        gm = torch.fx.GraphModule(torch.nn.Module(), graph)
        inputs = [self._input(k, grad) for k, grad in zip(self.tensors, wanted, strict=True)]
        inputs += [self.operands[k] for k in self.numbers]
        return _Traced(gm, inputs, captured_values(gm, inputs, grad=any(wanted)))

    def _input(self, place: int, grad: bool) -> torch.Tensor:
        """Returns a contiguous fake of an input of the step."""
        full = self.operands[place]
        sizes = full.shape if place < self.first_row else full.shape[1:]
        with torch_private.fake_mode_of(full), torch.no_grad():
            result = torch.empty(sizes, dtype=full.dtype, device=full.device)
        return result.requires_grad_(grad)

    def _forward(self, traced: _Traced, saved: Sequence[int]) -> tuple[str, torch.fx.Graph]:
        """Returns the program of a step, and its graph. saved: the inputs that it also returns."""
        specs = default_specs(traced.gm, traced.inputs)
        with lowered_control_flow(traced.gm, traced.inputs, self.request, differentiate=False):
            lowered = Lowering(traced.gm, traced.values, self.request).run(specs)
        if not lowered.plan.trivial or lowered.spec.mutations:
            raise LoweringUnsupported("a scan whose step writes to tensors or holds some")
        graph = lowered.graph.graph
        placeholders = graph.find_nodes(op="placeholder")
        (output,) = graph.find_nodes(op="output")
        with graph.inserting_before(output):
            copied = [_clone(graph, placeholders[place]) for place in saved]
        output.args = ((*output.args[0], *copied),)
        return _program(graph), graph


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_pointwise(graph: torch.fx.Graph) -> bool:
    """Returns whether every element of the results is made of the elements of the inputs at the same
    place. All tensors must have one shape: an operand without dimensions may be a reduction."""
    shape = None
    for node in graph.nodes:
        if node.op == "output":
            continue
        if node.op != "placeholder":
            if not is_pointwise(node.target) and node.target is not aten.clone.default:
                return False
            if is_random(node.target):
                return False
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return False
        result = [as_expression(size) for size in value.shape]
        shape = result if shape is None else shape
        if result != shape:
            return False
    return True


def _dense() -> dict[str, Any]:
    return {"memory_format": torch.contiguous_format}


def _clone(graph: torch.fx.Graph, node: Node) -> Node:
    return graph.call_function(aten.clone.default, (node,), _dense())


def _program(graph: torch.fx.Graph) -> str:
    remove_dead_nodes(graph)
    if any(is_random(node.target) for node in graph.nodes):
        raise LoweringUnsupported("a scan whose step uses random numbers")
    return program_of(graph)


def _backward(
    joint: Joint,
    gradients: Mapping[int, Node | None],
    shape: tuple[int, int, int, tuple[int, ...]],
    wanted: tuple[tuple[int, ...], tuple[int, ...]],
) -> str:
    """Returns the program of the gradient's step: see `Scan.backward`."""
    n_outer, n_live, n_rows, fixed = shape
    outer, rows = wanted
    graph = torch.fx.Graph()
    inputs = joint.graph.find_nodes(op="placeholder")
    n_tensors = n_outer + n_live + n_rows
    tangents = [node for node in joint.tangents if node is not None]
    numbers = [node for node in inputs[n_tensors:] if node not in tangents]
    places = [k for k in range(len(joint.outputs)) if k not in fixed]
    assert len(places) == len(tangents)
    of_live = [k for k in places if k < n_live]
    result: dict[Node, Node] = {}

    def take(nodes: Sequence[Node]) -> list[Node]:
        result.update((node, graph.placeholder(node.name)) for node in nodes)
        return [result[node] for node in nodes]

    take(inputs[:n_outer])
    take(tangents[: len(of_live)])
    sums = [graph.placeholder(f"sum_{k}") for k in outer]
    take(inputs[n_outer:n_tensors])
    take(tangents[len(of_live) :])
    take(numbers)
    for node in joint.graph.nodes:
        if node.op != "placeholder":
            result[node] = graph.node_copy(node, result.__getitem__)

    def gradient(place: int) -> Node:
        results = gradients.get(place)
        if results is not None:
            return _clone(graph, result[results])
        return graph.call_function(aten.zeros_like.default, (result[inputs[place]],))

    results = [gradient(n_outer + k) for k in of_live]
    results += [
        _clone(graph, total)
        if gradients.get(k) is None
        else graph.call_function(aten.add.Tensor, (total, result[gradients[k]]))  # type: ignore[index]
        for total, k in zip(sums, outer, strict=True)
    ]
    results += [gradient(n_outer + n_live + k) for k in rows]
    graph.output(tuple(results))
    return _program(graph)
