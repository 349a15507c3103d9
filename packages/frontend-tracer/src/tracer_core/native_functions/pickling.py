"""pickle.dumps and pickle.loads of plain data, as caches use them for their keys."""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.limits import MAX_READ_DEPTH
from tracer_core.native_effects.effects import special
from tracer_core.trace.tracer import Tracer

#: Values that pickle writes without a memo: equal ones give equal bytes.
_UNSHARED = (type(None), bool, int, float)
#: Values of C types that it notes in a memo, where one object twice is other bytes than two.
_SHARED = (str, bytes, complex, torch.dtype)
_CONTAINERS = (dict, list, tuple)
#: What a pickle of such data does; nothing is imported or called.
_SCALAR_CODES = """
PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BININT
BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES
BINBYTES8 EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS
"""


def _pickles_by_value(
    value: Any, shared: set[Any], held: set[int], depth: int = MAX_READ_DEPTH
) -> bool:
    """Returns whether the bytes of a value follow from what is equal to it: of no two objects in it
    does it matter whether they are one."""
    if type(value) in _UNSHARED:
        return True
    if type(value) in _SHARED:
        handle = type(value), value
        known = handle in shared
        shared.add(handle)
        return not known or type(value) is torch.dtype
    if type(value) not in _CONTAINERS or id(value) in held:
        return False
    if depth == 0:
        crossed("MAX_READ_DEPTH")
        return False
    held.add(id(value))
    items = [*value, *value.values()] if type(value) is dict else value
    return all(_pickles_by_value(item, shared, held, depth - 1) for item in items)


@special(pickle.dumps)
def dumps(
    tracer: Tracer,
    obj: Any,
    protocol: Any = None,
    *,
    fix_imports: Any = True,
    buffer_callback: Any = None,
) -> bytes:
    if buffer_callback is not None or not _pickles_by_value(obj, set(), set()):
        tracer.break_graph("unknown_native", f"pickle.dumps() of a {type(obj).__name__}")
    tracer.native_calls.native_reads(obj)
    return pickle.dumps(obj, protocol, fix_imports=fix_imports)


@special(pickle.loads)
def loads(tracer: Tracer, data: Any, /, **options: Any) -> Any:
    if type(data) is not bytes or options or not _is_of_plain_data(data):
        tracer.break_graph("unknown_native", "pickle.loads() may import and call anything")
    return pickle.loads(data)


def _is_of_plain_data(data: bytes) -> bool:
    try:
        known = frozenset(_SCALAR_CODES.split())
        return all(code.name in known for code, _, _ in pickletools.genops(data))
    except ValueError:
        return False
