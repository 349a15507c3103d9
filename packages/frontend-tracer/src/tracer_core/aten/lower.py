"""Lowers a captured torch-level graph to the IR that a backend asks for.

In: an fx.GraphModule of torch functions and methods over tensors, with fake values (``meta["val"]``) or
inputs to make them from. Out: `Lowered`: a functional ATen graph whose only writes are trailing
``aten.copy_(placeholder, value)`` nodes, its `CompileSpec`, and the plan that turns a backend's runner for
that graph into a runner for the captured one.

How: the captured graph is interpreted once over functional wrappers of its fakes, under `no_grad`, the
FakeTensorMode and `AtenRecorder`, which records every ATen operator that comes out below.

What always holds: what cannot be said functionally raises LoweringUnsupported with a reason, before any
graph exists; the ambient autocast and grad modes are as before; guards that the shapes needed are in the
ShapeEnv of the fakes.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import plugin_api, torch_private
from tracer_core.aten import given_memory, in_turn, placed_views
from tracer_core.aten.cache_key import cache_key
from tracer_core.aten.capture_values import attribute, captured_values
from tracer_core.aten.cleanup import remove_dead_nodes
from tracer_core.aten.draws import REGIONS, Draws, unseeded
from tracer_core.aten.errors import LoweringUnsupported
from tracer_core.aten.outputs import OutputPlan, OutputPlanner, Step
from tracer_core.aten.record import AtenRecorder
from tracer_core.aten.sizes import as_plain, hint_of, size_origins, size_specs
from tracer_core.contiguous import has_gaps
from tracer_core.deferred import Deferred
from tracer_core.options import env
from tracer_core.plugin_api import Backend, CompileSpec, InputSpec, OutputSpec, Phase, Role, Runner

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Lowered:
    """graph, spec: what ``backend.compile`` gets. finish: runner for `graph` -> runner for the captured
    graph (the same runner where nothing is left to do). plan: how it does that. ir: what `graph` is in."""

    graph: torch.fx.GraphModule
    spec: CompileSpec
    finish: Callable[[Runner], Runner]
    plan: OutputPlan
    ir: str


#: Calls of the captured graph that only switch the grad mode: a graph lowered for inference runs without
#: grad, so they have no effect on its values.
INFERENCE_MODE_CALLS = frozenset(
    {torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode}
)
GRAD_MODE_CALLS = frozenset({torch._C._set_grad_enabled, torch.set_grad_enabled}) | INFERENCE_MODE_CALLS


@dataclass(frozen=True, slots=True)
class Ending:
    """How a lowering ended. planner: made the ATen graph's outputs. steps: how the captured outputs come from
    them. mutations: indices of the inputs that are written to."""

    planner: OutputPlanner
    steps: tuple[Step, ...]
    mutations: tuple[int, ...]


#: Functions whose C++ kernel writes running statistics without saying so in its schema; torch's Python
#: kernel for them is honest. It is not used for anything else: it would also replace dropout's stream of
#: random numbers, unroll LSTMs and expand upsampling.
PYTHON_KERNELS = frozenset(
    {
        torch.nn.functional.batch_norm,
        torch.batch_norm,
        torch.native_batch_norm,
        aten.batch_norm.default,
        aten.native_batch_norm.default,
        torch.nn.functional.instance_norm,
        torch.instance_norm,
        aten.instance_norm.default,
    }
)
#: Captured calls that draw in the order of a contiguous tensor.
OUT_OF_PLACE_BERNOULLI = frozenset({torch.bernoulli, torch.Tensor.bernoulli, "bernoulli", aten.bernoulli.p})

#: Captured calls whose kernel draws in another order where the tensor written to has gaps.
IN_PLACE_NORMAL = frozenset({torch.Tensor.normal_, "normal_", aten.normal_.default})

#: Names of functions whose C++ kernels cannot take symbolic sizes: with those the Python ones are used.
SYMBOLIC_KERNELS = frozenset(
    {"lstm", "gru", "rnn_tanh", "rnn_relu", "interpolate", "upsample", "grid_sample"}
)


def lower(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    backend: Backend | str,
    *,
    input_specs: Sequence[InputSpec] | None = None,
    options: Any = None,
    mode: str = "default",
    name: str = "graph_0",
    phase: Phase = Phase.INFERENCE,
) -> Lowered:
    """Lowers `gm` for `backend` (an instance or an installed name).

    inputs: one per placeholder, real or fake tensors or ints; where placeholders carry ``meta["val"]``
    those fakes are used. input_specs: one per placeholder (default: all `Role.USER_INPUT`). Raises
    LoweringUnsupported with the reason if the graph has no functional form.
    """
    if isinstance(backend, str):
        backend = plugin_api.get_backend(backend)
    values = captured_values(gm, inputs)
    specs = tuple(input_specs) if input_specs is not None else default_specs(gm)
    request = Request(backend, options, mode, name, phase)
    if backend.ir == "torch":
        return _torch_level(gm, values, specs, request)
    return Lowering(gm, values, request).run(specs)


def default_specs(gm: torch.fx.GraphModule) -> tuple[InputSpec, ...]:
    """An InputSpec for each placeholder: sizes for SymInts, else user inputs."""
    specs = []
    for node in gm.graph.find_nodes(op="placeholder"):
        specs.append(InputSpec(node.name, role_of(node.meta.get("val")), node.name))
    return tuple(specs)


def role_of(value: Any) -> Role:
    """What an input is of which nothing but its (fake) value is known."""
    if isinstance(value, (int, torch.SymInt)):
        return Role.SIZE
    return Role.NUMBER if isinstance(value, (float, torch.SymFloat)) else Role.USER_INPUT


@dataclass(frozen=True, slots=True)
class Request:
    """For whom and how a graph is lowered; see `lower`."""

    backend: Backend
    options: Any
    mode: str
    name: str
    phase: Phase

    def spec(
        self,
        graph: torch.fx.GraphModule,
        inputs: tuple[InputSpec, ...],
        mutations: tuple[int, ...],
        outputs: tuple[OutputSpec, ...],
    ) -> CompileSpec:
        """The CompileSpec of a graph whose nodes carry their values."""
        values = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        return CompileSpec(
            backend=self.backend.name,
            name=self.name,
            inputs=inputs,
            outputs=outputs,
            sizes=size_specs(size_origins(values)),
            mutations=mutations,
            phase=self.phase,
            options=self.options,
            mode=self.mode,
            device=main_device(values, graph),
            cache_key=cache_key(graph, self.backend, inputs, self.options, self.mode, self.phase),
        )


def main_device(values: Sequence[Any], graph: torch.fx.GraphModule) -> torch.device:
    """Where most inputs live; for a graph without tensors as inputs, where most of its values do."""
    for candidates in (values, [node.meta.get("val") for node in graph.graph.nodes]):
        devices = Counter(v.device for v in candidates if isinstance(v, torch.Tensor))
        if devices:
            return devices.most_common(1)[0][0]
    return torch.device("cpu")


def output_specs(values: Sequence[Any], inputs: Sequence[Any]) -> tuple[OutputSpec, ...]:
    """An OutputSpec for each value, with what it shares its storage with."""
    owners: dict[int, int] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            owners.setdefault(torch_private.storage_id(value), index)
    earlier: dict[int, int] = {}
    specs = []
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            specs.append(OutputSpec(None, None, None, None))
            continue
        storage = torch_private.storage_id(value)
        shape, stride = tuple(map(as_plain, value.shape)), tuple(map(as_plain, value.stride()))
        specs.append(
            OutputSpec(shape, stride, value.dtype, value.device, owners.get(storage), earlier.get(storage))
        )
        earlier.setdefault(storage, index)
    return tuple(specs)


def output_args(gm: torch.fx.GraphModule) -> tuple[Any, ...]:
    """What a graph returns: nodes and constants, as one flat tuple."""
    (output,) = gm.graph.find_nodes(op="output")
    returned = output.args[0]
    flat = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    if any(isinstance(item, (tuple, list, dict)) for item in flat):
        raise LoweringUnsupported("the graph returns a nested structure; captured graphs return a flat tuple")
    return flat


def _torch_level(
    gm: torch.fx.GraphModule,
    values: Mapping[torch.fx.Node, Any],
    specs: tuple[InputSpec, ...],
    request: Request,
) -> Lowered:
    returned = [values[item] if isinstance(item, torch.fx.Node) else item for item in output_args(gm)]
    placeholders = [values[node] for node in gm.graph.find_nodes(op="placeholder")]
    spec = request.spec(gm, specs, (), output_specs(returned, placeholders))
    plan = OutputPlan((), graph_outputs=0)
    return Lowered(gm, spec, lambda runner: runner, plan, "torch")


def decomposition_table(backend: Backend) -> dict[Any, Callable[..., Any]]:
    """The decompositions that `backend` asks for: torch's core ATen table for ``ir="core_aten"``, then
    its own, less its `keep_ops`. Raises LoweringUnsupported for a kept operator that torch itself expands
    before a graph could show it."""
    # The tangents that forward-mode differentiation starts from have no memory: a kernel must not be given one.
    table: dict[Any, Callable[..., Any]] = {aten._efficientzerotensor.default: torch.zeros}
    if backend.ir == "core_aten":
        table |= torch_private.core_aten_table()
    if backend.decompositions is not None:
        table |= plugin_api.resolve(backend.decompositions)()
    for op_name in backend.keep_ops:
        op = operator_named(op_name)
        if torch_private.is_composite(op):
            raise LoweringUnsupported(
                f"keep_ops names {op_name}, which PyTorch expands before lowering sees it"
            )
        table.pop(op, None)
    return table


def operator_named(name: str) -> Any:
    """The OpOverload of ``"aten.gelu.default"``. Raises AttributeError if there is none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _require_resolved(node: torch.fx.Node, value: Any) -> None:
    """A backend reads memory, in which the numbers of a lazily conjugated or negated tensor are others."""
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
        raise LoweringUnsupported(
            f"input {node.name} is lazily {'conjugated' if value.is_conj() else 'negated'} (its memory holds "
            "other numbers; resolve_conj() or resolve_neg() writes them out)"
        )


