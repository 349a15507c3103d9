"""Finds the tensors that one call mutates.

Three sources count: version counters of the fakes, ``out=`` arguments, and known operators whose
writes do not bump a version on fakes (running statistics, schemas that declare a write).
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture import out_variants
from tracer_core.fx_capture.fake_mode import Fakes, writes
from tracer_core.fx_capture.function_traits import (
    WRITING_OPERATORS,
    writes_unseen,
    written_arguments,
)
from tracer_core.fx_capture.may_raise import unseen_writes
from tracer_core.ops.calls import RESHAPE_IN_PLACE
from tracer_core.torch_private.needed import pytree


class CallWrites:
    """Mutable. fakes: the call's tensor arguments before it runs; memory: the ``out=``
    tensors. After the call, `realize` sets `written` and, in `unseen`, the tensors mutated without
    a version bump."""

    def __init__(self, fakes: list[Any], kwargs: dict[str, Any]) -> None:
        self.memory = out_variants.memory(kwargs)
        self.written = False
        self.unseen: list[Any] = []
        self._fakes = fakes
        self._before = [writes(fake) for fake in fakes]
        self._sizes = [tuple(fake.shape) for fake in fakes] if self.memory else []

    def resized_input(self, fakes: Fakes) -> bool:
        """Returns whether ``out=`` resized a graph input."""
        return any(
            fakes.real_of(fake) is not None and tuple(fake.shape) != size
            for fake, size in zip(self._fakes, self._sizes, strict=False)
        )

    def overlap(self, func_name: str) -> bool:
        """Returns whether a mutated tensor has two elements at one memory address. (One that only
        got other sizes or strides is not mutated.)"""
        counted = [] if func_name in RESHAPE_IN_PLACE else self._counted()
        return any(map(_overlaps_itself, [*self.memory, *counted]))

    def realize(self, func: Any, args: Any, kwargs: Any) -> None:
        """Sets `written` and `unseen`, once the call has run."""
        self.written = bool(self.memory) or func in WRITING_OPERATORS or bool(self.touched())
        self.unseen = unseen_writes(func, args, kwargs)
        if not self.written and writes_unseen(func):
            self.unseen, self.written = self._declared(func, args, kwargs), True
        counted = set(map(id, self._counted()))
        self.unseen = self.unseen + [item for item in self.memory if id(item) not in counted]

    def _declared(self, func: Any, args: Any, kwargs: Any) -> list[Any]:
        """Returns the arguments that the schema says are mutated; all of them where none does."""
        places = written_arguments(func)
        if places is None:
            return self._fakes
        values = [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in places
        ]
        tensors = {
            id(leaf) for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)
        }
        return [fake for fake in self._fakes if id(fake) in tensors]

    def storages(self) -> list[int]:
        """Returns the ids of the storages that were, or may have been, mutated."""
        return [torch_private.storage_id(fake) for fake in (*self.unseen, *self.touched())]

    def _counted(self) -> list[Any]:
        """Returns the arguments whose version counter changed."""
        pairs = zip(self._fakes, self._before, strict=True)
        return [fake for fake, before in pairs if writes(fake) != before]

    def touched(self) -> list[Any]:
        """Returns the arguments whose version counter changed and all inference tensors, which have
        none."""
        pairs = zip(self._fakes, self._before, strict=True)
        return [fake for fake, before in pairs if before is None or writes(fake) != before]


def _overlaps_itself(value: torch.Tensor) -> bool:
    """Returns whether an expanded dimension of a strided tensor aliases elements."""
    return value.layout is torch.strided and any(
        step == 0 and not isinstance(size, torch.SymInt) and size > 1
        for size, step in zip(value.shape, value.stride(), strict=True)
    )
