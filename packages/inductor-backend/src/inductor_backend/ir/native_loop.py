"""Loops over slices: the targets of their extern nodes."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr


@dataclass(frozen=True, slots=True, eq=False)
class NativeLoop:
    """name: of the exported function, which takes the node's tensors, its results, the addresses of
    `launchers` (hand-written kernels), `symbols` and the number of steps. sources: the translation
    units with it and what it calls. fails: whether a step may report an error. kernels: how many
    calls a step makes."""

    name: str
    sources: tuple[str, ...]
    launchers: tuple[str, ...]
    symbols: tuple[str, ...]
    length: Expr
    fails: bool
    kernels: int

    def __str__(self) -> str:
        return f"loop.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSteps:
    """A loop in Python whose step is a module of its own. code: the module's. why: the step does not
    run without Python."""

    name: str
    code: str
    why: str

    def __str__(self) -> str:
        return f"steps.{self.name}"
