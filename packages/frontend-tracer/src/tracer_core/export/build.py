"""Captures a program as one graph, for a package or a library.

In: a function, method or module and the arguments of one call. Out: a `PackagedProgram`: the
compiled graph with what each of its inputs is, the structure of inputs and outputs, and the
conditions under which the graph is right. A package has no guards to fall back on: what the graph
depends on is an argument that the package checks, or a constant of the package, or `PackageError`
names it."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import markers, torch_private
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.aot.output_aliasing import InputItself, ViewOf
from tracer_core.bytecode.frame import LazyValue
from tracer_core.debug.fallbacks import Fallback
from tracer_core.errors import Location, MarkedSizeError, PackageError
from tracer_core.execution.capture.capturer import starting
from tracer_core.execution.capture.result import Abandoned, Answers, UserError
from tracer_core.execution.capture.trace import capture
from tracer_core.execution.capture_lock import tracing
from tracer_core.execution.entry.trace_graph import TraceGraph
from tracer_core.execution.store.values import Describer, Node, NotPortable, constant, restore
from tracer_core.export.inputs import is_plain
from tracer_core.export.tensors import can_hold
from tracer_core.fx_capture.dynamic_shapes import (
    constraint_violation,
    size_conditions,
    size_places,
    strides_text,
)
from tracer_core.fx_capture.object_mutations import MISSING, Change
from tracer_core.fx_capture.size_nodes import GraphInput
from tracer_core.fx_capture.specialization_history import SpecializationHistory
from tracer_core.graph_breaks import BREAKS, Break, RunEagerly
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import Source, SourceKind, SourceTrait
from tracer_core.options import CompileConfig
from tracer_core.trace.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor among the arguments."""

    #: As the program writes it.
    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """The call that is captured: ``function(*args, **kwargs)`` is traced."""

    function: Callable[..., Any]
    #: How many of `args` are the program's own object.
    n_own: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Names of all arguments.
    labels: list[str]
    #: Of the program.
    name: str
    #: The module that the function is a method of, if any.
    root: torch.nn.Module | None
    #: Rows of the manifest.
    parameters: list[dict[str, Any]]
    #: Of the arguments.
    leaves: list[Leaf]
    #: Groups of leaves that are one tensor.
    same: list[list[int]]


@dataclass(frozen=True, slots=True)
class State:
    """A tensor of the program."""

    name: str
    tensor: torch.Tensor
    #: All its names: tied weights have several.
    names: tuple[str, ...]
    #: Whether the state_dict of the program has it under this name.
    weight: bool
    #: Whether the graph writes to it.
    written: bool


@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """What was captured."""

    call: Call
    #: None where the program runs no operator.
    runner: CompiledGraph | None
    gm: torch.fx.GraphModule | None
    #: What each input of the graph is: ("input", index of a leaf) or ("state", name).
    inputs: tuple[tuple[str, Any], ...]
    #: The tensors of the program that the graph reads, by name.
    states: dict[str, State]
    #: The description of the result.
    outputs: Node
    #: Of the manifest: what is checked of the inputs.
    rules: dict[str, Any]
    #: The output that must be true.
    asserted: int | None


