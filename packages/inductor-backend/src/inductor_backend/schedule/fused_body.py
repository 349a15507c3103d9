"""Builds the kernel body of one group of loop nodes: phases over a shared row.

A phase runs once over the reduction dimensions of each row; later phases read its reductions from
registers. A pointwise value that a later phase needs is recomputed where that is cheap, loaded
again where it is stored anyway, or kept in a row buffer. Buffers that nothing outside the group
reads are not stored. Inputs that are mutated once per row are stored last, after every read of
their old values (`fusion_legality` keeps loops over a row that read them out of such groups).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from inductor_backend.ir.index_expr import Index, product
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Origin, Store, loads_of
from inductor_backend.ir.ops import OPS, compute_dtype
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.value_cost import is_cheap
from inductor_backend.ir.values import Rewriter, Value, cast, load, topological
from inductor_backend.limits import MAX_LOCAL_ROW
from inductor_backend.schedule.fusion_legality import Domain
from inductor_backend.schedule.rounding import without_idle


@dataclass(slots=True)
class Phase:
    """row: stores done once per row, before the loop over the row. stores, reductions, scans: done
    in that loop."""

    row: list[Store] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    reductions: list[Store] = field(default_factory=list)
    scans: list[Store] = field(default_factory=list)

    @property
    def loop(self) -> list[Store]:
        return [*self.stores, *self.scans, *self.reductions]

    @property
    def in_order(self) -> bool:
        """Returns whether the points of a row must be computed sequentially."""
        return bool(self.scans) or any(store.combine is not None for store in self.stores)


@dataclass(slots=True)
class KernelBody:
    """What a kernel computes."""

    domain: Domain
    phases: list[Phase]
    #: Reduction result -> dtype.
    registers: dict[str, torch.dtype]
    #: Buffer -> dtype. stored: buffers written to memory.
    row_buffers: dict[str, torch.dtype]
    origins: list[Origin]

    @property
    def writes(self) -> set[str]:
        return {
            name
            for phase in self.phases
            for store in (*phase.row, *phase.stores, *phase.scans)
            for name in store.buffers
            if name not in self.row_buffers
        }

    @property
    def is_pointwise(self) -> bool:
        """Returns whether nothing is computed once per row."""
        return all(not phase.row and not phase.reductions for phase in self.phases)

    @property
    def cost(self) -> int:
        """Estimates the scalar instructions for one element."""
        values = topological(self.values())
        return 2 + sum(2 if v.name in ("load", "masked_load") else OPS[v.name].cost for v in values)

    @property
    def in_order(self) -> bool:
        return any(phase.in_order for phase in self.phases)

    @property
    def in_row_order(self) -> bool:
        """Returns whether the loops over a row must keep the order of its dimensions: its points are
        computed sequentially, or a reduction returns the place of one."""
        places = ("argmax", "argmin")
        return self.in_order or any(
            store.reduce in places for phase in self.phases for store in phase.reductions
        )

    def values(self) -> list[Value]:
        return [
            value
            for phase in self.phases
            for store in (*phase.row, *phase.loop)
            for value in store.roots
        ]

    def reads(self) -> set[str]:
        return {
            result.buffer
            for result in loads_of(self.values())
            if result.buffer not in self.registers and result.buffer not in self.row_buffers
        }


@dataclass(frozen=True, slots=True)
class _Known:
    """A value that an earlier node of the group computed."""

    value: Value
    phase: int
    index: tuple[Index, ...]
    register: bool
    in_row: bool
    #: Available only from the next phase on.
    later: bool = False


class BodyBuilder:
    """Distributes the nodes of a group over phases, in program order."""

    def __init__(
        self,
        program: LoopProgram,
        domain: Domain,
        nodes: list[LoopNode],
        needed_outside: Callable[[str], bool],
        sizes: SizeVars,
        rows: bool,
        in_registers: bool,
    ) -> None:
        self.program, self.domain, self.nodes = program, domain, nodes
        self.in_registers = in_registers
        self.needed_outside, self.sizes = needed_outside, sizes
        self.body = KernelBody(
            domain, [], {}, {}, [origin for node in nodes for origin in node.origins]
        )
        self.known: dict[str, _Known] = {}
        self.overwriting: list[Store] = []
        row = sizes.upper(product(domain.inner))
        self.row_fits = rows and row is not None and row <= MAX_LOCAL_ROW and any(domain.reduced)

    def build(self) -> KernelBody:
        for node in self.nodes:
            self.add(node)
        if self.overwriting:
            last = max(len(self.body.phases) - 1, *(self.when(store) for store in self.overwriting))
            self.phase(last).row.extend(self.overwriting)
        self.drop_idle_rounding()
        return self.body

    def drop_idle_rounding(self) -> None:
        """Leaves out the rounding of what the kernel reads from memory, once that is known."""
        if not any(value.name == "round_to" for value in topological(self.body.values())):
            return
        held = self.body.registers.keys() | self.body.row_buffers.keys()
        for phase in self.body.phases:
            for part in ("row", "stores", "reductions", "scans"):
                setattr(phase, part, without_idle(getattr(phase, part), held))

    def phase(self, number: int) -> Phase:
        while len(self.body.phases) <= number:
            self.body.phases.append(Phase())
        return self.body.phases[number]

    def add(self, node: LoopNode) -> None:
        for store in node.stores:
            when = self.when(store)

            def known(value: Value, index: tuple[Index, ...], when: int = when) -> Value | None:
                return self.hand_over(value, when)

            result = store.rewritten(Rewriter(None, known))
            if store.reduce is not None:
                self.add_reduction(result, when)
            elif store.scan is not None:
                self.add_scan(result, when)
            elif store.combine is not None:
                self.phase(when).stores.append(result)
            else:
                self.add_store(result, when)

    def when(self, store: Store) -> int:
        """Returns the first phase in which everything the store reads is available."""
        phases = [0]
        for result in loads_of(store.roots):
            known = self.known.get(result.buffer)
            if known is not None:
                phases.append(known.phase + 1 if known.later else known.phase)
        return max(phases)

    def hand_over(self, value: Value, when: int) -> Value | None:
        """Returns the replacement for a load of a value that the group computed, or None."""
        known = self.known.get(value.buffer)
        if known is None or known.later:
            return None
        if self.in_registers or known.phase == when or not known.in_row or is_cheap(known.value):
            return known.value
        if self.needed_outside(value.buffer):
            return None  # it is in memory, and still in the cache
        if not self.row_fits:
            return known.value
        name = value.buffer
        if name not in self.body.row_buffers:
            self.body.row_buffers[name] = compute_dtype(self.program.buffers[name].dtype)
            self.phase(known.phase).stores.append(Store((name,), known.index, known.value))
        return None

    def add_reduction(self, store: Store, when: int) -> None:
        self.phase(when).reductions.append(store)
        for name in store.buffers:
            dtype = compute_dtype(self.program.buffers[name].dtype)
            self.body.registers[name] = dtype
            register = load(name, store.index, self.program.buffers[name].dtype)
            self.known[name] = _Known(register, when, store.index, True, False, later=True)
            if self.needed_outside(name):
                self.put_once_a_row(Store((name,), store.index, register), when + 1)

    def add_scan(self, store: Store, when: int) -> None:
        """Adds a scan. A later phase reads its result from a row buffer, unless the result is
        stored anyway."""
        self.phase(when).scans.append(store)
        for name in store.buffers:
            dtype = self.program.buffers[name].dtype
            element = load(name, store.index, dtype)
            self.known[name] = _Known(element, when, store.index, False, True, later=True)
            if self.row_fits and not self.needed_outside(name):
                self.body.row_buffers[name] = compute_dtype(dtype)

    def add_store(self, store: Store, when: int) -> None:
        (name,) = store.buffers
        in_row = any(self.domain.reduced[p] for p in store.value.variables) or any(
            self.domain.reduced[p] for index in store.index for p in index.variables()
        )
        value = cast(store.value, self.program.buffers[name].dtype)
        self.known[name] = _Known(value, when, store.index, False, in_row)
        if self.needed_outside(name):
            result = Store(store.buffers, store.index, value)
            if in_row or not any(self.domain.reduced):
                self.phase(when).stores.append(result)
            else:
                self.put_once_a_row(result, when)

    def put_once_a_row(self, store: Store, when: int) -> None:
        """Adds the store to the phase, or to the end of the kernel."""
        if any(self.program.buffers[name].kind is BufferKind.INPUT for name in store.buffers):
            self.overwriting.append(store)
        else:
            self.phase(when).row.append(store)


def kernel_body(
    program: LoopProgram,
    domain: Domain,
    nodes: list[LoopNode],
    needed_outside: Callable[[str], bool],
    sizes: SizeVars,
    rows: bool = True,
    in_registers: bool = False,
) -> KernelBody:
    """Returns the fused body of a group. needed_outside: whether a buffer must be in memory
    afterwards. rows: row buffers are allowed (the kernel's inner loop is the row). in_registers: no
    row buffers, because the kernel holds whole rows and later phases reuse its values."""
    return BodyBuilder(program, domain, nodes, needed_outside, sizes, rows, in_registers).build()
