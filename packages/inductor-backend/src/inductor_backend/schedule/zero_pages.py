"""Leaves the zeros of large results that a scatter adds a few rows to, to the system (CPU).

An embedding's gradient is zero but for the rows of a batch's tokens. Fresh memory is zero: a page of it
exists once something is written to it, and reads of others find zeros. 103 MB (50,432 rows) took 16
milliseconds to fill, 50 with the page faults of ordinary pages, and up to 260 where the system had to
look for huge pages; now the pages of 512 rows are mapped.
"""

from __future__ import annotations

import math
from dataclasses import replace

from inductor_backend.ir.index_expr import Index, Var, product
from inductor_backend.ir.nodes import Buffer, BufferKind, LoopNode, LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.runtime.huge_pages import MIN_ZERO_PAGES
from inductor_backend.schedule.memory_plan import nbytes

#: Bytes of a page, and the part of a result that scatters may touch.
PAGE, MAX_TOUCHED = 4096, 0.25


def leave_zeros(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Removes the loops that fill such results with zeros; returns one line for each."""
    writers = program.writers()
    filled: dict[str, str] = {}
    for node in program.nodes:
        if not (isinstance(node, LoopNode) and _is_zero(node)):
            continue
        buffer = program.buffers[node.writes[0]]
        others = [other for other in writers[buffer.name] if other is not node]
        scatters = [
            other for other in others if isinstance(other, LoopNode) and _adds(other, buffer)
        ]
        if _is_result(program, buffer) and scatters and len(scatters) == len(others):
            bytes_of_all = nbytes(buffer)
            touched = sum(_touched(program, sizes, scatter) for scatter in scatters)
            if (
                isinstance(bytes_of_all, int)
                and bytes_of_all >= MIN_ZERO_PAGES
                and touched <= MAX_TOUCHED * bytes_of_all
            ):
                buffer.zero_pages = True
                filled[node.name] = buffer.name
    program.nodes = [
        replace(node, after=tuple(name for name in node.after if name not in filled))
        for node in program.nodes
        if node.name not in filled
    ]
    return [
        f"{node}: {name} is memory that nothing was written to" for node, name in filled.items()
    ]


def _is_result(program: LoopProgram, buffer: Buffer) -> bool:
    own = buffer.kind is BufferKind.TEMP and buffer.storage == buffer.name
    return own and buffer.name in program.output_names and buffer.name not in program.extends


def _is_zero(node: LoopNode) -> bool:
    (store, *more), value = node.stores, node.stores[0].value
    number = value.attr[0] if value.name == "constant" else None
    zero = isinstance(number, (int, float)) and number == 0 and math.copysign(1, number) > 0
    return zero and not more and store.is_assignment and len(store.buffers) == 1


def _adds(node: LoopNode, buffer: Buffer) -> bool:
    return all(store.combine == "add" and store.buffers == (buffer.name,) for store in node.stores)


def _touched(program: LoopProgram, sizes: SizeVars, node: LoopNode) -> int:
    """Returns at most how many bytes of pages a scatter writes to."""
    last = len(node.sizes) - 1
    total = 0
    for store in node.stores:
        buffer = program.buffers[store.buffers[0]]
        flat = buffer.layout.flat(store.index)
        rows, row = sizes.hint(product(node.sizes)), 1
        if last >= 0 and _is_contiguous(flat, last):
            row = sizes.hint(node.sizes[last])
            rows //= max(row, 1)
        total += rows * (row * buffer.dtype.itemsize + PAGE)
    return total


def _is_contiguous(flat: Index, last: int) -> bool:
    """Checks that the address grows with the loop by 1, and depends on it in no other way."""
    others = {
        a: c for a, c in flat.terms.items() if not (isinstance(a, Var) and a.position == last)
    }
    return flat.coefficient(last) == 1 and last not in Index(0, others).variables()
