"""A program that is measured: something callable with the arguments of one call, and the row it makes.

What always holds: importing this module imports neither torch nor a model library, so that the time
those take can be measured.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

SEED = 20


@dataclass(frozen=True, slots=True)
class Program:
    """One call: ``function(*args, **kwargs)``."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any] | None = None) -> Any:
        """Calls the program's function, or `function` (a compiled form of it) with the same
        arguments."""
        return (self.function if function is None else function)(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class Model:
    """A row. name: how it is chosen. library: the module that `build` needs, beside torch. build:
    makes the program, in eval mode. title: for tables. train: in train mode. grad: called with grad
    mode on. groups: ``"issue"`` (the models of the demo), ``"seeds"`` (as the seeds write them),
    ``"more"``."""

    name: str
    library: str
    build: Callable[[], Program]
    title: str
    train: bool = False
    grad: bool = False
    groups: frozenset[str] = frozenset({"issue"})

    def program(self) -> Program:
        """Builds it, with the same weights and inputs each time, in the row's mode."""
        import torch

        import_library(self.library)
        torch.manual_seed(SEED)
        program = self.build()
        if isinstance(program.function, torch.nn.Module):
            program.function.train(self.train)
        return program

    def mode(self) -> AbstractContextManager[Any]:
        """The grad mode of the row, to be entered round its calls."""
        import torch

        return contextlib.nullcontext() if self.grad else torch.no_grad()

    @property
    def modes(self) -> str:
        """``eval, no_grad`` and so on."""
        return f"{'train' if self.train else 'eval'}, {'grad' if self.grad else 'no_grad'}"


def import_library(name: str) -> None:
    """Imports what the builders of a library need."""
    if name != "torch":  # transformers imports torchvision, and timm does
        from tests.support import torchvision_ops

        torchvision_ops.define()
        __import__(_IMPORTS[name])


#: What a user's ``from transformers import BertModel`` imports; the package alone is lazy.
_IMPORTS = {
    "torchvision": "torchvision.models",
    "timm": "timm.models",
    "transformers": "transformers.models.bert.modeling_bert",
}


def in_float64(program: Program) -> Program:
    """A copy of the program that computes in float64: the truth that errors are measured
    against."""
    import torch

    function = program.function
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).double()
    return Program(
        function,
        tuple(_double(value) for value in program.args),
        {name: _double(value) for name, value in program.kwargs.items()},
    )


def _double(value: Any) -> Any:
    import torch

    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )
