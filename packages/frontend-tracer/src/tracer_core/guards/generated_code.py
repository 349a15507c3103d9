"""Compiles generated Python under a file name of its own, so that tracebacks show its lines.

The text is forgotten when the function dies.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable
from typing import Any

from tracer_core.guards.own_reference import OwnReference

#: File name -> reference to the function with that text. Not `weakref.finalize`, whose registry a
#: program may read.
_references: dict[str, OwnReference] = {}


def compiled(text: str, filename: str = "") -> types.CodeType:
    """Returns the code object of a generated module."""
    return compile(text, filename, "exec", dont_inherit=True)


def _renamed(code: types.CodeType, filename: str) -> types.CodeType:
    constants = (
        _renamed(const, filename) if isinstance(const, types.CodeType) else const
        for const in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=tuple(constants))


def define(
    name: str, text: str, scope: dict[str, Any], title: str, code: types.CodeType | None = None
) -> Callable[..., Any]:
    """Defines a function by its text, whose lines tracebacks show.

    Args:
        name: Of the function in the text.
        text: A module.
        scope: The globals, which it shares.
        title: Describes the function in tracebacks.
        code: The text, if it is compiled already.

    Returns:
        The function.
    """
    # The program may use any name.
    title = "".join(item if item.isprintable() else "_" for item in title)
    filename, number = f"<tracer_core {title}>", 1
    entry = (len(text), None, text.splitlines(True), filename)
    while linecache.cache.setdefault(filename, entry) is not entry:  # nor another thread's
        number += 1
        filename = f"<tracer_core {title}, {number}>"
        entry = (*entry[:3], filename)
    exec(compiled(text, filename) if code is None else _renamed(code, filename), scope)
    function: Callable[..., Any] = scope[name]

    def forget(_: Any) -> None:
        linecache.cache.pop(filename, None)
        _references.pop(filename, None)

    _references[filename] = OwnReference(function, forget)
    return function
