"""Splits a captured graph at operators with unbacked (data-dependent) sizes, at those that seed or
read a random number generator, and at those that have no functional form, for ATen backends.

Capture marks the former, the dispatcher the latter (``meta["data_size"]``). They, and computations on
sizes, run as captured, one after the other; the tensor operators between them form subgraphs, whose
inputs show the new sizes. The order of the captured graph is kept, except that numbers and checks of
sizes run as early as possible, after the last write to the memory that they read. Gradients are
switched on and off between subgraphs. A graph that cannot be split (two inputs of a subgraph share
memory that it writes to, torch's state changes otherwise) raises LoweringUnsupported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.dead_code import is_size
from tracer_core.aot.request import role_of
from tracer_core.aot.symbolic_sizes import free_symbols, size_origins
from tracer_core.aot.view_aliasing import absolute_offsets
from tracer_core.aot.writes_across_parts import (
    before,
    copied,
    is_read_whole,
    memory_of,
    without_history,
)
from tracer_core.contract.branch_prediction import after_commit, committing
from tracer_core.contract.captured_graph import APART, MARK, ORDERED, CapturedGraph
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import InputSpec
from tracer_core.debug.fallbacks import Fallback, report
from tracer_core.debug.graph_names import derived_name
from tracer_core.registry.eager import graph_function
from tracer_core.torch_private.memory_layout import same_strides
from tracer_core.torch_private.needed import pytree, set_grad_mode


def has_marks(gm: torch.fx.GraphModule) -> bool:
    """Whether capture marked an operator."""
    return any(MARK in node.meta for node in gm.graph.nodes if node.op != "placeholder")


def requires_grad(node: torch.fx.Node) -> bool:
    """Returns whether a tensor among a node's values requires a gradient."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _is_apart(node: torch.fx.Node) -> bool:
    """Whether an operator without a functional form gives a value, or several of which this is
    one."""
    source = node.args[0] if node.target is operator.getitem else None
    return node.meta.get(MARK) == APART or (
        isinstance(source, torch.fx.Node) and source.meta.get(MARK) == APART
    )


def _or_eagerly(run: RunFunction, part: CapturedGraph, apart: Sequence[int]) -> RunFunction:
    """Returns `run`, or the part in eager mode where an operator before it, whose fake nobody has
    checked, returns other strides or another dtype than its fake in the first call."""
    chosen: RunFunction | None = None

    def call(inputs: list[Any]) -> Sequence[Any]:
        nonlocal chosen
        if chosen is None:
            alike = all(_is_like(inputs[at], part.real_inputs[at]) for at in apart)
            if not alike:
                reason = (
                    "an operator that runs eagerly before it returns another layout than its fake"
                )
                report(Fallback("lowering", part.name, "", f"{part.name} runs eagerly: {reason}"))
            chosen = run if alike else graph_function(part.gm)
        return chosen(inputs)

    return call


