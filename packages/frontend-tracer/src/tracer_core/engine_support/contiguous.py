"""Rewrites graphs for engines that return contiguous tensors and never write to an input.

A functional ATen graph with trailing ``copy_`` nodes becomes a `ContiguousGraph` without them. Its
output node lists one value per result, and a `ResultForm` per result turns what the engine wrote
into what the spec promises:

- an output that is an input, or is returned twice, is copied;
- a dense result with non-contiguous strides is transposed in the graph, so that the engine's buffer
  has eager's memory layout;
- a dimension of stride 0 is cut to size 1 and expanded afterwards;
- a result with gaps between its elements is copied into a tensor with such strides;
- of a result that only reshapes a value (logits: a matmul seen in three dimensions) the engine
  writes the value itself, because engines copy to reshape.

The strides of a finished result are those that the spec promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.contract.specs import CompileSpec
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait
from tracer_core.torch_private.names import operators

aten = operators("aten")


@dataclass(frozen=True, slots=True)
class Result:
    """One value of the graph's output."""

    #: The name of its node.
    name: str
    #: Its dtype.
    dtype: torch.dtype
    #: The shape in which the engine computes it, where that is not that of `shape`; otherwise None.
    new_shape: tuple[Any, ...] | None
    #: The permutation applied to it, or None.
    order: tuple[int, ...] | None
    #: The dimensions that were cut to size 1.
    zero_strides: tuple[int, ...]
    #: Its shape, symbolic sizes as SymInts.
    shape: tuple[Any, ...]
    #: Its strides, where the buffer cannot be viewed with them; otherwise None.
    stride: tuple[Any, ...] | None
    #: Index of the input that it is written to, or None for a graph output.
    target: int | None


@dataclass(frozen=True, slots=True)
class ContiguousGraph:
    """A graph for the engine, a copy of the original one."""

    #: The graph, with values in ``meta["val"]``.
    graph: torch.fx.Graph
    #: (index among the original graph's inputs, name, dtype) of each placeholder; unused ones are
    #: dropped.
    inputs: tuple[tuple[int, str, torch.dtype], ...]
    #: Graph outputs in order, then writes to inputs.
    results: tuple[Result, ...]

    def forms(self, spec: CompileSpec) -> list[ResultForm]:
        """Returns how each result is made at run time."""
        reads = {size.symbol: (size.input_index, size.dim) for size in spec.sizes}
        return [ResultForm(result, reads) for result in self.results]

    @staticmethod
    def finish(
        forms: Sequence[ResultForm], buffers: Sequence[torch.Tensor], inputs: Sequence[Any]
    ) -> list[torch.Tensor]:
        """Returns the graph's outputs, and performs the graph's writes to inputs.

        buffers: what the engine returned, one per form.
        """
        values = [form.finish(buffer, inputs) for form, buffer in zip(forms, buffers, strict=True)]
        for form, value in zip(forms, values, strict=True):
            if form.target is not None:
                inputs[form.target].copy_(value)
        return [value for form, value in zip(forms, values, strict=True) if form.target is None]


def contiguous_graph(graph: torch.fx.GraphModule) -> ContiguousGraph:
    """Rewrites a graph for an engine that returns contiguous tensors and never writes to an input.

    Args:
        graph: An ATen graph with trailing ``copy_`` nodes. It is not changed.

    Returns:
        The graph in that form, and how its results become what the spec promises.
    """
    copy = torch.fx.Graph()
    returned = copy.graph_copy(graph.graph, {})
    placeholders = copy.find_nodes(op="placeholder")
    writes = [node for node in copy.nodes if node.target is aten.copy_.default]
    wanted: list[tuple[torch.fx.Node, int | None]] = [(node, None) for node in _nodes(returned)]
    wanted += [(node.args[1], placeholders.index(node.args[0])) for node in writes]
    for node in writes:
        copy.erase_node(node)
    results: list[Result] = []
    nodes: list[torch.fx.Node] = []
    for node, target in wanted:
        shaped, order, zeros = _as_in_memory(copy, node)
        full = _without_views(shaped, nodes)
        items = None if full is shaped else tuple(full.meta["val"].shape)
        shaped = full
        if shaped.op == "placeholder" or shaped in nodes:
            shaped = call(copy, aten.clone.default, shaped)
        value = node.meta["val"]
        stride = tuple(value.stride()) if has_gaps(*_numbers(value)) and target is None else None
        results.append(
            Result(
                shaped.name, value.dtype, items, order, zeros, tuple(value.shape), stride, target
            )
        )
        nodes.append(shaped)
    copy.output(tuple(nodes))
    used = [(index, node) for index, node in enumerate(placeholders) if node.users]
    for node in placeholders:
        if not node.users:
            copy.erase_node(node)
    inputs = tuple((index, node.name, _dtype(node)) for index, node in used)
    return ContiguousGraph(copy, inputs, tuple(results))


_RESHAPES = overloads_with(Trait.KEEPS_ORDER)


def _without_views(node: torch.fx.Node, taken: Sequence[torch.fx.Node]) -> torch.fx.Node:
    """Returns the value that a node reshapes, if the engine computes it and it is no result yet.

    Otherwise returns the node.
    """
    source: Any = node
    while source.target in _RESHAPES:
        source = source.args[0]
    if source.op == "placeholder" or source in taken or _symbols(source) - _symbols(node):
        return node
    result: torch.fx.Node = source
    return result


