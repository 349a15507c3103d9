"""Fusion: groups loop nodes into kernels, and orders the groups.

A node joins a group only if `fusion_legality` agrees and no dependency path leaves the group and
returns to it. Among legal groups the one that saves most memory traffic wins (`score`). Reasons against
fusion are kept for logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from inductor_backend.ir.index_expr import Index, product
from inductor_backend.ir.nodes import BufferKind, ExternNode, LoopNode, LoopProgram, Node
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.limits import (
    MAX_FUSED_COPY,
    MAX_FUSED_UPDATE,
    MAX_KERNEL_INSTRUCTIONS,
    MAX_KERNEL_POINTERS,
    MAX_UPDATE_POINTERS,
)
from inductor_backend.schedule.dependencies import Dependencies, dependencies
from inductor_backend.schedule.fusion_heuristics import (
    buffer_bytes,
    keeps_threads_busy,
    node_cost,
    shared_bytes,
)
from inductor_backend.schedule.fusion_legality import (
    Domain,
    FusionRefused,
    Joined,
    check_values,
    squeezed,
    unify,
    unify_matmul,
)
from inductor_backend.schedule.inline import redomain
from inductor_backend.schedule.split_reductions import (
    COLUMNS_OF_A_PROGRAM,
    MAX_HELD_COLUMN,
    PROGRAMS,
)

#: Bytes that reductions which share no operand read at most in one kernel: what a launch costs beside
#: them. Where they read more, a program's registers hold the sums of fewer elements at a time: six
#: sums over 12 tensors of 20 MB take 164 us in one kernel and 94 in six (H200).
MAX_SIBLINGS = 4 << 20

#: Bytes of a result from which on storing it across the rows of a reduction costs more than reading
#: its operands again.
MIN_STORED_ACROSS = 1 << 20


@dataclass(slots=True, eq=False)
class Group:
    """Loop nodes that share one kernel over one domain, or a single extern node."""

    #: Its bit in ancestor masks.
    number: int
    nodes: list[Node]
    domain: Domain | None
    #: Mask of groups that must run before it.
    ancestors: int = 0
    #: Program positions of its last and first nodes.
    position: int = 0
    first: int = 0
    buffers: set[str] = field(default_factory=set)
    #: Limit on the buffers it touches.
    most: int = MAX_KERNEL_POINTERS
    #: Mutations of inputs, or copies, that were fused without sharing data.
    updates: int = 1
    #: By number, the groups that hold a node which must run after one of its nodes.
    readers: dict[int, Group] = field(default_factory=dict)
    #: The groups that were combined into one launch (`horizontal_fusion`), each with a domain.
    parts: Sequence[Group] = ()

    @property
    def loops(self) -> list[LoopNode]:
        return [node for node in self.nodes if isinstance(node, LoopNode)]

    @property
    def extern(self) -> ExternNode | None:
        first = self.nodes[0]
        return first if isinstance(first, ExternNode) else None


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """What a device allows in one kernel."""

    #: Least number of rows for a reduction's kernel to hold other work.
    rows: int = 8
    #: A kernel may read what it scanned.
    reads_scans: bool = True
    #: How many small unrelated mutations of inputs share a kernel.
    together: int = 1
    #: A group runs at its first node's position, not its last one's (see `Fusion.ordered`).
    first_nodes: bool = False
    #: A program takes several rows where these are strided in memory.
    columns: bool = False


@dataclass(slots=True)
class FusionPlan:
    """groups: in execution order. reasons: (node, group's first node, reason)."""

    groups: list[Group]
    reasons: list[tuple[str, str, str]]


class Fusion:
    """Assigns nodes to groups one by one, in program order.

    fuel: the number of fusions allowed (None: all), for bisecting a wrong result. instances: buffer
    -> the number of the repeated subgraph that makes it; copies of several share no kernel, which
    would keep one subgraph from standing for the others."""

    def __init__(
        self,
        program: LoopProgram,
        sizes: SizeVars,
        fuel: int | None = None,
        limits: FusionLimits = FusionLimits(),
        instances: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.instances = instances
        # key (`kind_of`) -> the group of updates or copies that may still grow
        self.open: dict[Any, Group] = {}
        self.program, self.sizes, self.fuel, self.limits = program, sizes, fuel, limits
        self.deps: Dependencies = dependencies(program)
        self.groups: list[Group] = []
        self.home: dict[str, Group] = {}
        self.touching: dict[str, list[Group]] = {}
        self.reasons: list[tuple[str, str, str]] = []
        self.mutated = frozenset(
            name
            for node in program.nodes
            for name in node.writes
            if program.buffers[name].kind is BufferKind.INPUT
        )
        self.costs: dict[str, int] = {}

    def run(self) -> FusionPlan:
        for position, node in enumerate(self.program.nodes):
            if isinstance(node, LoopNode):
                self.place(squeezed(node), position)
            else:
                self.new_group(node, None, position)
        return FusionPlan(self.ordered(), self.reasons)

    def required(self, node: Node) -> list[Group]:
        return list(
            {
                id(g): g
                for g in (
                    self.home[name] for name in self.deps.before[node.name] if name in self.home
                )
            }.values()
        )

    def new_group(self, node: Node, domain: Domain | None, position: int) -> None:
        group = Group(len(self.groups), [node], domain, position=position, first=position)
        self.groups.append(group)
        self.adopt(group, node)

    def adopt(self, group: Group, node: Node) -> None:
        """Updates the ancestor masks and the buffer table for a node that has joined the group."""
        self.home[node.name] = group
        before = group.ancestors
        for other in self.required(node):
            if other is not group:
                group.ancestors |= other.ancestors | (1 << other.number)
                other.readers[group.number] = group
        _hand_on(group, group.ancestors & ~before)
        for buffer in {*node.reads(), *node.writes}:
            group.buffers.add(buffer)
            groups = self.touching.setdefault(buffer, [])
            if group not in groups:
                groups.append(group)

    def place(self, node: LoopNode, position: int) -> None:
        best: tuple[int, Group, Joined] | None = None
        for group, shared in () if node.is_matmul else self.candidates(node):
            score = shared_bytes(self.program, self.sizes, shared)
            if best is not None and score <= best[0]:
                continue
            joined = self.try_join(group, node)
            if isinstance(joined, FusionRefused):
                self.reasons.append((node.name, group.nodes[0].name, joined.reason))
            else:
                best = (score, group, joined)
        kind = self.kind_of(node) if self.limits.together > 1 else None
        if best is None and self.limits.together > 1:
            best = self.sibling(node) if kind is None else self.beside(node, kind)
        if best is None or (self.fuel is not None and self.fuel <= 0):
            self.new_group(node, Domain(node.sizes, node.reduced), position)
            if kind is not None:
                self.open[kind] = self.groups[-1]
                self.groups[-1].most = MAX_UPDATE_POINTERS
            return
        if self.fuel is not None:
            self.fuel -= 1
        _, group, joined = best
        if joined.by is not None:
            group.nodes = [
                redomain(member, joined.domain.sizes, joined.domain.reduced, joined.by)
                for member in group.loops
            ]
        group.domain = joined.domain
        group.nodes.append(joined.node)
        group.position = position
        self.adopt(group, joined.node)

    def is_update(self, node: LoopNode) -> bool:
        """Returns whether the node is a small pointwise loop that mutates an input, or that
        continues one."""
        numel = product(node.sizes)
        small = isinstance(numel, int) and numel <= MAX_FUSED_UPDATE
        is_pointwise = not (node.is_matmul or node.is_reduction or any(node.reduced))
        writes_input = not self.mutated.isdisjoint((*node.reads(), *node.writes))
        return small and is_pointwise and writes_input

    def kind_of(self, node: LoopNode) -> Any:
        """Returns a key shared by nodes that may be in one launch without sharing data, or None."""
        if self.is_update(node):
            return node.sizes
        if (
            len(node.stores) != 1
            or any(node.reduced)
            or node.is_matmul
            or not node.stores[0].is_assignment
        ):
            return None
        numel, value = product(node.sizes), node.stores[0].value
        while value.name == "cast":
            (value,) = value.args
        small = isinstance(numel, int) and numel <= MAX_FUSED_COPY
        if not small or value.name != "load":
            return None
        return "copy", node.sizes, self.instances.get(node.writes[0])

    def sibling(self, node: LoopNode) -> tuple[int, Group, Joined] | None:
        """Horizontal fusion of small reductions: finds a group with the same loops that reads results
        of the same kernel (both halves of a normalization's gradient, means and squares)."""
        if not any(node.reduced):
            return None
        domain = Domain(node.sizes, node.reduced)
        makers = {
            id(g): g
            for name in node.reads()
            for g in self.touching.get(name, ())
            if name in _written(g)
        }
        for maker in makers.values():
            for name in _written(maker):
                for group in self.touching.get(name, ()):
                    if group is maker or group.domain != domain:
                        continue
                    if self._reads_much(group.buffers | node.reads()):
                        continue
                    joined = self.try_join(group, node)
                    if not isinstance(joined, FusionRefused):
                        return 0, group, joined
        return None

    def _reads_much(self, buffers: Iterable[str]) -> bool:
        return sum(buffer_bytes(self.program, self.sizes, b) for b in buffers) > MAX_SIBLINGS

    def beside(self, node: LoopNode, kind: Any) -> tuple[int, Group, Joined] | None:
        """Horizontal fusion of updates: finds a group of other updates or copies of the same sizes."""
        group = self.open.get(kind)
        if group is None or group.updates >= self.limits.together or any(group.domain.reduced):  # type: ignore[union-attr]
            return None
        joined = self.try_join(group, node)
        if isinstance(joined, FusionRefused) or joined.by is not None:
            return None
        group.updates += 1
        return 0, group, joined

    def candidates(self, node: LoopNode) -> list[tuple[Group, set[str]]]:
        """Returns the loop groups that share buffers with the node, and those buffers, latest group
        first."""
        result: dict[int, tuple[Group, set[str]]] = {}
        for buffer in {*node.reads(), *node.writes}:
            for group in self.touching.get(buffer, ())[-8:]:
                if group.domain is not None:
                    result.setdefault(group.number, (group, set()))[1].add(buffer)
        return [result[number] for number in sorted(result, reverse=True)]

    def cost_of(self, node: LoopNode) -> int:
        if node.name not in self.costs:
            self.costs[node.name] = node_cost(node)
        return self.costs[node.name]

    def try_join(self, group: Group, node: LoopNode) -> Joined | FusionRefused:
        assert group.domain is not None
        bit = 1 << group.number
        if any(other.ancestors & bit for other in self.required(node) if other is not group):
            return FusionRefused("something between the two runs outside the group")
        if len(group.buffers | node.reads() | set(node.writes)) > group.most:
            return FusionRefused("too many buffers for one kernel")
        if sum(map(self.cost_of, [node, *group.loops])) > MAX_KERNEL_INSTRUCTIONS:
            return FusionRefused("the kernel would become too large")
        if group.loops[0].is_matmul:
            return self._after_matmul(group, node)
        if not self.limits.reads_scans and node.reads() & {
            b for loop in group.loops for b in _scanned(loop)
        }:
            return FusionRefused("reads a scan, which other threads of the same kernel store")
        joined = unify(group.domain, node)
        if isinstance(joined, FusionRefused):
            return joined
        members = group.loops
        if joined.by is not None:
            members = [
                redomain(m, joined.domain.sizes, joined.domain.reduced, joined.by) for m in members
            ]
        refused = check_values(self.program, members, joined.node, self.mutated)
        if refused is not None:
            return refused
        domain = joined.domain
        if any(domain.reduced) and not keeps_threads_busy(
            self.sizes, product(domain.outer), product(domain.inner), self.limits.rows
        ):
            return FusionRefused("too few rows for the threads: a reduction this long runs alone")
        if self.limits.columns and self._few_columns(domain, [*members, joined.node]):
            return FusionRefused("too few programs: rows this long are strided in memory for most")
        if self.limits.columns and self._stores_across(domain, [*members, joined.node]):
            return FusionRefused("rows are read and stored along different dimensions")
        return joined

    def _few_columns(self, domain: Domain, nodes: Sequence[LoopNode]) -> bool:
        """Returns whether a kernel would walk over long rows that are strided in memory, several a
        program, and so have too few programs for a GPU."""
        row, rows = (self.sizes.hint(product(part)) for part in (domain.inner, domain.outer))
        if row <= MAX_HELD_COLUMN or rows * 8 >= PROGRAMS * COLUMNS_OF_A_PROGRAM:
            return False
        flats = {
            (name, self.program.buffers[name].layout.flat(index))
            for node in nodes
            for name, index in (
                *((load.buffer, load.attr[1]) for load in node.loads()),
                *(
                    (name, store.index)
                    for store in node.stores
                    if store.is_assignment
                    for name in store.buffers
                ),
            )
        }
        along = dict.fromkeys(range(len(domain.sizes)), 0)
        for _, flat in flats:
            if any(domain.reduced[dim] for dim in flat.variables()):
                for dim in flat.variables():
                    along[dim] += flat.coefficient(dim) == 1
        most = [0, 0]
        for dim, reduced in enumerate(domain.reduced):
            most[reduced] = max(most[reduced], along[dim])
        return most[False] > most[True]

    def _stores_across(self, domain: Domain, nodes: Sequence[LoopNode]) -> bool:
        """Returns whether one of the loops reads rows along one dimension and stores them along another
        (normalized images that a convolution wants channels-last). A block of a row then stores
        element by element; a kernel without a reduction has blocks over both dimensions."""
        inner = [dim for dim, reduced in enumerate(domain.reduced) if reduced]

        def along(accesses: Iterable[tuple[str, tuple[Index, ...]]]) -> Iterator[set[int]]:
            for name, index in accesses:
                if buffer_bytes(self.program, self.sizes, name) >= MIN_STORED_ACROSS:
                    flat = self.program.buffers[name].layout.flat(index)
                    yield {dim for dim in inner if flat.coefficient(dim) == 1}

        for node in nodes:
            stores = (store for store in node.stores if store.is_assignment)
            stored = set().union(*along((n, s.index) for s in stores for n in s.buffers))
            if stored:
                read = set().union(*along((load.buffer, load.attr[1]) for load in node.loads()))
                if read and read.isdisjoint(stored):
                    return True
        return False

    def _after_matmul(self, group: Group, node: LoopNode) -> Joined | FusionRefused:
        """Epilogue fusion: lets a node join a matmul's kernel only to compute with its elements."""
        assert group.domain is not None
        written = {name for member in group.loops for name in member.writes}
        if not node.reads() & written or any(name in self.mutated for name in node.writes):
            return FusionRefused("it does not go on with the matmul's elements")
        joined = unify_matmul(group.domain, node)
        if isinstance(joined, FusionRefused):
            return joined
        by, domain = joined.by, joined.domain
        members = group.loops
        if by is not None:
            members = [redomain(member, domain.sizes, domain.reduced, by) for member in members]
        refused = check_values(self.program, members, joined.node, self.mutated)
        return joined if refused is None else refused

    def ordered(self) -> list[Group]:
        """Topological order that stays close to program order. On GPUs a group is placed at its
        first node: placed at the last one, an input update at the end would let independent work
        (copies of weights) pass. Groups that only turn temporaries into results run as early as
        possible, to free the temporaries."""
        first = self.limits.first_nodes
        waiting = sorted(
            self.groups,
            key=lambda g: (not self._hands_on(g), g.first) if first else (True, g.position),
        )
        done, result = 0, []
        while waiting:
            for place, group in enumerate(waiting):
                if group.ancestors & ~done == 0:
                    result.append(waiting.pop(place))
                    done |= 1 << group.number
                    break
            else:
                raise AssertionError("fusion made a cycle of groups")
        return result

    def _hands_on(self, group: Group) -> bool:
        """Returns whether a group turns values that have no other reader into graph outputs, as
        copies to another layout do."""
        if group.extern is not None:
            return False
        buffers = self.program.buffers
        written = _written(group)
        read = {name for node in group.nodes for name in node.reads()} - written
        return all(
            name in self.program.output_names and buffers[name].kind is not BufferKind.INPUT
            for name in written
        ) and all(
            buffers[name].kind is not BufferKind.INPUT
            and name not in self.program.output_names
            and len(self.touching[name]) == 2  # the group that makes it, and this one
            for name in read
        )


def _hand_on(group: Group, ancestors: int) -> None:
    """Gives what depends on a group the ancestors that the group has got."""
    waiting = [group] if ancestors else []
    while waiting:
        for reader in waiting.pop().readers.values():
            if ancestors & ~reader.ancestors:
                reader.ancestors |= ancestors
                waiting.append(reader)


def _written(group: Group) -> set[str]:
    return {name for node in group.nodes for name in node.writes}


def _scanned(node: LoopNode) -> set[str]:
    return {name for store in node.stores if store.scan is not None for name in store.buffers}


def readers_outside(
    program: LoopProgram, groups: Sequence[Group]
) -> Iterator[tuple[Group, Callable[[str], bool]]]:
    """Yields each group with a predicate: must a buffer that it writes be in memory afterwards?"""
    home = {node.name: group.number for group in groups for node in group.nodes}
    readers: dict[str, set[int]] = {}
    for group in groups:
        for node in group.nodes:
            for buffer in program.with_earlier(node.reads()):
                readers.setdefault(buffer, set()).add(home[node.name])
    for group in groups:

        def needed_outside(buffer: str, number: int = group.number) -> bool:
            return (
                buffer in program.output_names
                or program.buffers[buffer].kind is BufferKind.INPUT
                or bool(readers.get(buffer, set()) - {number})
            )

        yield group, needed_outside
