"""Partitions a lowered graph by what a backend supports, and by device.

In: a lowered graph and a backend with `supports`. Out: a runner for the whole graph, which runs the
backend's partitions and, between them, the unsupported operators eagerly; and a line that counts
those with their reasons.

Each operator gets a level: the lowest that is not below its inputs' levels (for views: the highest
that is not above their readers') and whose remainder identifies its place: one per GPU, the last
one for eager. Operators of one level form a partition. Values only flow upwards, so partitions form
no cycle.

What always holds: a partition's outputs share no memory with its inputs or with each other (a view
that would is run eagerly); random numbers are drawn, and collectives issued, in the graph's order;
writes to inputs come last; the results of a partition lie on one GPU, or on the CPU.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.dead_code import is_size
from tracer_core.aot.frozen_parameters import compile_with_constants
from tracer_core.aot.memory_owners import subgraph
from tracer_core.aot.request import Lowered, Request, output_specs
from tracer_core.aot.result_check import checked
from tracer_core.aot.symbolic_sizes import free_symbols, size_origins
from tracer_core.contract.backend import Backend, resolve
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.runner import NOTHING, Runner
from tracer_core.contract.specs import InputSpec, Role
from tracer_core.debug.graph_names import derived_name
from tracer_core.ops.traits import runs_once
from tracer_core.registry.eager import graph_function
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import OpOverload

aten = torch.ops.aten

CompileFunction = Callable[[torch.fx.GraphModule, Any], Runner]


@dataclass(frozen=True, slots=True)
class Apart:
    """What a backend does not compile in one piece. reason: for users. operators: (name, reason) of
    those that it refused.
    """

    reason: str
    operators: tuple[tuple[str, str], ...]


def backend_runner(backend: Backend, lowered: Lowered) -> tuple[Runner, Apart | None]:
    """A runner for ``lowered.graph``, and what of it is compiled apart or runs eagerly."""
    graph = lowered.graph.graph
    if not lowered.spec.outputs and not any(node.op.startswith("call_") for node in graph.nodes):
        # inputs, views of them and numbers: nothing is left to compute
        return NOTHING, None
    supports = supported_by(backend)
    inputs = resolve(backend.compile)

    def compile_function(gm: torch.fx.GraphModule, spec: Any) -> Runner:
        return Runner.of(inputs(gm, spec))

    refused = unsupported_nodes(graph, supports) if supports is not None else {}
    places = {} if lowered.ir == "torch" else places_of(graph)
    if lowered.ir != "torch":
        refused = opaque(graph) | elsewhere(graph, backend) | between(graph, places) | refused
    if not refused and not places:
        return compile_with_constants(backend, compile_function, lowered.graph, lowered.spec), None
    data = [summary(graph, refused)] if refused else []
    if places:
        data.append(f"compiled apart for {' and '.join(sorted(set(map(str, places.values()))))}")
    operators = tuple(dict.fromkeys((str(node.target), reason) for node, reason in refused.items()))
    runner = Partition(backend, lowered, refused, places).runner(compile_function)
    return runner, Apart("; ".join(data), operators)


def places_of(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.device]:
    """The GPU that each operator's results lie on, or that it reads if they lie on the CPU, in a
    graph of several GPUs; nothing in others."""
    result = {node: gpus for node in graph.nodes if (gpus := _gpus(node))}
    if len({gpu for gpus in result.values() for gpu in gpus}) < 2:
        return {}
    for node in graph.nodes:
        for source in node.all_input_nodes if node not in result else ():
            result.setdefault(node, result.get(source, []))
    return {node: gpus[0] for node, gpus in result.items() if gpus and node.op == "call_function"}


def _gpus(node: torch.fx.Node) -> list[torch.device]:
    return [device for device in _devices(node) if device.type != "cpu"]


def between(
    graph: torch.fx.Graph, places: dict[torch.fx.Node, torch.device]
) -> dict[torch.fx.Node, str]:
    """Operators of one GPU that read another one's memory."""
    result: dict[torch.fx.Node, str] = {}
    for node in operators(graph) if places else ():
        others = {gpu for source in (node, *node.all_input_nodes) for gpu in _gpus(source)}
        others = others - {places.get(node)}
        if others and node.target is not aten.copy_.default:
            result[node] = f"from {' and '.join(sorted(map(str, others)))} to {places[node]}"
    return result


