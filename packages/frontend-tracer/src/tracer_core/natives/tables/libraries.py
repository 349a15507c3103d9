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
from tracer_core.natives.effects import EFFECTS, MUTATES, PURE, breaks, declare, special
from tracer_core.natives.tracing import Tracing

_KINDS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_UNASKED = frozenset(
    {"__init__", "__getattribute__", "__reduce__", "__reduce_ex__", "__setstate__", "__sizeof__"}
)
_HASH = type(hashlib.sha256())
#: Date methods that read the clock or the local time zone.
_CLOCK = frozenset({"now", "today", "utcnow", "fromtimestamp", "timestamp", "astimezone"})
_DATES = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)


def _natives(owner: Any) -> list[Any]:
    return [
        f
        for f in vars(owner).values()
        if isinstance(f, types.BuiltinFunctionType) and f not in EFFECTS
    ]


def _methods(cls: type) -> dict[str, Any]:
    return {
        n: f
        for n, f in vars(cls).items()
        if isinstance(f, _KINDS) and n not in _UNASKED and f not in EFFECTS
    }


for _cls in _DATES:
    for _name, _method in _methods(_cls).items():
        if _name in _CLOCK:
            breaks(
                "side_effect_native",
                "the clock or the time zone of this machine is read",
                [_method],
            )
        else:
            declare(PURE, [_method])
    declare(PURE, [_cls])
declare(PURE, _natives(unicodedata))
declare(PURE, _natives(binascii))
declare(PURE, [zlib.crc32, zlib.adler32, zlib.compress, zlib.decompress])
declare(
    PURE,
    [
        struct.pack,
        struct.unpack,
        struct.unpack_from,
        struct.calcsize,
        struct.iter_unpack,
        struct.Struct,
    ],
)
declare(PURE, [m for n, m in _methods(_struct.Struct).items() if n != "pack_into"])
declare(PURE, [m for n, m in _methods(_HASH).items() if n != "update"])
declare(MUTATES, [_HASH.update])
declare(PURE, [f for n,
f in vars(hashlib).items() if n in hashlib.algorithms_guaranteed and callable(f)
               and not isinstance(f, types.FunctionType)])  # fmt: skip
declare(
    PURE,
    [
        m
        for n, m in _methods(re.Pattern).items()
        if n not in ("sub", "subn", "__deepcopy__", "__copy__")
    ],
)
declare(PURE, [m for n, m in _methods(re.Match).items() if n not in ("__deepcopy__", "__copy__")])
_STRING = vars(string._string)  # type: ignore[attr-defined]
declare(PURE, [f for f in _STRING.values() if isinstance(f, types.BuiltinFunctionType)])
declare(PURE, [hashlib.pbkdf2_hmac, *([hashlib.scrypt] if hasattr(hashlib, "scrypt") else [])])
declare(PURE, [f for f in vars(stat).values() if isinstance(f, types.BuiltinFunctionType)])
declare(PURE, [copyreg.__newobj__])  # type: ignore[attr-defined]


def _substitute(method: Any) -> Any:
    """pattern.sub with a function, which is interpreted for each match."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
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
            value = tracer.calls.call_value(repl, [tracer.native_calls.born(match)], {})
            pieces += [text[end : match.start()], text[:0] if value is None else value]
            end, done = match.end(), done + 1
        pieces.append(text[end:])
        result = text[:0].join(pieces)
        return (result, done) if method.__name__ == "subn" else result

    return handler


special(re.Pattern.sub)(_substitute(re.Pattern.sub))
special(re.Pattern.subn)(_substitute(re.Pattern.subn))
