"""The builtins of the interpreter's own code, bound at import: the program may replace Python's.

The eager interpreter and all generated code use these; a trace does not begin while
`are_replaced`.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

_OF_PYTHON = vars(builtins)
_OWN = dict(_OF_PYTHON)
#: Programs put functions of their own here for good, which no trace depends on.
_NOT_NEEDED = frozenset(
    {"print", "input", "open", "breakpoint", "help", "exit", "quit", "_", "__import__"}
)
_NEEDED = {name: value for name, value in _OWN.items() if name not in _NOT_NEEDED}


def use_own_builtins(namespace: dict[str, Any]) -> None:
    """Gives the functions that a module defines from now on these builtins."""
    namespace["__builtins__"] = _OWN


use_own_builtins(globals())


def builtins_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the builtins of the code of a function, which it keeps from when it was made."""
    result: dict[str, Any] = function.__builtins__
    return result


def are_replaced() -> bool:
    """Returns whether the program has replaced or deleted one of Python's builtins."""
    return not _NEEDED.items() <= _OF_PYTHON.items()
