"""Op support check: does an engine take an operator, and does it compute what PyTorch computes?

Engines translate some operators wrongly for some arguments (training-mode batch norm in onnxscript
0.7.2, for one), so a graph of the single node is run once on seeded data of the captured sizes and
compared with the operator itself. Nodes that look alike to an engine (operator, dtypes, other
arguments, and what of their sizes an engine may choose by, see `_Sees`) are checked once.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.engine_support.contiguous import hint
from tracer_core.limits import MAX_CHECKED_ELEMENTS
from tracer_core.ops.traits import is_pointwise

#: Far above rounding, far below a wrong formula. In float64 also below the error of a constant kept
#: in float32.
TOLERANCE = 1e-3
TOLERANCES = {torch.float64: 1e-11}

#: What an engine builds from a graph of one node: runs the graph on inputs in the placeholders'
#: order. Raises where it cannot.
Run = Callable[[list[Any]], Sequence[torch.Tensor]]


class OpSupportCheck:
    """A ``(node) -> None | reason`` for `Backend.supports` that tries each operator on the engine.

    Runs the one node on seeded data and compares with PyTorch. Mutable: caches the answers.

    Args:
        build: Takes the graph of one node; returns a function that runs it on inputs in the
            placeholders' order. Raises any exception where the engine cannot run it.
        engine: The engine's name, for reasons.
    """

    def __init__(self, build: Callable[[torch.fx.Graph], Run], engine: str) -> None:
        self._build, self._engine = build, engine
        self._answers: dict[Any, str | None] = {}

    def __call__(self, node: torch.fx.Node) -> str | None:
        """Returns None if the engine can run `node`, else why not."""
        key = _signature(node)
        if key not in self._answers:
            self._answers[key] = self._ask(_alone(node))
        return self._answers[key]

    @staticmethod
    def operands(node: torch.fx.Node) -> list[torch.Tensor]:
        """Returns the (fake) tensors that a node reads, and those of its results that are used."""
        value = node.meta["val"]
        own = [value] if _is_single(node) else [value[index] for index in _items_read(node)]
        values = [source.meta["val"] for source in node.all_input_nodes] + own
        return [value for value in values if isinstance(value, torch.Tensor)]

    def reset(self) -> None:
        """Drops the cached answers."""
        self._answers.clear()

    def _ask(self, graph: torch.fx.Graph) -> str | None:
        values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        eager = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), class_name="OneNode")
        eager.graph.output(eager.graph.graph_copy(graph, {}))
        eager.recompile()
        try:
            run = self._build(graph)
        except Exception as error:  # engines' errors have no common base; each one is an answer
            return f"{self._engine} refuses it: {_first_line(error)}"
        if sum(_elements(value) for value in values) > MAX_CHECKED_ELEMENTS:
            crossed("MAX_CHECKED_ELEMENTS", where=self._engine)
            return None
        data = [sample(value, number) for number, value in enumerate(values)]
        try:
            expected = eager(*data)
        except (RuntimeError, IndexError):
            # the sample is no valid argument (an index out of range): nothing to compare with
            return None
        try:
            actual = run(data)
        except Exception as error:  # as above
            return f"{self._engine} fails to run it: {_first_line(error)}"
        return _difference(expected, actual, self._engine)


def sample(value: Any, seed: int) -> Any:
    """Makes data for a fake value.

    Floats are normal, integers 0 and 1 (valid as most indices), booleans random.
    """
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
    """Returns which results of an operator with several results are used."""
    return sorted({user.args[1] for user in node.users if user.target is operator.getitem})  # type: ignore[misc]


def _signature(node: torch.fx.Node) -> Any:
    """Returns a key that is equal for nodes that an engine treats alike.

    It holds operator, dtypes, `_kinds` of sizes and the other arguments.
    """
    target: Any = node.target
    kinds = _kinds(node, _sees(target))

    def part(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            built = value.meta["val"]
            return (built.dtype, kinds[value]) if isinstance(built, torch.Tensor) else type(built)
        if isinstance(value, (tuple, list)):
            parts = [part(item) for item in value]
            all_nodes = all(isinstance(item, torch.fx.Node) for item in value)
            return _shortened(parts) if all_nodes else tuple(parts)
        return (type(value), value)

    kwargs = tuple((key, part(value)) for key, value in sorted(node.kwargs.items()))
    return target, tuple(part(arg) for arg in node.args), kwargs, tuple(_items_read(node))


class _Sees(enum.Enum):
    """What of its operands' sizes an engine may use to choose an implementation of an operator."""

    BROADCAST = "which are 0, 1, and equal to one another"
    TILES = "and what they can be divided by, and whether they are long"
    WINDOWS = "and, from the third dimension on, how large they are"


