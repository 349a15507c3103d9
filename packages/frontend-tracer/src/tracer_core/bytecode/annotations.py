"""Annotations of functions, which CPython 3.14 evaluates when they are first read."""

from __future__ import annotations

import gc
import types
from typing import Any

#: Whether a function has code that evaluates its annotations.
DEFERRED = "__annotate__" in vars(types.FunctionType)


def _are_renamed() -> bool:
    names: dict[str, Any] = {}
    source = "class Box:\n def get(self) -> int: pass"
    exec(compile(source, __file__, "exec", dont_inherit=True), names)
    code = getattr(names["Box"].get, "__annotate__", None)
    return code is not None and code.__qualname__ == "Box.get.__annotate__"


#: Whether the code that evaluates a function's annotations is named after it: late 3.14.
RENAMED = _are_renamed()


def evaluated(function: types.FunctionType) -> dict[str, Any] | None:
    """Returns a function's annotations without evaluating them: None if it has none so far. Only
    for Python 3.14 and later."""
    others = function.__globals__, function.__builtins__, function.__kwdefaults__, function.__dict__
    dictionaries = (referent for referent in gc.get_referents(function) if type(referent) is dict)
    return next((item for item in dictionaries if all(item is not other for other in others)), None)


def are_deferred(function: types.FunctionType) -> bool:
    """Returns whether reading a function's annotations runs code of the program."""
    return DEFERRED and function.__annotate__ is not None and evaluated(function) is None  # type: ignore[attr-defined]
