"""The builtins of the interpreter's own code, bound at import: the program may replace Python's.

A module that does ``from tracer_core.bytecode.host_builtins import __builtins__`` before it defines
anything has these in place of Python's. The eager interpreter and all generated code do; a trace
does not begin while `are_replaced`.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

_OF_PYTHON = vars(builtins)
_OWN = dict(_OF_PYTHON)
globals()["__builtins__"] = _OWN
#: Programs put functions of their own here for good, which no trace depends on.
_NOT_NEEDED = frozenset(
    {"print", "input", "open", "breakpoint", "help", "exit", "quit", "_", "__import__"}
)
_NEEDED = {name: value for name, value in _OWN.items() if name not in _NOT_NEEDED}


def builtins_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the builtins of the code of a function, which it keeps from when it was made."""
    found: dict[str, Any] = function.__builtins__  # type: ignore[attr-defined]
    return found


def are_replaced() -> bool:
    """Returns whether the program has replaced or deleted one of Python's builtins."""
    return not _NEEDED.items() <= _OF_PYTHON.items()
