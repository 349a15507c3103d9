"""FX tracing: a torch-function mode that runs each torch function on fake tensors and records it as
a node of a torch-level FX graph.

The recorder either runs and records a function or raises `Break` before the function has had an
effect. Where a result is an input tensor, the caller gets the real tensor, not its fake.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.fx_capture import element_reads, higher_order_calls, out_variants, wrong_fakes
from tracer_core.fx_capture.backward_effects import without_effects
from tracer_core.fx_capture.eager_errors import eager_error
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.fx_capture.function_traits import (
    EFFECT_ONLY,
    INDEXING,
    SUBSCRIPTS,
    is_blind,
    name_of,
    operator_name,
    recordable,
)
from tracer_core.fx_capture.fx_graph import SIMPLE_TYPES, WrittenGraph
from tracer_core.fx_capture.in_place_results import misfit
from tracer_core.fx_capture.kernel_checks import unchecked
from tracer_core.fx_capture.known_scalars import Scalars
from tracer_core.fx_capture.packed_sequences import PackedSequences
from tracer_core.fx_capture.tensor_mutations import CallWrites
from tracer_core.fx_capture.unbacked import (
    READS_A_FLOAT,
    READS_A_NUMBER,
    DataSizes,
    gives_data_size,
    is_float,
    is_integer,
)
from tracer_core.fx_capture.unsupported import unsupported
from tracer_core.fx_capture.value_ranges import Ranges
from tracer_core.graph_breaks import Break, Restart, Retry
from tracer_core.guards.source import Source
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import name, names
from tracer_core.torch_private.needed import OpOverloadPacket, pytree, set_grad_mode

#: Keyword arguments whose value every operator reads as a Python scalar, even from a tensor.
_NUMBERS = frozenset({"alpha", "value"})
_DATA = name("Tensor.data.__get__")
_NATIVE_ATTENTION = name("_native_multi_head_attention")
#: Functions whose results on fakes are corrected, from their arguments.
_CORRECTIONS: Mapping[Any, Callable[[Any, Any], Any]] = {
    # a fake is laid out as its argument, kernels' results are contiguous
    **dict.fromkeys(
        names("_C._nn.one_hot ops.aten.one_hot.default"), lambda args, result: result.contiguous()
    ),
    **dict.fromkeys(names("lstm"), torch_private.corrected_states),
}
#: Functions of C that tell a torch-function mode what is called.
_DISPATCHED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
#: Operators whose arguments behind the first are sizes and positions.
_TAKES_SIZES = frozenset(
    ["pad", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty", "view", "reshape",
     "expand", "narrow", "repeat", "arange", "split", "chunk", "roll", "unflatten"]
)  # fmt: skip
_INDICES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_QUANTIZED = frozenset(names("quint8 qint8 qint32 quint4x2 quint2x4"))


class TensorHooks(Protocol):
    """The hooks of tensor subclasses and dispatch modes in a trace."""

    def hook(self, args: Any, kwargs: Any) -> bool:
        """Returns whether a call of a torch function may call Python code of the program."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls such a torch function."""


