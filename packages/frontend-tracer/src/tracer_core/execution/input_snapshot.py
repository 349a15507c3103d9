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

from collections.abc import Sequence
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


class InputSnapshot:
    """The mutated inputs of one graph. Mutable. always: positions of tensors that are copied before
    every run. is_new: copy all of them."""

    __slots__ = ("always", "is_new", "_report")

    def __init__(self, always: frozenset[int], is_new: bool) -> None:
        self.always, self.is_new = always, is_new
        self._report = reporter()

    def keep(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
        """Returns (tensor, write count, copy or None, grad_fn or None, requires_grad) of each
        tensor."""
        copied: Any = self.always
        if self.is_new:
            self.is_new = False
            if sum(tensor.nbytes for tensor in tensors) <= MAX_SNAPSHOT_BYTES:
                copied = range(len(tensors))
            else:
                self._report("MAX_SNAPSHOT_BYTES")
        elif copied and sum(tensors[i].nbytes for i in copied) > MAX_SNAPSHOT_BYTES_ALWAYS:
            copied = ()
            self._report("MAX_SNAPSHOT_BYTES_ALWAYS")
        return [
            (tensor, _writes(tensor), _once(tensor).clone() if i in copied else None,
             tensor.grad_fn if tensor.requires_grad else None, tensor.requires_grad)
            for i, tensor in enumerate(tensors)
        ]  # fmt: skip

    def undo(self, kept: list[tuple[Any, ...]], error: Exception) -> bool:
        """Restores the tensors as they were when `kept` was made; returns whether it could. error:
        what the graph raised; one that no operator raises may have come after unnoticed writes."""
        self.is_new = True  # a graph that raised once may do so again
        if not isinstance(error, _OF_OPERATORS) and any(one[2] is None for one in kept):
            return False
        changed = [one for one in kept if one[2] is not None or _writes(one[0]) != one[1]]
        if not all(map(_can_be_undone, changed)):
            return False
        for tensor, _, copy, _, required in changed:
            if tensor.requires_grad and not required:
                tensor.detach_()
            _once(tensor).copy_(copy)
        return True


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view without repeated memory: torch refuses to write to expanded tensors."""
    data = tensor.data
    for dim, (size, stride) in enumerate(zip(data.shape, data.stride(), strict=True)):
        if stride == 0 and size > 1:
            data = data.narrow(dim, 0, 1)
    return data


def _can_be_undone(one: tuple[Any, ...]) -> bool:
    tensor, _, copy, history, required = one
    if copy is None or _once(tensor).shape != copy.shape:
        return False
    if required:
        return bool(tensor.requires_grad and tensor.grad_fn is history)
    return not tensor.requires_grad or not tensor._is_view()


def _writes(tensor: torch.Tensor) -> Any:
    """Returns the tensor's version counter, or an object equal to nothing if there is none."""
    return object() if tensor.is_inference() else tensor._version