def _is_like(value: Any, fake: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(fake, torch.Tensor):
        return type(value) is type(fake)
    if (value.dtype, value.device, value.dim()) != (fake.dtype, fake.device, fake.dim()):
        return False
    known = all(type(number) is int for number in (*fake.shape, *fake.stride()))
    return not known or (value.shape == fake.shape and same_strides(value, fake))


def _only_where_inputs_begin(values: Sequence[Any], everything: Sequence[Any]) -> set[Any]:
    """Returns the symbols of the storage offsets of inputs that no size and no stride has: views are
    placed relative to inputs."""
    begins = (value.storage_offset() for value in values if isinstance(value, torch.Tensor))
    numbers = [value for value in everything if not isinstance(value, torch.Tensor)]
    tensors = [value for value in everything if isinstance(value, torch.Tensor)]
    steps = [step for value in tensors for step in (*value.shape, *value.stride())]
    known = {symbol for number in (*numbers, *steps) for symbol in free_symbols(number)}
    return {symbol for begin in begins for symbol in free_symbols(begin)} - known


class UnbackedSplit:
    """One split. Mutable. build(captured): compiles a subgraph. prepares: the operators before the
    first subgraph have no effect, so that they may run before a predicted branch is known."""

    def __init__(
        self,
        captured: CapturedGraph,
        build: Callable[[CapturedGraph], RunFunction],
        prepares: bool = False,
    ) -> None:
        self.captured, self.build, self.prepares = captured, build, prepares
        self.graph = captured.gm.graph
        self.outer = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, Any] = {}
        self.part: list[torch.fx.Node] = []
        #: Results taken from an operator that has several, in the operator's own subgraph.
        self.early: set[torch.fx.Node] = set()
        self.count = 0
        #: Whether grad mode is on for the gathered nodes.
        self.with_grad = not captured.grad_off
        self.done: set[torch.fx.Node] = set()
        self.described: dict[torch.fx.Node, InputSpec] = {}
        #: A view that counts from the beginning of a storage is another place of an input in the next
        #: call: no subgraph may return it.
        self.offset_views = {
            node for node, _, offset in absolute_offsets(self.graph) if offset is not None
        }

    def runner(self) -> RunFunction:
        """Builds the subgraphs and connects them."""
        placeholders = self.graph.find_nodes(op="placeholder")
        self.described = dict(zip(placeholders, self.captured.inputs, strict=True))
        for node in placeholders:
            self.copies[node] = self.outer.placeholder(node.name)
        tracked = any(map(requires_grad, self.graph.nodes))
        for node in self.graph.nodes:
            if node.target is set_grad_mode:
                if tracked:  # else nothing has gradients, whatever the mode
                    self._flush()
                    self.outer.node_copy(node)
                self.with_grad = bool(node.args[0])
            elif node in self.early:
                continue
            elif node.op in ("call_function", "call_method"):
                self._place(node)
        (output,) = self.graph.find_nodes(op="output")
        self._flush()
        self.outer.node_copy(output, self.copies.__getitem__)
        gm = torch.fx.GraphModule(torch.nn.Module(), self.outer, class_name="AtDataSizes")
        run = graph_function(gm)
        return committing(run) if self.prepares and self.count else run

    def _place(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        source = node.args[0] if node.target is operator.getitem else None
        several = isinstance(value, (tuple, list))
        items = [user for user in node.users if several and user.target is operator.getitem]
        is_offset_view = node in self.offset_views
        of_data = (
            is_offset_view
            or any(MARK in item.meta for item in (node, *items))
            or (
                isinstance(source, torch.fx.Node)
                and source in self.copies
                and not isinstance(source.meta.get("val"), torch.Tensor)
            )
        )
        is_number = is_size(node)
        if value is None and not of_data and "writes" not in node.meta:
            raise LoweringUnsupported(f"{node.target} in a graph that is cut")
        if not of_data and not is_number:
            self.part.append(node)
            taken = [item for item in items if isinstance(item.meta.get("val"), torch.Tensor)]
            self.part += taken
            self.early.update(taken)
            return
        tensors = of_data and value is not None and not is_number
        ordered = is_offset_view or node.meta.get(MARK) in (ORDERED, APART)
        waits = any(source not in self.copies for source in node.all_input_nodes)
        if tensors or ordered or waits or self._reads_written(node):
            self._flush()
        if node.meta.get(MARK) == APART:
            self._require_no_history_written(node)
        self.copies[node] = self.outer.node_copy(node, self.copies.__getitem__)
        self.done.add(node)

    def _reads_written(self, node: torch.fx.Node) -> bool:
        """Returns whether a node reads a number in memory that the gathered nodes write to."""
        if MARK not in node.meta:
            return False  # of a size
        read = {memory_of(source.meta.get("val")) for source in node.all_input_nodes} - {None}
        return any(not read.isdisjoint(item.meta.get("writes", ())) for item in self.part)

    def _handed_on(
        self, nodes: Sequence[torch.fx.Node], sources: Sequence[torch.fx.Node]
    ) -> list[torch.fx.Node]:
        """Returns the inputs of a subgraph that writes to their memory where gradients are needed: it
        returns them as they are afterwards, and what follows reads these. None with grad mode off,
        where a write leaves a tensor its history."""
        if not (self.captured.needs_grad and self.with_grad):
            return []
        written = {memory for node in nodes for memory in node.meta.get("writes", ())}
        inputs = {memory_of(node.meta.get("val")) for node in self.described}
        result = [item for item in sources if memory_of(item.meta.get("val")) in written - inputs]
        memory = [memory_of(item.meta["val"]) for item in result]
        shared = len(memory) > len(set(memory))
        if shared or not all(is_read_whole(item, nodes, self.done) for item in result):
            return []
        return result

    def _flush(self) -> None:
        """Makes a subgraph of the gathered nodes."""
        nodes, self.part = self.part, []
        if not nodes:
            return
        inside = set(nodes)
        results = [node for node in nodes if any(user not in inside for user in node.users)]
        read = (source for node in nodes for source in node.all_input_nodes)
        sources = list(dict.fromkeys(source for source in read if source not in inside))
        if any(not isinstance(node.meta["val"], torch.Tensor) for node in results):
            raise LoweringUnsupported("an operator with several results is cut from them")
        handed_on = self._handed_on(nodes, sources)
        self._require_own_writes(nodes, [node for node in sources if node not in handed_on])
        results += handed_on
        inputs = [
            (node.name, before(node) if node in handed_on else node.meta, self.copies[node],
             self.described.get(node))
            for node in sources
        ]  # fmt: skip
        inputs += self._missing_sizes(nodes, [node.meta["val"] for node in sources])
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for position, (name, meta, _, _) in enumerate(inputs):
            placeholder = graph.placeholder(name)
            placeholder.meta = dict(meta)
            if position < len(sources):
                copies[sources[position]] = placeholder
        for node in handed_on:
            copies[node] = copied(graph, copies[node], node)
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        without_history(nodes, copies)
        graph.output(tuple(copies[node] for node in results))
        apart = [index for index, node in enumerate(sources) if _is_apart(node)]
        compiled = self._compiled(graph, nodes, inputs, results, apart)
        call = self.outer.call_function(compiled, tuple(item[2] for item in inputs))
        for index, node in enumerate(results):
            self.copies[node] = self.outer.call_function(operator.getitem, (call, index))
        for node in handed_on:
            same = (item for item in self.copies if item.meta.get("val") is node.meta["val"])
            self.copies.update(dict.fromkeys(same, self.copies[node]))
        self.done.update(nodes)

    def _compiled(
        self,
        graph: torch.fx.Graph,
        nodes: Sequence[torch.fx.Node],
        argument: Sequence[Any],
        results: Sequence[torch.fx.Node],
        apart: Sequence[int],
    ) -> Callable[..., Any]:
        values = [meta["val"] for _, meta, _, _ in argument]
        needs_grad = any(node.meta["val"].requires_grad for node in results)
        needs_grad = needs_grad and torch.is_grad_enabled()
        name = derived_name(self.captured.name, f"at_{self.count}")
        self.count += 1
        specs = tuple(
            spec or InputSpec(name, role_of(meta["val"]), name) for name, meta, _, spec in argument
        )
        gm = torch.fx.GraphModule(torch.nn.Module(), graph, class_name="Part")
        part = replace(self.captured, gm=gm, inputs=specs, needs_grad=needs_grad, name=name)
        later = self._written_later(nodes)
        written = frozenset(
            index for index, value in enumerate(values) if memory_of(value) in later
        )
        part = replace(part, real_inputs=tuple(values), written_later=written)
        part = replace(part, grad_off=not self.with_grad)
        run = self.build(part)
        if apart:
            run = _or_eagerly(run, part, apart)

        if self.prepares:
            run = after_commit(run)

        def call(*args: Any) -> Any:
            return run(list(args))

        call.__name__ = call.__qualname__ = name
        return call

    def _written_later(self, nodes: Sequence[torch.fx.Node]) -> set[int | None]:
        """Returns the memory that is written to after a subgraph of these nodes."""
        done = {*self.copies, *nodes}
        later = (node for node in self.graph.nodes if node not in done)
        numbers: set[int | None] = {item for node in later for item in node.meta.get("writes", ())}
        inputs = [node.meta.get("val") for node in self.described]
        return numbers | {memory_of(inputs[index]) for index in self.captured.written_later}

    def _missing_sizes(self, nodes: Sequence[torch.fx.Node], values: Sequence[Any]) -> list[Any]:
        """Returns a further input for each symbol that the subgraph's inputs do not show alone."""
        everything = [*values, *(node.meta["val"] for node in nodes)]
        used = {symbol for value in everything for symbol in free_symbols(value)}
        used -= _only_where_inputs_begin(values, everything)
        result = []
        for symbol in sorted(used - size_origins(values).keys(), key=str):
            reader, value = self._reader(symbol)
            result.append((f"size_{symbol}", {"val": value, "user_frame": ""}, reader, None))
        return result

    def _reader(self, symbol: Any) -> tuple[torch.fx.Node, Any]:
        """Returns a node of the outer graph that gives a symbol, and its value."""
        for node, result in self.copies.items():
            if torch_private.raw_symbol(node.meta.get("val")) == symbol:
                return result, node.meta["val"]
        for node, created in self.copies.items():
            for dim, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
                if torch_private.raw_symbol(size) == symbol:
                    return self.outer.call_method("size", (created, dim)), size
        raise LoweringUnsupported("no tensor shows one of the symbolic sizes")

    def _require_no_history_written(self, node: torch.fx.Node) -> None:
        """Requires that an operator which runs eagerly writes to no value with gradients that a
        subgraph makes: autograd lets nobody write to views that a function returns. Views of inputs
        and of what other operators return eagerly are made again outside of the function.
        """
        written = set(node.meta.get("writes", ()))
        eager = (item for item in self.copies if item.op == "placeholder" or _is_apart(item))
        written -= {memory_of(item.meta.get("val")) for item in eager}
        for result in self.copies if written else ():  # the first one has made the memory
            value = result.meta.get("val")
            if memory_of(value) in written and requires_grad(result):
                reason = "an operator that runs eagerly writes to what is computed"
                raise LoweringUnsupported(reason, nodes=(result,))

    def _require_own_writes(
        self, nodes: Sequence[torch.fx.Node], sources: Sequence[torch.fx.Node]
    ) -> None:
        """Requires that a subgraph writes only to its own memory, or to the memory of one input."""
        written = {storage for node in nodes for storage in node.meta.get("writes", ())}
        if not written:
            return
        values = [node.meta["val"] for node in sources]
        memory = [
            torch_private.storage_id(value) for value in values if isinstance(value, torch.Tensor)
        ]
        writers = [
            node for node in nodes if not set(node.meta.get("writes", ())).isdisjoint(memory)
        ]
        if self.captured.needs_grad and writers:
            raise LoweringUnsupported(
                "a write in a part of a graph that is cut, where gradients are needed",
                nodes=writers,
            )
        if any(memory.count(storage) > 1 for storage in written):
            raise LoweringUnsupported(
                "a write to memory that two inputs share, in a part of a graph that is cut",
                nodes=writers,
            )
