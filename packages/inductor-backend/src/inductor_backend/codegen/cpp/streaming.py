"""Chooses results to write with non-temporal stores, so that their cache lines are not read first.

Elements are collected in a block that stays in the L1 cache and copied out in whole cache lines. A
streamed buffer is written once, contiguously along the innermost loop, and not read by the kernel;
values do not change. An ordinary store reads the line that it writes to: a third of an addition's
traffic.
"""

from __future__ import annotations

from collections import Counter

from inductor_backend.codegen.common.loop_nest import LoopNest, walk
from inductor_backend.ir.index_expr import Var, product
from inductor_backend.ir.nodes import LoopProgram, Store
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import topological
from inductor_backend.schedule.fused_body import KernelBody

#: Least bytes of a result that is assumed to have left the caches when it is read.
STREAMED = 24 << 20

#: Least bytes of the innermost loop's elements: shorter ones have too few whole lines.
MIN_ROW_BYTES = 1024


def streamed_buffers(
    program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars
) -> dict[str, str]:
    """Maps each streamed buffer to the name of the block that collects its elements."""
    if nest.column is not None or not nest.sizes:
        return {}
    stores = [store for phase in body.phases for store in (*phase.row, *phase.stores)]
    storages = Counter(program.buffers[name].storage for store in stores for name in store.buffers)
    read = {
        program.buffers[value.buffer].storage
        for value in topological(body.values())
        if value.name in ("load", "masked_load") and value.buffer in program.buffers
    }
    result: dict[str, str] = {}
    for store in (store for phase in body.phases for store in phase.stores):
        name = store.buffers[0]
        storage = program.buffers[name].storage
        once = storages[storage] == 1 and storage not in read and name not in body.row_buffers
        if once and _is_long(program, store, nest, sizes) and _is_contiguous(program, store, nest):
            result[name] = f"block_{len(result)}"
    return result


def _is_long(program: LoopProgram, store: Store, nest: LoopNest, sizes: SizeVars) -> bool:
    itemsize = program.buffers[store.buffers[0]].dtype.itemsize
    total, row = sizes.hint(product(nest.sizes)), sizes.hint(nest.sizes[-1])
    return total * itemsize >= STREAMED and row * itemsize >= MIN_ROW_BYTES


def _is_contiguous(program: LoopProgram, store: Store, nest: LoopNest) -> bool:
    """Returns whether the store is contiguous along the innermost loop, at indices independent of
    data."""
    flat = walk(program.buffers[store.buffers[0]].layout.flat(store.index), nest)
    simple = store.is_assignment and all(isinstance(atom, Var) for atom in flat.terms)
    return simple and flat.coefficient(len(nest.sizes) - 1) == 1
