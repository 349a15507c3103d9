"""Moves a part of the trace into a subgraph of its own, called by one node (higher-order
operators).

A `Region` starts before the part runs; `take` returns the GraphModule and the outer values that it
reads. After `take` the outer graph is as before the part ran, except for new graph inputs. If a
tensor made inside is used outside, the trace asks for a break before the part.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.object_mutations import (
    SNAPSHOTTERS,
    Change,
    Effects,
    same_contents,
)
from tracer_core.graph_breaks import Restart
from tracer_core.ops.calls import uses_rng
from tracer_core.torch_private.needed import pytree


def _operand(number: int) -> Any:
    """Placeholder for a tensor that native code hands to the part (a slice that vmap makes)."""
    raise AssertionError("operands are placeholders by the time that a graph runs")


class Region:
    """A part of the trace. Mutable, used once. step: of the instruction that contains it. what: for
    messages. n_late: how many calls the trace had put off until after the graph."""

    def __init__(
        self, recorder: Recorder, effects: Effects, step: int, what: str, n_late: int = 0
    ) -> None:
        self.recorder, self.effects, self.step, self.what = recorder, effects, step, what
        self.n_late = n_late
        self.operands: list[torch.fx.Node] = []
        self._last = recorder.graph._root.prev
        recorder.open_regions += 1
        self._counts = recorder.op_count, recorder.state_nodes
        self._contents = {key: _contents(change) for key, change in effects.changes.items()}

    def operand(self, value: Any) -> None:
        """Gives a tensor made by native code a node: the next operand of the part."""
        node = self.recorder.graph.call_function(_operand, (len(self.operands),))
        self.operands.append(node)
        if self.recorder.node_of(value) is None:  # else a tensor of the outer graph, unchanged
            self.recorder.bind(value, node)

    def changed(self) -> str | None:
        """Describes what existed before and was changed by the part; None if nothing was."""
        for key, change in self.effects.changes.items():
            before = self._contents.get(key, change.before)
            if not same_contents(before, _contents(change)):
                return type(change.obj).__name__
        return None

    def take(
        self, results: list[Any], of_operands: bool = False
    ) -> tuple[torch.fx.GraphModule, list[Any]]:
        """Returns (graph, outer values): the graph takes these values, then the operands, and
        returns a tuple of the results (tensors). of_operands: nodes that depend on no operand, but
        on an outer tensor, stay outside."""
        nodes = [self.recorder.argument(value) for value in results]
        moved = self._of_operands() if of_operands else self._nodes()
        inside = dict.fromkeys(moved)
        outer: dict[torch.fx.Node, None] = {}
        for node in moved:
            outer |= {source: None for source in node.all_input_nodes if source not in inside}
        outer |= {
            node: None for node in nodes if isinstance(node, torch.fx.Node) and node not in inside
        }
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, Any] = {}
        for node in (*outer, *self.operands):
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in moved:
            if node not in copies:
                copies[node] = graph.node_copy(node, lambda source: copies[source])
        graph.output(tuple(copies.get(node, node) for node in nodes))
        self._remove(moved)
        return torch.fx.GraphModule({}, graph), [node.meta["val"] for node in outer]

    def _asked(self, nodes: list[torch.fx.Node]) -> set[torch.fx.Node]:
        """Returns the nodes of the part that lead to the conditions asserted in it, if they can run
        once more."""
        asserted = self.recorder.asserted
        last = None if asserted is None else self.recorder.node_of(asserted)
        if last not in nodes:
            return set()
        inside, wanted, memory, outside = set(nodes), {last}, set[int](), set[int]()
        items: set[torch.fx.Node] = set()
        for node in reversed(nodes[: nodes.index(last) + 1]):
            if node not in wanted and memory.isdisjoint(node.meta.get("writes", ())):
                continue
            items.add(node)
            wanted.update(node.all_input_nodes)
            memory |= _memory_of(node)
            for source in node.all_input_nodes:
                (memory if source in inside else outside).update(_memory_of(source))
        written = {at for node in items for at in node.meta.get("writes", ())}
        once = any(map(uses_rng, items)) or not written.isdisjoint(outside)
        return set() if once else items

    def _of_operands(self) -> list[torch.fx.Node]:
        """Returns the nodes of the part that operands reach, and tensors made of constants."""
        nodes = self._nodes()
        inside, reached, outside = set(nodes), set(self.operands), set()
        for node in nodes:
            sources = node.all_input_nodes
            if not reached.isdisjoint(sources) or node.meta.get("writes"):
                reached.add(node)
            elif node not in reached and (
                not isinstance(node.meta.get("val"), torch.Tensor)
                or any(source in outside or source not in inside for source in sources)
            ):
                outside.add(node)
        for node in reversed(nodes):
            if node in outside:
                outside.update(source for source in node.all_input_nodes if source in inside)
        return [node for node in nodes if node in reached or node not in outside]

    def writes(self) -> bool:
        """Returns whether a node of the part writes to a tensor."""
        return any(node.meta.get("writes") for node in self._nodes())

    def drop(self) -> tuple[Any, ...]:
        """Removes the part from the graph, except for what its assertions need; returns the call
        targets of its nodes."""
        nodes = self._nodes()
        asked = self._asked(nodes)
        self._remove([node for node in nodes if node not in asked])
        self.recorder.op_count += len(asked)
        return tuple(node.target for node in nodes if node.op == "call_function")

    def keep(self) -> None:
        """Leaves the part in the graph."""
        self.recorder.open_regions -= 1

    def _nodes(self) -> list[torch.fx.Node]:
        nodes: list[torch.fx.Node] = []
        node = self.recorder.graph._root.prev
        while node is not self._last and node.op != "root":
            if node.op != "placeholder":
                nodes.append(node)
            node = node.prev
        return nodes[::-1]

    def _remove(self, moved: list[torch.fx.Node]) -> None:
        data = self.recorder.data
        if data is not None and not data.nodes.isdisjoint(moved):
            reason = f"a size that depends on data, inside {self.what}"
            raise Restart(self.step, "data_dependent_shape", reason)
        asserted = self.recorder.asserted
        if asserted is not None and self.recorder.node_of(asserted) in moved:
            reason = f"a branch on a tensor inside {self.what}"
            raise Restart(self.step, "data_dependent_branch", reason)
        self.recorder.forget(moved, self.step, self.what)
        for node in reversed(moved):
            self.recorder.graph.erase_node(node)
        self.recorder.op_count, self.recorder.state_nodes = self._counts
        self.recorder.open_regions -= 1


def _memory_of(node: torch.fx.Node) -> set[int]:
    """Returns the storages of a node's results."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {
        torch_private.storage_id(leaf)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    }


def _contents(change: Change) -> Any:
    return SNAPSHOTTERS[change.kind].save(change.obj, change.where)
