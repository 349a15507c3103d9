"""One program of the ecosystem: how its function and its inputs are made.

In: functions marked `inference`, `training` or `step`. Out: `Program`. A marked function returns
``function, inputs`` or ``function, inputs, state``: inputs() draws the arguments of one call; state
are modules and optimizers that the program changes beside the function itself. What always holds:
importing this imports no library of the ecosystem, and a maker imports its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

_SEED = 41

Maker = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """function: what is compiled. inputs(): the arguments of one call. state: what else changes."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    state: tuple[Any, ...] = ()

    def arguments(self, number: int) -> tuple[Any, ...]:
        """The arguments of call `number`: the same for the same number."""
        seed(_SEED + 1 + number)
        return self.inputs()


@dataclass(frozen=True, slots=True)
class Program:
    """name: ``library: what it does``. gradients: none (runs under no_grad), of a loss that the
    caller makes of the results, or the program's own affair (a whole step). rtol, atol: how far a
    compiled result may be from eager's."""

    name: str
    library: str
    maker: Maker
    gradients: Literal["none", "caller", "own"]
    rtol: float = 1e-3
    atol: float = 1e-4

    def make(self) -> Made:
        """The program anew, with the same random state each time."""
        seed(_SEED)
        return Made(*self.maker())


def seed(number: int) -> None:
    """Seeds each generator that programs draw from."""
    import numpy
    import torch

    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


class Family:
    """The programs of one file (mutable: marked functions are added)."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def inference(self, library: str, **settings: Any) -> Callable[[Maker], Maker]:
        """Marks the maker of a program that runs under ``torch.no_grad()``."""
        return self._mark(library, "none", settings)

    def training(self, library: str, **settings: Any) -> Callable[[Maker], Maker]:
        """Marks the maker of a program whose results the caller differentiates."""
        return self._mark(library, "caller", settings)

    def step(self, library: str, **settings: Any) -> Callable[[Maker], Maker]:
        """Marks the maker of a program that runs in grad mode and differentiates by itself."""
        return self._mark(library, "own", settings)

    def _mark(
        self,
        library: str,
        gradients: Literal["none", "caller", "own"],
        settings: dict[str, Any],
    ) -> Callable[[Maker], Maker]:
        def add(maker: Maker) -> Maker:
            name = f"{library}: {maker.__name__.strip('_').replace('_', ' ')}"
            self.programs.append(Program(name, library, maker, gradients, **settings))
            return maker

        return add
