"""Loops and branches as a whole: the targets of their extern nodes."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr


@dataclass(frozen=True, slots=True, eq=False)
class NativeLoop:
    """name: of the exported function, which takes the node's tensors, its results, the addresses of
    `launchers` (hand-written kernels), `symbols` and the number of steps (None: a while_loop). sources: the translation
    units with it and what it calls. fails: whether a step may report an error."""

    name: str
    sources: tuple[str, ...]
    launchers: tuple[str, ...]
    symbols: tuple[str, ...]
    length: Expr | None
    fails: bool
    n_live: int

    def __str__(self) -> str:
        return f"loop.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class CompiledSteps:
    """What Python runs over compiled steps."""

    name: str
    #: The modules of the steps, or of the branches.
    codes: tuple[str, ...]
    #: Which function of `runtime.generated_support` makes the call of them.
    run: str
    #: The steps do not run without Python.
    why: str

    def __str__(self) -> str:
        return f"steps.{self.name}"
