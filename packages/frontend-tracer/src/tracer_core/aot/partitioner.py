"""Partitions a joint graph into a forward graph and a backward graph, choosing what is saved in
between.

In: a `Joint` and a memory budget. Out: `Split`: two functional ATen graphs and what passes from one
to the other: saved tensors (inputs of the forward, or additional outputs), saved sizes, and
tangents.

Which values to save so that the backward can recompute all others at little cost is a minimum cut
(Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, for recomputation; the cut as
in "Min-Cut Rematerialization", PyTorch's developers' forum, 2022): a value's capacity is its bytes,
and what may not be recomputed is connected to the source. By default only views and pointwise
operators are recomputed; a budget below 1 allows costlier operators too, cheapest per byte first,
until the saved bytes fit. For backends that fuse, gathers that repeat rows are recomputed, and the
outputs of normalizations and of softmax, from their inputs and statistics (see
`norm_recomputation`, `softmax_recomputation`).

What always holds: random operators, collectives and nodes of the backward itself are never computed
twice; values that share memory are saved once, and their views are recomputed; some values are
packed (`saved_tensors`); an input that the forward, or what follows it, writes to is saved as it was
before.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.aot.attention_seeds import without_seeds
from tracer_core.aot.dead_code import is_size, remove_dead_nodes
from tracer_core.aot.flow_graph import FlowGraph
from tracer_core.aot.fused_costs import SHARE_OF_WORK, FusedCosts, bytes_of, is_heavy, result_bytes
from tracer_core.aot.joint_graph import Joint
from tracer_core.aot.late_waits import wait_late
from tracer_core.aot.memory_owners import Owners, clone
from tracer_core.aot.norm_recomputation import Formula, formulas
from tracer_core.aot.rng_saved import replayed_rng, worth_saving
from tracer_core.aot.saved_tensors import as_stored, forms, packed, unpacked
from tracer_core.aot.softmax_recomputation import SoftmaxFormula, softmax_formulas
from tracer_core.aot.symbolic_sizes import SYM_TYPES, SizeNodes, free_symbols, hint_of, size_origins
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait, is_pointwise, runs_once
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node

#: Cheap to recompute, although not all are tagged as pointwise.
_CHEAP = overloads_with(Trait.CHEAP)
_GATHERS = overloads_with(Trait.GATHERS)
_DECISIONS = overloads_with(Trait.DECIDES)
_EXACT = overloads_with(Trait.EXACT)
_MASKS = (torch.bool, torch.uint8)

#: Bytes of a row from which on gathering rows again is about as fast as reading their copies: what
#: a GPU reads from memory at once.
MIN_ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class Split:
    """The two graphs and what passes between them.

    forward, backward: graphs with output nodes. saved_inputs: indices of forward inputs,
    saved_outputs: indices of forward outputs, that the backward takes, in this order; then sizes
    (symbolic numbers), then tangents (indices of forward outputs). outputs: how many of the
    forward's outputs are the program's. gradients: for each differentiable input the index of a
    backward output, of a tangent (``~index``) or None. written: indices of backward inputs that
    came from clones. saved_bytes: of the forward's outputs that only the backward reads. values: of the
    joint graph, where the saved outputs hold them as they are or packed, None for another view.
    """

    forward: torch.fx.Graph
    backward: torch.fx.Graph
    saved_inputs: tuple[int, ...]
    saved_outputs: tuple[int, ...]
    sizes: tuple[Any, ...]
    tangents: tuple[int, ...]
    outputs: int
    gradients: tuple[int | None, ...]
    saved_bytes: int
    values: tuple[Node | None, ...]


@dataclass(frozen=True, slots=True)
class _ForwardHalf:
    """A forward graph and what it saves: (index of an input, node), (index of an output, node,
    whether the output is another view of the node's memory), sizes.
    """

    forward: torch.fx.Graph
    inputs: Sequence[tuple[int, Node]]
    outputs: Sequence[tuple[int, Node, bool]]
    sizes: Sequence[Any]


class Partitioner:
    """One partitioning. Mutable.

    budget: the fraction (0 to 1) of the default's saved bytes that may be saved. choose: for
    backends that partition themselves, see `Backend.partition`. fuses: see `Backend.fuses`.
    """

    def __init__(
        self,
        joint: Joint,
        budget: float,
        choose: Callable[[torch.fx.GraphModule], Iterable[str]] | None = None,
        fuses: bool = False,
    ) -> None:
        self.joint, self.budget, self.choose, self.fuses = joint, budget, choose, fuses
        self.half: _ForwardHalf | None = None  # of `split`
        without_seeds(joint.graph)
        fuses = fuses and choose is None
        self.softmax = softmax_formulas(joint.forward) if fuses else {}
        norms = formulas(joint.forward) if fuses else {}
        self.formulas: dict[Node, Formula | SoftmaxFormula] = {**norms, **self.softmax}
        self.narrow = forms(joint.forward, fuses)
        self.forward = set(joint.forward)
        self.placeholders = [node for node in joint.forward if node.op == "placeholder"]
        written = (*joint.mutations, *joint.written_later)
        self.mutated = {self.placeholders[index] for index in written}
        self.tangents = [node for node in joint.tangents if node is not None]
        self.order = {node: index for index, node in enumerate(joint.graph.nodes)}
        self.owners = Owners(joint.graph.nodes)
        self.decisive = self._decisive()
        self.costs = FusedCosts(joint, self.owners, self.formulas) if fuses else None

    # What the backward needs

    def split(self) -> Split:
        """Returns the two graphs."""
        own = self._backward_nodes()
        half = self._build(self._saved(self._needed(own)))
        return self._backward(own, half)

    def split_of(self, joint: Joint) -> Split:
        """Returns the graphs for a joint graph with the same forward and fewer tangents; the
        forward is the one of `split`, which saves what all tangents need.

        Raises LoweringUnsupported where that is not enough.
        """
        assert self.half is not None
        other = Partitioner(joint, self.budget, self.choose, self.fuses)
        return other._backward(other._backward_nodes(), self.half)

    def _backward_nodes(self) -> list[Node]:
        """Returns the nodes of the backward pass that gradients depend on, in order."""
        nodes: set[Node] = set()
        waiting = [node for node in self.joint.gradients if node is not None]
        while waiting:
            node = waiting.pop()
            if node not in nodes and node not in self.forward and node.op != "placeholder":
                nodes.add(node)
                waiting += node.all_input_nodes
        return sorted(nodes, key=self.order.__getitem__)

    def _needed(self, own: Sequence[Node]) -> list[Node]:
        """Returns the values of the forward that the backward's nodes read."""
        read = [source for node in own for source in node.all_input_nodes]
        read += [node for node in self.joint.gradients if node is not None]
        return [node for node in dict.fromkeys(read) if node in self.forward and not is_size(node)]

    # What is saved

    def _saved(self, needed: Sequence[Node]) -> list[Node]:
        if self.choose is not None:
            return self._chosen(self.choose, needed)
        default = self._cut(needed, frozenset())
        if self.budget >= 1:
            return self._with_rng(needed, default)
        allowed = self._recomputable(needed)
        target = self.budget * self._size(default)
        low, high = 0, len(allowed)
        best = default
        while low < high:  # the fewest recomputed costly operators such that the rest fits
            middle = (low + high) // 2
            result = self._cut(needed, frozenset(allowed[: middle + 1]))
            if self._size(result) <= target:
                best, high = result, middle
            else:
                low = middle + 1
        return best if self._size(best) <= target else self._cut(needed, frozenset(allowed))

    def _with_rng(self, needed: Sequence[Node], default: list[Node]) -> list[Node]:
        """Returns what is saved where a gradient of some outputs alone may need the random numbers
        that kernels have drawn: these too, unless that takes much more memory.
        """
        rng_nodes = replayed_rng(self.joint.forward) if len(self.tangents) > 1 else []
        if set(rng_nodes) <= set(default):
            return default
        result = self._cut([*dict.fromkeys([*needed, *rng_nodes])], frozenset())
        return result if worth_saving(self._size(result), self._size(default)) else default

    def _chosen(
        self, choose: Callable[[torch.fx.GraphModule], Iterable[str]], needed: Sequence[Node]
    ) -> list[Node]:
        """Returns what a backend wants to be saved, and the inputs that the rest is computed from.

        Raises ValueError for an unknown name, and where random numbers would be drawn again.
        """
        graph = torch.fx.Graph()
        result: dict[Node, Node] = {}
        for node in self.joint.graph.nodes:
            result[node] = graph.node_copy(node, result.__getitem__)
            result[node].meta["phase"] = "forward" if node in self.forward else "backward"
        gradients = [None if node is None else result[node] for node in self.joint.gradients]
        graph.output((tuple(result[node] for node in self.joint.outputs), tuple(gradients)))
        by_name = {copy.name: node for node, copy in result.items() if node in self.forward}
        gm = torch.fx.GraphModule(torch.nn.Module(), graph, class_name="JointGraph")
        wanted = list(choose(gm))
        if unknown := ", ".join(name for name in wanted if name not in by_name):
            raise ValueError(
                f"partition names {unknown}, which are no forward nodes of the joint graph"
            )
        chosen = {self.owners.of(by_name[name]) for name in wanted}
        saved, waiting, seen = set(), list(needed), set()
        while waiting:
            node = waiting.pop()
            if node in seen or is_size(node):
                continue
            seen.add(node)
            if node in chosen or node.op == "placeholder":
                saved.add(node)
            elif runs_once(node.target):
                raise ValueError(
                    f"partition has {node.name} computed again, which draws random numbers or"
                    " communicates"
                )
            else:
                waiting += node.all_input_nodes
        return sorted(saved, key=self.order.__getitem__)

    def _size(self, saved: Iterable[Node]) -> int:
        return sum(self._stored_bytes(node) for node in saved if node.op != "placeholder")

    def _stored_bytes(self, node: Node) -> int:
        """Returns the bytes that a saved value takes."""
        size = bytes_of(node.meta["val"])
        return size // node.meta["val"].element_size() if node in self.narrow else size

    def _recomputable(self, needed: Sequence[Node]) -> list[Node]:
        """Returns the operators that a budget may have recomputed, cheapest per byte first."""
        nodes = [
            node
            for node in self.joint.forward
            if node.op == "call_function"
            and not self._cheap(node)
            and not runs_once(node.target)
            and not is_size(node)
        ]
        return sorted(nodes, key=lambda node: (is_heavy(node), -result_bytes(node)))

    def _cheap(self, node: Node) -> bool:
        """Whether a node may be recomputed by default."""
        if node.op != "call_function" or is_size(node):
            return False
        if self.owners.is_view(node):
            return True
        if node.target is operator.getitem:
            return False
        if node.target in _GATHERS:
            return self._repeats_rows(node)
        return (is_pointwise(node.target) or node.target in _CHEAP) and not runs_once(node.target)

    def _repeats_rows(self, node: Node) -> bool:
        """Whether a gather's result has rows of a value of the forward several times (those of a
        graph's nodes, for each edge), so that a fused reader reads that value as fast. Parameters
        stay out: eager keeps none of them for this.
        """
        source, indices = node.args[0], node.all_input_nodes[1:]
        assert isinstance(source, Node)
        return (
            self.fuses
            and self.owners.of(source).op != "placeholder"
            and result_bytes(node) >= 2 * result_bytes(source)
            and _row_bytes(node, source.meta["val"]) >= MIN_ROW_BYTES
            and not any(index.meta["val"].dtype in _MASKS for index in indices)
        )

    def _decisive(self) -> set[Node]:
        """Returns the rounded values that comparisons of either pass read: never recomputed."""
        compared = [
            source
            for node in self.joint.graph.nodes
            if node.target in _DECISIONS
            for source in node.all_input_nodes
        ]
        nodes: set[Node] = set()
        seen: set[Node] = set()
        while compared:
            node = compared.pop()
            value = node.meta.get("val")
            if node in seen or node not in self.forward or not isinstance(value, torch.Tensor):
                continue
            seen.add(node)
            rounded = value.is_floating_point() and node.target not in _EXACT
            if rounded and self.owners.of(node) is node:
                nodes.add(node)
            else:
                compared += node.all_input_nodes
        return nodes

    def _sources(self, node: Node) -> list[Node]:
        """Returns what a node is computed from, if it is recomputed."""
        formula = self.formulas.get(node)
        return node.all_input_nodes if formula is None else formula.sources

    def _cut(self, needed: Sequence[Node], costly: frozenset[Node]) -> list[Node]:
        """Returns the values to save, in order: a minimum cut between the available and the needed
        values.
        """

        def again(node: Node) -> bool:
            if node.op == "placeholder" or is_size(node) or node in self.decisive:
                return False
            if node in self.formulas:
                return True
            if node.target is operator.getitem and not self.owners.is_view(node):
                source = node.args[0]
                return isinstance(source, Node) and source in costly
            return node in costly or self._cheap(node)

        # Multi-output operators have no value of their own: their items are connected to the
        # operators' inputs.
        graph = FlowGraph()
        count = len(self.order)
        waiting, seen = list(needed), set()
        for node in needed:
            graph.edge((node, "out"), "sink")
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            value = node.meta["val"]
            # inputs may share memory
            savable = node.op == "placeholder" or self.owners.of(node) is node
            if not (savable and isinstance(value, torch.Tensor)):
                graph.edge((node, "in"), (node, "out"))  # never saved: a view, or several values
            else:
                # Among about equal cuts the one that writes and computes least, then the one
                # nearest to the backward, which recomputes least.
                bias = 1 + count - self.order[node]
                half = node.op == "placeholder" and node not in self.mutated
                size = 0 if half else self._stored_bytes(node)
                written = 0 if half or self.costs is None else self.costs.writing(node, size)
                cost = size * SHARE_OF_WORK + written
                graph.edge((node, "in"), (node, "out"), cost * 4 * count + bias)
            if not again(node):
                graph.edge("source", (node, "in"))
                continue
            work = 0 if self.costs is None else self.costs.recomputing(node, self._sources(node))
            if work:
                graph.edge("source", (node, "in"), work * 4 * count)
            sources = [source for source in self._sources(node) if not is_size(source)]
            for source in sources:
                graph.edge((source, "out"), (node, "in"))
            waiting += sources
        if not needed:
            return []
        reached = graph.before_cut("source", "sink")
        frontier = [
            node for node in seen if (node, "in") in reached and (node, "out") not in reached
        ]
        return sorted(frontier, key=self.order.__getitem__)

    # The graphs

    def _build(self, saved: Sequence[Node]) -> _ForwardHalf:
        """Returns the forward, which returns the saved values behind its own."""
        joint = self.joint
        outputs = list(joint.outputs)
        forward = torch.fx.Graph()
        result: dict[Node, Node] = {}
        writes = [node for node in joint.forward if node.target is aten.copy_.default]
        saved_set = set(saved)
        for node in joint.forward:
            if node not in writes:
                formula = self.softmax.get(node)
                if formula and not saved_set.isdisjoint(formula.statistics):
                    result[node] = formula.emit(forward, result.__getitem__)
                else:
                    result[node] = forward.node_copy(node, result.__getitem__)
        returned = [result[node] for node in outputs]
        saved_inputs: list[tuple[int, Node]] = []
        saved_outputs: list[tuple[int, Node, bool]] = []  # index, value, whether it is another view
        for node in saved:
            if node.op == "placeholder" and node not in self.mutated:
                saved_inputs.append((self.placeholders.index(node), node))
                continue
            same = [i for i, output in enumerate(outputs) if self.owners.of(output) is node]
            if same and _reshaped(outputs[same[0]], node) and node not in self.mutated:
                saved_outputs.append((same[0], node, outputs[same[0]] is not node))
                continue
            value = result[node]
            if node in self.mutated or same:
                value = clone(forward, value)
            elif node in self.narrow:
                value = packed(forward, value, self.narrow[node])
            saved_outputs.append((len(returned), node, False))
            returned.append(value)
        for node in writes:
            result[node] = forward.node_copy(node, result.__getitem__)
        forward.output(tuple(returned))
        remove_dead_nodes(forward)
        wait_late(forward)
        shown = [node for _, node in saved_inputs]
        shown += [outputs[index] if view else node for index, node, view in saved_outputs]
        self.half = _ForwardHalf(forward, saved_inputs, saved_outputs, self._sizes(shown))
        return self.half

    def _sizes(self, shown: list[Node]) -> list[Any]:
        """Returns the sizes that a backward needs beside saved values that show some, and beside
        a tangent that is never absent.
        """
        used = {
            symbol
            for node in self.joint.graph.nodes
            for symbol in free_symbols(node.meta.get("val"))
        }
        always = self.tangents if len(self.tangents) == 1 else []
        known = size_origins([node.meta["val"] for node in (*shown, *always)])
        origins = size_origins([node.meta["val"] for node in self.placeholders])
        return [
            origins[symbol].symint
            for symbol in sorted(used - known.keys(), key=str)
            if symbol in origins
        ]

    def _backward(self, own: Sequence[Node], half: _ForwardHalf) -> Split:
        joint, saved_inputs, saved_outputs = self.joint, half.inputs, half.outputs
        graph = torch.fx.Graph()
        built: dict[Node, Node] = {}
        reshaped: list[tuple[Node, Node]] = []
        narrow: list[tuple[Node, Node]] = []

        def placeholder(node: Node, name: str, value: Any) -> Node:
            new = graph.placeholder(name)
            new.meta.update(node.meta)
            new.meta["val"] = value
            return new

        for _, node in saved_inputs:
            built[node] = placeholder(node, node.name, node.meta["val"])
        for index, node, other_view in saved_outputs:
            output = joint.outputs[index] if other_view else node
            name = f"saved_{node.name}"
            form = None if index < len(joint.outputs) else self.narrow.get(node)
            value = output.meta["val"]
            built[node] = placeholder(node, name, value if form is None else as_stored(value, form))
            if form is not None:
                narrow.append((node, built[node]))
            if other_view:
                reshaped.append((node, built[node]))
        for size in half.sizes:
            graph.placeholder(f"size_{size.node.expr}").meta.update(val=size, user_frame="")
        for node in self.tangents:
            built[node] = placeholder(node, node.name, node.meta["val"])
        placeholders = list(graph.nodes)
        numbers = SizeNodes(graph, placeholders)
        for node, source in reshaped:
            shape = node.meta["val"].shape
            shape = [numbers.node(s) if isinstance(s, SYM_TYPES) else s for s in shape]
            built[node] = graph.call_function(aten.view.default, (source, shape))
            built[node].meta.update(node.meta)
        for node, source in narrow:
            built[node] = unpacked(graph, source, node, self.narrow[node])
        emit = self._emitter(graph, built, numbers)
        for node in own:
            emit(node)
        gradients, results = self._results(emit, built)
        graph.output(tuple(results))
        remove_dead_nodes(graph)
        wait_late(graph)
        return Split(
            half.forward,
            graph,
            tuple(index for index, _ in saved_inputs),
            tuple(index for index, _, _ in saved_outputs),
            tuple(half.sizes),
            tuple(i for i, node in enumerate(joint.tangents) if node is not None),
            len(joint.outputs),
            gradients,
            sum(self._stored_bytes(node) for _, node, _ in saved_outputs),
            tuple(None if other_view else node for _, node, other_view in saved_outputs),
        )

    def _emitter(
        self, graph: torch.fx.Graph, result: dict[Node, Node], numbers: SizeNodes
    ) -> Callable[[Node], Node]:
        """Returns a function that copies a node into the backward, after the nodes that it
        needs.
        """

        def emit(node: Node) -> Any:
            waiting = [node]
            while waiting:
                top = waiting[-1]
                missing = [s for s in self._sources(top) if s not in result and not is_size(s)]
                lost = top in self.forward and (top.op == "placeholder" or runs_once(top.target))
                if lost and top not in result:
                    reason = f"the backward needs {top.name}, which the forward has not saved"
                    raise LoweringUnsupported(reason)
                if top in result:
                    waiting.pop()
                elif missing:
                    waiting += missing
                else:
                    waiting.pop()
                    formula = self.formulas.get(top)
                    result[top] = (
                        formula.emit(graph, argument) if formula else graph.node_copy(top, argument)
                    )
            return result[node]

        def argument(node: Node) -> Any:
            return numbers.node(node.meta["val"]) if is_size(node) else result[node]

        return emit

    def _results(
        self, emit: Callable[[Node], Node], result: dict[Node, Node]
    ) -> tuple[tuple[int | None, ...], list[Node]]:
        """Returns where each gradient is found, and the backward's outputs; equal gradients are
        returned once.
        """
        match: list[int | None] = []
        results: list[Node] = []
        owners: dict[Node, int] = {}
        for node in self.joint.gradients:
            if node is None:
                match.append(None)
            elif node in self.tangents:
                match.append(~self.tangents.index(node))
            else:
                value = emit(node)
                owner = self.owners.of(node)
                if value in results:
                    match.append(results.index(value))
                    continue
                inputs = owner in result and result[owner].op == "placeholder"
                if owner in owners or inputs:  # another output's memory: a copy
                    value = clone(value.graph, value)
                owners[owner] = len(results)
                match.append(len(results))
                results.append(value)
        return tuple(match), results


def _reshaped(output: Node, owner: Node) -> bool:
    """Whether `owner` is `output`, or its contiguous memory under other sizes."""
    if output is owner:
        return True
    item, other = output.meta["val"], owner.meta["val"]
    return bool(
        item.dtype == other.dtype
        and item.is_contiguous()
        and other.is_contiguous()
        and hint_of(item.storage_offset()) == hint_of(other.storage_offset())
        and bytes_of(item) == bytes_of(other)
    )


def _row_bytes(gather: Node, source: torch.Tensor) -> int:
    """Returns the bytes of the elements behind the dimensions that a gather indexes."""
    where = gather.args[1]
    if isinstance(where, (list, tuple)):
        where = max(place for place, index in enumerate(where) if index is not None)
    dim = where if isinstance(where, int) else 0  # of `embedding` the indices
    elements: int = math.prod(map(hint_of, source.shape[dim:][1:]))
    return source.element_size() * elements
