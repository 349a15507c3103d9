"""Checks the input tensors of a code region in one call.

For tensors at given positions of the state tuple, without gradients and with constant sizes,
`watch_tensors` returns (hold, learn) for the generated code. hold(S) is true only if each tensor
equals, in everything that a TENSOR guard checks, the tensor at its position when learn(S) was
called. Where hold is false the guards themselves run, and learn(S) follows if they pass.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from tracer_core.guards.native_helper import helper
from tracer_core.guards.object_layout import (
    INLINE_DIMS,
    KIND_FIELDS,
    TUPLE_ITEMS,
    ObjectLayout,
    layout,
    word,
)
from tracer_core.limits import MAX_LEARNED_TENSORS

_KNOWN = 4 + 2 * INLINE_DIMS


class _Tensors(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_int64), ("size", ctypes.c_int64), ("tuple", ctypes.c_uint64),
        ("items", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("impl", "sizes", "autograd", "kind", "keys")),
        ("kind_bits", ctypes.c_uint64),
        ("at", ctypes.c_void_p), ("known", ctypes.c_void_p),
    ]  # fmt: skip


def _never(state: Any) -> int:
    return 0


def watch_tensors(positions: Sequence[int]) -> tuple[Callable[[Any], int], Callable[[Any], None]]:
    """Returns (hold, learn); see the module's docstring."""
    function = helper("learned_tensors", "tensors_hold", [ctypes.c_void_p, ctypes.py_object])
    result = layout() if function is not None else None
    if result is None:
        return _never, lambda state: None
    watched = _Watched(result, positions)
    hold: Any = functools.partial(function, ctypes.c_void_p(ctypes.addressof(watched.facts)))
    hold.watched = watched  # keeps the array alive while the helper reads it
    return hold, watched.learn


class _Watched:
    """The tensors learned last. Mutable. facts: the array that the C helper reads."""

    def __init__(self, layout: ObjectLayout, positions: Sequence[int]) -> None:
        self._layout, self._positions, self._learnt = layout, positions, 0
        self._at = (ctypes.c_int64 * len(positions))(*positions)
        self._known = (ctypes.c_uint64 * (_KNOWN * len(positions)))()
        kind, keys = KIND_FIELDS
        self.facts = _Tensors(0, 0, id(tuple), TUPLE_ITEMS, layout.impl, layout.sizes, layout.autograd,
                              kind, keys, layout.kind_bits,
                              ctypes.addressof(self._at),
                              ctypes.addressof(self._known))  # fmt: skip

    def learn(self, state: Any) -> None:
        """Records tensors that passed the guards."""
        if self._learnt >= MAX_LEARNED_TENSORS or type(state) is not tuple:
            return
        self._learnt += 1
        self.facts.n = 0
        for i, position in enumerate(self._positions):
            fields = self._fields_of(state[position])
            if fields is None:
                return
            for j, item in enumerate(fields):
                self._known[i * _KNOWN + j] = item
        self.facts.n, self.facts.size = len(self._positions), len(state)

    def _fields_of(self, tensor: Any) -> list[int] | None:
        result = self._layout
        impl = word(id(tensor) + result.impl)
        if tensor.dim() > INLINE_DIMS or word(impl + result.autograd) != 0:
            return None
        sizes = impl + result.sizes
        shape = [word(sizes + 8 + 8 * i) for i in range(2 * INLINE_DIMS)]
        return [
            id(type(tensor)),
            tensor.dim(),
            *shape,
            *(word(sizes + offset) for offset in KIND_FIELDS),
        ]
