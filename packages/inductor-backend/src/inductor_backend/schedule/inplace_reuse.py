"""Which results may be written over an operand that nobody needs any more, and which stores may
overtake loads.

In: a fused body whose kernel computes each point once, and buffer layouts. Out: buffer written ->
operands at whose addresses it may be written. What always holds: every access of the operand in the
kernel is at the very address that the result's element of the same point is stored to, both have
elements of one size, and the stored value is computed from every element that the kernel reads of
the operand. So nothing of it is read after the store: neither by a later phase of the kernel, nor
by a thread of the block that other threads' stores overtake.
"""

from __future__ import annotations

from collections.abc import Iterable

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.nodes import BufferKind, ExternNode, Program, Store, loads_of
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Operators whose (first) result is memory of its own, whatever their arguments.
FRESH_RESULTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten.convolution_backward.default,
    }
)


def places_to_reuse(program: Program, body: KernelBody) -> dict[str, list[str]]:
    """Empty lists are left out."""
    read: dict[str, list[Value]] = {}
    for found in loads_of(body.values()):
        if found.buffer not in body.registers:
            read.setdefault(program.buffers[found.buffer].storage, []).append(found)
    written = {program.buffers[name].storage for name in body.writes}
    result: dict[str, list[str]] = {}
    for phase in body.phases:
        for store in phase.stores:
            (name,) = store.buffers
            target = program.buffers[name]
            if not store.plain or target.storage != name or target.kind is not BufferKind.TEMP:
                continue
            address, before = _address(program, name, store.index), set(topological([store.value]))
            fits = [
                other
                for other, loads in read.items()
                if before.issuperset(loads)
                and {_place(program, found) for found in loads} == {address}
                and _alike(program, other, name)
                and other not in written
            ]
            if fits:
                result[name] = fits
    return result


def overtakes(
    program: Program, body: KernelBody, stores: Iterable[Store], once_a_row: bool
) -> bool:
    """Whether a thread of a block might store what another one has not read yet: the two are one,
    or in step, for certain only where the stored value is computed from what is read. once_a_row:
    each thread of a row reads, and one stores."""
    read: dict[str, set[Value]] = {}
    for found in loads_of(body.values()):
        if found.buffer not in body.registers:
            read.setdefault(program.buffers[found.buffer].storage, set()).add(found)
    for store in stores:
        before = set() if once_a_row else set(topological(store.roots))
        if any(read.get(program.buffers[name].storage, set()) - before for name in store.buffers):
            return True
    return False


def _place(program: Program, found: Value) -> Index | None:
    """Where a load reads, None where that is not always the same element."""
    return _address(program, found.buffer, found.attr[1]) if found.name == "load" else None


def _address(program: Program, name: str, index: tuple[Index, ...]) -> Index:
    return program.buffers[name].layout.flat(index)


def _alike(program: Program, other: str, name: str) -> bool:
    """Of one element type and extent, in memory of its own."""
    a, b = program.buffers[other], program.buffers[name]
    same = (
        a.dtype == b.dtype
        and a.layout.extent == b.layout.extent
        and a.layout.offset == b.layout.offset
    )
    return same and a.storage == other and a.kind is not BufferKind.INPUT


def owned_results(program: Program, calls: Iterable[ExternNode]) -> set[str]:
    """Buffers whose memory this graph alone knows: its own, and fresh results of operators."""
    found = {name for name, buffer in program.buffers.items() if buffer.kind is BufferKind.TEMP}
    for call in calls:
        if call.target in FRESH_RESULTS:
            found.update(call.writes)
    return found
