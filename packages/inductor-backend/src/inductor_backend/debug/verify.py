"""Verifies the invariants of each IR after each stage (TRACER_CHECK=1). A broken invariant raises a
VerifyError that names and prints the node; a program that passes can be executed by the test
suite's `reference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inductor_backend.debug import printer
from inductor_backend.ir.index_expr import Index, range_of, within
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Node, Store, loads_of
from inductor_backend.ir.ops import COMBINES, OPS, REDUCTIONS, SCANS, compute_dtype, outputs_of
from inductor_backend.ir.values import Value, topological
from tracer_core.plugin_api import VerifyError

if TYPE_CHECKING:
    from inductor_backend.ir.kernel_source import KernelSource
    from inductor_backend.schedule.fused_body import KernelBody
    from inductor_backend.schedule.fusion import FusionPlan
    from inductor_backend.schedule.memory_plan import MemoryPlan


def _fail(rule: str, nodes: Sequence[Node], at: int) -> VerifyError:
    """Returns the error, with the nodes around the fault."""
    around = "\n".join(printer.node(n) for n in nodes[max(at - 2, 0) : at + 3])
    return VerifyError(f"loop IR: {nodes[at].name}: {rule}\n{around}")


def program(p: LoopProgram) -> None:
    """Checks a program: reads after writes, indices inside buffers, dtypes, origins."""
    written = {name for name, b in p.buffers.items() if b.kind is BufferKind.INPUT}
    views = p.extends.keys() - p.writers().keys()  # views of matmul operands: nobody writes to them
    for at, node in enumerate(p.nodes):
        missing = {p.extends[name] if name in views else name for name in node.reads()} - written
        if missing:
            raise _fail(f"reads {sorted(missing)} before it is written", p.nodes, at)
        if not node.origin.fx:
            raise _fail("has no origin", p.nodes, at)
        if isinstance(node, LoopNode):
            problem = _loop_problem(p, node)
            if problem is not None:
                raise _fail(problem, p.nodes, at)
        written.update(node.writes)
    unwritten = p.output_names - written
    if unwritten:
        raise VerifyError(f"loop IR: outputs {sorted(unwritten)} are never written")


def _loop_problem(p: LoopProgram, node: LoopNode) -> str | None:
    if any(isinstance(size, int) and size == 0 for size in node.sizes):
        return None
    for store in node.stores:
        problem = _store_problem(p, store)
        if problem is None and store.is_assignment and any(node.reduced[i] for i in _used(store)):
            problem = "stores a value of a reduced variable without reducing it"
        if problem is None and store.combine is not None:
            problem = _shared_places(node, store)
        if problem is not None:
            return problem
    return None


def _shared_places(node: LoopNode, store: Store) -> str | None:
    """Checks that two points which differ in an outer variable never store to the same element:
    some dimension of the index tells them apart.
    """
    if store.atomic:
        return None
    shown: set[int] = set()
    for index in store.index:
        if index.affine and not any(node.reduced[p] for p in index.variables()):
            shown |= index.variables()
    hidden = {p for p, r in enumerate(node.reduced) if not r and node.sizes[p] != 1} - shown
    return f"scatters in any order along variables {sorted(hidden)}" if hidden else None


def _used(store: Store) -> set[int]:
    items = set(store.value.variables)
    for index in store.index:
        items |= index.variables()
    return items


def _store_problem(p: LoopProgram, store: Store) -> str | None:
    if store.reduce is not None and store.reduce not in REDUCTIONS:
        return f"unknown reduction {store.reduce!r}"
    if store.scan is not None and store.scan not in SCANS:
        return f"unknown scan {store.scan!r}"
    if store.combine is not None and store.combine not in COMBINES:
        return f"unknown scatter {store.combine!r}"
    if len(store.buffers) != outputs_of(store.reduce, store.scan):
        return "a reduction or scan with the wrong number of results"
    for name in store.buffers:
        buffer = p.buffers[name]
        problem = _index_problem(name, store.index, buffer.layout.sizes)
        if problem is not None:
            return problem
        if (
            store.reduce is None
            and store.scan is None
            and store.value.dtype != compute_dtype(buffer.dtype)
        ):
            return f"stores {store.value.dtype} into {name} of {buffer.dtype}"
    for value in topological(store.roots):
        if value.name not in OPS:
            return f"unknown op {value.name!r}"
        if value.name in ("load", "masked_load"):
            if value.attr[2] != p.buffers[value.buffer].dtype:
                return f"loads {value.buffer} as {value.attr[2]}"
            if value.name == "load":
                problem = _index_problem(
                    value.buffer, value.attr[1], p.buffers[value.buffer].layout.sizes
                )
                if problem is not None:
                    return problem
    return None


def _index_problem(name: str, index: Sequence[Index], sizes: Sequence) -> str | None:  # type: ignore[type-arg]
    if len(index) != len(sizes):
        return f"{name} has {len(sizes)} dimensions, its index {len(index)}"
    for position, size in zip(index, sizes, strict=True):
        bounds = range_of(position)
        known = bounds is not None and isinstance(bounds[0], int) and isinstance(bounds[1], int)
        if known and isinstance(size, int) and not within(position, size):
            return f"index {position} of {name} leaves range({size})"
    return None


def plan(p: LoopProgram, result: FusionPlan) -> None:
    """Checks that every node occurs once, in an order that respects the dependencies."""
    from inductor_backend.schedule.dependencies import (
        dependencies,  # a check of a later stage, on demand
    )

    order = {node.name: place for place, group in enumerate(result.groups) for node in group.nodes}
    if sorted(order) != sorted(node.name for node in p.nodes):
        raise VerifyError("fusion lost or duplicated nodes")
    for name, before in dependencies(p).before.items():
        late = [other for other in before if other in order and order[other] > order[name]]
        if late:
            raise VerifyError(f"fusion put {name} before {late}, which it depends on")


def launches(p: LoopProgram, result: FusionPlan) -> None:
    """Checks a plan whose kernels share launches: those of one launch do not depend on each other."""
    plan(p, result)
    from inductor_backend.schedule.dependencies import dependencies  # a check of a later stage

    before = dependencies(p).before
    for group in result.groups:
        for part in group.parts:
            mine = {node.name for node in part.nodes}
            others = {node.name for node in group.nodes} - mine
            if any(before[name] & others for name in mine):
                raise VerifyError(f"{sorted(mine)} shares a launch with what it depends on")


def bodies(p: LoopProgram, items: Sequence[KernelBody | None]) -> None:
    """Checks that a phase reads only registers and row buffers of earlier phases, and no input that
    an earlier phase overwrote.
    """
    for body in items:
        if body is None:
            continue
        known: set[str] = set()
        overwritten: set[str] = set()
        for number, phase in enumerate(body.phases):
            for stores in (phase.row, phase.loop):
                for load in loads_of(root for store in stores for root in store.roots):
                    if load.buffer in body.registers and load.buffer not in known:
                        raise VerifyError(
                            f"phase {number} reads {load.buffer} before it is reduced"
                        )
                    if load.buffer in overwritten:
                        raise VerifyError(
                            f"phase {number} reads {load.buffer} after it was overwritten"
                        )
                written = {
                    name for store in stores for name in store.buffers if name not in body.registers
                }
                overwritten |= {
                    name for name in written if p.buffers[name].kind is BufferKind.INPUT
                }
            known |= {name for store in phase.reductions for name in store.buffers}


def reusable(p: LoopProgram, items: Sequence[KernelBody | None], kernels: Sequence[Any]) -> None:
    """Checks that a store that may reuse an operand's memory comes after every read of the operand
    in the kernel.
    """
    for body, kernel in zip(items, kernels, strict=True):
        if body is None:
            continue
        for place, operands in kernel.reusable:
            for operand in operands:
                _read_before(p, body, kernel.pointers[place], kernel.pointers[operand])


def _read_before(p: LoopProgram, body: KernelBody, name: str, operand: str) -> None:
    seen: set[Value] = set()
    written = False
    for number, phase in enumerate(body.phases):
        for stores in (phase.row, phase.loop):
            loads = loads_of(root for store in stores for root in store.roots)
            loads = [load for load in loads if load.buffer not in body.registers]
            result = {load for load in loads if p.buffers[load.buffer].storage == operand}
            if written and not result <= seen:
                raise VerifyError(
                    f"{name} may be written over {operand}, which phase {number} reads later"
                )
            seen |= result
            written = written or any(name in store.buffers for store in stores)


def written_over(
    p: LoopProgram,
    plan: FusionPlan,
    kernels: Sequence[KernelSource | None],
    over: Mapping[str, str],
) -> None:
    """Checks that memory is reused in place only by the kernel that uses the operand last."""
    from inductor_backend.schedule.memory_plan import (  # a check of a later stage
        lives,
        touched_storages,
    )

    life = lives(touched_storages(p, plan.groups, kernels))
    outputs = {p.buffers[name].storage for name in p.output_names}
    for name, operand in over.items():
        if operand in outputs or life[operand].last != life[name].first:
            raise VerifyError(f"{name} is written over {operand}, which is used later")


def memory(
    p: LoopProgram, plan: FusionPlan, kernels: Sequence[KernelSource | None], m: MemoryPlan
) -> None:
    """Checks that two storages which live at the same time do not overlap (static arenas)."""
    from inductor_backend.schedule.memory_plan import lives, nbytes, touched_storages  # likewise

    life = lives(touched_storages(p, plan.groups, kernels))
    ranges = [(n, o, o + nbytes(p.buffers[n])) for n, o in m.offsets.items() if isinstance(o, int)]
    intervals = [(name, start, stop) for name, start, stop in ranges if isinstance(stop, int)]
    for at, (name, start, stop) in enumerate(intervals):
        for other, first, last in intervals[at + 1 :]:
            apart = life[name].last < life[other].first or life[other].last < life[name].first
            if not apart and start < last and first < stop:
                raise VerifyError(f"memory plan: {name} and {other} overlap while both are alive")