class Recorder(WrittenGraph):
    """Runs torch functions on fakes and records them in the graph. Mutable. step(): index of the
    instruction that the outermost frames run. number_in(tensor): the scalar in a tensor if the
    program may read it, else None. index_in(tensor, speculates): the integer in a tensor if it is
    known before the graph runs, or speculated, else None. concrete: for backends without symbolic
    scalar inputs, returns the guarded value of a symbol."""

    def __init__(
        self,
        fakes: Fakes,
        source_of: Callable[[torch.Tensor], Source | None],
        dims_of: Callable[[torch.Tensor], Any],
        where: Callable[[], str],
        step: Callable[[], int],
        number_in: Callable[[torch.Tensor], Any],
        index_in: Callable[[torch.Tensor, bool], Any],
        concrete: Callable[[Any], Any] | None,
        may_follow_data: bool,
        floats: bool,
        copies_elements: bool,
    ) -> None:
        super().__init__(fakes, source_of, dims_of, where)
        self.mode = _Mode(self)
        self.ranges = Ranges()
        self.scalars = Scalars(fakes)
        self.packed = PackedSequences()
        self.step, self.number_in, self.concrete = step, number_in, concrete
        self.index_in = index_in
        #: The last `Break` raised by a torch function; native code in between may have caught it.
        self.broken: Break | None = None
        #: Settings that the program changed; autocast levels and devices that it entered; contexts
        #: to close at the end of the trace.
        self.settings_written: set[str] = set()
        #: Tensors whose values are read before the graph runs.
        self.read_early: dict[Source, torch.Tensor] = {}
        self.autocast_nesting = 0
        self.devices: list[torch.device] = []
        self.open_contexts: list[Any] = []
        #: Tensors from before the trace whose ``requires_grad`` is not the one that the graph is
        #: given -> the step since which.
        self.flags_changed: dict[Any, int] = {}
        #: Parts of the trace that may leave the graph (`trace/subgraph_regions.py`).
        self.open_regions = 0
        #: What the forward of an autograd.Function that is being traced asked of tensors' values,
        #: so far; None elsewhere.
        self.function_answers: list[bool] | None = None
        #: Torch-function modes that the program is in, each with the instruction that entered it;
        #: asks(function, types, args, kwargs): calls the handler of the last one.
        self.program_modes: tuple[tuple[Any, int], ...] = ()
        self.asks: Callable[..., Any] | None = None
        #: The tensors of subclasses of the trace.
        self.subclasses: TensorHooks | None = None
        #: Unbacked SymInts: None where they break the graph. may_follow_data: whether to restart
        #: the trace with them; floats: whether numbers that are no integers are among them.
        self.data: DataSizes | None = None
        self.may_follow_data, self.floats = may_follow_data, floats
        #: Whether all assertions of the program hold: a result that the entry reads, or None.
        self.asserted: torch.Tensor | None = None
        #: Returns whether the program handles an exception that is raised now.
        self.catches: Callable[[], bool] = lambda: False
        #: Whether subscripts by 0-d tensors read elements (in a function of scores), rather than
        #: ask for the values of the indices.
        self.reads_elements = False
        #: Whether others by numbers that depend on data are copies (`element_reads`).
        self.copies_elements = copies_elements

    # -- unbacked SymInts --

    @property
    def values_needed(self) -> tuple[type[Exception], ...]:
        """Exceptions that a fake raises when its value is read."""
        return torch_private.data_dependent_failures()[0]

    @property
    def shapes_needed(self) -> tuple[type[Exception], ...]:
        """Exceptions that an operator raises when its output shape depends on data."""
        return torch_private.data_dependent_failures()[1]

    def follow_data(self, speculated: Callable[[Any], Any]) -> None:
        """Makes data-dependent sizes unbacked SymInts in this trace. speculated(expression): the
        answer of a question about them that the call which is captured gives, or None."""
        sizes, written = self.sizes, self.fakes.any_was_written
        self.data = DataSizes(
            self.fakes.shape_env, sizes.node, sizes.origins, self.unchecked_node, written
        )
        self.sizes.read_by = self.data.read_by
        env = self.fakes.shape_env
        env.refused, env.undecided, env.on_query = (
            self._note_refused,
            self._undecided,
            self.data.check,
        )
        env.speculated = speculated

    def follows_data(self) -> bool:
        """Returns whether integers that depend on data are, or may become, symbols."""
        return self.may_follow_data or self.data is not None

    def _note_refused(self, expr: Any) -> None:
        decides = torch_private.is_bool_expr(expr)
        kind = "data_dependent_branch" if decides else "data_dependent_value"
        self.broken = Break(
            kind, f"Python needs {expr}, where u stands for a size or number that depends on data"
        )

    def _undecided(self, expr: Any) -> None:
        self._note_refused(expr)
        assert self.broken is not None
        raise self.broken

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a torch function on fakes, records it and returns its result. Raises Break for
        unsupported calls."""
        hooked = self.subclasses is not None and self.subclasses.hook(args, kwargs)
        if self.program_modes or hooked:
            if self.program_modes and not isinstance(func, _DISPATCHED):
                raise Break("torch_mode", f"{name_of(func)} inside a mode of the program")
            with self.mode:  # torch says which function the mode or the class sees
                return func(*args, **kwargs)
        has_device = not self.devices or kwargs.get("device") is not None
        if not has_device and func in torch_private.device_constructors():
            kwargs = {**kwargs, "device": self.devices[-1]}
        if isinstance(func, OpOverloadPacket):
            func = torch_private.overload_of(func, args, kwargs)
        refused = self.refused(func, args, kwargs)
        if refused is not None:
            raise Break(*refused)
        return self.run(func, args, kwargs)

    def refused(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str] | None:
        """Returns (kind, reason) if this call must break the graph, else None."""
        result = unsupported(func, args, kwargs)
        if result is None or not gives_data_size(func, result[0], args, self.floats):
            return result
        self._ask_for_data_sizes(*result)
        return None if self.data is not None and not torch_private.transforms_active() else result

    def _ask_for_data_sizes(self, kind: str, reason: str) -> None:
        if self.may_follow_data:
            raise Retry(self.step(), kind, reason, unbacked_symints=True)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Does the work of `call` for a function that is known to be supported."""
        if self.program_modes:
            raise Break("torch_mode", f"{name_of(func)} inside a mode of the program")
        func, args, kwargs = self._with_numbers(func, args, kwargs)
        inputs: list[Any] = []
        fake_args, fake_kwargs = self._faked(args, inputs), self._faked(kwargs, inputs)

        @contextlib.contextmanager
        def on_fakes() -> Iterator[None]:
            with self.fakes.mode, self._kernels(func, inputs, fake_args, fake_kwargs):
                yield

        unfit = (
            misfit(func, fake_args, fake_kwargs, on_fakes)
            or unchecked(func, fake_args, fake_kwargs, on_fakes)
            or wrong_fakes.difference_of(func, fake_args, fake_kwargs)
        )
        if unfit is not None:
            self._raise_as_eager(func, fake_args, fake_kwargs)
            raise Break("operator_failed", f"{name_of(func)}: {unfit}")
        if self.data is not None and operator_name(func) in READS_A_NUMBER | READS_A_FLOAT:
            func = torch.Tensor.item
        writes = CallWrites(inputs, fake_kwargs)
        changes = self.scalars.before(func, fake_args, fake_kwargs)
        result = self._on_fakes(func, inputs, fake_args, fake_kwargs, writes.memory)
        self._check(func, result, writes)
        if wrong_fakes.is_foreign(func):
            wrap = functools.partial(without_effects, name_of(func))
            torch_private.replace_backward(result, wrap)
        if func is _NATIVE_ATTENTION:
            result = _without_weights(result, args, kwargs)
        if func in _CORRECTIONS:
            with self.fakes.mode:
                result = _CORRECTIONS[func](fake_args, result)
        writes.realize(func, fake_args, fake_kwargs)
        for fake in writes.unseen:
            self.fakes.note_write(fake)
        if func == _DATA:
            self.fakes.note_own_version(result)
        elif writes.written:
            self.fakes.note_touched(writes.touched())
        self.scalars.after(changes, writes.unseen, func, fake_args, fake_kwargs, result)
        self.packed.note(func, fake_args, result)
        result = self._record(func, fake_args, fake_kwargs, result, writes.written)
        if self.data is not None:
            self.data.note(result, self.node_of)
        if writes.written or writes.unseen:
            nodes = reversed(self.graph.nodes)
            newest = next(node for node in nodes if node.target is not operator.getitem)
            newest.meta["writes"] = writes.storages()
            if self.asserted is not None and self.fakes.any_was_written():
                self.refuse_assertions()
        return result

    def refuse_assertions(self) -> NoReturn:
        """Traces again without assertions: where one fails, the program could not run again in eager
        mode."""
        reason = "an input is mutated, or ranks communicate, before an assertion is checked"
        raise Retry(self.step(), "data_dependent_branch", reason, assertions=False)

    def _with_numbers(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Rewrites a call so that no symbolic scalar in it is specialized."""
        if self.sizes.numbers and self.concrete is not None:
            args, kwargs = pytree.tree_map(self.concrete, (args, kwargs))
        if self.reads_elements and func in SUBSCRIPTS and not kwargs:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(map(_is_element, indices)):
                func, args = higher_order_calls.read_element, (args[0], *indices)
        elif (copied := self._copied(func, args, kwargs)) is not None:
            func, args = element_reads.read_at, copied
        elif func in INDEXING or operator_name(func) in _TAKES_SIZES:
            args, kwargs = (
                self._with_indices(func, args),
                {k: self._index(v) for k, v in kwargs.items()},
            )
        func, args, kwargs = recordable(func, args, kwargs)
        for key in _NUMBERS.intersection(kwargs):
            if isinstance(kwargs[key], torch.Tensor):
                number = self.number_in(kwargs[key])
                kwargs = kwargs if number is None else {**kwargs, key: number}
        return func, args, kwargs

    def _copied(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Returns the arguments of `element_reads.read_at` for a subscript by numbers that depend on
        data; None where no copy may take its place."""
        if not self.copies_elements or func not in SUBSCRIPTS or kwargs:
            return None
        tensor, key = args
        indices = [self._tensor_of(item) for item in (key if isinstance(key, tuple) else (key,))]
        if not isinstance(tensor, torch.Tensor) or not any(
            isinstance(index, torch.Tensor) and index.dim() == 0 for index in indices
        ):
            return None
        if self.open_regions or self.function_answers is not None or self.catches():
            return None
        if torch_private.transforms_active():
            return None
        current = self.fakes.current
        if not element_reads.fits(
            current(tensor),
            [current(index) if isinstance(index, torch.Tensor) else index for index in indices],
        ):
            return None
        places = [self._index(index, speculates=False) for index in indices]
        if not any(isinstance(place, torch.Tensor) for place in places):
            return None  # known before the graph
        return (tensor, *places)

    def _tensor_of(self, number: Any) -> Any:
        """Returns the tensor that a number which depends on data was read from (``i.item()``); other
        values as they are."""
        if type(number) is not torch.SymInt or self.data is None:
            return number
        read = self.data.read_by(torch_private.raw_symbol(number))
        if read is None or read.op != "call_method" or read.target != "item":
            return number
        source = read.args[0]
        if not isinstance(source, torch.fx.Node) or element_reads.was_written(source, since=read):
            return number
        return source.meta["val"]

    def _with_indices(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replaces tensors that C code reads as integers; the first argument is the operand."""
        first = args[:1] if args and isinstance(args[0], torch.Tensor) else ()
        return (*first, *[self._index(arg, func in INDEXING) for arg in args[len(first) :]])

    def _index(self, value: Any, masks: bool = False, speculates: bool = True) -> Any:
        """masks: whether bytes select elements, as they do in a subscript outside of its slices.
        speculates: whether the graph may check that a number is as in the call that is captured."""
        if isinstance(value, torch.Tensor):
            bytes_ = masks and value.dtype is torch.uint8
            number = None if bytes_ else self.index_in(value, speculates)
            return value if number is None else number
        if type(value) in (tuple, list):
            return type(value)([self._index(item, masks) for item in value])
        if type(value) is slice:
            return slice(*map(self._index, (value.start, value.stop, value.step)))
        return value

    def _on_fakes(
        self, func: Any, value: list[Any], args: Any, kwargs: Any, memory: list[torch.Tensor]
    ) -> Any:
        """Runs a function on fakes. Raises Break or Retry where the fakes fail."""
        run_args, run_kwargs = args, kwargs
        if self.sizes.numbers and is_blind(func):
            given_numbers = args, kwargs
            run_args, run_kwargs = pytree.tree_map_only(
                torch.SymFloat, self._present, given_numbers
            )
        try:
            kernels, ones = self._kernels(func, value, args, kwargs), self.fakes.sizes_of_one(value)
            one_thread = torch_private.backward_on_this_thread()
            with self.fakes.mode, kernels, one_thread, self._data_sizes(), ones as results:
                run = func if run_kwargs else self.packed.replacement(func, run_args) or func
                result = out_variants.given_back(run(*run_args, **run_kwargs), memory)
                results += pytree.tree_leaves(result)
            return result
        except self.values_needed as error:
            if self.data is None and any(
                is_integer(item) or (self.floats and is_float(item)) for item in value
            ):
                self._ask_for_data_sizes("data_dependent_value", name_of(func))
            reason = str(error).partition("\n")[0]
            raise Break("data_dependent_value", f"{name_of(func)}: {reason}") from None
        except self.shapes_needed as error:
            self._ask_for_data_sizes("data_dependent_shape", name_of(func))
            raise Break("data_dependent_shape", f"{name_of(func)}: {error}") from None
        except Exception as error:
            failure = f"{name_of(func)}: {type(error).__name__}: {error}"
        # outside of the handler: the program's exception has no context
        self._raise_as_eager(func, args, kwargs)
        # The real operator may raise another exception than its fakes, or none: run it eagerly.
        raise Break("operator_failed", failure)

    def _raise_as_eager(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raises what an operator that fails on fakes raises in eager mode, if the program handles
        it and it is known."""
        known = eager_error(func, args, kwargs) if self.catches() else None
        if known is not None:
            raise known

    def _check(self, func: Any, result: Any, writes: CallWrites) -> None:
        """Raises Break or Restart for results that a graph cannot hold and for writes that eager
        may reject."""
        if writes.resized_input(self.fakes):
            # The input's fake now has wrong sizes: trace again, and break before this call.
            reason = f"out= of {name_of(func)}() is resized"
            raise Restart(self.step(), "tensor_metadata_mutation", reason)
        leaves = [result] if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
        if any(map(_unlike_a_graph_value, leaves)):
            raise Break("tensor_subclass", f"{name_of(func)} makes a nested or quantized tensor")
        if writes.overlap(operator_name(func)):
            reason = f"{name_of(func)}: it may write twice to one place, which fakes allow"
            raise Break("operator_failed", reason)

    def _data_sizes(self) -> Any:
        return contextlib.nullcontext() if self.data is None else self.data.around()

    def _present(self, number: torch.SymFloat) -> Any:
        """Returns the current value of a symbolic scalar of the program."""
        known = self.sizes.numbers.get(number.node.expr)
        return number if known is None else known.value

    def _kernels(self, func: Any, value: list[Any], args: Any, kwargs: Any) -> Any:
        """Enables torch's Python kernels for calls with symbolic sizes, where C++ kernels need
        ints. Dropout is excluded: its Python kernel copies where eager returns the input itself."""
        if self.fakes.shape_env is not None and "dropout" not in name_of(func):
            if torch_private.has_symbols((*value, *pytree.arg_tree_leaves(*args, **kwargs))):
                return torch_private.python_dispatcher()
        return contextlib.nullcontext()

    def require_grad(self, fake: Any) -> None:
        """Makes an intermediate a leaf of the autograd graph: ``x.requires_grad = True``."""
        self._emit(torch.Tensor.requires_grad_, (fake,), {}).meta["val"] = fake
        fake.requires_grad_(True)

    def _faked(self, value: Any, argument: list[Any]) -> Any:
        """Replaces the tensors in a structure by fakes and appends those to `argument`."""
        kind = type(value)
        if kind in SIMPLE_TYPES:
            return value
        if isinstance(value, torch.Tensor):
            fake = self.as_fake(value)
            argument.append(fake)
            return fake
        if kind is tuple or kind is list:
            return kind([self._faked(item, argument) for item in value])
        if kind is dict:
            return {key: self._faked(item, argument) for key, item in value.items()}
        leaves, spec = pytree.tree_flatten(value)
        if len(leaves) == 1 and leaves[0] is value:
            return value
        return pytree.tree_unflatten([self._faked(leaf, argument) for leaf in leaves], spec)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any, written: bool) -> Any:
        if isinstance(result, torch.Tensor):
            if not written and (real := self.fakes.real_of(result)) is not None:
                return real
            node = self._emit(func, args, kwargs)
            node.meta["val"] = result
            self._bind_result(result, node)
            self.ranges.note(func, args, kwargs, result)
            return self._to_real(result)
        leaves = pytree.tree_leaves(result)
        created = (torch.Tensor, torch.SymInt, torch.SymFloat)
        if not written and not any(isinstance(leaf, created) for leaf in leaves):
            if operator_name(func) not in EFFECT_ONLY:
                return result
        if self.data is not None and self.data.is_new_number(result):
            self._bind(result, self._emit(func, args, kwargs))
            self._nodes[id(result)].meta["val"] = result
            return result
        if not written and all(isinstance(leaf, (torch.SymInt, int)) for leaf in leaves) and leaves:
            return result  # sizes: rebuilt from their expressions where they are used
        node = self._emit(func, args, kwargs)
        node.meta["val"] = result
        self._bind_result(result, node)
        return pytree.tree_map_only(torch.Tensor, self._to_real, result)

    def _to_real(self, fake: Any) -> Any:
        real = self.fakes.real_of(fake)
        return fake if real is None else real

    # -- global state --

    def state_call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        names: tuple[str, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs and records a function that changes torch settings; `names` lists those settings."""
        before = torch.is_grad_enabled()
        result = func(*args, **kwargs)
        if self.flags_changed and torch.is_grad_enabled():
            set_grad_mode(before)
            reason = "requires_grad of an input has changed when gradients are switched on"
            raise Break("tensor_metadata_mutation", reason)
        self.state_node(func, args, kwargs)
        self.settings_written.update(names)
        return result

    def close_contexts(self) -> None:
        """Leaves the contexts that the program is still in when the trace ends."""
        for context in reversed(list(self.open_contexts)):
            context.close(for_good=False)
        settings.nest_autocast(-self.autocast_nesting)


class _Mode(TorchFunctionMode):
    """Passes every torch function to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if self.recorder.program_modes:
                assert self.recorder.asks is not None
                return self.recorder.asks(func, types, args, kwargs)
            subclasses = self.recorder.subclasses
            if subclasses is not None and subclasses.hook(args, kwargs or {}):
                return subclasses.call(func, args, kwargs or {})
            return self.recorder.call(func, args, kwargs or {})
        except Break as error:
            self.recorder.broken = error
            raise


def _is_element(index: Any) -> bool:
    """Returns whether an index of a subscript names one element of a dimension."""
    if isinstance(index, torch.Tensor):
        return index.dim() == 0 and index.dtype in _INDICES
    return type(index) in (int, torch.SymInt)


def _unlike_a_graph_value(value: Any) -> bool:
    """Returns whether a tensor is nested or quantized, without the sizes and strides the tracer
    needs."""
    if not isinstance(value, torch.Tensor) or torch_private.is_jagged(value):
        return False
    return value.is_nested or value.dtype in _QUANTIZED


def _without_weights(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replaces the attention weights by None unless requested: the fake kernel always returns a
    tensor."""
    needed = kwargs.get("need_weights", args[10] if len(args) > 10 else True)
    return result if needed else (result[0], None)
