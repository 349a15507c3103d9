"""Snapshots the inputs that a graph mutates, to undo the mutations if the graph raises half-way.

After `undo` returns True each tensor has its old values and its old place in autograd's graph, so
the program can run in eager mode instead; after False none was touched.

Tensors are copied only where a copy may be needed: before operators with value checks (`always`),
and in the first run of a cache entry, where real operators may raise although their meta functions
did not. Large tensors (the key-value caches of a language model, of which a step writes one row)
are copied in the first run only, and in the run after one that raised. If another run raises, its
error is the program's, and its writes stay.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.debug.crossed_limits import reporter
from tracer_core.fx_capture.data_errors import DataDiffers
from tracer_core.limits import MAX_SNAPSHOT_BYTES, MAX_SNAPSHOT_BYTES_ALWAYS

#: What operators and our own checks raise. A backend says before which it may have written.
_OF_OPERATORS = (
    *(RuntimeError, ValueError, IndexError, TypeError, ArithmeticError, MemoryError),
    DataDiffers,
)

#: (tensors, their version counters, position -> copy of those that are copied, position ->
#: `grad_fn` of those that require a gradient).
SavedInputs = tuple[Sequence[torch.Tensor], list[Any], dict[int, torch.Tensor], dict[int, Any]]

#: Attributes of a tensor, read for hundreds of tensors in each call of a training step.
_VERSION: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
_REQUIRES_GRAD: Callable[[torch.Tensor], bool] = operator.attrgetter("requires_grad")

_NONE = object()


class InputSnapshot:
    """The mutated inputs of one graph. Mutable. always: positions of tensors that are copied before
    every run. is_new: copy all of them."""

    __slots__ = ("always", "is_new", "_report")

    def __init__(self, always: frozenset[int], is_new: bool) -> None:
        self.always, self.is_new = always, is_new
        self._report = reporter()

    def save(self, tensors: Sequence[torch.Tensor]) -> SavedInputs:
        """Returns what `undo` needs of the tensors."""
        copied: Any = self.always
        if self.is_new:
            self.is_new = False
            if _fit(tensors, MAX_SNAPSHOT_BYTES):
                copied = range(len(tensors))
            else:
                self._report("MAX_SNAPSHOT_BYTES")
        elif copied and not _fit([tensors[i] for i in copied], MAX_SNAPSHOT_BYTES_ALWAYS):
            copied = ()
            self._report("MAX_SNAPSHOT_BYTES_ALWAYS")
        required = list(map(_REQUIRES_GRAD, tensors))
        return (
            tensors,
            _versions(tensors),
            {i: _copy(tensors[i]) for i in copied},
            {i: tensors[i].grad_fn for i, item in enumerate(required) if item},
        )

    def undo(self, saved: SavedInputs, error: Exception) -> bool:
        """Restores the tensors as they were when `saved` was made; returns whether it could. error:
        what the graph raised; one that no operator raises may have come after unnoticed writes."""
        self.is_new = True  # a graph that raised once may do so again
        tensors, before, copies, histories = saved
        if not isinstance(error, _OF_OPERATORS) and len(copies) < len(tensors):
            return False
        now = _versions(tensors)
        changed = [i for i in range(len(tensors)) if i in copies or now[i] != before[i]]
        if not all(
            i in copies and _can_be_undone(tensors[i], copies[i], histories.get(i, _NONE))
            for i in changed
        ):
            return False
        for i in changed:
            if tensors[i].requires_grad and i not in histories:
                tensors[i].detach_()
            _once(tensors[i]).copy_(copies[i])
        return True


def _fit(tensors: Sequence[torch.Tensor], n_bytes: int) -> bool:
    for tensor in tensors:
        n_bytes -= tensor.nbytes
        if n_bytes < 0:
            return False
    return True


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad or not tensor.is_contiguous():
        tensor = _once(tensor)
    return tensor.clone()


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view without repeated memory: torch refuses to write to expanded tensors."""
    data = tensor.data
    for dim, (size, stride) in enumerate(zip(data.shape, data.stride(), strict=True)):
        if stride == 0 and size > 1:
            data = data.narrow(dim, 0, 1)
    return data


def _can_be_undone(tensor: torch.Tensor, copy: torch.Tensor, history: Any) -> bool:
    """history: the `grad_fn` that a tensor which required a gradient had, else `_NONE`."""
    if _once(tensor).shape != copy.shape:
        return False
    if history is not _NONE:
        return bool(tensor.requires_grad and tensor.grad_fn is history)
    return not tensor.requires_grad or not tensor._is_view()


def _versions(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Returns the version counters; of inference tensors, which have none, objects equal to
    nothing."""
    try:
        return list(map(_VERSION, tensors))
    except RuntimeError:
        return [object() if tensor.is_inference() else tensor._version for tensor in tensors]
