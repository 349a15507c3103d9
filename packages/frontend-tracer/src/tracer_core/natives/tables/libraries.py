"""C types and functions of the standard library that have no effects beyond their arguments."""

from __future__ import annotations

import _struct
import binascii
import copyreg
import datetime
import hashlib
import re
import stat
import string
import struct
import types
import unicodedata
import zlib
from typing import Any

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives.effects import EFFECTS, MUTATES, PURE, breaks, declare, special_each
from tracer_core.trace.tracer import Tracer

_METHOD_TYPES = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
#: Methods that no row knows: the interpreter's own, pickling, and those that write elsewhere.
_UNKNOWN = (
    "__init__ __getattribute__ __reduce__ __reduce_ex__ __setstate__ __sizeof__ __deepcopy__"
    " __copy__ pack_into"
)
_HASH = type(hashlib.sha256())
#: Date methods that read the clock or the local time zone.
_CLOCK = ("now", "today", "utcnow", "fromtimestamp", "timestamp", "astimezone")
_DATES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)


def _natives(owner: Any) -> list[Any]:
    return [
        f
        for f in vars(owner).values()
        if isinstance(f, types.BuiltinFunctionType) and f not in EFFECTS
    ]


def _methods(cls: type) -> list[Any]:
    """Returns the methods of a type that have no row yet."""
    return [
        method
        for name, method in vars(cls).items()
        if isinstance(method, _METHOD_TYPES)
        and name not in _UNKNOWN.split()
        and method not in EFFECTS
    ]


@special_each(re.Pattern.sub, re.Pattern.subn)
def substitute(tracer: Tracer, method: Any, *args: Any, **kwargs: Any) -> Any:
    """pattern.sub with a function, which is interpreted for each match."""
    named = dict(zip(("pattern", "repl", "string", "count"), args, strict=False)) | kwargs
    repl, text = named["repl"], named["string"]
    if is_constant(repl):
        return method(*args, **kwargs)
    if not is_constant(text) or not callable(repl):
        tracer.break_graph("unknown_native", f"{method.__name__}() of a {type(text).__name__}")
    pieces, end, done = [], 0, 0
    for match in named["pattern"].finditer(text):
        if named.get("count", 0) and done == named["count"]:
            break
        value = tracer.calls.call_value(repl, [tracer.native_calls.note_allocation(match)], {})
        # As C code, which leaves out what is empty: the error of join() tells an item's place.
        pieces += [text[end : match.start()]] if end < match.start() else []
        pieces += [] if value is None else [value]
        end, done = match.end(), done + 1
    pieces += [text[end:]] if end < len(text) else []
    result = text[:0].join(pieces)
    return (result, done) if method.__name__ == "subn" else result


for _dates in _DATES:
    breaks(
        "side_effect_native",
        "the clock or the time zone of this machine is read",
        [method for method in _methods(_dates) if method.__name__ in _CLOCK],
    )
declare(PURE, _DATES)
declare(MUTATES, [_HASH.update])
for _cls in (*_DATES, _struct.Struct, _HASH, re.Pattern, re.Match):
    declare(PURE, _methods(_cls))
for _module in (unicodedata, binascii, stat, string._string):  # type: ignore[attr-defined]
    declare(PURE, _natives(_module))
declare(PURE, [zlib.crc32, zlib.adler32, zlib.compress, zlib.decompress])
declare(PURE, [struct.pack, struct.unpack, struct.unpack_from, struct.calcsize])
declare(PURE, [struct.iter_unpack, struct.Struct])
declare(PURE, [hashlib.pbkdf2_hmac, *([hashlib.scrypt] if hasattr(hashlib, "scrypt") else [])])
_algorithms = [getattr(hashlib, name, None) for name in sorted(hashlib.algorithms_guaranteed)]
declare(PURE, [f for f in _algorithms if callable(f) and not isinstance(f, types.FunctionType)])
declare(PURE, [copyreg.__newobj__])  # type: ignore[attr-defined]