#: Prefixes of operators with windows over images: their exact sizes decide how the windows meet the
#: edges.
WINDOWS = (
    "adaptive_", "_adaptive_", "affine_grid", "avg_pool", "col2im", "convolution",
    "fractional_max_pool", "grid_sampler", "im2col", "max_pool", "reflection_pad",
    "replication_pad", "upsample_", "_upsample_",
)  # fmt: skip

#: Operators that are neither pointwise nor views, but accumulate over no dimension.
MOVES = (
    "_native_batch_norm", "cat", "clone", "embedding", "flip", "gather", "index", "roll", "scatter",
    "stack",
)  # fmt: skip

#: A dimension above this size counts as long.
LONG = 512

#: A list of at least this many tensors counts as long.
MANY = 4


def _sees(target: Any) -> _Sees:
    name = target.overloadpacket.__name__ if hasattr(target, "overloadpacket") else ""
    if name.startswith(WINDOWS):
        return _Sees.WINDOWS
    views = any(result.alias_info is not None for result in target._schema.returns)
    moves = views or is_pointwise(target) or name.startswith(MOVES)
    return _Sees.BROADCAST if moves else _Sees.TILES


def _kinds(node: torch.fx.Node, sees: _Sees) -> dict[torch.fx.Node, tuple[Any, ...]]:
    """Describes what can matter of each size of each tensor that a node reads.

    That is which earlier size it equals, if any, whether it is symbolic, and its class in `sees`.
    """
    places: dict[Any, int] = {}

    def kind(size: Any, axis: int) -> Any:
        number = hint(size)
        symbolic = isinstance(size, torch.SymInt)
        place = places.setdefault(size.node.expr if symbolic else number, len(places))
        if number < 2:
            return number
        if sees is _Sees.BROADCAST:
            return place, symbolic
        if sees is _Sees.WINDOWS and axis > 1:
            return place, symbolic, number
        return place, symbolic, math.gcd(number, 32), number > LONG

    values = {source: source.meta["val"] for source in node.all_input_nodes}
    return {
        source: tuple(kind(size, axis) for axis, size in enumerate(value.shape))
        for source, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def _shortened(parts: list[Any]) -> tuple[Any, ...]:
    """Replaces a long run of equal entries by `MANY`.

    To an engine, a list of 24 tensors is like one of 23.
    """
    return tuple(
        part
        for index, part in enumerate(parts)
        if parts[max(index - MANY, 0) : index] != [part] * MANY
    )


def _alone(node: torch.fx.Node) -> torch.fx.Graph:
    """Returns a graph of this one node: placeholders, the operator, and its used results."""
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        result[source] = graph.placeholder(source.name)
        result[source].meta["val"] = source.meta["val"]
    call = graph.node_copy(node, result.__getitem__)
    results = [call]
    if not _is_single(call):
        indices = _items_read(node)
        results = [graph.call_function(operator.getitem, (call, index)) for index in indices]
        for index, item in zip(indices, results, strict=True):
            item.meta["val"] = call.meta["val"][index]
    graph.output(tuple(results))
    return graph


def _difference(
    expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor], engine: str
) -> str | None:
    for want, got in zip(expected, actual, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            ours, theirs = f"{got.dtype} {tuple(got.shape)}", f"{want.dtype} {tuple(want.shape)}"
            return f"its form in {engine} gives {ours} where PyTorch gives {theirs}"
        if _are_close(got, want, TOLERANCES.get(want.dtype, TOLERANCE)) or torch.equal(got, want):
            continue
        if want.dtype in TOLERANCES and _are_close(got, want, TOLERANCE):
            return f"its form in {engine} computes {want.dtype} less exactly than PyTorch"
        return f"its form in {engine} computes other values than PyTorch"
    return None


def _are_close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> bool:
    return want.is_floating_point() and torch.allclose(
        got, want, tolerance, tolerance, equal_nan=True
    )


def _elements(value: Any) -> int:
    return math.prod(hint(size) for size in value.shape) if isinstance(value, torch.Tensor) else 1


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return f"{type(error).__name__}: {text[:200]}"
