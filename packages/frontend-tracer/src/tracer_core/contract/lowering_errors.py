"""LoweringUnsupported: raised by capture and `tracer_core.aot`, handled by `tracer_core.dispatch.compile_graph`."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tracer_core.errors import TracerError


def first_line(error: Exception) -> str:
    """Returns the first line of an exception's text."""
    return str(error).partition("\n")[0]


class LoweringUnsupported(TracerError):
    """The captured graph is valid but has no functional ATen form with eager's semantics.

    reason: what prevents it, for users. location: ``file:line in function`` or ``""``. nodes: the
    operators without which the graph has one, if they are few. The dispatcher then cuts the graph
    around them, or runs the captured graph eagerly, and logs that once.
    """

    def __init__(
        self, reason: str, location: str = "", nodes: Iterable[torch.fx.Node] = ()
    ) -> None:
        self.reason, self.location, self.nodes = reason, location, tuple(nodes)
        super().__init__(reason + (f" (at {location})" if location else ""))


class StillDifferentiable(LoweringUnsupported):
    """A graph that computes gradients itself returns values that can be differentiated once more.

    It needs a backward, as graphs for training have.
    """


class OnlyViews(LoweringUnsupported):
    """The outputs of a graph that require a gradient are inputs, or views of inputs.

    Eager makes these, so no backward is needed.
    """
