"""Which random numbers of a recording are drawn again.

In: the operators that draw, as they are recorded, and the regions that ``torch.utils.checkpoint``
computes again. Out: what the region drew the first time. What always holds: a region that is
computed again draws nothing, and takes nothing from the stream of what surrounds it; the process's
generator is neither read nor written, because other threads draw from it while a graph is lowered
(`backend="auto"` lowers beside the program). Only what a program's own backward does to it is
looked for (see `unseeded`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from tracer_core.aot.errors import LoweringUnsupported

#: (the call, what it drew)
_Draw = tuple[str, Any]
_Function = Callable[..., Any]

#: `Draws.region` of the lowering that this thread is in, for checkpoints that keep the generator's
#: state.
REGIONS: ContextVar[Callable[[_Function], _Function] | None] = ContextVar(
    "tracer_checkpoint_regions", default=None
)


class Draws:
    """Of one recording (mutable)."""

    def __init__(self) -> None:
        self._open: list[
            list[_Draw]
        ] = []  # of the regions that are being computed for the first time
        self._again: Iterator[_Draw] | None = None  # of the region that is being computed again

    def region(self, function: _Function) -> _Function:
        """A function whose later calls draw what its first one drew."""
        made: list[_Draw] = []
        calls = 0

        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            surrounding = self._open, self._again
            if calls == 1:
                self._open = [*self._open, made]
            else:
                self._open, self._again = [], iter(made)
            try:
                return function(*args)
            finally:
                self._open, self._again = surrounding

        return run

    def drawn(self, call: str, draw: Callable[[], Any]) -> Any:
        """What `draw` gives, or gave in the same place of a region. call: the operator, and all
        that its numbers depend on, as text."""
        if self._again is None:
            found = call, draw()
        else:
            found = next(self._again, ("nothing", None))
            if found[0] != call:
                raise LoweringUnsupported(
                    f"{call} draws where {found[0]} has drawn when the checkpoint ran first"
                )
        for made in self._open:
            made.append(found)
        return found[1]


@contextlib.contextmanager
def unseeded(captured: torch.fx.GraphModule) -> Iterator[None]:
    """Round a lowering, which runs the backwards of the program's own autograd.Functions: raises
    LoweringUnsupported if one of them has put the generator into another state, because it would be
    done once only."""
    if not _runs_functions(captured.graph):
        yield
        return
    generator = torch.default_generator
    state = generator.get_state()
    try:
        yield
    finally:
        changed = not torch.equal(state, generator.get_state())
        if changed:
            generator.set_state(state)
    if changed:
        raise LoweringUnsupported(
            "the backward of an autograd.Function seeds the generator, or draws unseen"
        )


def _runs_functions(graph: torch.fx.Graph) -> bool:
    for node in graph.nodes:
        cls = getattr(node.target, "cls", None)
        if isinstance(cls, type) and issubclass(cls, torch.autograd.Function):
            return True
        parts = vars(node.target).values() if hasattr(node.target, "__dict__") else ()
        if any(
            isinstance(part, torch.fx.GraphModule) and _runs_functions(part.graph) for part in parts
        ):
            return True
    return False
