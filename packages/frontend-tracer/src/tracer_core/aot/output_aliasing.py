"""Output aliasing: which outputs of a captured graph the backend computes, and how the others are
rebuilt.

From the eager fake value and the functional value of each captured output, the planner derives the
nodes that the ATen graph returns, and an `OutputPlan`. ``OutputPlan.bind(runner)`` returns a runner
with the captured graph's own outputs: inputs returned as they are, views of inputs, several views
of one storage, numbers.

Outputs of the ATen graph share no storage with an input or with each other. After `bind`, identity,
aliasing, sizes and strides are eager's, and the base of an output that requires grad is also its
base in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.aot import memory_overlap
from tracer_core.aot.aten_recorder import AtenRecorder, memory_order
from tracer_core.aot.bound_outputs import bound
from tracer_core.aot.symbolic_sizes import SizeOrigin, as_python_scalar, hint_of, size_source
from tracer_core.contract.branch_prediction import committing
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.runner import RunFunction
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import pytree

if TYPE_CHECKING:
    import sympy

aten = operators("aten")


@dataclass(frozen=True, slots=True)
class FromGraph:
    """Output `index` of the ATen graph."""

    index: int


@dataclass(frozen=True, slots=True)
class SameAs:
    """The same object as captured output `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class InputItself:
    """Input `index`, the object that was passed in."""

    index: int


@dataclass(frozen=True, slots=True)
class ViewOf:
    """Another view of a storage.

    of_input: `index` is an input, else an output of the ATen graph. offset: elements from the first
    element of that tensor to the first of this one. creation: `torch_private.creation`.
    """

    of_input: bool
    index: int
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    detach: bool
    creation: str


@dataclass(frozen=True, slots=True)
class OutputNumber:
    """A constant Python value (int, float, bool, None, ...) or a symbolic size."""

    value: Any


Step = FromGraph | SameAs | InputItself | ViewOf | OutputNumber


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the captured graph's outputs are made.

    steps: one per captured output. constants: tensors appended to the inputs of every call.
    origins: where symbolic sizes are read. inputs: how many inputs the captured graph has.
    """

    steps: tuple[Step, ...]
    constants: tuple[torch.Tensor, ...] = ()
    origins: Mapping[sympy.Symbol, SizeOrigin] = field(default_factory=dict)
    graph_outputs: int = 0

    @staticmethod
    def of_graph(outputs: int) -> OutputPlan:
        """Returns the plan of a graph whose outputs are those of the captured graph."""
        return OutputPlan(tuple(map(FromGraph, range(outputs))), graph_outputs=outputs)

    @property
    def trivial(self) -> bool:
        """Whether a backend's runner is already a runner for the captured graph."""
        return not self.constants and self.steps == self.of_graph(self.graph_outputs).steps

    def bind(self, runner: RunFunction) -> RunFunction:
        """Returns a runner for the captured graph from one for the ATen graph; `runner` itself if
        trivial.
        """
        if self.trivial:
            return runner
        text = self.text()
        return committing(bound(text, "<tracer outputs>", runner, self.constants), runner)

    def text(self) -> str:
        """Returns the Python source of `bind`'s result, for `bound`."""
        names: dict[sympy.Symbol, str] = {}
        used_inputs: set[int] = set()
        values = [self._value(step, names, used_inputs) for step in self.steps]
        before = [f"    a{i} = args[{i}]" for i in sorted(used_inputs)]
        for symbol, name in names.items():
            origin = self.origins[symbol]
            read = f"args[{origin.index}]" + ("" if origin.dim is None else f".shape[{origin.dim}]")
            before.append(f"    {name} = {read}")
        if self.constants:
            before.append("    args += constants")
        after = [f"    r{i} = {value}" for i, value in enumerate(values)]
        result = ", ".join(f"r{i}" for i in range(len(values)))
        return "\n".join(
            ["def call(args):", *before, "    out = runner(args)", *after, f"    return [{result}]"]
        )

    def _value(self, step: Step, names: dict[sympy.Symbol, str], used_inputs: set[int]) -> str:
        match step:
            case FromGraph(index):
                return f"out[{index}]"
            case SameAs(index):
                return f"r{index}"
            case InputItself(index):
                used_inputs.add(index)
                return f"a{index}"
            case OutputNumber(value):
                return self._size(value, names) if isinstance(value, torch.SymInt) else repr(value)
            case ViewOf():
                return self._view(step, names, used_inputs)

    def _view(self, step: ViewOf, names: dict[sympy.Symbol, str], used_inputs: set[int]) -> str:
        if step.of_input:
            used_inputs.add(step.index)
        base = f"a{step.index}" if step.of_input else f"out[{step.index}]"
        source = base + (".detach()" if step.detach else "")
        shape = "".join(self._size(s, names) + ", " for s in step.shape)
        stride = "".join(self._size(s, names) + ", " for s in step.stride)
        offset = f"{base}.storage_offset() + {self._size(step.offset, names)}"
        view = f"{source}.as_strided(({shape}), ({stride}), {offset})"
        return view if step.creation == "DEFAULT" else f"created({view}, {step.creation!r})"

    def _size(self, value: Any, names: dict[sympy.Symbol, str]) -> str:
        if isinstance(value, torch.SymInt):
            for symbol in sorted(value.node.expr.free_symbols, key=str):
                if symbol in self.origins:
                    names.setdefault(symbol, f"size_{symbol}")
        return size_source(value, names)


# Making the plan


class NotAView(LoweringUnsupported):
    """An output is a view that ``as_strided`` of an input or of another output does not give. value:
    its eager value. casts: because of views as another dtype."""

    def __init__(self, reason: str, value: torch.Tensor, *, casts: bool) -> None:
        super().__init__(reason)
        self.value, self.casts = value, casts


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Where the elements of a tensor lie in its storage, by hints: a half-open range, dense or
    not.
    """

    start: int
    end: int
    dense: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> OutputLayout:
        shape = [hint_of(s) for s in tensor.shape]
        stride = [hint_of(s) for s in tensor.stride()]
        start = hint_of(tensor.storage_offset())
        if 0 in shape:
            return OutputLayout(start, start, True)
        steps = sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1)
        packed, dense = 1, True
        for step, size in steps:
            dense = dense and step == packed
            packed *= size
        extent = 1 + sum((size - 1) * step for step, size in steps)
        return OutputLayout(start, start + extent, dense)

    def covers(self, other: OutputLayout) -> bool:
        """Whether this layout contains every element of `other`."""
        return self.dense and self.start <= other.start and other.end <= self.end


@dataclass(slots=True)
class OutputPlanner:
    """Makes one plan. Mutable.

    recorder: holds the ATen graph. functional: the functional wrapper of an eager fake value (by
    id). eager: all eager fake values of the captured graph, in order. viewed: `viewed_inputs` of an
    eager value. differentiated: autograd records what makes the outputs.
    """

    recorder: AtenRecorder
    inputs: Sequence[Any]
    eager: Sequence[Any]
    functional: Callable[[Any], Any]
    viewed: Callable[[torch.Tensor], Collection[int]]
    differentiated: bool = False
    nodes: list[torch.fx.Node] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)  # the eager value of each of `values`
    taken: set[int] = field(default_factory=set)  # storages of the ATen graph's inputs and outputs
    hooked: list[Any] | None = None  # the autograd nodes of `eager` values with hooks

    def plan(self, outputs: Sequence[Any]) -> list[Step]:
        """Returns one step per captured output; `nodes` then holds what the ATen graph returns."""
        storages: dict[int, list[int]] = {}
        for index, value in enumerate(self.inputs):
            if isinstance(value, torch.Tensor):
                storages.setdefault(torch_private.storage_id(value), []).append(index)
        groups = self._groups(outputs, storages)
        self.taken = {
            torch_private.storage_id(value)
            for value in self.recorder.inputs
            if isinstance(value, torch.Tensor)
        }
        first: dict[int, int] = {}
        bases: dict[int, tuple[int, torch.Tensor]] = {}
        steps: list[Step] = []
        for index, value in enumerate(outputs):
            if not isinstance(value, torch.Tensor):
                steps.append(OutputNumber(as_python_scalar(value)))
            elif id(value) in first:
                steps.append(SameAs(first[id(value)]))
            elif (storage := torch_private.storage_id(value)) in storages:
                steps.append(self._from_input(value, storages[storage]))
            else:
                steps.append(self._from_group(value, groups[storage], storage, bases))
            first.setdefault(id(value), index)
        return steps

    def _groups(
        self, outputs: Sequence[Any], inputs: Mapping[int, Any]
    ) -> dict[int, list[torch.Tensor]]:
        """Returns the distinct output tensors of each storage that no input has."""
        groups: dict[int, list[torch.Tensor]] = {}
        for value in outputs:
            if isinstance(value, torch.Tensor) and torch_private.storage_id(value) not in inputs:
                members = groups.setdefault(torch_private.storage_id(value), [])
                if all(value is not member for member in members):
                    members.append(value)
        return groups

    def _from_input(self, value: torch.Tensor, candidates: list[int]) -> Step:
        for index in candidates:
            if self.inputs[index] is value:
                return InputItself(index)
        self._require_history(value)
        if len(candidates) > 1:
            # Inputs that share memory here need not do so, or lie there alike, in the next call.
            candidates = sorted(self.viewed(value))
        possible = [i for i in candidates if self._has_gradients_of(self.inputs[i], value)]
        if not possible:
            if self.differentiated and self._opaque_node(value) is not None:
                reason = "an output is a view of an input, but its gradient is not a view's"
                raise NotAView(reason, value, casts=False)
            reason = "an output shares memory with an input that it has no gradient from"
            raise LoweringUnsupported(reason, self.recorder.frame)
        if len(possible) > 1 and _node(value) is None:
            reason = "an output is a view of one of several inputs that share memory"
            raise LoweringUnsupported(reason, self.recorder.frame)
        nearest = min(possible, key=lambda index: _distance(value, self.inputs[index]))
        if (
            self.differentiated
            and value.requires_grad
            and memory_overlap.overlaps_itself(self.inputs[nearest])
        ):
            # The gradient of as_strided divides by how often each place in memory is read.
            reason = "an output is a view of an input whose elements share memory"
            raise NotAView(reason, value, casts=False)
        return self._view(value, self.inputs[nearest], True, nearest)

    def _require_history(self, value: torch.Tensor) -> None:
        """Rejects a leaf made inside the graph, by requires_grad_() or as a view under no_grad: the
        autograd node of the whole graph cannot represent it.
        """
        if self.differentiated and value.requires_grad and _node(value) is None:
            raise LoweringUnsupported(
                "an output requires grad, but nothing that it is computed from", self.recorder.frame
            )

    def _has_gradients_of(self, base: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether a view of `base` has the same autograd history as `value`, which shares its
        memory.

        Of several tensors on one storage each may require grad or not, and be a leaf of its own.
        Views may also lie behind a node whose gradient is not a view's (`_opaque_node`).
        """
        if not self.differentiated or not value.requires_grad:
            return True
        return (
            base.requires_grad
            and _root(base) is _root(value)
            and self._opaque_node(base) is self._opaque_node(value)
        )

    def _opaque_node(self, view: torch.Tensor) -> Any:
        """Returns the last autograd node between a view and its root that changes the gradient: a
        custom function that returned a view, or the node of a view with a hook. None if there is
        none.
        """
        root = _root(view)
        if root is view:
            return None
        if self.hooked is None:
            self.hooked = [_node(value) for value in self.eager if _has_hooks(value)]
        node, last = _node(view), _node(root)
        while node is not None and node is not last and getattr(node, "variable", None) is not root:
            custom = isinstance(node, torch.autograd.function.BackwardCFunction)
            if custom or any(node is other for other in self.hooked):
                return node
            node = node.next_functions[0][0] if node.next_functions else None
        return None

    def _from_group(
        self,
        value: torch.Tensor,
        members: list[torch.Tensor],
        storage: int,
        bases: dict[int, tuple[int, torch.Tensor]],
    ) -> Step:
        self._require_history(value)
        if storage not in bases:
            bases[storage] = self._returned_base(members, storage)
        index, base = bases[storage]
        return FromGraph(index) if base is value else self._view(value, base, False, index)

    def _returned_base(self, members: list[torch.Tensor], storage: int) -> tuple[int, torch.Tensor]:
        """Returns the index of a new output that contains all members of a storage, and its eager
        value: one of them, an intermediate, or where no operator's result contains them (gradients
        that a derivative gives as parts of one tensor), all of them one after the other, with zeros
        in between.
        """
        base = members[0] if len(members) == 1 else self._base(members, storage)
        if base is not None:
            return self._return(base), base
        parts = _maximal(members)
        if not _are_fixed(members) or not _are_apart(parts):
            reason = "outputs share memory that no single tensor of the captured graph covers"
            raise NotAView(reason, members[0], casts=True)
        flat, end = [], OutputLayout.of(parts[0]).start
        for part in parts:
            layout = OutputLayout.of(part)
            value = torch_private.functional_value(self.functional(part))
            if layout.start > end:
                flat.append(value.new_zeros(layout.start - end))
            flat.append(value.permute(memory_order(part)).reshape(-1))
            end = layout.end
        with torch_private.outside_recording():
            base = parts[0].as_strided((end - OutputLayout.of(parts[0]).start,), (1,))
        return self._add(aten.cat.default(flat), base), base

    def _base(self, members: list[torch.Tensor], storage: int) -> torch.Tensor | None:
        """Returns a tensor of that storage that contains all members: one of them, or an
        intermediate. None if there is none.
        """
        layouts = [OutputLayout.of(member) for member in members]
        others = [
            value
            for value in self.eager
            if isinstance(value, torch.Tensor) and torch_private.storage_id(value) == storage
        ]
        for candidate in [*members, *others]:
            layout = OutputLayout.of(candidate)
            if (
                candidate.dtype == members[0].dtype
                and all(layout.covers(other) for other in layouts)
                and all(self._has_gradients_of(candidate, member) for member in members)
            ):
                return candidate
        return None

    def _view(self, value: torch.Tensor, base: torch.Tensor, of_input: bool, index: int) -> ViewOf:
        kinds = [(item.dtype, item.is_conj(), item.is_neg()) for item in (value, base)]
        if kinds[0] != kinds[1]:
            reason = f"an output is a view of a {base.dtype} tensor as {value.dtype}"
            raise NotAView(reason, value, casts=True)
        return ViewOf(
            of_input,
            index,
            tuple(map(as_python_scalar, value.shape)),
            tuple(map(as_python_scalar, value.stride())),
            as_python_scalar(value.storage_offset() - base.storage_offset()),
            detach=base.requires_grad and not value.requires_grad,
            creation=self._creation(value),
        )

    def _creation(self, value: torch.Tensor) -> str:
        """Returns what autograd is told of a view. Without gradients a view made under no_grad is
        not: `as_strided` runs in the program's mode too."""
        with torch_private.outside_recording():
            kind = torch_private.creation(value)
        return "DEFAULT" if kind != "MULTI_OUTPUT_NODE" and not self.differentiated else kind

    def _return(self, value: torch.Tensor) -> int:
        """Returns the index, among the ATen graph's outputs, of a new output for `value`.

        The output has eager's strides and a storage of its own.
        """
        result = torch_private.functional_value(self.functional(value))
        result = restride(result, value)
        if torch_private.storage_id(result) in self.taken:
            result = restride(aten.clone.default(result), value)
        return self._add(result, value)

    def _add(self, result: torch.Tensor, value: torch.Tensor) -> int:
        """Returns the index of a new output: `result`, for an eager value."""
        self.taken.add(torch_private.storage_id(result))
        self.nodes.append(self.recorder.node_of(result))
        self.values.append(result)
        self.sources.append(value)
        return len(self.nodes) - 1


def _maximal(members: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors of one storage, in order, without those that lie in another one."""
    parts: list[torch.Tensor] = []
    layouts = [(OutputLayout.of(member), member) for member in members]
    for layout, item in sorted(layouts, key=lambda pair: (pair[0].start, -pair[0].end)):
        if not (parts and OutputLayout.of(parts[-1]).covers(layout)):
            parts.append(item)
    return parts


def _are_fixed(members: Sequence[torch.Tensor]) -> bool:
    """Whether tensors of one dtype lie at the same places in each call, and none requires grad."""
    numbers = (n for item in members for n in (*item.shape, *item.stride(), item.storage_offset()))
    kinds = {(item.dtype, item.is_conj(), item.is_neg(), item.requires_grad) for item in members}
    has_all = all(type(as_python_scalar(number)) is int for number in numbers)
    return has_all and len(kinds) == 1 and not members[0].requires_grad


def _are_apart(parts: Sequence[torch.Tensor]) -> bool:
    """Whether tensors of one storage lie one behind the other, each without gaps."""
    layouts = [OutputLayout.of(part) for part in parts]
    return all(layout.dense for layout in layouts) and all(
        layout.end <= later.start for layout, later in zip(layouts, layouts[1:], strict=False)
    )


def viewed_inputs(
    graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any], value: torch.Tensor
) -> set[int]:
    """Returns the inputs, by index, that a value of a captured graph may be a view of: those from
    which operators lead to it whose operand and result share memory."""
    storage = torch_private.storage_id(value)

    def shares(node: torch.fx.Node) -> bool:
        return any(
            isinstance(leaf, torch.Tensor)
            and leaf.layout is torch.strided
            and torch_private.storage_id(leaf) == storage
            for leaf in pytree.tree_leaves(values[node])
        )

    inputs = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    waiting = [node for node in graph.nodes if values.get(node) is value]
    numbers: set[int] = set()
    seen: set[torch.fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in inputs:
            numbers.add(inputs[node])
        elif node.op == "call_method":  # a view of the receiver, or the receiver itself
            waiting += [node.args[0]]
        else:
            waiting += [source for source in node.all_input_nodes if shares(source)]
    return numbers


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the base that autograd knows for a view, else the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def _node(tensor: torch.Tensor) -> Any:
    """Returns the grad_fn; autograd regenerates it on access for a view whose base was written
    to. Raises LoweringUnsupported for one of several views that one operator gave, whose base the
    functional graph writes to in another order than eager.
    """
    with torch_private.outside_recording():
        try:
            return tensor.grad_fn
        except RuntimeError as error:
            raise LoweringUnsupported(str(error)) from None


def _has_hooks(value: Any) -> bool:
    """Whether a value is a view that the captured graph registers a hook on."""
    return isinstance(value, torch.Tensor) and value._is_view() and bool(value._backward_hooks)


def _distance(view: torch.Tensor, base: torch.Tensor) -> int:
    """Returns the number of autograd nodes between a view and its base.

    Of a tensor and its view that are both inputs, gradients flow to the one that the program used.
    """
    node, last, steps = _node(view), _node(base), 0
    while node is not None and node is not last and getattr(node, "variable", None) is not base:
        node, steps = node.next_functions[0][0] if node.next_functions else None, steps + 1
    return steps


def same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes or strides are equal; compares structurally first, which adds no guard."""
    return len(left) == len(right) and all(
        _same_size(as_python_scalar(a), as_python_scalar(b))
        for a, b in zip(left, right, strict=True)
    )


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.expr == b.node.expr:
        return True
    return bool(a == b)


def restride(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value` with the strides of `like`; runs operators only if they differ.

    Any dense layout is a permuted contiguous one, so permute, clone, permute back gives it;
    dimensions of size 1 may then need as_strided. Raises LoweringUnsupported for a layout that is
    not dense.
    """
    if same_sizes(value.stride(), like.stride()):
        return value
    if not OutputLayout.of(like).dense:
        reason = f"an output has strides {tuple(like.stride())} that lowering does not give"
        raise LoweringUnsupported(reason)
    order = sorted(range(like.dim()), key=lambda d: -hint_of(like.stride(d)))
    inverse = sorted(range(like.dim()), key=order.__getitem__)
    permuted = aten.permute.default(value, order)
    packed = aten.clone.default(permuted, memory_format=torch.contiguous_format)
    result: torch.Tensor = aten.permute.default(packed, inverse)
    if not same_sizes(result.stride(), like.stride()):
        result = aten.as_strided.default(result, list(like.shape), list(like.stride()), 0)
    return result


def output_requires_grad(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph may return a tensor that requires grad, with grad mode on: whether an input
    or tensor attribute does.
    """
    attributes = [*gm.parameters(), *gm.buffers()]
    tensors = [value for value in (*inputs, *attributes) if isinstance(value, torch.Tensor)]
    return any(tensor.requires_grad for tensor in tensors)