def supported_by(backend: Backend) -> Callable[[torch.fx.Node], str | None] | None:
    """The backend's `supports`, and for ``ir="core_aten"`` also the bound of that set; None: takes
    all.
    """
    supports: Callable[[torch.fx.Node], str | None] | None = resolve(backend.supports)
    if backend.ir != "core_aten":
        return supports

    def within_core(node: torch.fx.Node) -> str | None:
        if not is_core(node.target) and str(node.target) not in backend.preserved_ops:
            return "not a core ATen operator, and PyTorch has no decomposition of it"
        return supports(node) if supports is not None else None

    return within_core


def is_core(target: Any) -> bool:
    """Whether an operator belongs to the core ATen set, or to where torch's decompositions to it
    end.
    """
    return torch.Tag.core in target.tags or target in CORE_ENDS or target.namespace != "aten"


#: What torch's core decompositions end in without calling it core.
CORE_ENDS = frozenset(names("empty_permuted.default copy_.default", of="ops.aten"))


def operators(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that compute tensors."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and isinstance(node.target, OpOverload) and not is_size(node)
    ]


def unsupported_nodes(
    graph: torch.fx.Graph, supports: Callable[[torch.fx.Node], str | None]
) -> dict[torch.fx.Node, str]:
    """Why the backend does not take a node, for each that it does not take."""
    result: dict[torch.fx.Node, str] = {}
    for node in operators(graph):
        ask = _unusual_write if node.target is aten.copy_.default else supports
        reason = ask(node)
        if isinstance(reason, str):
            result[node] = reason
        elif reason is not None:
            raise TypeError(
                f"supports() returned {reason!r} for {node.target}: it returns None, or a text"
                " that says why not"
            )
    return result


