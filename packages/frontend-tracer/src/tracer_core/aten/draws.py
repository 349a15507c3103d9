"""Which random numbers of a recording are drawn again.

In: the operators that draw, as they are recorded. Out: what an earlier operator drew, where a program has put the
generator back to where it was then: ``torch.utils.checkpoint`` does so before it computes a region again. What always
holds: nothing is drawn while a graph is recorded, so the place in the stream is marked in the generator itself (its seed
is a number of ours, which programs save and set again without knowing it), and the user's state is put back at the end.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.aten.errors import LoweringUnsupported

#: Seeds that mark places: no two recordings share one, and no program has them by itself.
_PLACES = itertools.count((1 << 62) + 0x5EED)


class Draws:
    """Of one recording (mutable)."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Any, int]] = {}  # place -> the call, what it drew, the place after it

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Inside, the default generator holds marks instead of the user's state."""
        generator = torch.default_generator
        state = generator.get_state()
        try:
            generator.manual_seed(next(_PLACES))
            yield
        finally:
            generator.set_state(state)

    def drawn(self, call: str, draw: Callable[[], Any]) -> Any:
        """What `draw` gives, or gave when the generator was in this place. call: the operator, and all that its
        numbers depend on, as text."""
        generator = torch.default_generator
        place = generator.initial_seed()
        known = self._made.get(place)
        if known is None:
            result, after = draw(), next(_PLACES)
            self._made[place] = (call, result, after)
        else:
            other, result, after = known
            if other != call:
                raise LoweringUnsupported(
                    f"{call} draws again from where {other} has drawn: the generator was put back"
                )
        generator.manual_seed(after)
        return result