def prepared(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Returns the call of a function, method or module with these arguments."""
    fn = markers.uncompiled(fn)
    function, first = markers.traced_function(fn)
    owner = first[0] if first else None
    root = owner if isinstance(owner, torch.nn.Module) else None
    result = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    try:
        arguments = result.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise PackageError(f"the arguments do not fit {_name(fn)}{result}: {error}") from error
    leaves: list[Leaf] = []
    parameters = [
        _parameter(parameter, arguments, leaves) for parameter in result.parameters.values()
    ]
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        groups.setdefault(id(leaf.tensor), []).append(i)
    same = [group for group in groups.values() if len(group) > 1]
    labels = ["self"] * len(first) + _labels(result, len(args)) + list(kwargs)
    name = type(fn).__qualname__ if root is fn else _name(fn)
    return Call(
        function, len(first), (*first, *args), kwargs, labels, name, root, parameters, leaves, same
    )


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _labels(signature: inspect.Signature, n_args: int) -> list[str]:
    """Returns the names of positional arguments."""
    names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [names[i] if i < len(names) else f"args[{i - len(names)}]" for i in range(n_args)]


def _parameter(
    parameter: inspect.Parameter, argument: dict[str, Any], leaves: list[Leaf]
) -> dict[str, Any]:
    """Returns the row of a parameter; adds the tensors of its argument to the leaves."""

    def leaf(value: Any, where: str) -> Node | None:
        if not isinstance(value, torch.Tensor):
            return None
        leaves.append(Leaf(where, value))
        return {"tensor": len(leaves) - 1}

    structure = None
    empty: dict[Any, Any] = {parameter.VAR_POSITIONAL: (), parameter.VAR_KEYWORD: {}}
    if parameter.kind in empty:
        argument = {parameter.name: empty[parameter.kind], **argument}
    if parameter.name in argument:
        try:
            structure = Describer(leaf).describe(argument[parameter.name], parameter.name)
        except NotPortable as error:
            raise PackageError(f"an input that no package can check: {error}") from error
    optional = parameter.default is not inspect.Parameter.empty
    default = constant(parameter.default) if optional else None
    return {
        "name": parameter.name,
        "kind": parameter.kind.name,
        "optional": optional,
        "default": default,
        "structure": structure,
    }


def with_leaves(call: Call, tensors: Sequence[torch.Tensor]) -> Call:
    """Returns the call with other tensors in place of its leaves."""
    index = {id(leaf.tensor): i for i, leaf in reversed(list(enumerate(call.leaves)))}

    def leaf(value: Any, where: str) -> Node | None:
        known = isinstance(value, torch.Tensor) and id(value) in index
        return {"tensor": index[id(value)]} if known else None

    def replaced(value: Any) -> Any:
        try:
            node = Describer(leaf).describe(value, "an argument")
        except NotPortable:  # the object that a method is called on
            return value
        return restore(node, lambda leaf: tensors[leaf["tensor"]])

    leaves = [Leaf(leaf.name, tensor) for leaf, tensor in zip(call.leaves, tensors, strict=True)]
    args = tuple(map(replaced, call.args))
    kwargs = {name: replaced(value) for name, value in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs, leaves=leaves)


def captured(call: Call, config: CompileConfig, name: str) -> PackagedProgram:
    """Captures and compiles a call for inference, as a graph of this name. Raises PackageError,
    MarkedSizeError, BackendError, or what the program itself raises."""
    for leaf in call.leaves:
        _demand_plain(leaf)

    start = starting(call.function, call.args, call.kwargs, call.labels)
    # with the leaves, whose marks are looked for: those inside of dataclasses too
    state = (*call.args, *call.kwargs.values(), *(leaf.tensor for leaf in call.leaves))
    writer = functools.partial(ProgramWriter, call)
    try:
        with torch.no_grad(), tracing(), torch_private.unshielded():
            return capture(
                writer, start, state, config, SpecializationHistory(), name, {}, Answers()
            )
    except UserError as error:
        if error.__cause__ is None:
            raise PackageError(f"{call.name} cannot be captured: {error}") from error
        raise error.__cause__ from None
    except RunEagerly as error:
        raise PackageError(f"{call.name} cannot be captured: {error}") from error
    except Abandoned as error:
        raise PackageError(f"{call.name} cannot be captured: {error}") from error


def _demand_plain(leaf: Leaf) -> None:
    tensor = leaf.tensor
    if not can_hold(tensor) or not is_plain(tensor):
        raise PackageError(f"{leaf.name} is no plain tensor: {type(tensor).__name__}, "
                           f"{tensor.layout}, {tensor.dtype}")  # fmt: skip
    largest = 0
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]
    ):
        if size > 1 and stride <= largest:
            raise PackageError(
                f"{leaf.name} has elements that share memory (strides {tensor.stride()}): give an"
                " example with memory of its own (.contiguous())"
            )
        largest += (size - 1) * stride


class ProgramWriter:
    """Makes a `PackagedProgram` of a finished trace. Mutable, used once."""

    def __init__(
        self,
        call: Call,
        tracer: Tracer,
        state: Any,
        config: CompileConfig,
        settings: torch_private.TorchState,
        name: str,
    ) -> None:
        self.call, self.tracer, self.config = call, tracer, config
        self.graph = TraceGraph(tracer, config, name)
        self.leaf_index: dict[int, int] = {}
        for index, leaf in reversed(list(enumerate(call.leaves))):
            self.leaf_index[id(leaf.tensor)] = index
        self.states: dict[str, State] = {}
        self.asserted: int | None = None
        self.structure: Node = {}
        #: id of a module -> the names of its tensors, by id.
        self._names: dict[int, dict[int, list[str]]] = {}

    # -- what the program leaves behind --

    def write(self, value: Any, broken: Break | None) -> None:
        if broken is not None:
            where = broken.location or self.tracer.users_line()
            if broken.kind == "raises":
                raise PackageError(f"{self.call.name} raises at {where}: {broken.reason}")
            raise PackageError(
                f"{self.call.name} is not one graph: it breaks at {where}: {broken.reason}"
                f" [{broken.kind}]\n  What would remove it: {BREAKS[broken.kind].hint}"
            )
        for obstacle in self._effects():
            raise PackageError(f"{self.call.name} {obstacle}, which a package cannot do")
        if self.tracer.recorder.asserted is not None:
            self.asserted = self._number_of(self.tracer.recorder.asserted)
        try:
            self.structure = Describer(self._output_leaf).describe(value, "the result")
        except NotPortable as error:
            raise PackageError(f"{self.call.name}: {error}") from error

    def _effects(self) -> Iterator[str]:
        """Yields what the program does beside computing its result and writing to tensors."""
        tracer = self.tracer
        for change in tracer.effects.changes.values():
            keys = _differences(change)
            if keys:
                source = tracer.provenance.source_of(change.obj)
                about = type(change.obj).__name__ if source is None else source.name
                yield (
                    f"changes {about} ({', '.join(keys[:3])}), which existed before (a buffer that is"
                    " written in place is taken along)"
                )
        for late in tracer.side_effects.late:
            yield f"calls {getattr(late.function, '__qualname__', late.function)}"
        if any(not handle.removed for handle in tracer.side_effects.hooks):
            yield "puts a hook on a tensor"
        for drawn in tracer.python_rng.states.values():
            yield f"draws from {drawn.obj!r}, Python's random numbers"
        for at, _ in tracer.live_generators.moved():
            yield f"advances {at.name}"
        for source in tracer.side_effects.locks:
            yield f"takes the lock {source.name}"
        for name in tracer.settings_after:
            yield f"changes torch's setting {name}"
        if tracer.recorder.devices or tracer.recorder.autocast_nesting:
            yield "leaves a context of torch open"

    def _output_leaf(self, value: Any, where: str) -> Node | None:
        tracer, source = self.tracer, None
        if type(value) is LazyValue and value.tail:
            value = tracer.open(value)
        if type(value) is LazyValue:  # which the program has not looked at
            value, source = value.value, value.source
            if not isinstance(value, torch.Tensor):
                self._demand_fresh(value, source, where)
                return Describer(self._output_leaf).describe(value, where)
        if isinstance(value, torch.Tensor):
            index = self.leaf_index.get(id(value))
            if index is not None:
                return {"input": index}
            source = tracer.provenance.source_of(value) or source
            if source is not None:
                return {"state": self._state(value, source)}
            return {"output": self._number_of(value)}
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            if not value.node.expr.free_symbols:
                return constant(tracer.scalars.concrete(value))
            node = tracer.recorder.sizes.node(value.node.expr)
            if not isinstance(node, torch.fx.Node):
                return constant(node)
            return {"output": self.graph.output(node)}
        self._demand_fresh(value, tracer.provenance.source_of(value), where)
        return None

    def _demand_fresh(self, value: Any, source: Source | None, where: str) -> None:
        """Raises NotPortable for a container that existed before the call: a copy would be
        another object."""
        if source is not None and constant(value) is None and not isinstance(value, tuple):
            kind = type(value).__name__
            raise NotPortable(f"{where} is {source.name}, a {kind} that existed before the call")

    def _number_of(self, tensor: torch.Tensor) -> int:
        recorder = self.tracer.recorder
        node = recorder.node_of(tensor)
        if node is None or recorder.left_inside(tensor) is not None:
            raise NotPortable("a result is a tensor that is no part of the graph")
        return self.graph.output(node)

    def forget(self) -> None:
        """Breaks the reference cycles between the parts: see `Tracer.forget`."""
        vars(self.graph).clear()
        vars(self).clear()

    # -- what the graph reads --

    def finish(self, broken: Break | None, where: Location) -> PackagedProgram:
        tracer, runner, gm = self.tracer, None, None
        if tracer.recorder.op_count or self.graph.outputs:
            runner, gm = self.graph.compile(frozenset())
        if runner is not None:
            self._demand_whole(runner)
        violation: MarkedSizeError | None = constraint_violation(
            tracer.fakes.shape_env, tracer.fakes.constraints
        )
        if violation is not None:
            raise violation
        self._demand_checkable()
        arguments = tracer.recorder.inputs if runner is not None else []
        inputs = tuple(map(self._input, arguments))
        written = (
            {id(value.value) for value in self.graph.mutated_inputs()}
            if runner is not None
            else set()
        )
        self._demand_apart(arguments, written)
        states = {
            name: State(item.name, item.tensor, item.names, item.weight, id(item.tensor) in written)
            for name, item in self.states.items()
        }
        parts = None if runner is None else runner.artifacts
        simple = parts is None or not any(
            isinstance(step, InputItself) or (isinstance(step, ViewOf) and step.of_input)
            for step in parts.plan.steps
        )
        rules = self._rules(written, simple)
        return PackagedProgram(
            self.call, runner, gm, inputs, states, self.structure, rules, self.asserted
        )

    def _demand_whole(self, runner: CompiledGraph) -> None:
        fallback: Fallback | None = runner.fallback
        if fallback is not None:
            raise PackageError(
                f"{self.call.name}: {self.config.backend.name} does not compile the whole graph:"
                f" {fallback.reason}"
            )
        parts = runner.artifacts
        if parts is None:
            raise PackageError(
                f"{self.call.name}: its graph is compiled in several parts (sizes that depend on"
                " data, several backends, a backend without symbolic sizes, tensors of subclasses,"
                " or grad mode that is switched inside)"
            )
        if parts.training is not None or parts.is_step or parts.grad_mode:
            raise PackageError(f"{self.call.name} computes gradients; a package is for inference")

    def _demand_checkable(self) -> None:
        """Raises PackageError if the graph depends on what a package neither checks nor holds."""
        for guard in self.tracer.provenance.guards:
            for source in _chain(guard.source):
                # the plain tensor of a subclass is another object with the same data
                volatile = SourceTrait.VOLATILE in source.kind.traits
                if volatile and source.kind is not SourceKind.PLAIN:
                    raise PackageError(
                        f"{self.call.name} depends on {source.name}, which may be another in each"
                        f" call: {guard}"
                    )
            self._demand_checked(guard.kind, guard.source)
        for source in self.tracer.recorder.read_early:
            raise PackageError(f"{self.call.name} depends on the values of {source.name}")
        for condition in self.graph.offset_conditions():
            raise PackageError(
                f"{self.call.name} takes a view of {condition.sources[0].name} by as_strided, which"
                " counts from the beginning of its memory"
            )
        for number in self.tracer.recorder.sizes.numbers.values():
            raise PackageError(
                f"{self.call.name} depends on the number {number.source.name}, which changes from"
                " call to call"
            )

    def _demand_checked(self, kind: GuardKind, source: Source) -> None:
        """Raises PackageError for a guard on a part of a tensor among the arguments other than what
        `inputs` checks."""
        for part in _chain(source.base):
            value = self.tracer.provenance.value_at(part)
            if not isinstance(value, torch.Tensor) or id(value) not in self.leaf_index:
                continue
            if source.kind is not SourceKind.DICT or kind not in (
                GuardKind.HAS_NOT,
                GuardKind.TYPE,
            ):
                raise PackageError(
                    f"{self.call.name} depends on {source.name}, which a package does not check"
                )
            return

    def _input(self, graph_input: GraphInput) -> tuple[str, Any]:
        """Returns what an input of the graph is."""
        index = self.leaf_index.get(id(graph_input.value))
        if index is not None:
            return "input", index
        if not isinstance(graph_input.value, torch.Tensor):
            raise PackageError(
                f"{self.call.name} depends on {graph_input.source.name}, a {type(graph_input.value).__name__} that"
                " is another in each call (give tensors in contiguous memory)"
            )
        return "state", self._state(graph_input.value, graph_input.source)

    def _state(self, tensor: torch.Tensor, source: Source) -> str:
        """Returns the name of a tensor of the program."""
        names, weight = self._names_of(tensor, source)
        state = self.states.get(names[0])
        if state is not None and state.tensor is not tensor:
            names = [f"{names[0]}_{len(self.states)}"]
        if not can_hold(tensor):
            raise PackageError(
                f"{names[0]} is no plain tensor: {type(tensor).__name__}, {tensor.layout},"
                f" {tensor.dtype}"
            )
        self.states[names[0]] = State(names[0], tensor, tuple(names), weight, False)
        return names[0]

    def _names_of(self, tensor: torch.Tensor, source: Source) -> tuple[list[str], bool]:
        """Returns the names under which the state_dict of the outermost module has a tensor, and
        True; else (its name in the program, False)."""
        root, prefix = self.call.root, ""
        if root is None:
            for part in reversed(list(_chain(source))):
                value = self.tracer.provenance.value_at(part)
                if isinstance(value, torch.nn.Module):
                    root, prefix = value, f"{part.name.rpartition('.')[2]}."
                    break
        if root is not None:
            names = self._names.get(id(root))
            if names is None:
                names = self._names[id(root)] = _state_names(root)
            if id(tensor) in names:
                return [f"{prefix}{name}" for name in names[id(tensor)]], True
        return [source.name.removeprefix("self.")], False

    def _demand_apart(self, inputs: list[GraphInput], written: set[int]) -> None:
        """Raises PackageError where a tensor that the graph writes to shares memory with another
        input, or an argument is also a tensor of the program."""
        values = [item.value for item in inputs if isinstance(item.value, torch.Tensor)]
        leaves = [leaf.tensor for leaf in self.call.leaves]
        values += [leaf for leaf in leaves if all(leaf is not value for value in values)]
        storage = torch_private.storage_id
        for item, other in itertools.combinations(values, 2):
            either = id(item) in written or id(other) in written
            if item is not other and either and storage(item) == storage(other):
                names = [self._where(item), self._where(other)]
                raise PackageError(
                    f"{self.call.name} writes to {names[0]} or {names[1]}, which share memory"
                )
        for guard in self.tracer.provenance.guards:
            if guard.kind is GuardKind.SAME:
                ours = [
                    value
                    for value in (guard.source, guard.expected)
                    if not self._is_argument(value)
                ]
                if len(ours) == 1:
                    raise PackageError(f"an argument is also {ours[0].name}, a part of the program")

    def _is_argument(self, source: Source) -> bool:
        """Returns whether a source begins at an argument of the call."""
        root = source.root
        return root.kind is SourceKind.STATE and root.key[0] >= self.call.n_own

    def _where(self, tensor: torch.Tensor) -> str:
        source = self.tracer.provenance.source_of(tensor)
        return "an input" if source is None else source.name

    def _distinct(self) -> bool:
        """Returns whether the program asks which of its arguments are one tensor."""
        provenance = self.tracer.provenance
        sources = [
            source
            for guard in provenance.guards
            if guard.kind is GuardKind.NOT_SAME
            for source in (guard.source, guard.expected)
        ]
        result = (provenance.value_at(source) for source in [*sources, *provenance.hashed()])
        return any(id(value) in self.leaf_index for value in result)

    # -- rules --

    def _rules(self, written: set[int], flag: bool) -> dict[str, Any]:
        """Returns what the package checks of its inputs. flag: no output is a view of one."""
        tracer, leaves = self.tracer, self.call.leaves
        env, text = tracer.fakes.shape_env, torch_private.python_source
        fakes = [tracer.fakes.known(leaf.tensor) for leaf in leaves]
        read = {id(value) for value in tracer.provenance.tensors.values()}
        known = {
            source: (index, fakes[index])
            for index, leaf in enumerate(leaves)
            if fakes[index] is not None and self.leaf_index[id(leaf.tensor)] == index
            if (source := tracer.provenance.source_of(leaf.tensor)) is not None
        }
        symbolic = {
            source: fake
            for source, (_, fake) in known.items()
            if any(isinstance(size, torch.SymInt) for size in fake.shape)
        }
        texts = {source: f"t[{index}]" for source, (index, _) in known.items()}
        names = {source: leaves[index].name for source, (index, _) in known.items()}
        conditions = [
            {"check": condition.text(texts.__getitem__), "says": condition.text(names.__getitem__)}
            for condition in size_conditions(env, symbolic, {}, text, strides=False)
        ] if symbolic else []  # fmt: skip
        where = size_places([(texts[source], fake) for source, fake in symbolic.items()])
        rows, strides = [], []
        for leaf, fake in zip(leaves, fakes, strict=True):
            unused = id(leaf.tensor) not in read and fake is None
            like = leaf.tensor if fake is None else fake
            sizes = [_size(size, env) for size in like.shape]
            for dim in () if unused else markers.dynamic_dims(leaf.tensor):
                if not isinstance(like.shape[dim], torch.SymInt):
                    raise PackageError(
                        f"{leaf.name}.shape[{dim}] is to be dynamic, but is {like.shape[dim]} in the"
                        " captured graph (an example of size 0 or 1, dynamic=False, or a backend"
                        " without symbolic sizes)"
                    )
            for stride in like.stride():
                symbols = stride.node.expr.free_symbols if isinstance(stride, torch.SymInt) else ()
                if not set(symbols) <= where.keys():
                    raise PackageError(
                        f"{leaf.name} has strides that its sizes do not determine"
                        f" {tuple(leaf.tensor.stride())}: give an example in contiguous memory"
                    )
            rows.append({
                "name": leaf.name,
                "dtype": str(leaf.tensor.dtype).removeprefix("torch."),
                "device": str(leaf.tensor.device),
                "sizes": [size for size, _ in sizes],
                "ranges": [bounds for _, bounds in sizes],
                "unused": unused,
                "written": id(leaf.tensor) in written,
                "kept": id(leaf.tensor) in written or not flag,
            })  # fmt: skip
            strides.append("None" if unused else strides_text(like, text, where))
        return {
            "inputs": rows,
            "conditions": conditions,
            "strides": f"({', '.join(strides)},)" if strides else "()",
            "distinct": self._distinct(),
        }


def _size(size: Any, env: Any) -> tuple[int | str, list[int | None] | None]:
    """Returns a size, or the text of a symbolic one, and its range where it is one symbol."""
    if not isinstance(size, torch.SymInt):
        return size, None
    expr = env.simplify(size.node.expr)
    if not expr.free_symbols:
        return int(expr), None
    if not expr.is_Symbol:
        return str(expr), [0, None]
    lower, upper = torch_private.symbol_range(size)
    return str(expr), [lower, upper]


def _differences(change: Change) -> list[str]:
    """Returns what a change leaves different: keys of a dictionary, else what it is."""
    before, after = change.before, change.after
    if isinstance(before, dict) and isinstance(after, dict):
        keys = dict.fromkeys([*before, *after])
        return [
            repr(key) for key in keys if before.get(key, MISSING) is not after.get(key, MISSING)
        ]
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        same = len(before) == len(after) and all(map(operator.is_, before, after))
    else:
        same = before is after
    return [] if same else [change.kind.__name__]


def _chain(source: Source | None) -> Iterator[Source]:
    while source is not None:
        yield source
        source = source.base


def _state_names(root: torch.nn.Module) -> dict[int, list[str]]:
    """Returns the names in the state_dict of a module, by the id of the tensor."""
    result: dict[int, list[str]] = {}
    for name, tensor in root.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            result.setdefault(id(tensor), []).append(name)
    return result
