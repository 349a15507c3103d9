"""``compile(dynamic_shapes=)``: marks the sizes of a call's arguments by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracer_core.errors import OptionError, did_you_mean
from tracer_core.markers import mark_dynamic
from tracer_core.options import DynamicShapes


def check(model: Any, shapes: DynamicShapes) -> None:
    """Raises OptionError for a name that is no argument of `model`."""
    called = model.forward if isinstance(model, torch.nn.Module) else model
    names = list(inspect.signature(called).parameters) if shapes else []
    for name in shapes:
        if name not in names:
            guess = did_you_mean(name, names)
            raise OptionError(f"dynamic_shapes: no argument {name!r}{guess}; valid: {names}")


def mark(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: DynamicShapes
) -> None:  # fmt: skip
    """Marks the arguments of a call. Raises OptionError for a size outside its range."""
    if not shapes:
        return
    if function.__name__ == "_call_impl":  # of nn.Module, whose arguments have no names
        function, args = args[0].forward, args[1:]
    values = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    for name, dims in shapes.items():
        if not isinstance(value := values.get(name), torch.Tensor):
            continue
        for dim, bounds in dims.items():
            least, largest = bounds or (None, None)
            try:
                mark_dynamic(value, dim, min=least, max=largest)
            except OptionError as error:
                raise OptionError(f"dynamic_shapes of {name!r}: {error}") from error
