"""Which results may be written over an operand that nobody needs any more.

In: a fused body whose kernel computes each point once, and buffer layouts. Out: buffer written -> operands at whose
addresses it may be written. What always holds: every access of the operand in the kernel is at the very address that the
result's element of the same point is stored to, and both have elements of one size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from inductor_backend.index_expr import Index
from inductor_backend.loop_ir.nodes import BufferKind, ExternNode, Program, loads_of
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
    for found in loads_of(body.values()):
        if found.buffer not in body.registers:
            address = _address(program, found.buffer, found.attr[1]) if found.name == "load" else None
            read.setdefault(found.buffer, set()).add(address)
    result: dict[str, list[str]] = {}
    for phase in body.phases:
        for store in phase.stores:
            (name,) = store.buffers
            target = program.buffers[name]
            if not store.plain or target.storage != name or target.kind is not BufferKind.TEMP:
                continue
            address = _address(program, name, store.index)
            fits = [
                other
                for other, addresses in read.items()
                if addresses == {address} and _alike(program, other, name) and other not in body.writes
            ]
            if fits:
                result[name] = fits
    return result


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
