"""Compiles generated Python under a file name of its own, so that tracebacks show its lines.

The text is forgotten when the function dies.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable
from typing import Any


def define(name: str, text: str, scope: dict[str, Any], title: str) -> Callable[..., Any]:
    """Returns the function called `name` that the text defines. scope: its globals, which it
    shares. title: describes the function in tracebacks."""
    # The program may use any name.
    title = "".join(one if one.isprintable() else "_" for one in title)
    filename, number = f"<tracer_core {title}>", 1
    while filename in linecache.cache:
        number += 1
        filename = f"<tracer_core {title}, {number}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec", dont_inherit=True), scope)
    function: Callable[..., Any] = scope[name]
    weakref.finalize(function, linecache.cache.pop, filename, None).atexit = False
    return function
