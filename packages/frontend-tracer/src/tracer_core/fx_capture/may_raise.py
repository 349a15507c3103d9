"""Operators that may raise when a graph runs, for reasons that fakes do not show: an index out of
range, a matrix that is singular, a probability above one.

In: a finished graph, whose nodes say in ``meta["writes"]`` which storages they write to. Out: the
storages that are written to before such an operator had its turn. What always holds: an operator
that is not of torch counts as one that may raise; a check of an index that an earlier operator of
the graph has made already counts once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.fx_capture.higher_order_calls import FunctionCall, Target
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket

#: Names (underscores at the ends apart) of operators whose operands' values are checked.
_BY_VALUE = frozenset(
    {"adaptive_max_unpool2d", "autograd_grad", "backward", "bernoulli", "binary_cross_entropy",
    "bincount", "binomial",
     "cholesky", "cholesky_inverse", "cholesky_solve", "cross_entropy", "cross_entropy_loss",
     "ctc_loss", "dirichlet",
     "eig", "eigh", "embedding", "embedding_bag", "gather", "geqrf", "grad", "histc", "histogram",
     "histogramdd",
     "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select",
     "inverse", "linalg_cond",
     "logdet", "lstsq", "lu", "lu_factor", "lu_solve", "lu_unpack", "masked_scatter", "matrix_exp",
     "matrix_power",
     "max_unpool1d", "max_unpool2d", "max_unpool3d", "multi_margin_loss", "multilabel_margin_loss",
     "multinomial",
     "nanquantile", "nll_loss", "nll_loss2d", "nll_loss_nd", "normal", "one_hot", "ormqr",
     "pack_padded_sequence",
     "pad_packed_sequence", "pinverse", "poisson", "put", "qr", "quantile", "renorm",
     "repeat_interleave", "scatter",
     "scatter_add", "scatter_reduce", "searchsorted", "segment_reduce", "slogdet", "svd", "symeig",
     "take",
     "take_along_dim", "tensor_split", "triangular_solve", "assert", "assert_async", "check"}
)  # fmt: skip
#: Of these, those whose checks are assertions of the device where all their tensors are on a GPU:
#: nothing is raised.
_ASSERTED = frozenset(
    {"binary_cross_entropy", "cross_entropy", "cross_entropy_loss", "embedding", "gather", "index",
    "index_add", "index_copy",
     "index_fill", "index_put", "index_select", "multi_margin_loss", "multilabel_margin_loss",
     "nll_loss", "nll_loss2d",
     "nll_loss_nd", "scatter", "scatter_add", "take", "take_along_dim"}
)  # fmt: skip
#: Of linear algebra, those that take any matrix.
_ANY_MATRIX = frozenset({"linalg_vector_norm", "linalg_matmul", "linalg_multi_dot", "linalg_cross",
"linalg_diagonal",
                         "linalg_vecdot", "linalg_norm"})  # fmt: skip
#: Divisions: of whole numbers, by zero.
_DIVIDING = frozenset({"floordiv", "ifloordiv", "mod", "imod", "floor_divide", "remainder", "fmod",
"div", "divide",
                       "rfloordiv", "rmod", "gcd", "lcm", "pow", "ipow"})  # fmt: skip
_SUBSCRIPTS = frozenset({operator.getitem, operator.setitem})
#: Name -> the argument that is the index, and how to find the dimension that it indexes.
_INDEXING = {
    "index_select": (2, 1), "index_copy": (2, 1), "index_fill": (2, 1), "index_add": (2, 1),
    "gather": (2, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MayRaise:
    """What a graph that raises may have written to: storages. in_order: by a node that may raise,
    or before one, as the program has them. lowered: in a functional form of the graph, whose
    kernels have an order of their own; only what follows from the gradients of all that may raise
    is written to after it for sure."""

    in_order: frozenset[int]
    lowered: frozenset[int]


def may_raise_of(graph: torch.fx.Graph) -> MayRaise:
    """Where a graph may raise."""
    in_order: set[int] = set()
    written: set[int] = set()
    checked: set[Any] = set()
    last_writer: dict[int, torch.fx.Node] = {}
    gradients: torch.fx.Node | None = None
    risky = False
    for node in graph.nodes:
        storages = list(_written(node))
        written.update(storages)
        last_writer.update(dict.fromkeys(storages, node))
        if node.op in ("call_function", "call_method") and _may_raise(node, checked):
            if not risky and node.target is torch.autograd.grad and _on_gpu(node):
                continue  # the gradients of operators that do not raise
            risky = True
            in_order |= written
            gradients = node if node.target is torch.autograd.grad else None
    if not risky:
        return MayRaise(frozenset(), frozenset())
    late = _dependents(gradients) if gradients is not None else set()
    loose = {storage for storage, node in last_writer.items() if node not in late}
    return MayRaise(frozenset(in_order), frozenset(loose))


def _dependents(node: torch.fx.Node) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    ahead = [node]
    while ahead:
        users = [user for user in ahead.pop().users if user not in found]
        found.update(users)
        ahead += users
    return found


def _written(node: torch.fx.Node) -> Iterator[int]:
    yield from node.meta.get("writes", ())
    for inner in _graphs(node):
        for one in inner.nodes:
            yield from _written(one)


def _graphs(node: torch.fx.Node) -> list[torch.fx.Graph]:
    """The graphs inside a node that stands for a function applied to functions."""
    if not isinstance(node.target, Target):
        return []
    return [
        part.graph for part in vars(node.target).values() if isinstance(part, torch.fx.GraphModule)
    ]


def _may_raise(node: torch.fx.Node, checked: set[Any]) -> bool:
    """checked: what earlier nodes have checked; this node's checks are added."""
    target: Any = node.target
    if isinstance(target, Target):
        return isinstance(target, FunctionCall) or any(
            _may_raise(inner, set())
            for graph in _graphs(node)
            for inner in graph.nodes
            if inner.op in ("call_function", "call_method")
        )
    if (target in _SUBSCRIPTS or _name(target) in _ASSERTED) and _on_gpu(node):
        return False
    if target in _SUBSCRIPTS:
        return any(isinstance(index, torch.Tensor) for index in _parts(_value(node.args[1])))
    name = _name(target)
    if name in _INDEXING:
        return _new_index(node, name, checked)
    if name in _DIVIDING:
        return not any(_is_inexact(_value(argument)) for argument in node.args)
    if name.startswith("linalg_"):
        return name not in _ANY_MATRIX
    return name in _BY_VALUE or not _is_torchs(target)


