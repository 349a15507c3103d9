"""Op support check: decides which ATen nodes this backend compiles; the core runs the others
eagerly.

Sparse and quantized tensors are rejected; other dtypes than `MEMORY_DTYPES` (complex ones) reach
only views and operators of the fallback table; Triton kernels also read 8-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any
from weakref import WeakKeyDictionary

import torch

from inductor_backend import lowering as _registered  # noqa: F401  (importing fills the table)
from inductor_backend.ir.graph_meta import copies_across, tensors_of
from inductor_backend.ir.ops import MEMORY_DTYPES
from inductor_backend.ir.target import main_device, target_of
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering.context import LOWERINGS, aten
from inductor_backend.lowering.element_types import can_be_lowered
from inductor_backend.passes.cpu_scalars import host_side
from inductor_backend.passes.host_constants import host_constants


def _one_class(node: torch.fx.Node) -> str | None:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    single_class = value.shape[0 if value.dim() == 1 else 1] == 1
    return (
        "a class out of one: a loop needs no index there, and its check would go with it"
        if single_class
        else None
    )


def _boolean_mask(node: torch.fx.Node) -> str | None:
    masks = [index.meta["val"] for index in node.args[1] if isinstance(index, torch.fx.Node)]  # type: ignore[union-attr]
    if any(mask.dtype in (torch.bool, torch.uint8) for mask in masks):
        return "indexing with a boolean mask: the size depends on data"
    return None


def _nothing_to_choose(node: torch.fx.Node) -> str | None:
    empty = any(type(size) is int and size == 0 for size in node.args[0].meta["val"].shape)  # type: ignore[union-attr]
    return "the greatest or least of no elements: eager raises" if empty else None


#: Operator -> check for arguments that its lowering does not support.
LIMITS: dict[Any, Callable[[torch.fx.Node], str | None]] = {
    aten.index.Tensor: _boolean_mask,
    # of torch's own decompositions, whose positions are in range
    aten._unsafe_index.Tensor: _boolean_mask,
    aten.nll_loss_forward.default: _one_class,
    aten.nll_loss2d_forward.default: _one_class,
    aten.max.default: _nothing_to_choose,
    aten.min.default: _nothing_to_choose,
    aten.aminmax.default: _nothing_to_choose,
}


_DEVICES = ("cpu", "cuda")
_MAIN_DEVICES: WeakKeyDictionary[torch.fx.Graph, torch.device] = WeakKeyDictionary()
_CONSTANTS: WeakKeyDictionary[torch.fx.Graph, frozenset[torch.fx.Node]] = WeakKeyDictionary()


def _elsewhere(node: torch.fx.Node) -> str | None:
    """Returns why a node cannot be part of a graph whose loops run on another device. Allowed are
    copies between devices, the host side, host constants, and operands elsewhere that have no
    dimensions. (The core compiles one graph per GPU.)"""
    graph = node.graph
    if graph not in _MAIN_DEVICES:
        _MAIN_DEVICES[graph] = main_device(graph)
    main = _MAIN_DEVICES[graph]
    if main.type == "cpu" or node.target is getitem or copies_across(node):
        return None
    constants = _constants_on_device(graph)
    if node in host_side(graph) or node in constants:
        return None
    value = node.meta.get("val")
    result = [
        t
        for t in (value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(t, torch.Tensor)
    ]
    here = next((tensor.device for tensor in result if tensor.device.type == "cuda"), main)
    if result and all(tensor.device != here for tensor in result):
        return f"a result on {result[0].device} in a graph of {main}"
    for source in node.all_input_nodes:
        tensor = source.meta.get("val")
        if not isinstance(tensor, torch.Tensor) or source in constants:
            continue
        if tensor.device != here and tensor.dim():
            return f"an operand on {tensor.device} in a graph of {main}"
    return None


def _constants_on_device(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Returns the graph's host constants; none where something else cuts the graph, since the cut may
    come between them and their readers."""
    if graph not in _CONSTANTS:
        _CONSTANTS[graph] = constants = host_constants(graph)
        if constants and any(supports(node) is not None for node in graph.nodes):
            _CONSTANTS[graph] = frozenset()
    return _CONSTANTS[graph]


def supports(node: torch.fx.Node) -> str | None:
    """Returns None where the node can be compiled, else the reason why not."""
    if node.op != "call_function" or isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return None
    for tensor in tensors_of(node):
        if (
            tensor.layout != torch.strided
            or tensor.device.type not in _DEVICES
            or tensor.is_quantized
        ):
            return f"a tensor of layout {tensor.layout} on {tensor.device}"
        if (
            tensor.dtype not in MEMORY_DTYPES
            and node.target not in FALLBACKS
            and node.target is not getitem
            and not can_be_lowered(node, target_of(node.graph))
        ):
            return f"dtype {tensor.dtype}"
        if tensor.is_conj() or tensor.is_neg():
            return "a tensor that is conjugated or negated lazily: its memory holds other numbers"
    reason = _elsewhere(node)
    if reason is not None:
        return reason
    if node.target in LIMITS:
        return LIMITS[node.target](node)
    if node.target in LOWERINGS or node.target in FALLBACKS or node.target is aten.copy_.default:
        return None
    return f"{node.target} has neither a lowering nor a place on the fallback table"
