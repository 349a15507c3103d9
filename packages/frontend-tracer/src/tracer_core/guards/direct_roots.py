"""Types of values that the fast path of guards does not cover."""

from __future__ import annotations

import types

import torch

from tracer_core.guards.numpy_types import ARRAY

#: Iterators whose next items can be read without consuming them.
STEPPED: tuple[type, ...] = (
    type(iter(range(0))),
    type(iter(range(2**70))),
    type(iter([])),
    type(iter(())),
    type(reversed([])),
    type(iter("")),
    type(iter("\u20ac")),
    type(iter(b"")),
)
#: Roots of a state that are checked again on every call.
DIRECT_ROOTS = (
    *ARRAY, list, tuple, dict, set, frozenset, torch.Tensor, types.FunctionType, types.CellType,
    type(None), bool, int, str, bytes, type(Ellipsis), float, complex, torch.dtype, torch.device,
    types.GeneratorType, *STEPPED, zip, map, filter, enumerate,
)  # fmt: skip
