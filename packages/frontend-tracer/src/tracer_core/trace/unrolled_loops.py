"""Notices long loops of eager Python, which a trace would unroll."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break, RunEagerly
from tracer_core.limits import MAX_INSTRUCTIONS_WITHOUT_OPERATOR, MAX_TRACED_INSTRUCTIONS
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class UnrolledLoops(Component):
    """What a trace did since the last look. Mutable. look_at: the step of the next look. unrolls:
    loops may be as long as they like, because a graph break is an error."""

    def __init__(self, tracer: Tracer, unrolls: bool) -> None:
        super().__init__(tracer)
        self.look_at = min(MAX_INSTRUCTIONS_WITHOUT_OPERATOR, MAX_TRACED_INSTRUCTIONS)
        self._unrolls = unrolls
        self._begun: list[Any] = []
        self._frames: list[Any] = []
        self._n_nodes = 0

    def begin(self, frames: list[Any]) -> None:
        """Notes the frames that the code region starts with."""
        self._begun = frames.copy()

    def look(self) -> None:
        """Ends the graph, or the trace, if nothing was recorded since the last look: the innermost
        of the frames that were there throughout is in a loop."""
        tracer = self.tracer
        if tracer.steps > MAX_TRACED_INSTRUCTIONS:
            crossed("MAX_TRACED_INSTRUCTIONS")
            raise Break("step_limit", f"more than {MAX_TRACED_INSTRUCTIONS} instructions")
        frames, nodes = tracer.frames, tracer.recorder.graph.nodes
        same = _shared(frames, self._frames)
        progress = not same or len(nodes) > self._n_nodes or _is_of_torch(frames[same - 1])
        if self._unrolls or progress:
            self._frames, self._n_nodes = frames.copy(), len(nodes)
            self.look_at = min(
                tracer.steps + MAX_INSTRUCTIONS_WITHOUT_OPERATOR, MAX_TRACED_INSTRUCTIONS + 1
            )
            return
        loop = frames[same - 1]
        raw = loop.code.raw
        crossed("MAX_INSTRUCTIONS_WITHOUT_OPERATOR", where=loop.where)
        reason = f"a loop of plain Python in {raw.co_qualname} goes on for {MAX_INSTRUCTIONS_WITHOUT_OPERATOR} instructions"
        has_all = all(node.op == "placeholder" for node in nodes)
        if has_all and _shared(frames, self._begun) < same:
            raise RunEagerly(reason, code=raw)
        if has_all and not tracer.nesting:
            raise RunEagerly(reason, loop_at=same - 1)
        if tracer.nesting or frames[-1] is loop:  # in a nested run: before the call that it is in
            raise Break("long_loop", reason)
        self.look_at = tracer.steps + 1  # where the loop's own frame is active


def _is_of_torch(frame: Any) -> bool:
    """Returns whether a frame runs torch's own code, whose loops end: over the modules, parameters and
    states of a model, of which there may be thousands."""
    return str(frame.globals.get("__name__", "")).startswith("torch.")


def _shared(frames: list[Any], others: list[Any]) -> int:
    """Returns how many frames two chains share: the outermost ones."""
    return sum(map(operator.is_, frames, others))
