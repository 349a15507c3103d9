"""Decides by the dtypes of its tensors whether a node can be lowered, or stays with ATen."""

from __future__ import annotations

import torch

from inductor_backend.ir.graph_meta import tensors_of
from inductor_backend.ir.ops import MEMORY_DTYPES, READ_DTYPES
from inductor_backend.ir.target import Target, reads_float8
from inductor_backend.lowering.context import aten
from tracer_core.plugin_api import Trait, operators, overloads_with

_STRIDED_VIEWS = overloads_with(Trait.STRIDED_VIEW)

_CONVERSIONS = frozenset({
    aten._to_copy.default, operators("prims").convert_element_type.default,
})  # fmt: skip


def can_be_lowered(node: torch.fx.Node, target: Target) -> bool:
    """Returns whether the dtypes of a node's tensors are those of loops, or it is a view, or a
    conversion that loops can read."""
    if node.target in _STRIDED_VIEWS:
        return True
    others = {tensor.dtype for tensor in tensors_of(node)} - MEMORY_DTYPES
    if not others:
        return True
    return (
        others <= READ_DTYPES
        and node.target in _CONVERSIONS
        and node.meta["val"].dtype in MEMORY_DTYPES
        and reads_float8(target)
    )