def opaque(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """Operators that read objects of C++ (packed weights), which no backend is given."""
    objects = [
        node
        for node in graph.find_nodes(op="placeholder")
        if isinstance(node.meta["val"], torch.ScriptObject)
    ]
    return {user: "it reads an object of C++" for node in objects for user in node.users}


def elsewhere(graph: torch.fx.Graph, backend: Backend) -> dict[torch.fx.Node, str]:
    """Operators on tensors of a device type that the backend does not run on, with that reason."""
    result: dict[torch.fx.Node, str] = {}
    for node in operators(graph):
        others = {
            device.type for source in (node, *node.all_input_nodes) for device in _devices(source)
        }
        others -= frozenset(backend.devices)
        if others:
            runs_on, are_on = (" and ".join(sorted(value)) for value in (backend.devices, others))
            result[node] = f"the backend runs on {runs_on}, and its tensors are on {are_on}"
    return result


def _devices(node: torch.fx.Node) -> list[torch.device]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [value.device for value in values if isinstance(value, torch.Tensor)]


def _unusual_write(node: torch.fx.Node) -> str | None:
    """Backends write numbers to inputs; complex ones are written as eager does."""
    return "complex numbers are written to an input" if node.meta["val"].is_complex() else None


def summary(graph: torch.fx.Graph, refused: dict[torch.fx.Node, str]) -> str:
    """``2 of 40 operators run eagerly: aten.foo.default (2x: no kernel)``"""
    counts = Counter((str(node.target), reason) for node, reason in refused.items())
    parts = [f"{name} ({count}x: {reason})" for (name, reason), count in counts.most_common()]
    return f"{len(refused)} of {len(operators(graph))} operators run eagerly: " + ", ".join(parts)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether a node's one result shares memory with an input."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or _owner(node) is not node:
        return False
    return torch_private.storage_id(value) in _storages(node.all_input_nodes)


def _storages(nodes: Iterable[torch.fx.Node]) -> set[int]:
    values = (node.meta.get("val") for node in nodes)
    return {torch_private.storage_id(value) for value in values if isinstance(value, torch.Tensor)}


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The operator that a node belongs to: itself, or the one that it takes an item of."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node


@dataclass(slots=True)
class Part:
    """Mutable: the nodes of one level, in the graph's order."""

    number: int
    nodes: list[torch.fx.Node] = field(default_factory=list)

    def inputs(self) -> list[torch.fx.Node]:
        """The nodes outside that it reads, in order of first use."""
        inside = set(self.nodes)
        return list(
            dict.fromkeys(n for node in self.nodes for n in node.all_input_nodes if n not in inside)
        )

    def outputs(self) -> list[torch.fx.Node]:
        """Its tensors that are read outside."""
        inside = set(self.nodes)
        return [
            node
            for node in self.nodes
            if isinstance(node.meta["val"], torch.Tensor)
            and any(user not in inside for user in node.users)
        ]


class Partition:
    """One splitting (mutable). refused: nodes that run eagerly, with reasons. places: of the
    others, where there are several (`places_of`)."""

    def __init__(
        self,
        backend: Backend,
        lowered: Lowered,
        refused: dict[torch.fx.Node, str],
        places: dict[torch.fx.Node, torch.device],
    ) -> None:
        self.backend = backend
        self.lowered = lowered
        self.eager = set(refused)
        numbers = {device: number for number, device in enumerate(dict.fromkeys(places.values()))}
        self.places = {node: numbers[device] for node, device in places.items()}
        self.last = max(1, len(numbers))  # the place of eager
        self.graph = lowered.graph.graph
        placeholders = self.graph.find_nodes(op="placeholder")
        self.origins = size_origins([node.meta["val"] for node in placeholders])
        self.sizes: dict[Any, torch.fx.Node] = {}
        self.described = dict(zip(placeholders, lowered.spec.inputs, strict=True))
        self.parts = self._assign()

    # --- levels
    # -------------------------------------------------------------------------------------

    def _assign(self) -> dict[int, Part]:
        """The backend's parts by level, after moving views across borders to the eager side."""
        while True:
            parts = self._parts(self._levels())
            crossing = [node for part in parts.values() for node in _shared_outputs(part)]
            if not crossing:
                return parts
            self.eager.update(_owner(node) for node in crossing)

    def _levels(self) -> dict[torch.fx.Node, int]:
        levels: dict[torch.fx.Node, int] = {}
        level_after_rng = 0
        for node in self.graph.nodes:
            base = max((levels[source] for source in node.all_input_nodes), default=0)
            if node.op != "call_function" or _owner(node) is not node:
                levels[node] = base
                continue
            once = runs_once(node.target)
            base = max(base, level_after_rng) if once else base
            levels[node] = base + (self._place(node) - base) % (self.last + 1)
            level_after_rng = levels[node] if once else level_after_rng
        self._raise_views(levels)
        return levels

    def _raise_views(self, levels: dict[torch.fx.Node, int]) -> None:
        """Views that the backend makes move up to the part that reads them first: a transposed
        parameter is then an input of that part as it is, and no view crosses a border."""
        for node in reversed(self.graph.nodes):
            place = self._place(node)
            if node.op != "call_function" or place == self.last or not _is_view(node):
                continue
            if node.users and all(user.op == "call_function" for user in node.users):
                reads = [levels[user] for user in node.users]
                highest = min(level - (level - place) % (self.last + 1) for level in reads)
                levels[node] = max(levels[node], highest)

    def _place(self, node: torch.fx.Node) -> int:
        """The remainder of an operator's level. Sizes and writes to inputs are eager."""
        if node in self.eager or node.target is aten.copy_.default or is_size(node):
            return self.last
        return self.places.get(node, 0)

    def _parts(self, levels: dict[torch.fx.Node, int]) -> dict[int, Part]:
        parts: dict[int, Part] = {}
        for node in self.graph.nodes:
            if node.op == "call_function" and self._place(_owner(node)) != self.last:
                level = levels[node]
                parts.setdefault(level, Part(len(parts))).nodes.append(node)
        return parts

    # --- building
    # -----------------------------------------------------------------------------------

    def runner(self, compile_function: CompileFunction) -> Runner:
        """Compiles the parts and strings them together."""
        levels = self._levels()
        calls = [node for node in self.graph.nodes if node.op == "call_function"]
        writes = [node for node in calls if node.target is aten.copy_.default]
        eager = [
            node
            for node in calls
            if node.target is not aten.copy_.default and self._place(_owner(node)) == self.last
        ]
        outer = torch.fx.Graph()
        result = {node: outer.placeholder(node.name) for node in self.described}
        steps: list[tuple[int, Part | torch.fx.Node]] = [*self.parts.items()]
        steps += [(levels[node], node) for node in eager]
        for _, step in sorted(steps, key=operator.itemgetter(0)):  # stable: a part goes first
            if isinstance(step, Part):
                self._add_part(outer, result, step, compile_function)
            else:
                result[step] = outer.node_copy(step, result.__getitem__)
        for node in writes:
            outer.node_copy(node, result.__getitem__)
        (output,) = self.graph.find_nodes(op="output")
        outer.node_copy(output, result.__getitem__)
        gm = torch.fx.GraphModule(torch.nn.Module(), outer, class_name="Parts")
        return Runner(graph_function(gm), mutated_on_error=frozenset())  # writes come last

    def _add_part(
        self,
        outer: torch.fx.Graph,
        result: dict[torch.fx.Node, torch.fx.Node],
        part: Part,
        compile_function: Any,
    ) -> None:
        sources, results = part.inputs(), part.outputs()
        sources += self._missing_sizes(outer, result, part, sources)
        graph, inside = subgraph(sources, part.nodes)
        graph.output(tuple(inside[node] for node in results))
        gm = torch.fx.GraphModule(torch.nn.Module(), graph, class_name=f"Part{part.number}")
        compiled = self._compiled(gm, part, sources, results, compile_function)
        call = outer.call_function(compiled, tuple(result[node] for node in sources))
        for index, node in enumerate(results):
            result[node] = outer.call_function(operator.getitem, (call, index))

    def _missing_sizes(
        self,
        outer: torch.fx.Graph,
        result: dict[torch.fx.Node, torch.fx.Node],
        part: Part,
        sources: Sequence[torch.fx.Node],
    ) -> list[torch.fx.Node]:
        """A node for each symbol in the part's shapes that its inputs do not show by themselves."""
        known = size_origins([node.meta["val"] for node in sources])
        values = [node.meta["val"] for node in (*sources, *part.nodes)]
        used = {symbol for value in values for symbol in _layout_symbols(value)}
        missing = []
        for symbol in sorted(used - known.keys(), key=str):
            if symbol not in self.sizes:
                self.sizes[symbol] = self._size_node(symbol)
            node = self.sizes[symbol]
            if node not in result:
                result[node] = outer.node_copy(node, result.__getitem__)
            missing.append(node)
        return missing

    def _size_node(self, symbol: Any) -> torch.fx.Node:
        """A node (outside every graph's order) that reads a symbol from an input."""
        origin = self.origins.get(symbol)
        if origin is None:  # of strides or offsets only
            raise LoweringUnsupported("no tensor shows one of the symbolic sizes")
        placeholder: torch.fx.Node = list(self.described)[origin.index]
        if origin.dim is None:
            return placeholder
        scratch = torch.fx.Graph()
        node = scratch.call_function(aten.sym_size.int, ())
        node.name = f"size_{symbol}"  # placeholders of parts are named after their sources
        node.args = (placeholder, origin.dim)
        node.meta["val"] = origin.symint
        return node

    def _compiled(
        self,
        gm: torch.fx.GraphModule,
        part: Part,
        sources: Sequence[torch.fx.Node],
        results: Sequence[torch.fx.Node],
        compile_function: Any,
    ) -> Callable[..., Any]:
        full = self.lowered.spec
        name = derived_name(full.name, f"part{part.number}")
        request = Request(self.backend, full.options, full.mode, name, full.phase)
        inputs = tuple(self.described.get(node) or _intermediate(node) for node in sources)
        values = [node.meta["val"] for node in sources]
        outputs = output_specs([node.meta["val"] for node in results], values)
        spec = request.spec(gm, inputs, (), outputs)
        compiled = compile_with_constants(self.backend, compile_function, gm, spec)
        run = checked(compiled.run, spec, input_specs=output_specs(values, []))

        def call(*args: Any) -> Any:
            return run(list(args))

        call.__name__ = call.__qualname__ = f"part_{part.number}"
        return call


def _layout_symbols(value: Any) -> set[Any]:
    """Returns the symbols of the sizes and strides of tensors, or of a number. Kernels get the address
    of the first element: where in its storage a tensor begins is nothing to them."""
    if isinstance(value, (tuple, list)):
        return set().union(*map(_layout_symbols, value))
    parts = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return {symbol for part in parts for symbol in free_symbols(part)}


def _intermediate(node: torch.fx.Node) -> InputSpec:
    return InputSpec(node.name, Role.SIZE if is_size(node) else Role.USER_INPUT, node.name)


def _shared_outputs(part: Part) -> list[torch.fx.Node]:
    """Outputs of a part that share memory with its inputs, or with an output before them."""
    taken = _storages(part.inputs())
    shared = []
    for node in part.outputs():
        storage = torch_private.storage_id(node.meta["val"])
        if storage in taken:
            shared.append(node)
        taken.add(storage)
    return shared
