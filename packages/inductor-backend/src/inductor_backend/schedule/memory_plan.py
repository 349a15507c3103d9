"""Memory planning: places intermediate buffers in one arena, or makes them tensors.

The plan has byte offsets into the arena, per-call tensors, and the step after which an operator's
result may be dropped. A step is a group. Two buffers overlap in the arena only if one is dead
before the other is written; outputs are never in the arena; offsets are multiples of 64.
"""

from __future__ import annotations

import bisect
import enum
import functools
import itertools
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.ir.nodes import Buffer, BufferKind, LoopProgram
from inductor_backend.ir.size_source import ALIGNMENT
from inductor_backend.schedule.inplace_reuse import owned_results
from tracer_core.plugin_api import CompileSpec, Phase, Role

if TYPE_CHECKING:  # only their shape is used; the writers of kernels import this module
    from inductor_backend.ir.kernel_source import KernelSource
    from inductor_backend.schedule.fusion import Group


#: Bytes from which a separate allocation may be better than a range of the call's arena.
LARGE_TENSOR = 1 << 20


class Arena(enum.Enum):
    """Which buffers share one allocation per call."""

    ALL = "all temporaries"
    KERNELS = "temporaries that no operator touches"
    NONE = "nothing"


@functools.cache
def align_up() -> Any:
    """Returns a symbolic function that rounds a size up to a multiple of `ALIGNMENT`."""
    import sympy

    class AlignUp(sympy.Function):
        nargs = 1
        is_integer = True
        is_nonnegative = True

    return AlignUp


@dataclass(slots=True)
class Life:
    """First and last step that touches a buffer's memory."""

    first: int
    last: int


@dataclass(slots=True)
class MemoryPlan:
    """offsets: storage -> byte offset in the arena. size: bytes of the arena. drop_after: step ->
    names of tensors whose last use it is. over: tensor -> the tensor whose memory it reuses. breaks:
    kernels that are not launched by the call of the kernel before, but by the next one."""

    offsets: dict[str, Expr] = field(default_factory=dict)
    size: Expr = 0
    drop_after: dict[int, list[str]] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    breaks: set[int] = field(default_factory=set)


def plan_memory(
    program: LoopProgram,
    spec: CompileSpec,
    groups: Sequence[Group],
    kernels: Sequence[KernelSource | None],
    arena: Arena,
) -> MemoryPlan:
    """Plans the temporaries: they share one allocation per call, or (`Arena`) are separate tensors
    that reuse the memory of a tensor that their kernel reads last. Of the arena, which lives from its
    first use to its last, the buffers that tensors could reuse, or on GPUs all large ones, become
    tensors, too, if the call's peak memory shrinks; with those, kernels in a row may be several
    launches, between which memory is given back."""
    touched = touched_storages(program, groups, kernels)
    pairs = zip(touched, kernels, strict=True)
    by_operators = {name for names, kernel in pairs if kernel is None for name in names}
    life = lives(touched)
    outputs = {program.buffers[name].storage for name in program.output_names}
    owners = {name: program.buffers[name] for name in life}
    ours = {n: b for n, b in owners.items() if b.kind is not BufferKind.INPUT and n not in outputs}
    apart: Container[str] = {Arena.ALL: (), Arena.KERNELS: by_operators, Arena.NONE: ours}[arena]
    shared = {n: b for n, b in ours.items() if b.kind is BufferKind.TEMP and n not in apart}
    inputs = given_up(program, spec, outputs, life)

    def planned(moved: Container[str]) -> MemoryPlan:
        """moved: of the arena's buffers, those that are tensors."""
        in_arena = {name: buffer for name, buffer in shared.items() if name not in moved}
        plan = place(in_arena, life, [name for name in ours if name not in in_arena] + inputs)
        plan.over = _written_over(program, groups, kernels, life, outputs, in_arena)
        return plan

    large = {name for name, buffer in shared.items() if _is_large(buffer)}
    anywhere = _written_over(program, groups, kernels, life, outputs, {})
    reused = {other for name, other in anywhere.items() if name not in shared and other in large}
    plans = [planned(())]
    plans += [planned(reused)] if reused else []
    if arena is Arena.KERNELS:
        tensors = [life[name] for name, buffer in ours.items() if _is_large(buffer)]
        breaks = _breaks(kernels, tensors)
        plans += [planned(large)] if large else []
        plans += [replace(plans[-1], breaks=breaks)] if breaks else []
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: _most(owners, life, outputs, plan, _calls(kernels, plan)))


def _breaks(kernels: Sequence[KernelSource | None], tensors: Sequence[Life]) -> set[int]:
    """Returns the kernels that write the first of a tensor where a tensor was last used by a kernel
    before in the same call, whose memory it can have if that call ends before."""
    firsts, lasts = {life.first for life in tensors}, {life.last for life in tensors}
    result: set[int] = set()
    is_free = False
    for number, kernel in enumerate(kernels):
        if is_free and kernel is not None and number in firsts:
            result.add(number)
            is_free = False
        is_free = kernel is not None and (is_free or number in lasts)
    return result


def _calls(kernels: Sequence[KernelSource | None], plan: MemoryPlan) -> list[int]:
    """Returns the number of each group's call: kernels in a row are launched by one, which allocates
    what they write before the first and drops what they read after the last."""
    starts = [
        at == 0 or kernel is None or kernels[at - 1] is None or at in plan.breaks
        for at, kernel in enumerate(kernels)
    ]
    return list(itertools.accumulate(starts))


