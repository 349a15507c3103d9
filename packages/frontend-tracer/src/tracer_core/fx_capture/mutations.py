"""What one call writes to: by torch's counts on fakes, by ``out=``, and by what is known of its
function.

In: a call's tensors before it runs; its function after. Out: the fakes that it has written to. What
always holds: a write that torch does not count on fakes (``out=``, running statistics, a schema
that says so) is one of them.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture import out_variants
from tracer_core.fx_capture.fake_mode import Fakes, writes
from tracer_core.fx_capture.function_traits import WRITING_OPERATORS, writes_unseen
from tracer_core.fx_capture.may_raise import unseen_writes


class CallWrites:
    """Mutable. given: the call's tensors, as fakes, before it runs; memory: those of ``out=``.
    After the call `realize` says whether it has written and, in `unseen`, to which of them without
    being counted."""

    def __init__(self, given: list[Any], kwargs: dict[str, Any]) -> None:
        self.memory = out_variants.memory(kwargs)
        self.written = False
        self.unseen: list[Any] = []
        self._given = given
        self._before = [writes(fake) for fake in given]
        self._sizes = [tuple(fake.shape) for fake in given] if self.memory else []

    def resized_input(self, fakes: Fakes) -> bool:
        """Whether the call gave an input of the graph other sizes, which ``out=`` may."""
        return any(
            fakes.real_of(fake) is not None and tuple(fake.shape) != size
            for fake, size in zip(self._given, self._sizes, strict=False)
        )

    def overlap(self) -> bool:
        """Whether two elements of what was written to are one place in memory."""
        return any(map(_overlaps_itself, [*self.memory, *self._counted()]))

    def realize(self, func: Any, args: Any, kwargs: Any) -> None:
        """The call has run."""
        self.written = bool(self.memory) or func in WRITING_OPERATORS or bool(self._touched())
        self.unseen = unseen_writes(func, args, kwargs)
        if not self.written and writes_unseen(func):
            self.unseen, self.written = self._given, True
        counted = set(map(id, self._counted()))
        self.unseen = self.unseen + [one for one in self.memory if id(one) not in counted]

    def storages(self) -> list[int]:
        """The storages that were written to, or may have been."""
        return [torch_private.storage_id(fake) for fake in (*self.unseen, *self._touched())]

    def _counted(self) -> list[Any]:
        """What torch counted a write to."""
        pairs = zip(self._given, self._before, strict=True)
        return [fake for fake, before in pairs if writes(fake) != before]

    def _touched(self) -> list[Any]:
        """The same, and inference tensors, of which torch does not count writes."""
        pairs = zip(self._given, self._before, strict=True)
        return [fake for fake, before in pairs if before is None or writes(fake) != before]


def _overlaps_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a strided tensor are one place in memory because a dimension was
    expanded.
    """
    return value.layout is torch.strided and any(
        step == 0 and not isinstance(size, torch.SymInt) and size > 1
        for size, step in zip(value.shape, value.stride(), strict=True)
    )
