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

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import (
    MUTATES,
    PURE,
    breaks,
    declare,
    functions_in_c,
    methods_in_c,
    methods_of,
    special_each,
)
from tracer_core.trace.tracer import Tracer

#: Methods that no row knows: the interpreter's own, pickling, and those that write elsewhere.
_UNKNOWN = (
    "__init__ __getattribute__ __reduce__ __reduce_ex__ __setstate__ __sizeof__ __deepcopy__"
    " __copy__ pack_into"
)
_HASH = type(hashlib.sha256())
#: Date methods that read the clock or the local time zone.
_CLOCK = "now today utcnow fromtimestamp timestamp astimezone"
_DATES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)


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
        methods_of(_dates, _CLOCK),
    )
declare(PURE, _DATES)
declare(MUTATES, [_HASH.update])
for _cls in (*_DATES, _struct.Struct, _HASH, re.Pattern, re.Match):
    declare(PURE, methods_in_c(_cls, without=_UNKNOWN.split()), rest=True)
for _module in (unicodedata, binascii, stat, string._string):  # type: ignore[attr-defined]
    declare(PURE, functions_in_c(_module), rest=True)
declare(PURE, [zlib.crc32, zlib.adler32, zlib.compress, zlib.decompress])
declare(PURE, [struct.pack, struct.unpack, struct.unpack_from, struct.calcsize])
declare(PURE, [struct.iter_unpack, struct.Struct])
declare(PURE, [hashlib.pbkdf2_hmac, *([hashlib.scrypt] if hasattr(hashlib, "scrypt") else [])])
_algorithms = [getattr(hashlib, name, None) for name in sorted(hashlib.algorithms_guaranteed)]
declare(PURE, [f for f in _algorithms if callable(f) and not isinstance(f, types.FunctionType)])
declare(PURE, [copyreg.__newobj__])  # type: ignore[attr-defined]
