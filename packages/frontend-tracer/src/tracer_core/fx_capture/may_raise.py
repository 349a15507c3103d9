"""Finds the storages that a graph may already have mutated when one of its operators raises for a
reason that fakes do not show: an index out of range, a singular matrix, a probability above one.

Nodes list the storages that they mutate in ``meta["writes"]``. An operator that is not torch's
counts as one that may raise; an index check that an earlier node makes already counts once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.function_traits import NOT_PROMOTED, operator_name
from tracer_core.fx_capture.higher_order_calls import FunctionCall, Target
from tracer_core.ops.calls import is_elementwise, name_of
from tracer_core.ops.higher_order.gradients import GRADIENT_CALLS
from tracer_core.ops.table import names_with, raises_by_value
from tracer_core.ops.traits import Trait
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket, pytree

_ASSERTED = names_with(Trait.ASSERTS_ON_GPU)
_ON_INTEGERS = names_with(Trait.DIVIDES | Trait.RAISES_FOR_INTEGERS)
_WRITING_SUBSCRIPTS = frozenset({operator.setitem, "__setitem__"})
_SUBSCRIPTS = _WRITING_SUBSCRIPTS | {operator.getitem, "__getitem__"}
#: Name -> the position of the index argument, and how to find the indexed dimension.
_INDEXING = dict.fromkeys(
    ("index_select", "index_copy", "index_fill", "index_add", "gather"), (2, 1)
)


@dataclass(frozen=True, slots=True)
class MayRaise:
    """Storages that a graph may have mutated when it raises. in_order: in program order, by or
    before a node that may raise. lowered: in a functional form of the graph, whose kernels have an
    order of their own; only the writes that depend on the last node that may raise, if that is an
    ``autograd.grad``, surely come after every such node."""

    in_order: frozenset[int]
    lowered: frozenset[int]


def may_raise_of(graph: torch.fx.Graph) -> MayRaise:
    """Analyzes a finished graph."""
    in_order: set[int] = set()
    written: set[int] = set()
    checked: set[Any] = set()
    last_writer: dict[int, torch.fx.Node] = {}
    gradients: torch.fx.Node | None = None
    risky = False
    for node in graph.nodes:
        storages = list(written_storages(node))
        written.update(storages)
        last_writer.update(dict.fromkeys(storages, node))
        if node.op in ("call_function", "call_method") and _may_raise(node, checked):
            if not risky and node.target in GRADIENT_CALLS and _on_gpu(node):
                continue  # the gradients of operators that do not raise
            risky = True
            in_order |= written
            gradients = node if node.target in GRADIENT_CALLS else None
    if not risky:
        return MayRaise(frozenset(), frozenset())
    late = _dependents(gradients) if gradients is not None else set()
    loose = {storage for storage, node in last_writer.items() if node not in late}
    return MayRaise(frozenset(in_order), frozenset(loose))


def communicates(graph: torch.fx.Graph) -> bool:
    """Returns whether a graph, or a subgraph of it, has a collective, or a DTensor, whose operators
    may call one. A rank must not run such a graph again by itself, whatever it raised."""
    return any(
        torch_private.communicates(node.target)
        or torch_private.is_dtensor(node.meta.get("val"))
        or any(map(communicates, _graphs(node)))
        for node in graph.nodes
    )


def unread_risks(graph: torch.fx.Graph, outputs: Iterable[Any]) -> list[torch.fx.Node]:
    """Finds what must be computed although neither an output nor a write to an input reads it:
    results of nodes that may raise. graph: without its output node."""
    checked: set[Any] = set()
    calls = (node for node in graph.nodes if node.op in ("call_function", "call_method"))
    risks = [node for node in calls if _may_raise(node, checked) or _mixes_dtypes(node)]
    if not risks:
        return []
    read = {output for output in outputs if isinstance(output, torch.fx.Node)}
    known = dict.fromkeys((*read, *graph.find_nodes(op="placeholder")))
    memory = set(map(torch_private.storage_id, _tensors(known)))
    for node in reversed(graph.nodes):
        if node in read or not memory.isdisjoint(node.meta.get("writes", ())):
            read.update((node, *node.all_input_nodes))
            # once for each: hundreds of nodes may take the items of one list
            new = dict.fromkeys(source for source in node.all_input_nodes if source not in known)
            known |= new
            memory.update(map(torch_private.storage_id, _tensors(new)))
    unread = (risk for risk in risks if risk not in read and risk.target not in GRADIENT_CALLS)
    result = (item.args[0] if item.target in _WRITING_SUBSCRIPTS else item for item in unread)
    return [item for item in result if isinstance(item, torch.fx.Node)]


def _mixes_dtypes(node: torch.fx.Node) -> bool:
    """Returns whether a kernel may refuse its operands' dtypes, which fakes promote."""
    if node.target is operator.getitem and isinstance(_value(node.args[0]), (tuple, list)):
        return False
    dtypes = {tensor.dtype for tensor in _tensors(node.all_input_nodes)}
    if len(dtypes) < 2 or _name(node.target) in _ASSERTED:
        return False
    return not dtypes.isdisjoint(NOT_PROMOTED) or not is_elementwise(_name(node.target))


def _tensors(nodes: Iterable[torch.fx.Node]) -> Iterator[torch.Tensor]:
    for node in nodes:
        value = node.meta.get("val")
        parts = pytree.tree_leaves(value) if isinstance(value, (tuple, list, dict)) else (value,)
        yield from (part for part in parts if isinstance(part, torch.Tensor))


def _dependents(node: torch.fx.Node) -> set[torch.fx.Node]:
    nodes: set[torch.fx.Node] = set()
    ahead = [node]
    while ahead:
        users = [user for user in ahead.pop().users if user not in nodes]
        nodes.update(users)
        ahead += users
    return nodes


