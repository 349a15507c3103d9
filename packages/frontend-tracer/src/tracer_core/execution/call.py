"""One call of a compiled function, and the keys of its code regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.options import CompileConfig
from tracer_core.torch_private.names import classes

use_own_builtins(globals())

#: Parameters and buffers of lazy modules before their first call.
_UNINITIALIZED = classes("nn.parameter.UninitializedTensorMixin")


class StartKey(tuple[Any, ...]):
    """Key of the code region where calls of one form begin: the number of positional arguments, then
    the names of the keyword arguments."""

    __slots__ = ()

    def arguments(self, state: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments and keyword arguments whose values are `state`."""
        n_args, *names = self
        return state[:n_args], dict(zip(names, state[n_args:], strict=True))

    def calling(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Returns what calls `function` with the state of a call of this form."""
        if len(self) == 1:
            return lambda state: function(*state)

        def call(state: tuple[Any, ...]) -> Any:
            args, kwargs = self.arguments(state)
            return function(*args, **kwargs)

        return call


#: Key of a code region that begins at a graph break: the layouts of the frames there.
BreakKey = tuple[FrameLayout, ...]
RegionKey = StartKey | BreakKey


class Call:
    """The arguments of one call."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs

    @property
    def key(self) -> StartKey:
        """Key of the region where the call begins."""
        return StartKey((len(self.args), *self.kwargs))

    @property
    def state(self) -> tuple[Any, ...]:
        """The values of all arguments, which guards read."""
        return (*self.args, *self.kwargs.values()) if self.kwargs else self.args

    def run(self, function: Callable[..., Any]) -> Any:
        """Calls `function`."""
        return function(*self.args, **self.kwargs)

    def labels(self, function: Callable[..., Any]) -> list[str]:
        """Returns the user's names for the arguments."""
        code = getattr(function, "__code__", None)
        names = list(code.co_varnames[: code.co_argcount]) if code is not None else []
        n_extra = len(self.args) - len(names)
        extra = [f"args[{index}]" for index in range(n_extra)]
        return [*names[: len(self.args)], *extra, *self.kwargs]

    def has_uninitialized_module(self) -> bool:
        """Returns whether an argument is a module with lazy parts whose first call is to come."""
        return any(
            _has_lazy_tensors(value) for value in self.state if isinstance(value, torch.nn.Module)
        )


def _has_lazy_tensors(module: torch.nn.Module) -> bool:
    entries = vars(module)  # `parameters()` hashes modules, which their class may forbid
    tables = (entries.get(name) or {} for name in ("_parameters", "_buffers"))
    return any(
        isinstance(value, _UNINITIALIZED) for table in tables for value in table.values()
    ) or any(
        inner is not None and _has_lazy_tensors(inner)
        for inner in (entries.get("_modules") or {}).values()
    )


def name_of(function: Any, config: CompileConfig | None = None, owner: Any = None) -> str:
    """Returns the name of a function in messages, which ``compile(name=)`` may have set; of a module
    the name of its class, which the compiled function `owner` holds."""
    named = "" if config is None else config.name
    named = named or getattr(owner, "module_class", "")
    return named or getattr(function, "__qualname__", None) or repr(function)
