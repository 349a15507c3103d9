"""Random numbers of regions that ``torch.utils.checkpoint`` recomputes while a graph is recorded.

A recomputed region reuses the numbers of its first run, and takes nothing from the rng stream
around it. The process's generator is neither read nor written, because other threads draw from it
while a graph is lowered (`backend="auto"` lowers in the background). `unseeded` detects changes
that a program's own backward makes to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.contract.lowering_errors import LoweringUnsupported

#: (the call, what it drew)
_Sample = tuple[str, Any]
_Function = Callable[..., Any]


class RecomputedRng:
    """The random numbers of one recording. Mutable."""

    def __init__(self) -> None:
        self._open: list[list[_Sample]] = []  # of the regions in their first run
        self._again: Iterator[_Sample] | None = None  # of the region that is recomputed
        #: Whether a region has run again and used random numbers.
        self.recomputed = False

    def region(self, function: _Function) -> _Function:
        """Wraps a function so that later calls reuse the random numbers of the first one."""
        result: list[_Sample] = []
        calls = 0

        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            surrounding = self._open, self._again
            if calls == 1:
                self._open = [*self._open, result]
            else:
                self._open, self._again = [], iter(result)
            try:
                return function(*args)
            finally:
                self._open, self._again = surrounding

        return run

    def drawn(self, call: str, sample: Callable[[], Any]) -> Any:
        """Returns the result of `sample`, or that of the same call in the region's first run.

        call: the operator, and all that its numbers depend on, as text.
        """
        if self._again is None:
            results = call, sample()
        else:
            results = next(self._again, ("nothing", None))
            self.recomputed = True
            if results[0] != call:
                raise LoweringUnsupported(
                    f"{call} draws where {results[0]} has drawn when the checkpoint ran first"
                )
        for result in self._open:
            result.append(results)
        return results[1]


@contextlib.contextmanager
def unseeded(captured: torch.fx.GraphModule) -> Iterator[None]:
    """Raises LoweringUnsupported if the program's own autograd.Functions change the generator's
    state during a lowering.

    Lowering runs their backwards once, so later calls would not repeat the change.
    """
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
        fields = getattr(node.target, "__dict__", {}).values()
        if any(
            isinstance(field, torch.fx.GraphModule) and _runs_functions(field.graph)
            for field in fields
        ):
            return True
    return False
