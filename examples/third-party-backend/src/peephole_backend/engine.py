"""The backend itself.

In: a functional ATen graph with fake tensors in ``meta["val"]``. Out: a runner of the same graph
with fewer operators: ``x + a * b`` is ``addcmul(x, a, b)``, ``x + a @ b`` is ``addmm(x, a, b)``,
``x * sigmoid(x)`` is ``silu(x)``; what was done is counted, see `reports`. What always holds: a
rewrite changes no shape, stride or dtype: each is tried on the fake tensors first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.plugin_api import CompileSpec, Runner, stage, wants_text

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Report:
    """graph: its name. before, after: how many operators it had and has. rewrites: how often each
    rule was used.
    """

    graph: str
    before: int
    after: int
    rewrites: dict[str, int]

    def __str__(self) -> str:
        done = (
            ", ".join(f"{count} {name}" for name, count in self.rewrites.items() if count)
            or "nothing to do"
        )
        return f"{self.graph}: {self.before} operators, {self.after} now ({done})"


_reports: list[Report] = []


def reports() -> tuple[Report, ...]:
    """What was done to each graph since the last `reset`."""
    return tuple(_reports)


def reset() -> None:
    """Forgets the reports; ``tracer_core.reset()`` calls it."""
    _reports.clear()


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Rewrites, and returns a runner that calls the graph's generated Python code."""
    with stage("peephole", graph=spec.name, suffix=".py") as record:
        report = rewrite(graph, spec.name, spec.options.max_fusions if spec.options.fuse else 0)
        _reports.append(report)
        record.text = f"# {sum(report.rewrites.values())} fusions\n# {report}"
        if wants_text():
            record.text += f"\n{graph.code}"
    forward = graph.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = forward(*inputs)
        return outputs

    return Runner(run)


#: What a rule gives for a node that it matches: the operator and its arguments that take the node's
#: place.
Replacement = tuple[Any, tuple[torch.fx.Node, ...]]


def rewrite(graph: torch.fx.GraphModule, name: str, limit: int | None) -> Report:
    """Rewrites the graph in place, in at most `limit` places."""
    before, counts = operators(graph), dict.fromkeys(RULES, 0)
    for rule, (targets, match) in RULES.items():
        for node in [node for node in graph.graph.nodes if node.target in targets]:
            if limit is not None and sum(counts.values()) >= limit:
                break
            result = match(node)
            if result is not None and fits(node, result):
                replace(graph.graph, node, result)
                counts[rule] += 1
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Report(name, before, operators(graph), counts)


def operators(graph: torch.fx.GraphModule) -> int:
    """How many operators a graph has."""
    return sum(isinstance(node.target, torch._ops.OpOverload) for node in graph.graph.nodes)


def replace(graph: torch.fx.Graph, node: torch.fx.Node, replacement: Replacement) -> None:
    """Puts the replacement where the node is."""
    with graph.inserting_before(node):
        result = graph.call_function(*replacement)
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)


def fits(node: torch.fx.Node, replacement: Replacement) -> bool:
    """Whether the replacement gives the node's shape, strides and dtype, from floating-point
    tensors.
    """
    target, arguments = replacement
    if not all(is_floating(argument) for argument in arguments):
        return False
    try:
        result = target(*(argument.meta["val"] for argument in arguments))
    except (RuntimeError, ValueError):  # shapes or dtypes that the operator does not take
        return False
    expected = node.meta["val"]
    return bool(
        result.shape == expected.shape
        and result.stride() == expected.stride()
        and result.dtype == expected.dtype
    )


def added(node: torch.fx.Node, target: Any, fused: Any) -> Replacement | None:
    """``x + target(a, b)`` in either order, where nothing else reads the second summand."""
    if node.kwargs.get("alpha", 1) != 1:
        return None
    for inner, other in (node.args[:2], node.args[1::-1]):
        if isinstance(inner, torch.fx.Node) and inner.target is target and len(inner.users) == 1:
            arguments = (other, *inner.args[:2])
            if all(isinstance(argument, torch.fx.Node) for argument in arguments):
                return fused, arguments  # type: ignore[return-value]
    return None


def gated(node: torch.fx.Node) -> Replacement | None:
    """``x * sigmoid(x)``."""
    for gate, other in (node.args[:2], node.args[1::-1]):
        if (
            isinstance(gate, torch.fx.Node)
            and gate.target is aten.sigmoid.default
            and gate.args[0] is other
        ):
            return aten.silu.default, (other,)  # type: ignore[return-value]
    return None


#: Rule -> (operators that it begins at, what it makes of one of them).
RULES: dict[str, tuple[frozenset[Any], Callable[[torch.fx.Node], Replacement | None]]] = {
    "addcmul": (
        frozenset({aten.add.Tensor}),
        lambda node: added(node, aten.mul.Tensor, aten.addcmul.default),
    ),
    "addmm": (
        frozenset({aten.add.Tensor}),
        lambda node: added(node, aten.mm.default, aten.addmm.default),
    ),
    "silu": (frozenset({aten.mul.Tensor}), gated),
}


def is_floating(node: Any) -> bool:
    """A node whose value is a floating-point tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()
