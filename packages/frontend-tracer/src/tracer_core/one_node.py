"""Asks an engine about one operator: does it take it, and does it compute what PyTorch computes?

In: a node of an ATen graph, and how the engine runs a graph. Out: None, or the reason against it. The translation of
some operators is wrong for some arguments (training-mode batch norm in onnxscript 0.7.2, for one), so a graph of this
one node is run once on seeded data of the captured sizes and compared with the operator itself. What always
holds: nodes that look alike (operator, dtypes, ranks, other arguments) are asked about once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.contiguous import hint

#: Above this many input elements the values are not compared: making them would take longer than a second.
MOST_ELEMENTS = 1 << 25

#: Far above rounding, far below a wrong formula. In float64 also below what a constant in float32 is off by.
TOLERANCE = 1e-3
TOLERANCES = {torch.float64: 1e-11}

#: What an engine makes of a graph of one node: runs it on inputs in the placeholders' order. Raises where it cannot.
Run = Callable[[list[Any]], Sequence[torch.Tensor]]


class NodeProbe:
    """The answers of one engine (mutable: it remembers them).

    build: ``(graph) -> Run``; raises anything where the engine cannot take the graph. engine: its name, for reasons.
    """

    def __init__(self, build: Callable[[torch.fx.Graph], Run], engine: str) -> None:
        self._build, self._engine = build, engine
        self._answers: dict[Any, str | None] = {}

    def __call__(self, node: torch.fx.Node) -> str | None:
        """None if the engine can run `node`, else why not."""
        key = _signature(node)
        if key not in self._answers:
            self._answers[key] = self._ask(_alone(node))
        return self._answers[key]

    @staticmethod
    def operands(node: torch.fx.Node) -> list[torch.Tensor]:
        """The (fake) tensors that a node reads, and those of its own that are read."""
        value = node.meta["val"]
        own = [value] if _is_single(node) else [value[index] for index in _items_read(node)]
        values = [source.meta["val"] for source in node.all_input_nodes] + own
        return [value for value in values if isinstance(value, torch.Tensor)]

    def reset(self) -> None:
        """Forgets every answer."""
        self._answers.clear()

    def _ask(self, graph: torch.fx.Graph) -> str | None:
        values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        eager = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), class_name="OneNode")
        eager.graph.output(eager.graph.graph_copy(graph, {}))
        eager.recompile()
        try:
            run = self._build(graph)
        except Exception as error:  # engines' errors have no common base; each is an answer here
            return f"{self._engine} refuses it: {_first_line(error)}"
        if sum(_elements(value) for value in values) > MOST_ELEMENTS:
            return None
        data = [sample(value, number) for number, value in enumerate(values)]
        try:
            expected = eager(*data)
        except (RuntimeError, IndexError):
            return None  # the sample is no valid argument (an index out of range): nothing to compare with
        try:
            actual = run(data)
        except Exception as error:  # see above
            return f"{self._engine} fails to run it: {_first_line(error)}"
        return _difference(expected, actual, self._engine)


def sample(value: Any, seed: int) -> Any:
    """Data for a fake value: normal floats, 0 and 1 for integers (valid as most indices), booleans."""
    if not isinstance(value, torch.Tensor):
        return hint(value)
    generator = torch.Generator().manual_seed(seed)
    shape = [hint(size) for size in value.shape]
    if value.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(value.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(value.dtype)


def _is_single(node: torch.fx.Node) -> bool:
    return not isinstance(node.meta["val"], (tuple, list))


def _items_read(node: torch.fx.Node) -> list[int]:
    """Which results of an operator with several are read."""
    return sorted({user.args[1] for user in node.users if user.target is operator.getitem})  # type: ignore[misc]


def _signature(node: torch.fx.Node) -> Any:
    """Equal for nodes that an engine treats alike: operator, dtypes, ranks, other arguments."""

    def part(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
            return (
                (value.dtype, value.dim(), 0 in value.shape)
                if isinstance(value, torch.Tensor)
                else type(value)
            )
        if isinstance(value, (tuple, list)):
            return tuple(part(item) for item in value)
        return (type(value), value)

    kwargs = tuple((key, part(value)) for key, value in sorted(node.kwargs.items()))
    return node.target, tuple(part(arg) for arg in node.args), kwargs, tuple(_items_read(node))


def _alone(node: torch.fx.Node) -> torch.fx.Graph:
    """A graph of this one node: placeholders, the operator, the items of it that are read."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        made[source] = graph.placeholder(source.name)
        made[source].meta["val"] = source.meta["val"]
    call = graph.node_copy(node, made.__getitem__)
    if _is_single(call):
        graph.output((call,))
        return graph
    items = []
    for index in _items_read(node):
        item = graph.call_function(operator.getitem, (call, index))
        item.meta["val"] = call.meta["val"][index]
        items.append(item)
    graph.output(tuple(items))
    return graph


def _difference(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor], engine: str) -> str | None:
    for want, got in zip(expected, actual, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            ours, theirs = f"{got.dtype} {tuple(got.shape)}", f"{want.dtype} {tuple(want.shape)}"
            return f"its form in {engine} gives {ours} where PyTorch gives {theirs}"
        tolerance = TOLERANCES.get(want.dtype, TOLERANCE)
        if want.is_floating_point() and torch.allclose(got, want, tolerance, tolerance, equal_nan=True):
            continue
        if torch.equal(got, want):
            continue
        if want.dtype in TOLERANCES and torch.allclose(got, want, TOLERANCE, TOLERANCE, equal_nan=True):
            return f"its form in {engine} computes {want.dtype} less exactly than PyTorch"
        return f"its form in {engine} computes other values than PyTorch"
    return None


def _elements(value: Any) -> int:
    return math.prod(hint(size) for size in value.shape) if isinstance(value, torch.Tensor) else 1


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {text[:200]}"