def _on_gpu(node: torch.fx.Node) -> bool:
    """Whether all its tensors are on GPUs."""
    values = [_value(argument) for argument in (node, *node.args, *node.kwargs.values())]
    tensors = []
    while values:
        value = values.pop()
        if isinstance(value, (list, tuple)):
            values += value
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
    return bool(tensors) and all(tensor.device.type == "cuda" for tensor in tensors)


def _new_index(node: torch.fx.Node, name: str, checked: set[Any]) -> bool:
    """Whether an index, into a dimension of its size, is checked for the first time."""
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
    """What an argument stood for in the trace."""
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
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    return (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")


def _is_torchs(target: Any) -> bool:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).startswith(("aten.", "prims."))
    if isinstance(target, str) or (
        type(target).__module__ == "builtins" and not hasattr(target, "__code__")
    ):
        return True
    return (getattr(target, "__module__", None) or "").partition(".")[0] in ("torch", "builtins",
    "math", "_operator",
                                                                           "tracer_core")  # fmt: skip


#: Operators that change statistics which torch's counts of writes leave out -> whether they do so
#: by default.
_STATISTICS = {
    "batch_norm": False,
    "native_batch_norm": False,
    "cudnn_batch_norm": False,
    "instance_norm": True,
}
#: Where such operators take ``training`` (or ``use_input_stats``), with and without a name.
_TRAINING_AT, _TRAINING = 5, ("training", "use_input_stats")


def unseen_writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The fakes that an operator writes to although torch does not count it: running statistics, in
    training.
    """
    default = _STATISTICS.get(getattr(func, "__name__", ""))
    if default is None:
        return []
    named = [kwargs[name] for name in _TRAINING if name in kwargs]
    training = named[0] if named else args[_TRAINING_AT] if len(args) > _TRAINING_AT else default
    if training is False:
        return []
    # Of the vectors it is given, those that cannot be its weight and bias.
    return [
        value
        for value in (*args, *kwargs.values())
        if isinstance(value, torch.Tensor) and value.dim() == 1 and not isinstance(value,
        torch.nn.Parameter)
        and not value.requires_grad
    ]  # fmt: skip
