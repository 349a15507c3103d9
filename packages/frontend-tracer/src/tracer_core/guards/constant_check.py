"""Compares the constants of a graph (``freeze=True``) in one call.

`watch_constants` returns hold(inputs), which is true only if the inputs hold the same tensor
objects, each with the version and data pointer that it had, and the watched spans of memory have
the same contents. Where it is false, `tracer_core.aot.frozen_parameters` runs the full check.

The caller keeps the tensors alive, so words of depth 0 may always be read; a word that is found
through another word is read only after that word was found unchanged.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.guards.constant_contents import fields_of
from tracer_core.guards.native_helper import helper
from tracer_core.guards.object_layout import word
from tracer_core.guards.tensor_versions import version_fields, watchable


class _Constants(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_int64), ("size", ctypes.c_int64), ("list", ctypes.c_uint64),
        ("at", ctypes.c_void_p), ("ids", ctypes.c_void_p), ("depths", ctypes.c_int64 * 4),
        ("words", ctypes.c_void_p), ("values", ctypes.c_void_p),
    ]  # fmt: skip


def never(inputs: list[Any]) -> int:
    """The check without facts: always false."""
    return 0


def watch_constants(
    tensors: Sequence[torch.Tensor],
    places: Sequence[int],
    size: int,
    watched: Sequence[int],
    contents: Sequence[tuple[int, int]] = (),
) -> Callable[[list[Any]], int]:
    """Returns hold; see the module's docstring.

    places: positions of the tensors in the inputs. size: the number of inputs. watched: which
    tensors have memory to check; the others are compared by identity. contents: spans of the
    watched tensors' memory.
    """
    function = helper("constant_check", "constants_hold", [ctypes.c_void_p, ctypes.py_object])
    result = watchable() if function is not None else None
    if result is None or not all(0 <= place < size for place in places):
        return never
    offsets, version = result
    depths: tuple[list[int], ...] = ([], [], [], list(fields_of(contents)))
    for k in watched:
        for depth, address in version_fields(tensors[k], offsets, version):
            depths[depth].append(address)
    addresses = [address for depth in depths for address in depth]
    n, count = len(tensors), max(1, len(addresses))
    at, ids = (ctypes.c_int64 * n)(*places), (ctypes.c_uint64 * n)(*map(id, tensors))
    pointers = (ctypes.c_uint64 * count)(*addresses)
    values = (ctypes.c_uint64 * count)(*map(word, addresses))
    facts = _Constants(
        n, size, id(list), ctypes.addressof(at), ctypes.addressof(ids),
        (ctypes.c_int64 * 4)(*map(len, depths)), ctypes.addressof(pointers),
        ctypes.addressof(values),
    )  # fmt: skip
    hold: Any = functools.partial(function, ctypes.c_void_p(ctypes.addressof(facts)))
    hold.arrays = facts, at, ids, pointers, values  # kept alive while the helper reads them
    return hold  # type: ignore[no-any-return]
