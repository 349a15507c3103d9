"""Branch profiles: how the branches on tensors behind a code region went in the last calls.

Where the answers are the same in several calls in a row, the region is captured again with the
expectation that they stay so (`trace/assertions.py`), which joins the graphs between the branches
to one. The graph checks the expectation, so how likely it is decides only time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.bytecode.code import decode
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.fx_capture.specialization_history import Outcome
from tracer_core.limits import MAX_PROFILED_CALLS, MAX_PROFILED_OUTCOMES, MIN_EQUAL_PROFILES
from tracer_core.torch_private.names import names

use_own_builtins(globals())


#: Instructions that ask for the truth of the value on top of the stack.
_QUERIES_FOR_BOOL = frozenset(
    {f"POP_JUMP_{way}IF_{outcome_name}" for way in ("FORWARD_", "BACKWARD_", "")
     for outcome_name in ("TRUE", "FALSE")}
    | {"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "UNARY_NOT", "TO_BOOL"}
)  # fmt: skip


class BranchProfile:
    """The answers behind one code region. Mutable."""

    __slots__ = ("_common", "_alike", "_calls", "is_over")

    def __init__(self) -> None:
        #: What the last `_alike` calls answered first, all alike.
        self._common: tuple[Outcome, ...] = ()
        self._alike = self._calls = 0
        self.is_over = False

    def note(self, answers: Sequence[Outcome]) -> tuple[Outcome, ...]:
        """Records the answers of one call; returns what is to be expected from now on, once."""
        if self.is_over:
            return ()
        self._calls += 1
        items = tuple(answers) if len(answers) <= MAX_PROFILED_OUTCOMES else ()
        common = _prefix(self._common, items)
        self._common, self._alike = (common, self._alike + 1) if common else (items, 1)
        expected = self._alike >= MIN_EQUAL_PROFILES
        self.is_over = expected or self._calls >= MAX_PROFILED_CALLS
        return self._common if expected else ()


def _prefix(outcomes: tuple[Outcome, ...], other: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(outcomes, other, strict=False))
    return tuple(result for result, _ in alike)


def outcome(layouts: tuple[FrameLayout, ...], values: tuple[Any, ...]) -> Outcome | None:
    """Returns what the instruction at a graph break asks of a tensor and the answer; None if it
    asks nothing that has one. It runs the question once more, which has no effect."""
    top = layouts[-1]
    code = decode(top.code)
    name, end = code.names[top.ip], len(values) - top.n_exceptions - (top.on_return == "instance")
    if name in _QUERIES_FOR_BOOL:
        value = values[end - 1]
        if not _is_dense(value) or value.numel() != 1:
            return None
        return Outcome(top.code, top.ip, bool(value))
    if name != "CALL" or top.kw_names:
        return None
    n_given = sum(top.stack[-(code.args[top.ip] + 2) :])
    function, *inputs = values[end - n_given : end]
    if function not in _EQUAL or len(inputs) != 2 or not all(map(_is_dense, inputs)):
        return None
    left, right = inputs
    if left.dtype != right.dtype or left.shape != right.shape:
        return None
    return Outcome(top.code, top.ip, left.equal(right))


def _is_dense(value: Any) -> bool:
    simple = type(value) in (torch.Tensor, torch.nn.Parameter)
    return simple and value.layout is torch.strided and value.device.type == "cpu"


_EQUAL = names("equal Tensor.equal")
