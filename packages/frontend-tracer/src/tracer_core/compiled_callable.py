"""Makes the functions that `compile` returns. dill pickles what stands in this module with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling as torch_is_compiling

from tracer_core.debug.user_lines import shorten


def call_object(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls `target`: the function that is traced for a callable that is not a Python function."""
    return target(*args, **kwargs)


def wrapper(
    target: Callable[..., Any], run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Returns a real function, so that it binds as a method and passes inspect.isfunction, that
    calls `run` with packed arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # torch.compile and torch.export trace the original, not our own code.
        if torch_is_compiling():
            return target(*args, **kwargs)
        try:
            return run(args, kwargs)
        except BaseException as error:
            shorten(error)
            raise

    return call


def with_target(
    target: Callable[..., Any], run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Returns a call with packed arguments of what runs in place of `call_object`."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run((target, *args), kwargs)

    return call