def _symbols(node: torch.fx.Node) -> set[Any]:
    """Returns the symbols in the shape of a node's value."""
    return {
        symbol
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    }


def hint(value: Any) -> int:
    """Returns the value of a size in the captured call."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else int(value)


def _numbers(value: Any) -> tuple[list[int], list[int]]:
    """Returns sizes and strides in the captured call."""
    return [hint(size) for size in value.shape], [hint(step) for step in value.stride()]


def has_gaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether a tensor does not own all memory between its elements.

    Dimensions of stride 0 do not count.
    """
    expected = 1
    for step, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and step:
            if step != expected:
                return 0 not in sizes
            expected *= size
    return False


def _nodes(returned: Any) -> Sequence[torch.fx.Node]:
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _dtype(node: torch.fx.Node) -> torch.dtype:
    value = node.meta["val"]
    return value.dtype if isinstance(value, torch.Tensor) else torch.int64


def call(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """Adds a node with its value at the insertion point of `graph`."""
    node = graph.call_function(target, args, kwargs)
    values: Any = torch.fx.map_arg((args, kwargs), lambda arg: arg.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def _as_in_memory(
    graph: torch.fx.Graph, node: torch.fx.Node
) -> tuple[torch.fx.Node, tuple[int, ...] | None, tuple[int, ...]]:
    """Returns the node whose contiguous value holds the elements of `node` in memory order.

    See `Result` for the other results.
    """
    value = node.meta["val"]
    sizes, strides = _numbers(value)
    if 0 in sizes:
        return node, None, ()
    zeros = tuple(dim for dim, size in enumerate(sizes) if size > 1 and not strides[dim])
    for dim in zeros:
        node = call(graph, aten.slice.Tensor, node, dim, 0, 1)
        sizes[dim] = 1
    # dimensions of size 1 stay where they are: their stride has no meaning
    free = [dim for dim, size in enumerate(sizes) if size > 1]
    by_stride = iter(sorted(free, key=lambda dim: -strides[dim]))
    order = tuple(next(by_stride) if sizes[dim] > 1 else dim for dim in range(len(sizes)))
    if order == tuple(range(len(sizes))):
        return node, None, zeros
    return call(graph, aten.permute.default, node, list(order)), order, zeros


class ResultForm:
    """The run-time side of a `Result`. target: as there. dtype: of the engine's buffer."""

    def __init__(self, result: Result, reads: dict[str, tuple[int, int | None]]) -> None:
        self.name, self.target, self.dtype = result.name, result.target, result.dtype
        self._zeros = result.zero_strides
        self._shape = [_size(size, reads) for size in result.shape]
        steps = result.stride
        self._stride = None if steps is None else [_size(step, reads) for step in steps]
        zeros = result.zero_strides
        dims = [_one if dim in zeros else size for dim, size in enumerate(self._shape)]
        order = result.order
        self._dims = dims if order is None else [dims[dim] for dim in order]
        # constant sizes are computed once
        static = all(isinstance(size, int) for size in result.shape)
        self._known = tuple(size(()) for size in self._dims) if static else None
        self._new_shape = (
            None if result.new_shape is None else [_size(size, reads) for size in result.new_shape]
        )
        self._inverse = None if order is None else sorted(range(len(order)), key=order.__getitem__)
        #: The sizes of a buffer that is itself the result, where they are constant; else None.
        self.known_sizes = self._known if self._is_contiguous(result) else None

    def _is_contiguous(self, result: Result) -> bool:
        shaped = (
            result.new_shape is not None or result.order is not None or result.stride is not None
        )
        return not shaped and not result.zero_strides and result.target is None

    def allocate(self, inputs: Sequence[Any], device: torch.device) -> torch.Tensor:
        """Allocates a contiguous tensor of the shape that the engine writes."""
        sizes = self._known if self._new_shape is None else None
        if sizes is None:
            wanted = self._dims if self._new_shape is None else self._new_shape
            sizes = tuple([size(inputs) for size in wanted])
        return torch.empty(sizes, dtype=self.dtype, device=device)

    def finish(self, buffer: torch.Tensor, inputs: Sequence[Any]) -> torch.Tensor:
        """Returns the result: a view of its buffer where possible."""
        if self._new_shape is not None:
            buffer = buffer.reshape(self._known or [size(inputs) for size in self._dims])
        if self._inverse is not None:
            buffer = buffer.permute(self._inverse)
        if self._zeros:
            buffer = buffer.expand([size(inputs) for size in self._shape])
        if self._stride is not None:
            stride = [step(inputs) for step in self._stride]
            spaced = buffer.new_empty_strided(buffer.shape, stride)
            return spaced.copy_(buffer)
        return buffer


Size = Callable[[Sequence[Any]], int]


def _one(inputs: Sequence[Any]) -> int:
    return 1


def _size(value: Any, reads: dict[str, tuple[int, int | None]]) -> Size:
    """Returns a function from a call's inputs to a size of the call."""
    if not isinstance(value, torch.SymInt):
        number = int(value)
        return lambda inputs: number
    expr = value.node.expr
    symbols = {symbol: reads[str(symbol)] for symbol in expr.free_symbols}

    def read(inputs: Sequence[Any], index: int, dim: int | None) -> int:
        return int(inputs[index] if dim is None else inputs[index].shape[dim])

    if expr.is_Symbol:
        ((index, dim),) = symbols.values()
        return lambda inputs: read(inputs, index, dim)
    places = symbols.items()
    return lambda inputs: int(expr.subs({item: read(inputs, *place) for item, place in places}))
