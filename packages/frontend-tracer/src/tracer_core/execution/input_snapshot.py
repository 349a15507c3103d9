"""What a graph's inputs held before it ran, for the graph that raises half-way.

In: the tensors that a graph writes to. Out: whether they are as before it. What always holds: where
`undo` says yes, each of them has its old values and its old place in autograd's graph, so the
program can be run in the graph's place; where it says no, none was touched.

A copy costs what the tensors cost, so it is made where it may be needed: ahead of operators that
check values (`always`), and in the first run of a variant, whose operators may refuse what their
fakes took. Large tensors (the key-value caches of a language model, of which a step writes one row)
are copied in the first run only, and in the one after a run that raised: where another one raises,
its error is the program's, and its writes stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

#: The most bytes that are copied ahead of a first run for no other reason than that it is the
#: first.
_MOST_BYTES = 1 << 26
#: The most bytes that are copied ahead of every run.
_MOST_BYTES_ALWAYS = 1 << 20


class InputSnapshot:
    """Mutable. always: positions of the tensors that are copied ahead of every run. is_new: all
    are.
    """

    __slots__ = ("always", "is_new")

    def __init__(self, always: frozenset[int], is_new: bool) -> None:
        self.always, self.is_new = always, is_new

    def keep(self, tensors: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
        """(tensor, how often it was written to, copy or None, grad_fn or None) of each."""
        copied: Any = self.always
        if self.is_new:
            self.is_new = False
            if sum(tensor.nbytes for tensor in tensors) <= _MOST_BYTES:
                copied = range(len(tensors))
        elif copied and sum(tensors[i].nbytes for i in copied) > _MOST_BYTES_ALWAYS:
            copied = ()
        return [
            (tensor, _writes(tensor), _once(tensor).clone() if i in copied else None,
             tensor.grad_fn if tensor.requires_grad else None, tensor.requires_grad)
            for i, tensor in enumerate(tensors)
        ]  # fmt: skip

    def undo(self, kept: list[tuple[Any, ...]]) -> bool:
        """Whether the tensors are as they were when they were kept."""
        self.is_new = True  # what raised once may do so again
        changed = [one for one in kept if one[2] is not None or _writes(one[0]) != one[1]]
        if not all(map(_can_be_undone, changed)):
            return False
        for tensor, _, copy, _, required in changed:
            if tensor.requires_grad and not required:
                tensor.detach_()
            _once(tensor).copy_(copy)
        return True


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's data, each place in memory once: torch refuses to write to what was expanded."""
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
    """How often a tensor was written to; something that equals nothing where torch does not
    count.
    """
    return object() if tensor.is_inference() else tensor._version
