"""Branch prediction: prepares a graph's call before it is known whether the call is made.

A branch on a tensor of a GPU makes the host wait until the device has computed the tensor. Meanwhile
the code region behind the likely outcome checks its guards, fetches its graph's inputs and runs the
operators that only prepare the graph. Before anything that another part of the program could see,
`commit` reads the tensor. If the branch goes the other way, `commit` raises `Mispredicted`, and the
program continues as if nothing had been prepared.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.contract.runner import RunFunction
from tracer_core.limits import MIN_EQUAL_OUTCOMES


class Mispredicted(BaseException):
    """A branch goes another way than predicted. Nobody but the caller of the region catches it."""


class Outcomes:
    """How one branch went in its last executions. Mutable.

    outcome: of the last one. streak: how many executions in a row had it.
    """

    __slots__ = ("outcome", "streak")

    def __init__(self) -> None:
        self.outcome, self.streak = False, 0

    def note(self, outcome: bool) -> None:
        """Records the outcome of one execution."""
        self.streak = self.streak + 1 if outcome is self.outcome else 1
        self.outcome = outcome

    def is_predictable(self) -> bool:
        """Returns whether the branch went the same way often enough to be predicted."""
        return self.streak >= MIN_EQUAL_OUTCOMES


class Prediction:
    """One predicted branch. Mutable.

    read: returns the truth of the tensor that decides. state: of the region behind the predicted
    outcome. continuation: has the values at the branch, which it holds until the prediction is
    right. is_right: None until the tensor is read. in_graph: the region has called its graph, which
    calls `commit`.
    """

    __slots__ = ("read", "outcome", "state", "continuation", "is_right", "in_graph")

    def __init__(
        self, condition: torch.Tensor, outcome: bool, state: tuple[Any, ...], continuation: Any
    ) -> None:
        self.read: Callable[[], bool] | None = read_ahead(condition)
        self.outcome, self.state, self.continuation = outcome, state, continuation
        self.is_right: bool | None = None
        self.in_graph = False

    def resolve(self) -> None:
        """Waits for the condition.

        Raises Mispredicted if it has the other truth, or none: the branch itself then raises.
        """
        if self.is_right is None:
            try:
                self.is_right = self.read is not None and self.read() is self.outcome
            except Exception:
                self.is_right = False
            self.read = None
        if not self.is_right:
            raise Mispredicted
        CURRENT.prediction = None
        self.continuation.values = ()


class _Current(threading.local):
    """The thread's open prediction, and the copies of conditions in pinned memory by dtype."""

    prediction: Prediction | None = None

    def __init__(self) -> None:
        self.copies: dict[torch.dtype, torch.Tensor] = {}


CURRENT = _Current()


def read_ahead(condition: torch.Tensor) -> Callable[[], bool]:
    """Returns a function that waits for a tensor of one element and returns its truth.

    The copy to the host is queued now: the function does not wait for work that comes later.
    """
    if not condition.is_cuda or condition.numel() != 1:
        return functools.partial(bool, condition)
    with torch.inference_mode(False), torch.no_grad():
        copy = CURRENT.copies.get(condition.dtype)
        if copy is None:
            copy = torch.empty((), dtype=condition.dtype, device="cpu", pin_memory=True)
            CURRENT.copies[condition.dtype] = copy
        copy.copy_(condition.detach().reshape(()), non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(condition.device))

    def read() -> bool:
        copied.synchronize()
        return bool(copy)

    return read


def is_awaited(value: Any) -> bool:
    """Returns whether the host waits for a device to read a value."""
    return type(value) is torch.Tensor and value.is_cuda


def commits(run: RunFunction | None) -> bool:
    """Returns whether a runner calls `commit` itself, before its first effect."""
    return getattr(run, "commits", False)


def committing(run: RunFunction, inner: RunFunction | None = None) -> RunFunction:
    """Marks a runner that calls `commit` itself. inner: the runner that it only calls, which does."""
    if inner is None or (run is not inner and commits(inner)):
        vars(run)["commits"] = True
    return run


def is_predicted() -> bool:
    """Returns whether a branch that the caller's work depends on is not known yet."""
    prediction = CURRENT.prediction
    return prediction is not None and prediction.in_graph


def commit() -> None:
    """Waits for the branch that the caller's work depends on, if it was predicted.

    A runner with a true attribute ``commits`` is called before the branch is known. It calls this
    function before the first effect that the program or another call can see: a write to an input, a
    random number drawn, a kernel that may raise.

    Raises:
        Mispredicted: The branch goes the other way. The runner lets this exception pass.
    """
    prediction = CURRENT.prediction
    if prediction is not None and prediction.in_graph:
        prediction.resolve()


def after_commit(run: RunFunction) -> RunFunction:
    """Returns `run`, which calls `commit` first unless it does so itself."""
    if commits(run):
        return run

    def call(inputs: list[Any]) -> Sequence[Any]:
        commit()
        return run(inputs)

    return committing(call)


def commit_region(state: Any, run: RunFunction | None) -> None:
    """Calls `commit` before a region with this state runs `run`, unless `run` does so itself."""
    prediction = CURRENT.prediction
    if prediction is None or prediction.state is not state:
        return
    if commits(run):
        prediction.in_graph = True
    else:
        prediction.resolve()
