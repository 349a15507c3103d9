"""Assertions: answers of a tensor's value that the trace goes on with, and that the graph checks.

A branch of which one way only raises is taken the other way. A branch that went the same way in
several calls (`execution/tiers/branch_profile.py`) is expected to go that way again; any other one may be
expected to go as in the call that is being captured. The graph has one more result: whether all
these conditions hold. The entry reads it before any side effect. Where it is false the program runs
eagerly from where the entry begins.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import Frame
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.fx_graph import WrittenGraph
from tracer_core.fx_capture.specialization_history import Outcome, Speculation
from tracer_core.fx_capture.speculated_values import SpeculatedValues
from tracer_core.fx_capture.unbacked import is_integer
from tracer_core.graph_breaks import Retry
from tracer_core.limits import (
    MAX_SPECULATED_BRANCHES,
    MAX_SPECULATED_LOOP_NODES,
    MAX_SPECULATED_NUMBERS,
    MAX_SPECULATIONS_OF_BRANCH,
)

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: A jump by the bool of a value -> the bool with which it jumps.
_JUMPS_IF = {
    f"POP_JUMP_{way}IF_{outcome}".upper(): outcome
    for way in ("FORWARD_", "BACKWARD_", "")
    for outcome in (True, False)
}

#: What is speculated, and why, as `explain` shows it.
_BRANCH, _EQUAL = "the branch on a tensor is", "torch.equal is"
_OF_CALL = "as in the captured call"
_PROFILED = "as in the calls before the capture"


class Assumptions:
    """The outcomes that one trace expects. Mutable: it takes them in order."""

    def __init__(self, outcomes: tuple[Outcome, ...], graph: WrittenGraph) -> None:
        self._left = list(reversed(outcomes))
        self._iterations = _Iterations(graph)

    def take(self, frames: list[Frame]) -> bool | None:
        """Returns the answer expected at the instruction of the innermost frame, or None. A trace
        that takes another way than the calls did, or follows a long loop, expects nothing any more."""
        if not self._left:
            return None
        expected, frame = self._left.pop(), frames[-1]
        as_expected = expected.code is frame.code.raw and expected.at == frame.last
        if as_expected and not self._iterations.is_long(frames):
            return expected.answer
        self._left.clear()
        return None


class _Iterations:
    """How long the iterations of loops are that one trace follows from branch to branch. Mutable."""

    def __init__(self, graph: WrittenGraph) -> None:
        self._graph = graph
        #: A branch -> the frames, and the nodes of the graph, when it was executed last.
        self._executed: dict[tuple[Any, int], tuple[list[Frame], int]] = {}

    def is_long(self, frames: list[Frame]) -> bool:
        """Returns whether the innermost frame is at a branch again after an iteration of a ``while``
        loop with many operators. (A ``for`` loop ends by its iterator: the layers of a model.)"""
        at, n_nodes = (frames[-1].code.raw, frames[-1].last), len(self._graph.graph.nodes)
        before, n_before = self._executed.get(at, ([], n_nodes))
        self._executed[at] = frames.copy(), n_nodes
        if n_nodes - n_before <= MAX_SPECULATED_LOOP_NODES:
            return False
        shared = [frame for frame, other in zip(frames, before, strict=False) if frame is other]
        return bool(shared) and shared[-1].code.in_while(shared[-1].last)


class CallSpeculation:
    """What one trace speculates of the call that is captured. Mutable: counts the branches."""

    def __init__(self, speculation: Speculation, graph: WrittenGraph) -> None:
        self._speculation = speculation
        self._present = SpeculatedValues(graph)
        self._times_speculated: collections.Counter[tuple[Any, int]] = collections.Counter()
        self._iterations = _Iterations(graph)
        #: id of a tensor -> (the tensor, its version, the number in it that was speculated).
        self._numbers: dict[int, tuple[torch.Tensor, int, int]] = {}

    @property
    def wanted(self) -> bool:
        """Returns whether anything may be speculated."""
        return self._speculation.wanted

    def asks(self, frames: list[Frame]) -> bool:
        """Returns whether the instruction of the innermost frame, a branch, is to be speculated.
        Raises Retry where there are too many."""
        if not self._speculation.wanted:
            return False
        at = frames[-1].code.raw, frames[-1].last
        self._times_speculated[at] += 1
        reached = {
            "MAX_SPECULATED_LOOP_NODES": self._iterations.is_long(frames),
            "MAX_SPECULATED_BRANCHES": self._times_speculated.total() > MAX_SPECULATED_BRANCHES,
            "MAX_SPECULATIONS_OF_BRANCH": self._times_speculated[at] > MAX_SPECULATIONS_OF_BRANCH,
        }
        if any(reached.values()):
            self._speculation.met_long_loop = reached["MAX_SPECULATED_LOOP_NODES"]
            crossed(next(limit for limit, is_reached in reached.items() if is_reached))
            reason = "a loop that follows the values of tensors"
            raise Retry(0, "data_dependent_branch", reason, speculates=False)
        return True

    def values(self, *tensors: torch.Tensor) -> list[torch.Tensor] | None:
        """Returns what tensors of the trace hold in this call; None where that is not known."""
        return self._counted(self._present.of(*tensors))

    def number_of(self, node: torch.fx.Node) -> Any:
        """Returns the number that a node gives in this call; None where that is not known."""
        result = self._counted(self._present.of_nodes([node]))
        return None if result is None else result[0]

    def known(self, tensor: torch.Tensor) -> int | None:
        """Returns the number in a tensor that was speculated already, or None."""
        number = self._numbers.get(id(tensor))
        return number[2] if number is not None and number[1] == tensor._version else None

    def note(self, tensor: torch.Tensor, number: int) -> None:
        """Notes the number in a tensor. Raises Retry where there are too many."""
        if len(self._numbers) >= MAX_SPECULATED_NUMBERS:
            crossed("MAX_SPECULATED_NUMBERS")
            reason = "many numbers that follow the values of tensors"
            raise Retry(0, "data_dependent_value", reason, speculates=False)
        self._numbers[id(tensor)] = tensor, tensor._version, number

    def _counted(self, result: list[Any] | None) -> list[Any] | None:
        self._speculation.n_answers += result is not None
        return result


def assumed(tracer: Tracer, value: torch.Tensor) -> bool | None:
    """Returns the truth of a tensor if the instruction is a branch whose other way only raises, or
    if its outcome is expected, and makes it a condition of the graph; else None."""
    if not _is_single(value) or not _may_assert(tracer):
        return None
    outcome, why = _only_way(tracer.frames[-1]), "the other way only raises"
    if outcome is None:
        outcome, why = tracer.assumptions.take(tracer.frames), _PROFILED
    if outcome is not None:
        _assert(tracer, value, outcome)
        _note(tracer, _BRANCH, outcome, why)
    return outcome


def checked(tracer: Tracer, value: Any) -> bool:
    """Makes it a condition of the graph that a tensor on the CPU is true, for a function that raises
    where it is not; returns whether it is one. (On a GPU such a function does not wait, and to read the
    condition would.)"""
    if not isinstance(value, torch.Tensor) or torch_private.is_subclass(value):
        return False
    value = tracer.fakes.current(value)
    if value.device.type != "cpu" or not _is_single(value) or not _may_assert(tracer):
        return False
    _assert(tracer, value, True)
    return True


def assumed_equal(tracer: Tracer, left: torch.Tensor, right: torch.Tensor) -> bool | None:
    """Returns what torch.equal is expected to say of two tensors of one shape and dtype, and makes
    it a condition of the graph; else None."""
    answer = tracer.assumptions.take(tracer.frames) if _may_assert(tracer) else None
    if answer is not None:
        _assert_equal(tracer, left, right, answer)
        _note(tracer, _EQUAL, answer, _PROFILED)
    return answer


def _note(tracer: Tracer, what: str, answer: object, why: str = _OF_CALL) -> None:
    """Notes for `explain` what the trace goes on with in place of a graph break."""
    tracer.speculated[f"{tracer.users_line().place}: {what} {answer}: {why}"] = None


def _assert_equal(tracer: Tracer, left: torch.Tensor, right: torch.Tensor, answer: bool) -> None:
    same = tracer.recorder.call(torch.eq, (left, right), {})
    _assert(tracer, tracer.recorder.call(torch.all, (same,), {}), answer)


def speculated(tracer: Tracer, value: torch.Tensor) -> bool | None:
    """Returns the truth that a tensor has in the call that is captured, and makes it a condition of
    the graph; None where that is not to be expected of other calls."""
    if not _is_single(value) or not _may_speculate(tracer, value):
        return None
    result = tracer.speculation.values(value)
    if result is None:
        return None
    outcome = bool(result[0])
    _assert(tracer, value, outcome)
    _note(tracer, _BRANCH, outcome)
    return outcome


def speculated_equal(tracer: Tracer, left: torch.Tensor, right: torch.Tensor) -> bool | None:
    """Does `speculated` for what torch.equal says of two tensors of one shape and dtype."""
    result = tracer.speculation.values(left, right) if _may_speculate(tracer, left, right) else None
    if result is None:
        return None
    answer = torch.equal(*result)
    _assert_equal(tracer, left, right, answer)
    _note(tracer, _EQUAL, answer)
    return answer


def speculated_scalar(tracer: Tracer, value: torch.Tensor) -> int | None:
    """Returns the integer that a tensor holds in the call that is captured, used as an index or
    a size, and makes it a condition of the graph; None where that is not to be expected of other
    calls."""
    if not is_integer(value) or value.dim() or value.dtype is torch.uint8:
        return None
    known = tracer.speculation.known(value)
    if known is not None:
        return known
    if torch_private.is_subclass(value) or not tracer.speculation.wanted or not _may_assert(tracer):
        return None
    result = tracer.speculation.values(value)
    if result is None:
        return None
    number = int(result[0])
    _assert(tracer, tracer.recorder.call(torch.eq, (value, number), {}), True)
    tracer.speculation.note(value, number)
    _note(tracer, "a number read from a tensor is", number)
    return number


def speculated_answer(tracer: Tracer, question: Any) -> int | bool | None:
    """Returns what a question about numbers that depend on data, an expression, is answered with in
    the call that is captured, and makes it a condition of the graph; else None."""
    data = tracer.recorder.data
    if data is None or not data.are_read(question) or not _may_assert(tracer):
        return None
    if not tracer.speculation.asks(tracer.frames):
        return None
    node = tracer.recorder.sizes.node(question)
    number = tracer.speculation.number_of(node) if isinstance(node, torch.fx.Node) else None
    if type(number) not in (int, bool):
        return None
    fact = torch_private.fact_of(question, number)
    data.speculate(fact)
    _note(tracer, "of numbers that depend on data,", fact)
    return number


def _may_speculate(tracer: Tracer, *values: torch.Tensor) -> bool:
    simple = not any(map(torch_private.is_subclass, values))
    return simple and _may_assert(tracer) and tracer.speculation.asks(tracer.frames)


def _only_way(frame: Frame) -> bool | None:
    """Returns the truth with which a branch goes on whose other way only raises; else None."""
    jumps_if = _JUMPS_IF.get(frame.code.names[frame.last])
    if jumps_if is None:
        return None
    raises = frame.code.only_raises
    ways = {jumps_if: frame.code.args[frame.last] in raises, not jumps_if: frame.last + 1 in raises}
    return None if ways[True] == ways[False] else ways[False]


def _may_assert(tracer: Tracer) -> bool:
    """Returns whether the graph can check a condition that is asked for here."""
    recorder = tracer.recorder
    in_region = recorder.open_regions > 0 and recorder.function_answers is None
    inside = in_region or recorder.program_modes or torch_private.transforms_active()
    may = tracer.shapes.takes_assertions and not inside
    return may and not recorder.fakes.any_was_written()


def _assert(tracer: Tracer, value: torch.Tensor, outcome: bool) -> None:
    recorder = tracer.recorder
    condition = recorder.call(torch.Tensor.bool, (value,), {})
    if value.dim():
        condition = recorder.call(torch.Tensor.reshape, (condition, ()), {})
    if not outcome:
        condition = recorder.call(torch.logical_not, (condition,), {})
    if recorder.asserted is not None:
        condition = recorder.call(torch.logical_and, (recorder.asserted, condition), {})
    recorder.asserted = condition


def answered(tracer: Tracer, answer: bool) -> bool:
    """Notes and returns the answer of a question about tensors' values."""
    if tracer.recorder.function_answers is not None:
        tracer.recorder.function_answers.append(answer)
    return answer


def _is_single(value: Any) -> bool:
    return all(type(size) is int and size == 1 for size in value.shape)
