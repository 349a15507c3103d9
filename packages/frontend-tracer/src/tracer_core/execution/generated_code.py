"""Generated Python: compiled under a file name of its own, whose lines tracebacks show.

In: the text of one function and the names that it uses. Out: the function. What always holds: the
text is forgotten when the function dies.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable
from typing import Any


def define(name: str, text: str, scope: dict[str, Any], title: str) -> Callable[..., Any]:
    """The function called `name` that the text defines; scope: its globals, which it shares. title:
    says what it is in tracebacks."""
    title = "".join(
        one if one.isprintable() else "_" for one in title
    )  # the program's functions may have any name
    filename, number = f"<tracer_core {title}>", 1
    while filename in linecache.cache:
        number += 1
        filename = f"<tracer_core {title}, {number}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(compile(text, filename, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    weakref.finalize(function, linecache.cache.pop, filename, None).atexit = False
    return function
