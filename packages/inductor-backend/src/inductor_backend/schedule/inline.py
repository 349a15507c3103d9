"""Inlining: computes cheap or single-use pointwise producers inside their readers.

A load is replaced by the producer's value at the load's own index, so any view between the two is
honoured; on GPUs a masked load, too: the producer's loads are then masked. A producer that an
operator or the caller reads keeps its buffer, though it may be inlined elsewhere. A producer that
reads an input is not moved past a mutation of that input, and one that checks its operands is inlined
where some reader reads every element of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_backend.ir.index_expr import Index, product, variables
from inductor_backend.ir.nodes import BufferKind, LoopNode, LoopProgram, Node, loads_of
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import (
    DIVISIONS,
    Rewriter,
    Value,
    cast,
    checked,
    const,
    make,
    may_fail,
    topological,
)
from inductor_backend.schedule.dependencies import live_nodes
from inductor_backend.schedule.fusion_heuristics import node_cost, reads_few, worth_inlining
from inductor_backend.schedule.one_hot_sums import replace_one_hot_sums


def redomain(
    node: LoopNode, sizes: tuple[Any, ...], reduced: tuple[Any, ...], by: tuple[Index, ...]
) -> LoopNode:
    """Returns the node over another domain: variable p becomes ``by[p]``."""
    rewrite = Rewriter(by)
    stores = tuple(store.rewritten(rewrite) for store in node.stores)
    return replace(node, sizes=sizes, reduced=reduced, stores=stores)


def _may_fail(value: Value) -> bool:
    """Returns whether a value may report an error; a division by a number cannot."""
    divisor = value.args[-1] if value.name in DIVISIONS else None
    known = divisor is not None and divisor.name == "constant" and divisor.attr[0] != 0
    return may_fail(value) and not known


def _may_be_masked(value: Value) -> bool:
    """Returns whether a value may be computed where its loads are masked: it reports no error, and
    loads at no index that is data."""
    indices = (index for load in loads_of([value]) for index in load.indices())
    indirect = any(True for index in indices for _ in index.indirect_values())
    return not indirect and not any(map(_may_fail, topological([value])))


def _masked(load: Value, index: tuple[Index, ...], condition: Value) -> Value:
    """Returns a load that reads nothing where the condition does not hold."""
    attr = (load.buffer, index, load.attr[2])
    if load.name == "masked_load":
        return make(
            "masked_load", make("bit_and", condition, load.args[0]), load.args[1], attr=attr
        )
    return make("masked_load", condition, const(0, load.dtype), attr=attr)


class Inliner:
    """One pass over the program in order, so that chains collapse into their last reader."""

    def __init__(self, program: LoopProgram, gpu: bool) -> None:
        self.program, self.gpu = program, gpu
        self.reasons: list[tuple[str, str]] = []
        self.nodes: dict[str, Node] = {}
        self.readers: dict[str, dict[str, None]] = {}  # dicts: ordered sets
        self.take_live()
        self.program_writers = program.writers()
        self.position = {name: place for place, name in enumerate(self.nodes)}
        self.overwritten: dict[str, int] = {}  # input -> position of its first mutation
        for place, node in enumerate(self.nodes.values()):
            for name in node.writes:
                if program.buffers[name].kind is BufferKind.INPUT:
                    self.overwritten.setdefault(name, place)

    def take_live(self) -> None:
        """Forgets nodes whose values nobody reads any more."""
        self.nodes = {node.name: node for node in live_nodes(self.program)}
        self.readers = {}
        for node in self.nodes.values():
            for buffer in node.reads():
                self.readers.setdefault(buffer, {})[node.name] = None

    def run(self) -> list[tuple[str, str]]:
        """Inlines what it can; returns (node, reason) for nodes that were not inlined."""
        for name in list(self.nodes):
            node = self.nodes[name]
            if isinstance(node, LoopNode):
                reason = self.inline(node)
                if reason is not None:
                    self.reasons.append((name, reason))
        self.program.nodes = list(self.nodes.values())
        self.take_live()
        for node in reversed(list(self.nodes.values())):
            if isinstance(node, LoopNode):
                self.inline_late(node)
        self.program.nodes = list(self.nodes.values())
        self.program.nodes = live_nodes(self.program)
        return self.reasons

    def why_not(self, node: LoopNode) -> str | None:
        """Returns why the node cannot be computed where its value is read, or None."""
        if len(node.stores) != 1 or node.is_reduction:
            return "a reduction, scan or scatter" if node.is_reduction else "several stores"
        (buffer,) = node.stores[0].buffers
        if self.program.buffers[buffer].kind is BufferKind.INPUT or not self.is_inlinable(node):
            return "writes a region or an input"
        readers = [self.nodes[name] for name in self.readers.get(buffer, ())]
        last = max((self.position[reader.name] for reader in readers), default=0)
        if any(self.overwritten.get(name, last + 1) <= last for name in node.reads()):
            return "reads an input that the graph overwrites before the last reader"
        if not any(isinstance(reader, LoopNode) for reader in readers):
            return "read by operators or the caller only"
        return None

    def loops_that_read(self, buffer: str) -> tuple[list[LoopNode], list[list[Value]], bool]:
        """Returns the loops, the loads of each, and whether the buffer is stored in any case."""
        readers = [self.nodes[name] for name in self.readers.get(buffer, ())]
        loops = [reader for reader in readers if isinstance(reader, LoopNode)]
        loads = [[load for load in reader.loads() if load.buffer == buffer] for reader in loops]
        return loops, loads, buffer in self.program.output_names or len(loops) < len(readers)

    def inline_late(self, node: LoopNode) -> None:
        """Inlines into the only reader that is left of several, and into loops that read few
        elements: what other loops read may then stay in their kernel. In C++, functions of vectors
        and of single numbers differ in the last bit."""
        if self.why_not(node) is not None or self.may_fail(node):
            return
        (buffer,) = node.stores[0].buffers
        loops, loads, stored = self.loops_that_read(buffer)
        if stored:
            return
        if len(loops) == 1 and worth_inlining(self.program, node, loops, loads, self.gpu) is None:
            self.substitute(node, buffer, loops[0])
        elif self.gpu or node_cost(node) == 0:
            for reader, result in zip(loops, loads, strict=True):
                if reads_few(reader, result, node):
                    self.substitute(node, buffer, reader)

    def inline(self, node: LoopNode) -> str | None:
        reason = self.why_not(node)
        if reason is not None:
            return reason
        (buffer,) = node.stores[0].buffers
        loops, loads, stored = self.loops_that_read(buffer)
        if not stored and self.may_fail(node) and not any(map(self.reads_all, loops, loads)):
            return "eager checks every element, and no reader reads them all"
        reason = worth_inlining(self.program, node, loops, loads, self.gpu)
        if stored and reason is None and node.reads():
            reason = "its buffer is needed anyway"
        if reason is None:
            for reader in loops:
                self.substitute(node, buffer, reader)
        return reason

    def may_fail(self, node: LoopNode) -> bool:
        """Returns whether some element may report an error."""
        return any(map(_may_fail, topological(store.value for store in node.stores)))

    def reads_all(self, reader: LoopNode, loads: list[Value]) -> bool:
        """Returns whether one of the loads surely reads every element of its buffer: at so many
        points as it has elements, through views, which give each point another element."""
        for load in loads:
            index = load.indices()
            indirect = any(True for part in index for _ in part.indirect_values())
            used = {position for part in index for position in part.variables()}
            points = product(reader.sizes[position] for position in used)
            elements = product(self.program.buffers[load.buffer].layout.sizes)
            if load.name == "load" and not indirect and points == elements:
                return True
        return False

    def is_inlinable(self, node: LoopNode) -> bool:
        """Returns whether the store covers the whole buffer, each element once, at the loop
        variables themselves, and no scatter changes the buffer afterwards."""
        (store,) = node.stores
        if len(self.program_writers[store.buffers[0]]) > 1:
            return False
        sizes = self.program.buffers[store.buffers[0]].layout.sizes
        return node.sizes == sizes and store.index == variables(sizes)

    def substitute(self, node: LoopNode, buffer: str, reader: LoopNode) -> None:
        value = node.stores[0].value
        dtype = compute_dtype(self.program.buffers[buffer].dtype)
        masks = self.gpu and _may_be_masked(value)

        def on_load(load: Value, index: tuple[Index, ...]) -> Value | None:
            if load.buffer != buffer:
                return None
            if load.name == "load":
                return checked(cast(Rewriter(index)(value), dtype), index)
            if not masks or any(True for part in index for _ in part.indirect_values()):
                return None
            condition, other = load.args
            inside = Rewriter(index, lambda inner, place: _masked(inner, place, condition))(value)
            return make("where", condition, cast(inside, dtype), other)

        rewrite = Rewriter(None, on_load)
        stores = tuple(store.rewritten(rewrite) for store in reader.stores)
        origins = tuple(dict.fromkeys((*reader.inlined, *node.origins)))
        self.nodes[reader.name] = replace(reader, stores=stores, inlined=origins)
        still = self.nodes[reader.name].reads()
        if buffer not in still:
            self.readers[buffer].pop(reader.name, None)
        for name in still:
            self.readers.setdefault(name, {})[reader.name] = None


def inline(program: LoopProgram, gpu: bool = False) -> list[tuple[str, str]]:
    """Inlines what it can; returns (node, reason) for nodes that were not inlined. On GPUs in two
    passes: what two readers would have loaded has one where the first pass merged these. In another
    pass where sums of one-hot rows became pointwise."""
    reasons = Inliner(program, gpu).run()
    if gpu:
        reasons = Inliner(program, gpu).run()
    return Inliner(program, gpu).run() if replace_one_hot_sums(program) else reasons