def _is_large(buffer: Buffer) -> bool:
    size = nbytes(buffer)
    return isinstance(size, int) and size >= LARGE_TENSOR


def _most(
    owners: dict[str, Buffer],
    life: dict[str, Life],
    outputs: set[str],
    plan: MemoryPlan,
    calls: Sequence[int],
) -> int:
    """Returns the peak bytes that a call allocates, without tensors of symbolic sizes."""
    change: Counter[int] = Counter()
    for name, buffer in owners.items():
        size = nbytes(buffer)
        if (
            buffer.kind is not BufferKind.INPUT
            and name not in plan.offsets
            and isinstance(size, int)
        ):
            change[calls[life[name].first] + (name in plan.over)] += size
            if name not in outputs:
                change[calls[life[name].last] + 1] -= size
    held = itertools.accumulate((change[step] for step in sorted(change)), initial=0)
    return max(held) + (plan.size if isinstance(plan.size, int) else 0)


def _written_over(
    program: LoopProgram,
    groups: Sequence[Group],
    kernels: Sequence[KernelSource | None],
    life: dict[str, Life],
    outputs: set[str],
    arena: Container[str],
) -> dict[str, str]:
    """Maps each tensor to one whose memory it reuses: a tensor that its kernel reads last, point by
    point. arena: buffers that are not tensors."""
    result: dict[str, str] = {}
    owned = owned_results(program, [group.extern for group in groups if group.extern is not None])
    for number, kernel in enumerate(kernels):
        if kernel is None:
            continue
        taken: set[str] = set()
        for place, places in kernel.reusable:
            name = kernel.pointers[place]
            if life[name].first != number or name in arena:
                continue
            for other in map(kernel.pointers.__getitem__, places):
                free = other in owned and other not in outputs and other not in arena
                if free and other not in taken and life[other].last == number:
                    result[name] = other
                    taken.add(other)
                    break
    return result


def touched_storages(
    program: LoopProgram, groups: Sequence[Group], kernels: Sequence[KernelSource | None]
) -> list[list[str]]:
    """Returns for each group the storages that its kernel, or its operator, reads or writes."""
    result = []
    for group, kernel in zip(groups, kernels, strict=True):
        if kernel is not None:
            result.append(list(kernel.pointers))
        else:
            assert group.extern is not None
            names = (*group.extern.reads(), *group.extern.writes)
            result.append([program.buffers[name].storage for name in names])
    return result


def lives(touched: Sequence[Sequence[str]]) -> dict[str, Life]:
    """Returns the lifetime of each storage. touched: for each step the storages it reads or writes."""
    result: dict[str, Life] = {}
    for step, names in enumerate(touched):
        for name in names:
            result.setdefault(name, Life(step, step)).last = step
    return result


def given_up(
    program: LoopProgram, spec: CompileSpec, outputs: set[str], life: dict[str, Life]
) -> list[str]:
    """Returns inputs of a backward whose last reference may be this call's: saved tensors and
    tangents."""
    if spec.phase is not Phase.BACKWARD:
        return []
    held = [
        name
        for name, value in zip(program.inputs, spec.inputs, strict=True)
        if value.role in (Role.SAVED_ACTIVATION, Role.USER_INPUT)
    ]
    return [name for name in held if name in life and name not in outputs]


def nbytes(buffer: Buffer) -> Expr:
    return simplify(buffer.layout.extent * buffer.dtype.itemsize)


def aligned(size: Expr) -> Expr:
    if isinstance(size, int):
        return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return align_up()(size)


def place(arena: dict[str, Buffer], life: dict[str, Life], tensors: Sequence[str]) -> MemoryPlan:
    """Assigns arena offsets. arena: buffers to place. tensors: per-call tensors that may be dropped
    early."""
    plan = MemoryPlan()
    for name in tensors:
        if name in life:
            plan.drop_after.setdefault(life[name].last, []).append(name)
    static = {name: aligned(nbytes(b)) for name, b in arena.items()}
    if all(isinstance(size, int) for size in static.values()):
        _place_static({n: int(s) for n, s in static.items()}, life, plan)
    else:
        _place_slots(static, life, plan)
    return plan


def _place_static(sizes: dict[str, int], life: dict[str, Life], plan: MemoryPlan) -> None:
    """Places buffers largest first, each at the lowest offset that is free during its whole life."""
    intervals: list[tuple[int, int, int, Life]] = []  # by offset; the third tells equal ones apart
    total = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], life[n].first)):
        mine, size, offset = life[name], sizes[name], 0
        for start, stop, _, other in intervals:
            if other.last < mine.first or mine.last < other.first:
                continue
            if start - offset >= size:
                break
            offset = max(offset, stop)
        bisect.insort(intervals, (offset, offset + size, len(intervals), mine))
        plan.offsets[name] = offset
        total = max(total, offset + size)
    plan.size = total


def _place_slots(sizes: dict[str, Expr], life: dict[str, Life], plan: MemoryPlan) -> None:
    """Places buffers of symbolic sizes: sizes cannot be compared, so only a buffer of the same size
    reuses a slot."""
    slots: list[tuple[Expr, Expr, int]] = []  # (size, offset, last step)
    total: Expr = 0
    for name in sorted(sizes, key=lambda n: life[n].first):
        for place, (size, offset, last) in enumerate(slots):
            if size == sizes[name] and last < life[name].first:
                slots[place] = (size, offset, life[name].last)
                plan.offsets[name] = offset
                break
        else:
            slots.append((sizes[name], total, life[name].last))
            plan.offsets[name] = total
            total = simplify(total + sizes[name])
    plan.size = total
