"""Type parameters of functions and classes written with brackets (Python 3.12)."""

from __future__ import annotations

import typing
from typing import Any


def type_parameter(stars: str, name: str) -> Any:
    """Makes a type parameter of a function or class (3.12): ``def f[T, *Ts, **P]``."""
    names: dict[str, Any] = {}
    exec(f"def made[{stars}{name}](): pass", names)
    return names["made"].__type_params__[0]


def subscript_generic(parameters: tuple[Any, ...]) -> Any:
    """Makes ``typing.Generic[parameters]`` as the class statement with type parameters does."""
    unpacked = (
        typing.Unpack[parameter] if isinstance(parameter, typing.TypeVarTuple) else parameter
        for parameter in parameters
    )
    return typing._GenericAlias(typing.Generic, tuple(unpacked))  # type: ignore[attr-defined]