def written_storages(node: torch.fx.Node) -> Iterator[int]:
    """Yields the storages that a node may have mutated, or the subgraphs of a higher-order operator."""
    yield from node.meta.get("writes", ())
    for inner in _graphs(node):
        for item in inner.nodes:
            yield from written_storages(item)


def _graphs(node: torch.fx.Node) -> list[torch.fx.Graph]:
    """Returns the subgraphs of a higher-order operator's node."""
    if not isinstance(node.target, Target):
        return []
    fields = vars(node.target).values()
    return [field.graph for field in fields if isinstance(field, torch.fx.GraphModule)]


def _may_raise(node: torch.fx.Node, checked: set[Any]) -> bool:
    """Returns whether a node may raise. checked: index checks of earlier nodes; this node's are
    added."""
    target: Any = node.target
    if isinstance(target, Target):
        return isinstance(target, FunctionCall) or any(
            _may_raise(inner, set())
            for graph in _graphs(node)
            for inner in graph.nodes
            if inner.op in ("call_function", "call_method")
        )
    if target in _SUBSCRIPTS:
        by_data = any(isinstance(index, torch.Tensor) for index in _parts(_value(node.args[1])))
        return (by_data and not _on_gpu(node)) or _lists_beyond(node)
    if _name(target) in _ASSERTED and _on_gpu(node):
        return False
    name = _name(target)
    if name in _INDEXING:
        return _new_index(node, name, checked)
    if name in _ON_INTEGERS:
        by_known = len(node.args) > 1 and type(node.args[1]) is int and node.args[1] != 0
        is_divisor = name not in ("rfloordiv", "rmod")
        return not (by_known and is_divisor) and not any(map(_is_inexact, map(_value, node.args)))
    if name in ("norm", "linalg_norm") and _is_of_singular_values(node, name):
        return True
    return raises_by_value(name) or not _is_torchs(target)


def _lists_beyond(node: torch.fx.Node) -> bool:
    """Returns whether a subscript has a list with a number that may be beyond a dimension."""
    index, indexed = node.args[1], _value(node.args[0])
    lists = [
        part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, list)
    ]
    if not lists or not isinstance(indexed, torch.Tensor):
        return False
    numbers = [number for number in pytree.tree_leaves(lists) if type(number) is int]
    sizes = [size if type(size) is int else 0 for size in indexed.shape]
    return bool(numbers) and not -min(sizes) <= min(numbers) <= max(numbers) < min(sizes)


def _is_of_singular_values(node: torch.fx.Node, name: str) -> bool:
    """Returns whether a norm is one of a matrix's singular values, which are not found for NaN."""
    order = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", node.kwargs.get("ord"))
    if name == "norm" or not isinstance(order, (int, float)):
        return order == "nuc"
    operand = _value(node.args[0]) if node.args else None
    return abs(order) == 2 and not (isinstance(operand, torch.Tensor) and operand.dim() == 1)


def _on_gpu(node: torch.fx.Node) -> bool:
    """Returns whether all tensors of a node are on GPUs."""
    values = [_value(argument) for argument in (node, *node.args, *node.kwargs.values())]
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(tensor.device.type == "cuda" for tensor in tensors)


def _new_index(node: torch.fx.Node, name: str, checked: set[Any]) -> bool:
    """Returns whether the check of an index against its dimension is the first one."""
    at, dim_at = _INDEXING[name]
    if len(node.args) <= at or not isinstance(node.args[at], torch.fx.Node):
        return True
    indexed, dim = _value(node.args[0]), node.args[dim_at]
    if not isinstance(indexed, torch.Tensor) or not isinstance(dim, int) or not indexed.dim():
        return True
    key = node.args[at], str(indexed.shape[dim])
    known = key in checked
    checked.add(key)
    return not known


def _value(argument: Any) -> Any:
    """Returns the traced value of an argument."""
    if isinstance(argument, torch.fx.Node):
        return argument.meta.get("val")
    if isinstance(argument, (tuple, list)):
        return [_value(part) for part in argument]
    return argument


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_inexact(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    )


def _name(target: Any) -> str:
    return name_of(target).strip("_")


def _is_torchs(target: Any) -> bool:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        # A collective that fails ends the job, not the graph.
        return str(target).startswith(("aten.", "prims.")) or torch_private.communicates(target)
    is_builtin = type(target).__module__ == "builtins" and not hasattr(target, "__code__")
    if isinstance(target, str) or is_builtin:
        return True
    package = (getattr(target, "__module__", None) or "").partition(".")[0]
    return package in ("torch", "builtins", "math", "_operator", "tracer_core")


#: Operators that mutate running statistics without a version bump -> whether they do so by default.
_STATISTICS = {
    **dict.fromkeys(("batch_norm", "native_batch_norm", "cudnn_batch_norm"), False),
    "instance_norm": True,
}
#: Position and keywords of the ``training`` (or ``use_input_stats``) argument of such operators.
_TRAINING_AT, _TRAINING = 5, ("training", "use_input_stats")


def unseen_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the fakes that an operator mutates without a version bump: running statistics in
    training."""
    default = _STATISTICS.get(operator_name(func))
    if default is None:
        return []
    named = [kwargs[name] for name in _TRAINING if name in kwargs]
    training = named[0] if named else args[_TRAINING_AT] if len(args) > _TRAINING_AT else default
    if training is False:
        return []
    # The vectors among its arguments that cannot be its weight and bias.
    tensors = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor))
    vectors = (tensor for tensor in tensors if tensor.dim() == 1 and not tensor.requires_grad)
    return [vector for vector in vectors if not isinstance(vector, torch.nn.Parameter)]
