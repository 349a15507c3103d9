"""Defines generated functions that the program's builtins do not reach."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.guards import generated_code

use_own_builtins(globals())


def define(
    name: str, text: str, scope: dict[str, Any], title: str, code: types.CodeType | None = None
) -> Callable[..., Any]:
    """Calls `guards.generated_code.define` with the interpreter's own builtins in the scope."""
    use_own_builtins(scope)
    return generated_code.define(name, text, scope, title, code)
