"""Value checks: for operators that an engine computes as PyTorch does but for some input values.

For each operator a `ValueClass` names the values for which the engine's result would differ.
`add_value_check` adds one output to an fx graph of ATen operators: a float32 number that is NaN (or
infinite, see `ValueCheck.infinite`) if such a value may be present. The runner then computes this
call with PyTorch (`ValueCheck.is_hit`, `ValueCheck.eager`), which also gives PyTorch's error.

An operator with `ValueClass.INDEX` never gets an index out of range: the graph clamps it, and wraps
negative indices that PyTorch counts from the end. The check has no false negatives; a false
positive costs time only. Each tensor is scanned once, right before its first reader, however many
operators read it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.contract.specs import ValueClass
from tracer_core.debug.logs import note
from tracer_core.engine_support.contiguous import call
from tracer_core.torch_private.names import names, operators

aten = operators("aten")


@dataclass(frozen=True, slots=True)
class Indexing:
    """Which argument of an operator indexes which other argument, along which dimension.

    The dimension is an argument too, or `fixed`.
    """

    #: Position of the argument with the indices.
    index: int
    #: Position of the argument with the dimension, or None.
    dim: int | None = None
    #: The dimension where no argument has it; negative ones count from the end.
    fixed: int = 0
    #: Whether negative indices count from the end.
    counts_back: bool = False
    #: Position of the argument with an index value that is ignored, or None.
    ignored: int | None = None


_ALONG = Indexing(index=2, dim=1)
_EACH = Indexing(index=1, counts_back=True)

_TAKEN_ALONG = names(
    "gather.default index_select.default scatter_add.default scatter.src scatter.value"
    " scatter.reduce scatter.value_reduce scatter_reduce.two",
    of="ops.aten",
)

#: Operators with indices that PyTorch checks. The first index of a list is for dimension 0, and so
#: on.
INDEXED: dict[Any, Indexing] = {
    aten.embedding.default: Indexing(index=1),
    **dict.fromkeys(_TAKEN_ALONG, _ALONG),
    **dict.fromkeys((aten.index.Tensor, aten._unsafe_index.Tensor), _EACH),
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), _EACH),
    aten.nll_loss_forward.default: Indexing(index=1, fixed=-1, ignored=4),
    aten.nll_loss2d_forward.default: Indexing(index=1, fixed=1, ignored=4),
}

#: Dtypes of indices that are not masks.
WHOLE = frozenset({torch.int64, torch.int32})

#: ``(node) -> ValueClass | None``
ValueClasses = Callable[[torch.fx.Node], ValueClass | None]

#: ``(source) -> node``: a float32 number that is NaN or infinite if a value of `source` is; None:
#: computed as a sum.
Total = Callable[[torch.fx.Node], torch.fx.Node | None]


class ValueCheck:
    """The value check of one graph. Mutable: logs its first hit only.

    Attributes:
        name: The name of the graph output that reports a hit, the last output.
        eager: Takes all inputs of the original graph, returns PyTorch's results and performs the
            writes to inputs.
        infinite: Whether an infinite number is a hit too.
    """

    def __init__(self, name: str, eager: Callable[..., Any], infinite: bool) -> None:
        self.name, self.eager, self.infinite = name, eager, infinite
        self._said = False

    def is_hit(self, tensor: torch.Tensor | float) -> bool:
        """Returns whether PyTorch has to compute this call.

        Args:
            tensor: The engine's value of the check output.
        """
        value = float(tensor)
        if math.isfinite(value) or (value == value and not self.infinite):
            return False
        if not self._said:
            self._said = True
            note(
                "stages", "value check: a call with values that the engine has otherwise is eager's"
            )
        return True


def checkable(node: torch.fx.Node) -> bool:
    """Returns whether a value check covers the indices of an operator (`ValueClass.INDEX`).

    An engine then need not check them.

    Args:
        node: A node of an ATen graph.

    Returns:
        True where the operator indexes, without a mask.
    """
    return node.target in INDEXED and all(
        index.meta["val"].dtype in WHOLE for index, _ in _indices(node)
    )


def add_value_check(
    graph: torch.fx.Graph,
    value_classes: ValueClasses,
    eager: Callable[..., Any],
    total: Total | None = None,
) -> ValueCheck | None:
    """Adds the check output to a graph, in place.

    Args:
        graph: An ATen graph with values in ``meta["val"]``.
        value_classes: Returns the values for which the engine must not compute a node, or None.
        eager: The original graph: returns PyTorch's results, or raises PyTorch's error.
        total: Returns a node with one float32 number that is NaN or infinite if a value of its
            argument is: how the engine scans a tensor. None: a sum.

    Returns:
        None where no operator needs a check.

    Raises:
        ValueError: `ValueClass.INDEX` for an operator whose indices `checkable` does not cover.
    """
    marks = _Marks(graph, total)
    for node in list(graph.nodes):
        value_class = value_classes(node) if node.op == "call_function" else None
        if value_class is None:
            continue
        with graph.inserting_before(node):
            if value_class is ValueClass.INDEX:
                marks.indices(node)
            else:
                marks.values(node, value_class)
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        combined = marks.joined()
    if combined is None:
        return None
    output.args = ((*output.args[0], combined),)
    return ValueCheck(combined.name, eager, marks.infinite)


def _sum(graph: torch.fx.Graph, source: torch.fx.Node) -> torch.fx.Node:
    """Returns a node with the sum of a floating-point tensor, as float32."""
    if source.meta["val"].dtype is torch.float64:
        exact = call(graph, aten.sum.default, source)
        return call(graph, aten._to_copy.default, exact, dtype=torch.float32)
    return call(graph, aten.sum.default, source, dtype=torch.float32)


class _Marks:
    """The numbers that the check output combines. Mutable.

    counts: numbers of invalid indices. values: numbers that are NaN, or infinite, on a hit, and
    their kind.
    """

    def __init__(self, graph: torch.fx.Graph, total: Total | None) -> None:
        self._graph, self._total = graph, total
        self._counts: list[torch.fx.Node] = []
        self._values: list[tuple[torch.fx.Node, ValueClass]] = []
        self._totals: dict[torch.fx.Node, torch.fx.Node] = {}
        self._seen: set[tuple[ValueClass, torch.fx.Node]] = set()
        self._safe: dict[Any, torch.fx.Node] = {}

    def indices(self, node: torch.fx.Node) -> None:
        """Checks an operator's indices, and replaces them by valid ones."""
        if not checkable(node):
            raise ValueError(f"value check: the indices of {node.target} cannot be checked")
        how, args = INDEXED[node.target], list(node.args)
        safe = [self._checked(node, index, dim) for index, dim in _indices(node)]
        if isinstance(args[how.index], (list, tuple)):
            inputs = iter(safe)
            args[how.index] = [item if item is None else next(inputs) for item in args[how.index]]  # type: ignore[union-attr]
        else:
            (args[how.index],) = safe
        node.args = tuple(args)

    def values(self, node: torch.fx.Node, value_class: ValueClass) -> None:
        """Scans the floating-point tensors that an operator reads."""
        for source in node.all_input_nodes:
            value = source.meta["val"]
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            if not floats or (value_class, source) in self._seen:
                continue
            self._seen.add((value_class, source))
            if source not in self._totals:
                result = None if self._total is None else self._total(source)
                self._totals[source] = _sum(self._graph, source) if result is None else result
            self._values.append((self._totals[source], value_class))

    @property
    def infinite(self) -> bool:
        """Whether an infinite check output always means a hit."""
        return all(value_class is ValueClass.INFINITE for _, value_class in self._values)

    def joined(self) -> torch.fx.Node | None:
        """Combines all numbers into one."""
        # The sine of an infinity is NaN. So is its product with 0, but engines fold that to 0 at
        # compile time.
        values = [
            number
            if self.infinite or value_class is ValueClass.NAN
            else self._call(aten.sin.default, number)
            for number, value_class in self._values
        ]
        if self._counts:
            # without an invalid index this is the root of -0
            negated = self._call(aten.neg.default, self._added(self._counts))
            values.append(self._call(aten.sqrt.default, negated))
        return self._added(values) if values else None

    def _added(self, numbers: list[torch.fx.Node]) -> torch.fx.Node:
        total = numbers[0]
        for number in numbers[1:]:
            total = self._call(aten.add.Tensor, total, number)
        return total

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return call(self._graph, target, *args, **kwargs)

    def _checked(self, node: torch.fx.Node, index: torch.fx.Node, dim: int) -> torch.fx.Node:
        """Returns the index clamped to its dimension and counted from the beginning.

        Records its check.
        """
        how, source = INDEXED[node.target], _source(node)
        shape = source.meta["val"].shape
        size = shape[dim] if shape else 1
        ignored = None if how.ignored is None else node.args[how.ignored]
        known = str(size.node.expr) if isinstance(size, torch.SymInt) else int(size)
        key = (index, known, how.counts_back, ignored)
        if key not in self._safe:
            end: Any = known
            if isinstance(size, torch.SymInt):
                end = self._call(aten.sym_size.int, source, dim)
            self._safe[key] = self._inside(index, end, how.counts_back, ignored)
        return self._safe[key]

    def _inside(
        self, index: torch.fx.Node, end: Any, counts_back: bool, ignored: Any
    ) -> torch.fx.Node:
        last: Any = end - 1 if isinstance(end, int) else self._call(operator.sub, end, 1)
        if counts_back:
            negative = self._call(aten.lt.Scalar, index, 0)
            from_end = self._call(aten.add.Tensor, index, end)
            index = self._call(aten.where.self, negative, from_end, index)
        inside = self._call(aten.clamp.default, index, 0, last)
        if ignored is not None:
            is_ignored = self._call(aten.eq.Scalar, index, ignored)
            inside = self._call(aten.where.self, is_ignored, index, inside)
        differs = self._call(aten.ne.Tensor, index, inside)
        outside = self._call(aten._to_copy.default, differs, dtype=torch.float32)
        self._counts.append(self._call(aten.sum.default, outside))
        return inside


def _source(node: torch.fx.Node) -> torch.fx.Node:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    return source


def _indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int]]:
    """Yields the index tensors of an operator of `INDEXED`, and the dimensions that they index."""
    how = INDEXED[node.target]
    arg: Any = node.args[how.index]
    if isinstance(arg, (list, tuple)):
        yield from ((item, dim) for dim, item in enumerate(arg) if item is not None)
        return
    dim: Any = how.fixed if how.dim is None else node.args[how.dim]
    yield arg, dim % max(_source(node).meta["val"].dim(), 1)
