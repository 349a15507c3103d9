"""Which results may be written over an operand that nobody needs any more.

In: a fused body whose kernel computes each point once, and buffer layouts. Out: buffer written -> operands at whose
addresses it may be written. What always holds: every access of the operand in the kernel is at the very address that the
result's element of the same point is stored to, and both have elements of one size; none comes in a later phase than the
store, and what is stored is computed from the operand's element, so that no thread writes before another has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from inductor_backend.index_expr import Index
from inductor_backend.loop_ir.nodes import BufferKind, ExternNode, Program, Store, loads_of
from inductor_backend.loop_ir.values import Value
from inductor_backend.schedule.fused_body import KernelBody

aten = torch.ops.aten

#: Operators whose (first) result is memory of its own, whatever their arguments.
FRESH_RESULTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
    }
)


def places_to_reuse(program: Program, body: KernelBody) -> dict[str, list[str]]:
    """Empty lists are left out."""
    read: dict[str, set[Any]] = {}
    last: dict[str, int] = {}  # operand -> the last phase that reads it
    for number, phase in enumerate(body.phases):
        for found in _loaded(body, (*phase.row, *phase.loop)):
            address = _address(program, found.buffer, found.attr[1]) if found.name == "load" else None
            read.setdefault(found.buffer, set()).add(address)
            last[found.buffer] = number
    result: dict[str, list[str]] = {}
    for number, phase in enumerate(body.phases):
        for store in phase.stores:
            (name,) = store.buffers
            target = program.buffers[name]
            if not store.plain or target.storage != name or target.kind is not BufferKind.TEMP:
                continue
            address = _address(program, name, store.index)
            sources = dict.fromkeys(found.buffer for found in _loaded(body, [store]))
            fits = [
                other
                for other in sources
                if last[other] <= number
                and read[other] == {address}
                and _alike(program, other, name)
                and other not in body.writes
            ]
            if fits:
                result[name] = fits
    return result


def _loaded(body: KernelBody, stores: Iterable[Store]) -> list[Value]:
    """The loads from memory for these stores."""
    found = loads_of([root for store in stores for root in store.roots])
    return [load for load in found if load.buffer not in body.registers]


def _address(program: Program, name: str, index: tuple[Index, ...]) -> Index:
    return program.buffers[name].layout.flat(index)


def _alike(program: Program, other: str, name: str) -> bool:
    """Of one element type and extent, in memory of its own."""
    a, b = program.buffers[other], program.buffers[name]
    same = a.dtype == b.dtype and a.layout.extent == b.layout.extent and a.layout.offset == b.layout.offset
    return same and a.storage == other and a.kind is not BufferKind.INPUT


def owned_results(program: Program, calls: Iterable[ExternNode]) -> set[str]:
    """Buffers whose memory this graph alone knows: its own, and fresh results of operators."""
    found = {name for name, buffer in program.buffers.items() if buffer.kind is BufferKind.TEMP}
    for call in calls:
        if call.target in FRESH_RESULTS:
            found.update(call.writes)
    return found
