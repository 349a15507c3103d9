"""In-place reuse: finds results that may overwrite a dead operand, and stores that may race loads.

For a kernel that computes each point once, a result may take an operand's addresses only if every
access of the operand is at the address where the same point's result is stored, element sizes are
equal, and the stored value depends on every element that the kernel reads of the operand. So no
later phase, and no other thread of the block, reads the operand after the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.nodes import BufferKind, ExternNode, LoopProgram, Store, loads_of
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody
from tracer_core.plugin_api import Trait, operators, overloads_with

aten = operators("aten")

#: Operators whose (first) result never aliases an argument.
FRESH_RESULTS = overloads_with(Trait.PRODUCT) | {aten.convolution_backward.default}


def places_to_reuse(program: LoopProgram, body: KernelBody) -> dict[str, list[str]]:
    """Maps each written buffer to the operands whose memory it may take; empty lists are left out."""
    read: dict[str, list[Value]] = {}
    for load in loads_of(body.values()):
        if load.buffer not in body.registers:
            read.setdefault(program.buffers[load.buffer].storage, []).append(load)
    written = {program.buffers[name].storage for name in body.writes}
    result: dict[str, list[str]] = {}
    for phase in body.phases:
        for store in phase.stores:
            (name,) = store.buffers
            target = program.buffers[name]
            if (
                not store.is_assignment
                or target.storage != name
                or target.kind is not BufferKind.TEMP
            ):
                continue
            address, before = _address(program, name, store.index), set(topological([store.value]))
            fits = [
                other
                for other, loads in read.items()
                if before.issuperset(loads)
                and {_place(program, load) for load in loads} == {address}
                and _alike(program, other, name)
                and other not in written
            ]
            if fits:
                result[name] = fits
    return result


def overtakes(
    program: LoopProgram, body: KernelBody, stores: Iterable[Store], once_a_row: bool
) -> bool:
    """Returns whether one thread of a block might store what another has not read yet. That is
    excluded only where the stored value depends on what is read. once_a_row: each thread of a row
    reads, and one stores."""
    read: dict[str, set[Value]] = {}
    for load in loads_of(body.values()):
        if load.buffer not in body.registers:
            read.setdefault(program.buffers[load.buffer].storage, set()).add(load)
    for store in stores:
        before = set() if once_a_row else set(topological(store.roots))
        if any(read.get(program.buffers[name].storage, set()) - before for name in store.buffers):
            return True
    return False


def _place(program: LoopProgram, value: Value) -> Index | None:
    """Returns the index that a load reads, None where it is not always the same element."""
    return _address(program, value.buffer, value.attr[1]) if value.name == "load" else None


def _address(program: LoopProgram, name: str, index: tuple[Index, ...]) -> Index:
    return program.buffers[name].layout.flat(index)


def _alike(program: LoopProgram, other: str, name: str) -> bool:
    """Returns whether both have one dtype and extent, and memory of their own."""
    a, b = program.buffers[other], program.buffers[name]
    same = (
        a.dtype == b.dtype
        and a.layout.extent == b.layout.extent
        and a.layout.offset == b.layout.offset
    )
    return same and a.storage == other and a.kind is not BufferKind.INPUT


def owned_results(program: LoopProgram, calls: Iterable[ExternNode]) -> set[str]:
    """Returns buffers whose memory only this graph can reach: its own, and fresh results of
    operators."""
    buffers = {name for name, buffer in program.buffers.items() if buffer.kind is BufferKind.TEMP}
    for call in calls:
        if call.target in FRESH_RESULTS:
            buffers.update(call.writes)
    return buffers
