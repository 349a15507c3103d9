"""Functionalization: runs the captured graph once over functional wrappers of its fakes, under
`AtenRecorder`.

`Interpretation.env` and `wrappers` then give the functional value of each node and of each eager
value. What functional values cannot express (other draws of random numbers, calls that fail on
them) raises LoweringUnsupported.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import aliased_writes, linear_resizing, out_variants
from tracer_core.aot.aten_recorder import AtenRecorder
from tracer_core.aot.fake_values import attribute
from tracer_core.aot.rng_checkpoint import RecomputedRng, unseeded
from tracer_core.aot.rng_saved import is_rng_node
from tracer_core.aot.symbolic_sizes import as_python_scalar, hint_of, size_origins
from tracer_core.aot.traceable_forms import FORMS, PYTHON_KERNEL_FORMS
from tracer_core.contract.lowering_errors import LoweringUnsupported, first_line
from tracer_core.engine_support.contiguous import has_gaps
from tracer_core.fx_capture.backward_effects import without_effects
from tracer_core.fx_capture.wrong_fakes import is_foreign
from tracer_core.ops.higher_order.checkpoint import REGIONS
from tracer_core.torch_private.names import names, operators

aten = operators("aten")

#: Calls of the captured graph that only switch the grad mode. A graph lowered for inference runs
#: without grad, so they do not change its values.
INFERENCE_MODE_CALLS = frozenset(
    names("_enter_inference_mode _exit_inference_mode", of="autograd.grad_mode")
)
SET_GRAD_CALLS = frozenset(names("_C._set_grad_enabled set_grad_enabled"))
GRAD_MODE_CALLS = SET_GRAD_CALLS | INFERENCE_MODE_CALLS

#: Functions whose C++ kernel updates running statistics without declaring it; torch's Python kernel
#: for them is functional. It is used for nothing else: it would also replace dropout's rng stream,
#: unroll LSTMs and expand upsampling.
PYTHON_KERNELS = frozenset(names(
    "nn.functional.batch_norm batch_norm native_batch_norm nn.functional.instance_norm"
    " instance_norm ops.aten.batch_norm.default ops.aten.native_batch_norm.default"
    " ops.aten.instance_norm.default"
))  # fmt: skip
#: Captured calls that draw in the order of a contiguous tensor.
OUT_OF_PLACE_BERNOULLI = frozenset(
    {*names("bernoulli Tensor.bernoulli ops.aten.bernoulli.p"), "bernoulli"}
)

#: Captured calls whose kernel draws in another order where the written tensor has gaps.
IN_PLACE_NORMAL = frozenset({*names("Tensor.normal_ ops.aten.normal_.default"), "normal_"})

#: Operators that are layers: autocast casts the matmuls inside them, which their node does not
#: show.
LAYERS = frozenset(names("_native_multi_head_attention _transformer_encoder_layer_fwd"))

#: Names of functions whose C++ kernels cannot take symbolic sizes: the Python kernels are used for
#: those.
SYMBOLIC_KERNELS = frozenset(
    {"lstm", "gru", "rnn_tanh", "rnn_relu", "interpolate", "upsample", "grid_sample",
     *torch_private.without_symbols()}
)  # fmt: skip


#: What operators raise that fail on functional values.
_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError, ValueError, TypeError, IndexError, ArithmeticError,
)  # fmt: skip


class Interpretation:
    """One interpretation of a captured graph. Mutable.

    values: the eager fake value of every node. differentiates: gradients are computed while the
    graph is interpreted, so grad mode is on.
    """

    differentiates = False

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        values: Mapping[torch.fx.Node, Any],
        table: Mapping[Any, Callable[..., Any]],
    ) -> None:
        self.gm = gm
        self.values = values
        self.fake_mode = self._fake_mode()
        self.recorder = AtenRecorder(self.fake_mode, table)
        self.leaves: dict[int, bool] = {}  # id of an input's fake -> whether it requires grad
        self.wrappers: dict[int, Any] = {}  # id of an eager value -> its functional wrapper
        self.env: dict[torch.fx.Node, Any] = {}
        self.pairs: list[tuple[torch.Tensor, torch.Tensor, str]] = []  # eager value, wrapper, node
        placeholders = gm.graph.find_nodes(op="placeholder")
        #: Whether there are tensors of subclasses in the graph, whose handlers may raise anything.
        self.wraps = any(map(torch_private.is_wrapper, values.values()))
        self.errors = (Exception,) if self.wraps else _ERRORS
        self.backward_errors = (Exception,) if self.wraps else (RuntimeError, ArithmeticError)
        self.recorder.wraps = self.wraps
        self.symbolic = bool(size_origins([values[node] for node in placeholders]))
        for node in placeholders:
            _require_resolved(node, values[node])

    def _fake_mode(self) -> Any:
        for value in self.values.values():
            if torch_private.is_fake(value):
                return torch_private.fake_mode_of(value)
        return torch_private.fake_tensor_mode()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Records operators on fakes inside the block, and restores every setting on exit. The
        program's saved-tensor hooks do not see the fakes."""
        grad = torch.set_grad_enabled(self.differentiates)
        if self.differentiates and self.recorder.rng is None:
            self.recorder.rng = RecomputedRng()
        rng = self.recorder.rng
        regions = REGIONS.set(None if rng is None else rng.region)
        try:
            settings = torch_private.settings_restored()
            one_thread = torch_private.backward_on_this_thread()
            unseen, fake_mode = torch_private.saved_tensors_unseen(), self.fake_mode
            # what fails is tried in another way, or is the reason of a fallback
            quiet = torch_private.meta_failures_unlogged()
            seeds = unseeded(self.gm)
            # anomaly detection would read the values of gradients, which fakes do not have
            no_checks = torch.autograd.set_detect_anomaly(False)
            with (
                seeds, grad, no_checks, settings, one_thread, unseen, quiet, fake_mode,
                self.recorder,
            ):  # fmt: skip
                yield
        finally:
            REGIONS.reset(regions)
            self.recorder.forget_shardings()

    @contextlib.contextmanager
    def functional(self) -> Iterator[None]:
        """Functionalizes operators inside the block. Tensors of subclasses hold functional values,
        and are none: their operators skip functionalization, and the recorder starts it again."""
        outside = torch_private.functionalization_off if self.wraps else contextlib.nullcontext
        with torch_private.functionalization(), outside():
            yield

    def interpret(self) -> None:
        """Runs every node, in order. Call it inside `active`."""
        places = torch_private.guard_locations(self.fake_mode.shape_env)
        # the tracer's guards check which inputs share memory
        with torch_private.sizes_of_one_queried(self.fake_mode.shape_env):
            self._interpret_nodes(places)
        self.recorder.frame = ""
        if places is not None:
            places.override = ""

    def _interpret_nodes(self, places: Any) -> None:
        for node in self.gm.graph.nodes:
            self.recorder.begin(node.meta.get("user_frame") or "")
            if places is not None:
                places.override = self.recorder.frame
            self.recorder.out_of_place = node.target in OUT_OF_PLACE_BERNOULLI
            try:
                self._interpret_node(node)
            except LoweringUnsupported as error:
                error.nodes = (
                    node,
                )  # the outermost node, where a call interprets a graph of its own
                raise

    def _interpret_node(self, node: torch.fx.Node) -> None:
        self._require_same_rng(node)
        self._note_objects(node)
        if node.op == "output":
            return
        self.env[node] = result = self._checked_node(node)
        eager = self.values[node]
        if isinstance(eager, torch.Tensor):
            self.wrappers.setdefault(id(eager), result)
            if eager.layout is torch.strided and torch_private.is_functional(result):
                self.pairs.append((eager, result, node.name))

    def _note_objects(self, node: torch.fx.Node) -> None:
        """Tells the recorder which objects of C++ a node is given. Their operators have no
        derivative."""
        self.recorder.objects = objects = []

        def note(source: torch.fx.Node) -> torch.fx.Node:
            value = self.values[source]
            if isinstance(value, torch.ScriptObject):
                objects.append(value)
            return source

        torch.fx.map_arg((node.args, node.kwargs), note)
        if objects and self.differentiates and _needs_grad(self.values[node]):
            raise LoweringUnsupported(f"{node.target} has no derivative", self.recorder.frame)

    def _require_same_rng(self, node: torch.fx.Node) -> None:
        """Raises LoweringUnsupported where a functional value would draw other random numbers than
        eager.

        The functional value of a tensor with gaps is dense, and for dense tensors numbers are drawn
        in pairs.
        """
        if node.target in IN_PLACE_NORMAL:
            written = self.values[node]
            layout = (
                [hint_of(item) for item in part] for part in (written.shape, written.stride())
            )
            if written.device.type == "cpu" and has_gaps(*layout):
                reason = "normal_ on a tensor with gaps in its memory draws in another order"
                raise LoweringUnsupported(reason, self.recorder.frame)

    def _checked_node(self, node: torch.fx.Node) -> Any:
        """Runs `_node`; an error that only functional values or fakes cause (a view that their
        strides forbid, a value that is read) becomes LoweringUnsupported.
        """
        last = next(iter(reversed(self.recorder.graph.nodes)), None)
        try:
            return self._node(node)
        except torch_private.fake_failures() as error:
            raise LoweringUnsupported(f"{type(error).__name__}: {error}") from error
        except LoweringUnsupported:
            raise
        except self.errors as error:
            failure = error
        if self.symbolic and not any(map(is_rng_node, self._recorded_since(last))):
            # As capture did: C++ kernels of some operators take no symbolic sizes.
            with contextlib.suppress(*self.errors), torch_private.python_dispatcher():
                return self._node(node)
        name = aliased_writes.name_of(node.target) or node.target
        reason = f"{name} fails on functional values: {first_line(failure)}"
        raise LoweringUnsupported(reason, self.recorder.frame) from failure

    def _recorded_since(self, last: torch.fx.Node | None) -> Iterator[torch.fx.Node]:
        """Yields the operators that were recorded after one."""
        return itertools.takewhile(
            lambda value: value is not last, reversed(self.recorder.graph.nodes)
        )

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
                    reason = "inference_mode inside a graph that computes gradients"
                    raise LoweringUnsupported(reason)
                args, kwargs = self._args(node, self.env)
                if node.target in LAYERS and torch.is_autocast_enabled(args[0].device.type):
                    name = aliased_writes.name_of(node.target)
                    raise LoweringUnsupported(f"{name} casts inside itself under autocast")
                run = self._function(node)
            case "call_method":
                args, kwargs = self._args(node, self.env)
                if node.target == "add_" and not kwargs and _counts(args):
                    return torch_private.replaced(args[0], args[0].add(args[1]))
                run = self._with_kernels(node, _method(str(node.target)))
            case _:
                reason = f"the captured graph has a {node.op} node"
                raise LoweringUnsupported(reason, self.recorder.frame)
        if aliased_writes.writes(node.target, kwargs):
            eager_args = self._args(node, self.values)
            return aliased_writes.call(node.target, run, args, kwargs, eager_args)
        result = run(*args, **kwargs)
        if self.differentiates and is_foreign(node.target):
            torch_private.replace_backward(result, functools.partial(without_effects, node.name))
        return result

    def _function(self, node: torch.fx.Node) -> Callable[..., Any]:
        """Returns what runs a call_function node: its target, or a traceable form of it."""
        target: Any = FORMS.get(node.target, node.target)
        if node.kwargs.get("out") is not None and out_variants.composed(target):
            return self._with_kernels(node, functools.partial(out_variants.call_into, target))
        python_kernel = self._needs_python_kernel(node.target)
        if python_kernel:
            target = PYTHON_KERNEL_FORMS.get(node.target, target)
        if not python_kernel and not aliased_writes.may_hold_calls(target):
            return target  # type: ignore[no-any-return]

        resizes = python_kernel and target in linear_resizing.FUNCTIONS

        def run(*args: Any, **kwargs: Any) -> Any:
            resized = linear_resizing.linear(*args, **kwargs) if resizes else None
            if resized is not None:
                return resized
            watch = aliased_writes.Watched
            with torch_private.python_dispatcher() if python_kernel else watch():
                return target(*args, **kwargs)

        return run

    def _with_kernels(self, node: torch.fx.Node, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `run`, with torch's Python kernels if the node needs them."""
        if not self._needs_python_kernel(node.target):
            return run

        def with_kernels(*args: Any, **kwargs: Any) -> Any:
            with torch_private.python_dispatcher():
                return run(*args, **kwargs)

        return with_kernels

    def _needs_python_kernel(self, target: Any) -> bool:
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        return target in PYTHON_KERNELS or (self.symbolic and name in SYMBOLIC_KERNELS)

    def _args(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> tuple[Any, Any]:
        result: Any = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        return result[0], result[1]

    def _input(self, node: torch.fx.Node) -> Any:
        value = as_python_scalar(self.values[node])
        self.recorder.add_input(node.name, value)
        return self._functional(value) if isinstance(value, torch.Tensor) else value

    def wrapper(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a fake's functional wrapper."""
        with torch_private.functionalization_off():
            return torch_private.functional(value)

    def _functional(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the functional wrapper of an input's fake: a leaf where gradients are
        computed.
        """
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


def _require_resolved(node: torch.fx.Node, value: Any) -> None:
    """Raises LoweringUnsupported for lazily conjugated or negated tensors: a backend reads memory,
    which holds other values; and for tensors of subclasses.
    """
    if isinstance(value, torch.Tensor) and torch_private.is_subclass(value):
        reason = f"input {node.name} is a {type(value).__name__}, whose operators are nodes"
        raise LoweringUnsupported(reason)
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
        raise LoweringUnsupported(
            f"input {node.name} is lazily {'conjugated' if value.is_conj() else 'negated'} (its"
            " memory holds other numbers; resolve_conj() or resolve_neg() writes them out)"
        )


def _needs_grad(value: Any) -> bool:
    """Returns whether a result, or one of several, requires a gradient."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _method(name: str) -> Callable[..., Any]:
    """Returns a function that calls the method of that name of its first argument."""
    return lambda receiver, *args, **kwargs: getattr(receiver, name)(*args, **kwargs)


def _counts(args: tuple[Any, ...]) -> bool:
    """Whether the call increments an integer counter, as batch norms do.

    For `add_`, functionalization checks sizes in a way that imports sympy (30 MiB), and then does
    what `torch_private.replaced` does.
    """
    receiver, *others = args
    return (
        len(others) == 1
        and type(others[0]) is int
        and isinstance(receiver, torch.Tensor)
        and receiver.dtype is torch.int64
        and receiver.dim() == 0
        and torch_private.is_functional(receiver)
    )
