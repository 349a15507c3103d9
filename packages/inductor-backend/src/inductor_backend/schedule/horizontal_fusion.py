"""Horizontal fusion: finds independent kernels that are worth one launch (for GPUs).

The programs of such kernels run side by side, without the gap between two launches: the products of a
row with several matrices, small updates of different sizes. A kernel moves up to an earlier one of
the same run (between two operator calls) where nothing between the two touches what either writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from inductor_backend.limits import MAX_COMBINED_BYTES, MAX_COMBINED_KERNELS, MAX_UPDATE_POINTERS
from inductor_backend.schedule.memory_plan import LARGE_TENSOR

#: Bytes that a GPU moves in about the time between two launches: kernels that move no more share one
#: whatever their tiles are.
SMALL_KERNEL = 4 << 20

#: How many launches a kernel moves up at most.
NEAR = 64


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel as `independent_kernels` sees it."""

    #: Storages that it reads or writes, and those that it writes.
    touched: frozenset[str]
    written: frozenset[str]
    #: Bytes that it must move, and of temporary buffers that it writes.
    nbytes: int
    temporary: int
    #: How many arguments it has.
    parameters: int
    #: Reductions of equal tiles have an equal one; None for pointwise kernels.
    tile: Hashable
    #: It cannot share a launch.
    alone: bool = False


class _Launches:
    """Mutable: the kernels of one launch, by their numbers."""

    def __init__(self, number: int, first: Launch) -> None:
        self.numbers, self.members = [number], [first]
        self.touched, self.written = first.touched, first.written

    def add(self, number: int, launch: Launch) -> None:
        self.numbers.append(number)
        self.members.append(launch)
        self.touched |= launch.touched
        self.written |= launch.written

    def depends(self, launch: Launch) -> bool:
        """Returns whether the order of this launch and another matters."""
        return not (
            self.written.isdisjoint(launch.touched) and launch.written.isdisjoint(self.touched)
        )

    def gains(self, launch: Launch) -> bool:
        """Returns whether the other one is worth no launch of its own beside these."""
        every = [*self.members, launch]
        if len(every) > MAX_COMBINED_KERNELS or any(member.alone for member in every):
            return False
        if sum(member.parameters for member in every) > MAX_UPDATE_POINTERS:
            return False
        alike = launch.tile is not None and all(member.tile == launch.tile for member in every)
        if alike:
            return sum(member.nbytes for member in every) <= MAX_COMBINED_BYTES
        return all(member.nbytes <= SMALL_KERNEL for member in every)


def independent_kernels(launches: Sequence[Launch | None]) -> list[list[int]]:
    """Returns the numbers of the kernels of each launch, in order; None is an operator call, which
    nothing passes."""
    result: list[_Launches | None] = []
    for number, launch in enumerate(launches):
        place = None if launch is None else _place(result, launch)
        if place is not None and launch is not None:
            place.add(number, launch)
        else:
            result.append(None if launch is None else _Launches(number, launch))
    numbers = iter(number for number, launch in enumerate(launches) if launch is None)
    return [[next(numbers)] if item is None else item.numbers for item in result]


def _place(before: Sequence[_Launches | None], launch: Launch) -> _Launches | None:
    """Returns the earliest launch that a kernel can join, so that equal chains of kernels share each
    of their launches; None where it needs one of its own."""
    near = before[-NEAR if launch.temporary <= LARGE_TENSOR else -1 :]
    result = None
    for other in reversed(near):
        if other is None or other.depends(launch):
            break
        if other.gains(launch):
            result = other
    return result