class Lowering:
    """One lowering (mutable). values: the eager fake value of every node of the captured graph.
    differentiates: gradients are computed while it is interpreted, so grad mode is on."""

    differentiates = False

    def __init__(
        self, gm: torch.fx.GraphModule, values: Mapping[torch.fx.Node, Any], request: Request
    ) -> None:
        self.gm = gm
        self.values = values
        self.request = request
        self.fake_mode = self._fake_mode()
        self.recorder = AtenRecorder(self.fake_mode, decomposition_table(request.backend))
        self.leaves: dict[int, bool] = {}  # id of an input's fake -> whether the input requires grad
        self.wrappers: dict[int, Any] = {}  # id of an eager value -> its functional wrapper
        self.env: dict[torch.fx.Node, Any] = {}
        self.pairs: list[tuple[torch.Tensor, torch.Tensor, str]] = []  # eager value, wrapper, node
        placeholders = gm.graph.find_nodes(op="placeholder")
        self.symbolic = bool(size_origins([values[node] for node in placeholders]))
        for node in placeholders:
            _require_resolved(node, values[node])

    def _fake_mode(self) -> Any:
        for value in self.values.values():
            if torch_private.is_fake(value):
                return torch_private.fake_mode_of(value)
        return torch_private.fake_tensor_mode()

    def run(self, specs: tuple[InputSpec, ...]) -> Lowered:
        """Interprets the captured graph, then finishes the ATen graph."""
        with self.active():
            ending = self.finish()
        recorder = self.recorder
        recorder.graph.output(tuple(ending.planner.nodes))
        remove_dead_nodes(recorder.graph)
        graph = Deferred(torch.nn.Module(), recorder.graph, class_name="Lowered")
        spec = self.request.spec(
            graph,
            specs + self.extra_specs(),
            ending.mutations,
            output_specs(ending.planner.values, recorder.inputs),
        )
        plan = self.plan(ending)
        lowered = Lowered(graph, spec, plan.bind, plan, self.request.backend.ir)
        if env().check:
            from tracer_core.verify import verify_lowered  # only when asked for

            verify_lowered(lowered)
        return lowered

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, operators on fakes are recorded, and every setting is as before on the way out."""
        grad = torch.set_grad_enabled(self.differentiates)
        if self.differentiates:
            self.recorder.draws = Draws()
        regions = REGIONS.set(self.recorder.draws.region if self.recorder.draws is not None else None)
        try:
            with unseeded(self.gm), grad, torch_private.settings_restored(), self.fake_mode, self.recorder:
                yield
        finally:
            REGIONS.reset(regions)

    def finish(self) -> Ending:
        """Interprets the captured graph and adds what follows from it: outputs, then writes to inputs."""
        with torch_private.functionalization():
            self._interpret()
        with torch.no_grad():
            writes = self._writes()
            written = [self.recorder.inputs[index] for index, _ in writes]
            placed_views.require_none(self.gm.graph, self.values, written)
            self._require_same_aliases()
            planner = OutputPlanner(
                self.recorder,
                self.recorder.inputs,
                list(self.values.values()),
                lambda value: self.wrappers[id(value)],
            )
            returned = [
                self.values[item] if isinstance(item, torch.fx.Node) else item
                for item in output_args(self.gm)
            ]
            steps = planner.plan(returned)
            return Ending(planner, tuple(steps), self._write_back(writes))

    def plan(self, ending: Ending) -> OutputPlan:
        """How the captured graph's outputs are made from the ATen graph's."""
        recorder = self.recorder
        plan = OutputPlan(
            ending.steps, tuple(recorder.constants), size_origins(recorder.inputs), len(ending.planner.nodes)
        )
        plan.text()  # symbolic sizes of views must have a text form: better known now than at the call
        return plan

    # --- interpretation -----------------------------------------------------------------------------

    def _interpret(self) -> None:
        places = torch_private.guard_places(self.fake_mode.shape_env)
        for node in self.gm.graph.nodes:
            self.recorder.frame = node.meta.get("user_frame") or ""
            if places is not None:
                places.override = self.recorder.frame
            self.recorder.out_of_place = node.target in OUT_OF_PLACE_BERNOULLI
            self._require_same_draws(node)
            if node.op != "output":
                self.env[node] = result = self._checked_node(node)
                eager = self.values[node]
                if isinstance(eager, torch.Tensor):
                    self.wrappers.setdefault(id(eager), result)
                    if eager.layout is torch.strided and torch_private.is_functional(result):
                        self.pairs.append((eager, result, node.name))
        self.recorder.frame = ""
        if places is not None:
            places.override = ""

    def _require_same_draws(self, node: torch.fx.Node) -> None:
        """A functional value of a tensor with gaps is dense, and of a dense tensor pairs of numbers are drawn otherwise."""
        if node.target in IN_PLACE_NORMAL:
            written = self.values[node]
            numbers = ([hint_of(one) for one in part] for part in (written.shape, written.stride()))
            if written.device.type == "cpu" and has_gaps(*numbers):
                raise LoweringUnsupported(
                    "normal_ on a tensor with gaps in its memory draws its numbers in another order", self.recorder.frame
                )

    def _require_same_aliases(self) -> None:
        """Whether `contiguous`, `reshape` and the like give a view follows from strides, and a functional
        value can have others than eager's (after a write to an input with gaps between its elements, or from
        a decomposition). That matters where the memory is written to: there the two programs would part."""
        eager_of: dict[int, int] = {}
        functional_of: dict[int, int] = {}
        written: set[int] = set()
        apart: list[tuple[int, str]] = []
        for eager, wrapper, name in self.pairs:
            one, other = torch_private.storage_id(eager), torch_private.storage_id(wrapper)
            if torch_private.has_data_mutation(wrapper):
                written |= {other, functional_of.get(one, other)}
            if functional_of.setdefault(one, other) != other or eager_of.setdefault(other, one) != one:
                apart += [(other, name), (functional_of[one], name)]
        for storage, name in apart:
            if storage in written:
                raise LoweringUnsupported(
                    f"{name} shares memory that is written to in another way than in eager"
                )

    def _checked_node(self, node: torch.fx.Node) -> Any:
        """`_node`; what eager could do and functional values cannot (a view that their strides forbid) is a
        reason against lowering, not a crash."""
        try:
            return self._node(node)
        except torch_private.fake_failures():
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = str(error).splitlines()[0] if str(error) else ""
            raise LoweringUnsupported(
                f"{node.target} fails on functional values: {first}", self.recorder.frame
            ) from error

    def _node(self, node: torch.fx.Node) -> Any:
        match node.op:
            case "placeholder":
                return self._input(node)
            case "get_attr":
                return self._attribute(node)
            case "call_function":
                if node.target in GRAD_MODE_CALLS and not self.differentiates:
                    return None
                if node.target in INFERENCE_MODE_CALLS:
                    raise LoweringUnsupported("inference_mode inside a graph that computes gradients")
                args, kwargs = self._args(node)
                if in_turn.writes(node.target, kwargs):
                    return in_turn.call(node.target, self._function(node), args, kwargs, self._eager_args(node))
                return self._function(node)(*args, **kwargs)
            case "call_method":
                (receiver, *args), kwargs = self._args(node)
                if node.target == "add_" and not kwargs and _counts(receiver, args):
                    return torch_private.replaced(receiver, receiver.add(args[0]))
                if in_turn.writes(node.target, kwargs):
                    given = (receiver, *args)
                    return in_turn.call(node.target, _method(str(node.target)), given, kwargs, self._eager_args(node))
                return getattr(receiver, str(node.target))(*args, **kwargs)
        raise LoweringUnsupported(f"the captured graph has a {node.op} node", self.recorder.frame)

    def _function(self, node: torch.fx.Node) -> Callable[..., Any]:
        """What runs a call_function node: its target, or a form of it that can be followed."""
        target: Any = node.target
        if node.kwargs.get("out") is not None and given_memory.composed(target):
            return functools.partial(_into, target)
        python_kernel = self._needs_python_kernel(target)
        if not python_kernel and not in_turn.may_hold_calls(target):
            return target  # type: ignore[no-any-return]

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch_private.python_dispatcher() if python_kernel else in_turn.Watched():
                return target(*args, **kwargs)

        return run

    def _needs_python_kernel(self, target: Any) -> bool:
        return target in PYTHON_KERNELS or (
            self.symbolic and getattr(target, "__name__", "") in SYMBOLIC_KERNELS
        )

    def _args(self, node: torch.fx.Node) -> tuple[Any, Any]:
        return torch.fx.map_arg(node.args, self.env.__getitem__), torch.fx.map_arg(
            node.kwargs, self.env.__getitem__
        )

    def _eager_args(self, node: torch.fx.Node) -> tuple[Any, Any]:
        return torch.fx.map_arg(node.args, self.values.__getitem__), torch.fx.map_arg(
            node.kwargs, self.values.__getitem__
        )

    def _input(self, node: torch.fx.Node) -> Any:
        value = as_plain(self.values[node])
        self.recorder.add_input(node.name, value)
        return self._functional(value) if isinstance(value, torch.Tensor) else value

    def wrapper(self, value: torch.Tensor) -> torch.Tensor:
        """A fake's functional wrapper."""
        with torch_private.functionalization_off():
            return torch_private.functional(value)

    def _functional(self, value: torch.Tensor) -> torch.Tensor:
        """The functional wrapper of an input's fake: a leaf where gradients are computed."""
        wrapper = self.wrapper(value)
        if not self.differentiates:
            return wrapper
        return wrapper.requires_grad_(self.leaves.get(id(value), value.requires_grad))

    def _attribute(self, node: torch.fx.Node) -> Any:
        real = attribute(self.gm, str(node.target))
        if not isinstance(real, torch.Tensor):
            return real
        fake = self.values[node]
        if id(fake) in self.wrappers:
            return self.wrappers[id(fake)]
        self.recorder.add_constant(real, fake)
        return self._functional(fake)

    # --- writes to inputs ---------------------------------------------------------------------------

    def _writes(self) -> list[tuple[int, Any]]:
        """(index, wrapper) of each input that the graph wrote to."""
        writes, storages = [], Counter[int]()
        for index, value in enumerate(self.recorder.inputs):
            wrapper = self.wrappers.get(id(value))
            if wrapper is None:
                continue
            storages[torch_private.storage_id(value)] += 1
            if torch_private.has_metadata_mutation(wrapper):
                name = self.recorder.placeholders[index].name
                raise LoweringUnsupported(f"the graph changes sizes, strides or storage of its input {name}")
            if torch_private.has_data_mutation(wrapper):
                writes.append((index, wrapper))
        for index, _ in writes:
            if storages[torch_private.storage_id(self.recorder.inputs[index])] > 1:
                name = self.recorder.placeholders[index].name
                raise LoweringUnsupported(
                    f"the graph writes to its input {name}, which shares memory with another"
                )
        return writes

    def _write_back(self, writes: Sequence[tuple[int, Any]]) -> tuple[int, ...]:
        """Adds a trailing ``copy_`` for each write; gives the indices of the inputs written to."""
        recorder = self.recorder
        inputs = {torch_private.storage_id(v) for v in recorder.inputs if isinstance(v, torch.Tensor)}
        pending = []
        for index, wrapper in writes:
            value = torch_private.functional_value(wrapper)
            if recorder.node_of(value) is recorder.placeholders[index]:
                continue
            if torch_private.storage_id(value) in inputs:  # another copy_ may change it first
                value = aten.clone.default(value)
            pending.append((index, recorder.node_of(value)))
        for index, node in pending:
            placeholder = recorder.placeholders[index]
            recorder.call(aten.copy_.default, (placeholder, node), {}, placeholder.meta["val"])
        return tuple(index for index, _ in pending)

    def extra_specs(self) -> tuple[InputSpec, ...]:
        """An InputSpec for each tensor attribute of the captured graph."""
        extra = self.recorder.placeholders[len(self.gm.graph.find_nodes(op="placeholder")) :]
        roles = [
            Role.PARAMETER if isinstance(tensor, torch.nn.Parameter) else Role.BUFFER
            for tensor in self.recorder.constants
        ]
        return tuple(
            InputSpec(node.name, role, node.name, stable_address=True)
            for node, role in zip(extra, roles, strict=True)
        )


def _into(target: Any, *args: Any, **kwargs: Any) -> Any:
    return given_memory.call_into(target, args, kwargs)


def _method(name: str) -> Callable[..., Any]:
    """Calls the method of that name of its first argument."""
    return lambda receiver, *args, **kwargs: getattr(receiver, name)(*args, **kwargs)


def _counts(receiver: Any, args: list[Any]) -> bool:
    """Whether a counter of whole numbers is raised, as batch norms do. Functionalization checks the sizes of `add_` in a way
    that imports sympy (30 MiB), and then does what `torch_private.replaced` does."""
    return (
        len(args) == 1
        and type(args[0]) is int
        and isinstance(receiver, torch.Tensor)
        and receiver.dtype is torch.int64
        and receiver.dim() == 0
        and torch_private.is_functional(receiver)
    )
