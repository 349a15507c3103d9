"""Alarms: how an engine runs operators whose results are PyTorch's for all but a few values.

In: an fx graph of ATen operators with values, and for each operator the `Fault` by which the
engine's results would be others. Out: the same graph with one result more, the alarm: a float32
number that is NaN, or infinite too (`Alarm.infinite`), if a fault may be there. The runner then
gives PyTorch's results for this call (`Alarm.sounds`, `Alarm.eager`), or PyTorch's error.

What always holds: no operator with `Fault.INDEX` is handed an index out of range: it gets the
nearest one inside, and indices that PyTorch counts from the end count from the beginning. A fault
always sounds; an alarm without a fault costs time only. Tensors are looked through once, however
many operators read them, right before the first of these.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.contract.specs import Fault
from tracer_core.debug.logs import note
from tracer_core.engine_support.contiguous import call
from tracer_core.torch_private.names import operators

aten = operators("aten")


@dataclass(frozen=True, slots=True)
class Indexing:
    """Which argument of an operator indexes which other one, along which dimension (an argument,
    too; None: `fixed`, counted from the end if negative). counts_back: negative indices count from
    the end. ignored: the argument that says which index means nothing, whatever it is."""

    index: int
    dim: int | None = None
    fixed: int = 0
    counts_back: bool = False
    ignored: int | None = None


_ALONG = Indexing(index=2, dim=1)
_EACH = Indexing(index=1, counts_back=True)

#: Operators with indices that PyTorch checks. Of a list of indices the first is for dimension 0,
#: and so on.
INDEXED: dict[Any, Indexing] = {
    aten.embedding.default: Indexing(index=1),
    **dict.fromkeys(
        (aten.gather.default, aten.index_select.default, aten.scatter_add.default), _ALONG
    ),
    **dict.fromkeys(
        (aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce),
        _ALONG,
    ),
    aten.scatter_reduce.two: _ALONG,
    **dict.fromkeys((aten.index.Tensor, aten._unsafe_index.Tensor), _EACH),
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), _EACH),
    aten.nll_loss_forward.default: Indexing(index=1, fixed=-1, ignored=4),
    aten.nll_loss2d_forward.default: Indexing(index=1, fixed=1, ignored=4),
}

#: dtypes of indices that are no masks.
WHOLE = frozenset({torch.int64, torch.int32})

#: ``(node) -> Fault | None``
Faults = Callable[[torch.fx.Node], Fault | None]

#: ``(source) -> node``: a float32 number that is NaN or infinite if a value of `source` is; None:
#: make it by a sum.
Total = Callable[[torch.fx.Node], torch.fx.Node | None]


class Alarm:
    """name: of the graph's result, which is its last (mutable: it says once that it sounded).
    eager: called with all inputs of the graph as it was given, gives PyTorch's results and writes
    to inputs. infinite: an infinite number sounds too."""

    def __init__(self, name: str, eager: Callable[..., Any], infinite: bool) -> None:
        self.name, self.eager, self.infinite = name, eager, infinite
        self._said = False

    def sounds(self, given: torch.Tensor | float) -> bool:
        """Whether this call's results must be PyTorch's. given: what the engine computed for the
        alarm.
        """
        value = float(given)
        if math.isfinite(value) or (value == value and not self.infinite):
            return False
        if not self._said:
            self._said = True
            note("stages", "alarm: a call with values that the engine has otherwise is eager's")
        return True


def checkable(node: torch.fx.Node) -> bool:
    """Whether the indices of an operator can be checked by an alarm (`Fault.INDEX`): it indexes,
    and by no mask.
    """
    return node.target in INDEXED and all(
        index.meta["val"].dtype in WHOLE for index, _ in _indices(node)
    )


def add_alarm(
    graph: torch.fx.Graph, faults: Faults, eager: Callable[..., Any], total: Total | None = None
) -> Alarm | None:
    """Adds the alarm to the graph's results, in place; None where no operator wants one. total: how
    the engine looks through a tensor (None: by a sum). Raises ValueError for `Fault.INDEX` of an
    operator that is not `checkable`."""
    marks = _Marks(graph, total)
    for node in list(graph.nodes):
        fault = faults(node) if node.op == "call_function" else None
        if fault is None:
            continue
        with graph.inserting_before(node):
            if fault is Fault.INDEX:
                marks.indices(node)
            else:
                marks.values(node, fault)
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        alarm = marks.joined()
    if alarm is None:
        return None
    output.args = ((*output.args[0], alarm),)
    return Alarm(alarm.name, eager, marks.infinite)


def _sum(graph: torch.fx.Graph, source: torch.fx.Node) -> torch.fx.Node:
    """The sum of a floating-point tensor, as float32."""
    if source.meta["val"].dtype is torch.float64:
        return call(
            graph, aten._to_copy.default, call(graph, aten.sum.default, source), dtype=torch.float32
        )
    return call(graph, aten.sum.default, source, dtype=torch.float32)


class _Marks:
    """What the alarm is made of (mutable). counts: numbers of wrong indices; values: numbers that
    are NaN, or infinite, for a fault, and its kind."""

    def __init__(self, graph: torch.fx.Graph, total: Total | None) -> None:
        self._graph, self._total = graph, total
        self._counts: list[torch.fx.Node] = []
        self._values: list[tuple[torch.fx.Node, Fault]] = []
        self._totals: dict[torch.fx.Node, torch.fx.Node] = {}
        self._seen: set[tuple[Fault, torch.fx.Node]] = set()
        self._safe: dict[Any, torch.fx.Node] = {}

    def indices(self, node: torch.fx.Node) -> None:
        """Checks an operator's indices, and gives it indices that are inside."""
        if not checkable(node):
            raise ValueError(f"alarm: the indices of {node.target} cannot be checked")
        how, args = INDEXED[node.target], list(node.args)
        safe = [self._checked(node, index, dim) for index, dim in _indices(node)]
        if isinstance(args[how.index], (list, tuple)):
            given = iter(safe)
            args[how.index] = [one if one is None else next(given) for one in args[how.index]]  # type: ignore[union-attr]
        else:
            (args[how.index],) = safe
        node.args = tuple(args)

    def values(self, node: torch.fx.Node, fault: Fault) -> None:
        """Looks through the floating-point tensors that an operator reads."""
        for source in node.all_input_nodes:
            value = source.meta["val"]
            if (
                not isinstance(value, torch.Tensor)
                or not value.is_floating_point()
                or (fault, source) in self._seen
            ):
                continue
            self._seen.add((fault, source))
            if source not in self._totals:
                made = None if self._total is None else self._total(source)
                self._totals[source] = _sum(self._graph, source) if made is None else made
            self._values.append((self._totals[source], fault))

    @property
    def infinite(self) -> bool:
        """Whether no infinity that is no fault can reach the alarm."""
        return all(fault is Fault.INFINITE for _, fault in self._values)

    def joined(self) -> torch.fx.Node | None:
        """One number of all."""
        # The sine of an infinity is NaN. So is its product with 0, of which engines make 0 as they
        # compile.
        values = [
            number if self.infinite or fault is Fault.NAN else self._call(aten.sin.default, number)
            for number, fault in self._values
        ]
        if self._counts:
            # of no wrong index the root of -0
            values.append(
                self._call(
                    aten.sqrt.default, self._call(aten.neg.default, self._added(self._counts))
                )
            )
        return self._added(values) if values else None

    def _added(self, numbers: list[torch.fx.Node]) -> torch.fx.Node:
        total = numbers[0]
        for number in numbers[1:]:
            total = self._call(aten.add.Tensor, total, number)
        return total

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return call(self._graph, target, *args, **kwargs)

    def _checked(self, node: torch.fx.Node, index: torch.fx.Node, dim: int) -> torch.fx.Node:
        """The index inside its dimension, and counted from the beginning; the mark is made with
        it.
        """
        how, source = INDEXED[node.target], _source(node)
        shape = source.meta["val"].shape
        size = shape[dim] if shape else 1
        ignored = None if how.ignored is None else node.args[how.ignored]
        known = str(size.node.expr) if isinstance(size, torch.SymInt) else int(size)
        key = (index, known, how.counts_back, ignored)
        if key not in self._safe:
            self._safe[key] = self._inside(index, size, source, dim, how.counts_back, ignored)
        return self._safe[key]

    def _inside(
        self,
        index: torch.fx.Node,
        size: Any,
        source: torch.fx.Node,
        dim: int,
        counts_back: bool,
        ignored: Any,
    ) -> torch.fx.Node:
        end: Any = (
            int(size)
            if not isinstance(size, torch.SymInt)
            else self._call(aten.sym_size.int, source, dim)
        )
        last: Any = end - 1 if isinstance(end, int) else self._call(operator.sub, end, 1)
        if counts_back:
            negative, turned = (
                self._call(aten.lt.Scalar, index, 0),
                self._call(aten.add.Tensor, index, end),
            )
            index = self._call(aten.where.self, negative, turned, index)
        inside = self._call(aten.clamp.default, index, 0, last)
        if ignored is not None:
            inside = self._call(
                aten.where.self, self._call(aten.eq.Scalar, index, ignored), index, inside
            )
        outside = self._call(
            aten._to_copy.default, self._call(aten.ne.Tensor, index, inside), dtype=torch.float32
        )
        self._counts.append(self._call(aten.sum.default, outside))
        return inside


def _source(node: torch.fx.Node) -> torch.fx.Node:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    return source


def _indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int]]:
    """The index tensors of an operator of `INDEXED`, and the dimensions that they index."""
    how = INDEXED[node.target]
    given: Any = node.args[how.index]
    if isinstance(given, (list, tuple)):
        yield from ((one, dim) for dim, one in enumerate(given) if one is not None)
        return
    dim: Any = how.fixed if how.dim is None else node.args[how.dim]
    yield given, dim % max(_source(node).meta["val"].dim(), 1)
