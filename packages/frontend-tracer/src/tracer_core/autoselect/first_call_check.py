"""``compile(verify=)``: compares a compiled graph with eager mode on the inputs of its first call.

Eager mode serves that call; the compiled graph runs on copies of its inputs. What follows a
difference is in the table `_FOLLOWS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracer_core.autoselect.comparison import Comparison
from tracer_core.autoselect.sample import NoSample, sampled_call
from tracer_core.autoselect.verification import Wrong
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.debug import stages
from tracer_core.debug.logs import logger
from tracer_core.options import Verify

#: The argument -> (whether a difference is a warning, whether the graph runs in eager mode then).
_FOLLOWS = {"report": (False, False), "warn": (True, False), "fallback": (True, True)}


class FirstCallCheck:
    """The runner of a graph that is compared. Mutable until the first call."""

    def __init__(
        self, captured: CapturedGraph, verify: Verify, eager: RunFunction, run: RunFunction
    ) -> None:
        self._captured: CapturedGraph | None = captured
        self._verify, self._eager, self._run = verify, eager, run
        self._record = stages.continued()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        captured, self._captured = self._captured, None
        if captured is None:
            return self._run(inputs)
        try:
            outputs, sample = sampled_call(captured, inputs, self._eager)
        except BaseException:
            self._captured = captured  # the program's own error: the next call counts as the first
            raise
        warns, falls_back = _FOLLOWS[self._verify]
        try:
            if isinstance(sample, NoSample):
                raise sample
            error = Comparison(sample, self._eager, None).error(self._run)
            text = f"eager mode's results, up to a relative error of {error:.1e}"
        except NoSample as reason:
            text = f"not compared: {reason}"
        except Wrong as reason:
            text = f"DIFFERENT from eager mode: {reason}"
            text += "; it runs in eager mode from now on" if falls_back else ""
            if warns:
                logger().warning("%s: %s; tracer_core.repro writes a script", captured.name, text)
            if falls_back:
                self._run = self._eager
        with self._record(), stages.stage("verified", graph=captured.name) as record:
            record.text = text
        return outputs
