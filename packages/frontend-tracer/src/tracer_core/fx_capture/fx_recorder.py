"""The recorder: a torch-function mode that writes an FX graph at the torch level.

In: every torch function that runs while a trace is active, whoever calls it. Out: `graph`, its
inputs in the order of first use, and for each intermediate (a FakeTensor) the node that made it.
What always holds: a function is either run on fakes and recorded, or raises `Break` before it has
had an effect; results that are input tensors are handed back as the real ones.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.fx_capture import out_variants
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.fx_capture.function_traits import EFFECT_ONLY, for_symbols, is_blind, name_of
from tracer_core.fx_capture.fx_graph import SIMPLE_TYPES, WrittenGraph
from tracer_core.fx_capture.graph_breaks import Break, Restart, WantsSymbols
from tracer_core.fx_capture.in_place_results import misfit
from tracer_core.fx_capture.kernel_checks import unchecked
from tracer_core.fx_capture.known_scalars import Scalars
from tracer_core.fx_capture.mutations import CallWrites
from tracer_core.fx_capture.unbacked import (
    READS_A_NUMBER,
    DataSizes,
    gives_data_size,
    is_whole_number,
)
from tracer_core.fx_capture.unsupported import refusal
from tracer_core.fx_capture.value_ranges import Ranges
from tracer_core.guards.source import Source
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import name, names
from tracer_core.torch_private.needed import pytree

#: Arguments that are numbers to every operator: it reads them if they are tensors.
_NUMBERS = frozenset({"alpha", "value"})
_NATIVE_ATTENTION = name("_native_multi_head_attention")
_QUANTIZED = frozenset(names("quint8 qint8 qint32 quint4x2 quint2x4"))


class Recorder(WrittenGraph):
    """Runs torch functions on fakes and writes them into the graph. Mutable. step(): the
    instruction of the outermost chain that is being run. number_in(tensor): the number in it, where
    the program may have it; else None. concrete: for backends that take no numbers as inputs, gives
    the number behind a symbol, guarded."""

    def __init__(
        self,
        fakes: Fakes,
        source_of: Callable[[torch.Tensor], Source | None],
        dims_of: Callable[[torch.Tensor], Any],
        where: Callable[[], str],
        step: Callable[[], int],
        number_in: Callable[[torch.Tensor], Any],
        concrete: Callable[[Any], Any] | None,
        may_follow_data: bool,
    ) -> None:
        super().__init__(fakes, source_of, dims_of, where)
        self.mode = _Mode(self)
        self.ranges = Ranges()
        self.scalars = Scalars(fakes)
        self.step, self.number_in, self.concrete = step, number_in, concrete
        #: The break that a torch function asked for, which native code between may have caught.
        self.broken: Break | None = None
        #: Settings that the program set; levels of autocast and devices that it is in; contexts to
        #: be left.
        self.settings_written: set[str] = set()
        self.autocast_nesting = 0
        self.devices: list[torch.device] = []
        self.open_contexts: list[Any] = []
        #: Sizes that depend on data: None where they end the graph; whether to ask for another
        #: trace with them.
        self.data: DataSizes | None = None
        self.may_follow_data = may_follow_data

    # -- sizes that depend on data --

    @property
    def values_needed(self) -> tuple[type[Exception], ...]:
        """What a fake raises that is asked for its numbers."""
        return torch_private.data_dependent_failures()[0]

    @property
    def shapes_needed(self) -> tuple[type[Exception], ...]:
        """What an operator raises whose result's sizes depend on data."""
        return torch_private.data_dependent_failures()[1]

    def follow_data(self) -> None:
        """Sizes that depend on data are symbols in this trace."""
        self.data = DataSizes(
            self.fakes.shape_env, self.sizes.node, self.plain_node, self.fakes.any_was_written
        )
        self.sizes.read_by = self.data.read_by
        env = self.fakes.shape_env
        env.refused, env.undecided, env.told = self._note_refused, self._undecided, self.data.check

    def _note_refused(self, expr: Any) -> None:
        decides = torch_private.is_truth(expr)
        kind = "data_dependent_branch" if decides else "data_dependent_value"
        self.broken = Break(
            kind, f"Python needs {expr}, where u stands for a size or number that depends on data"
        )

    def _undecided(self, expr: Any) -> None:
        self._note_refused(expr)
        assert self.broken is not None
        raise self.broken

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a torch function on fakes, records it, and returns its result."""
        if (
            self.devices
            and kwargs.get("device") is None
            and func in torch_private.device_constructors()
        ):
            kwargs = {**kwargs, "device": self.devices[-1]}
        refused = self.refused(func, args, kwargs)
        if refused is not None:
            raise Break(*refused)
        return self.run(func, args, kwargs)

    def refused(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str] | None:
        """(kind, reason) if this call must end the graph, else None."""
        found = refusal(func, args, kwargs)
        if found is None or not gives_data_size(func, found[0], args):
            return found
        self._ask_for_data_sizes(*found)
        return None if self.data is not None and not torch_private.transforms_active() else found

    def _ask_for_data_sizes(self, kind: str, reason: str) -> None:
        if self.may_follow_data:
            raise WantsSymbols(self.step(), kind, reason)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`call` for a function that is known to be captured."""
        func, args, kwargs = self._with_numbers(func, args, kwargs)
        given: list[Any] = []
        fake_args, fake_kwargs = self._faked(args, given), self._faked(kwargs, given)
        unfit = misfit(func, fake_args, fake_kwargs, self.fakes.mode) or unchecked(
            func, fake_args, fake_kwargs, self.fakes.mode
        )
        if unfit is not None:
            raise Break("operator_failed", f"{name_of(func)}: {unfit}")
        if self.data is not None and getattr(func, "__name__", "") in READS_A_NUMBER:
            func = torch.Tensor.item
        writes = CallWrites(given, fake_kwargs)
        changes = self.scalars.before(func, fake_args, fake_kwargs)
        result = self._on_fakes(func, given, fake_args, fake_kwargs, writes.memory)
        self._check(func, result, writes)
        if func is _NATIVE_ATTENTION:
            result = _without_weights(result, args, kwargs)
        writes.realize(func, fake_args, fake_kwargs)
        for fake in writes.unseen:
            self.fakes.note_write(fake)
        self.scalars.after(changes, writes.unseen, func, fake_args, fake_kwargs, result)
        result = self._record(func, fake_args, fake_kwargs, result, writes.written)
        if self.data is not None:
            self.data.note(result, self.node_of)
        if writes.written or writes.unseen:
            newest = next(
                node for node in reversed(self.graph.nodes) if node.target is not operator.getitem
            )
            newest.meta["writes"] = writes.storages()
        return result

    def _with_numbers(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The same call with numbers in a form in which nothing asks for their values."""
        if self.sizes.numbers and self.concrete is not None:
            args, kwargs = pytree.tree_map(self.concrete, (args, kwargs))
        func, args, kwargs = for_symbols(func, args, kwargs)
        for key in _NUMBERS.intersection(kwargs):
            if isinstance(kwargs[key], torch.Tensor):
                number = self.number_in(kwargs[key])
                kwargs = kwargs if number is None else {**kwargs, key: number}
        return func, args, kwargs

    def _on_fakes(
        self, func: Any, given: list[Any], args: Any, kwargs: Any, memory: list[torch.Tensor]
    ) -> Any:
        """What a function gives for fakes."""
        run_args, run_kwargs = args, kwargs
        if self.sizes.numbers and is_blind(func):
            run_args, run_kwargs = pytree.tree_map_only(
                torch.SymFloat, self._present, (args, kwargs)
            )
        try:
            kernels = self._kernels(func, given, args, kwargs)
            one_thread = torch_private.backward_on_this_thread()
            with (
                self.fakes.mode,
                kernels,
                one_thread,
                self._data_sizes(),
                self.fakes.sizes_of_one(given) as results,
            ):
                result = out_variants.given_back(func(*run_args, **run_kwargs), memory)
                results += pytree.tree_leaves(result)
            return result
        except self.values_needed as error:
            if self.data is None and any(map(is_whole_number, given)):
                self._ask_for_data_sizes("data_dependent_value", name_of(func))
            reason = str(error).partition("\n")[0]
            raise Break("data_dependent_value", f"{name_of(func)}: {reason}") from None
        except self.shapes_needed as error:
            self._ask_for_data_sizes("data_dependent_shape", name_of(func))
            raise Break("data_dependent_shape", f"{name_of(func)}: {error}") from None
        except Exception as error:
            # What fakes raise need not be what the operator raises: it runs for real, and raises
            # that or goes on.
            raise Break(
                "operator_failed", f"{name_of(func)}: {type(error).__name__}: {error}"
            ) from None

    def _check(self, func: Any, result: Any, writes: CallWrites) -> None:
        """Raises for what a graph cannot hold, or what eager may refuse and fakes allow."""
        if writes.resized_input(self.fakes):
            # Its fake is spoilt: the next attempt breaks before this call.
            raise Restart(
                self.step(), "tensor_metadata_mutation", f"out= of {name_of(func)}() is resized"
            )
        leaves = [result] if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
        if any(map(_unlike_a_graph_value, leaves)):
            raise Break("tensor_subclass", f"{name_of(func)} makes a nested or quantized tensor")
        if writes.overlap():
            raise Break(
                "operator_failed",
                f"{name_of(func)}: it may write twice to one place, which fakes allow",
            )

    def _data_sizes(self) -> Any:
        return contextlib.nullcontext() if self.data is None else self.data.around()

    def _present(self, number: torch.SymFloat) -> Any:
        """What a number of the program is now."""
        known = self.sizes.numbers.get(number.node.expr)
        return number if known is None else known.value

    def _kernels(self, func: Any, given: list[Any], args: Any, kwargs: Any) -> Any:
        """With symbolic sizes: torch's Python kernels, where C++ ones want numbers. That of dropout
        gives a copy where eager gives the tensor itself."""
        if (
            self.fakes.shape_env is not None
            and "dropout" not in name_of(func)
            and (
                any(fake._has_symbolic_sizes_strides for fake in given)
                or any(
                    isinstance(leaf, torch.SymInt)
                    for leaf in pytree.arg_tree_leaves(*args, **kwargs)
                )
            )
        ):
            return torch_private.python_dispatcher()
        return contextlib.nullcontext()

    def require_grad(self, fake: Any) -> None:
        """An intermediate becomes a leaf of autograd's graph: ``x.requires_grad = True``."""
        self._emit(torch.Tensor.requires_grad_, (fake,), {}).meta["val"] = fake
        fake.requires_grad_(True)

    def _faked(self, value: Any, given: list[Any]) -> Any:
        """A structure with fakes in place of its tensors, which are added to `given`."""
        kind = type(value)
        if kind in SIMPLE_TYPES:
            return value
        if isinstance(value, torch.Tensor):
            fake = self.as_fake(value)
            given.append(fake)
            return fake
        if kind is tuple or kind is list:
            return kind([self._faked(item, given) for item in value])
        if kind is dict:
            return {key: self._faked(item, given) for key, item in value.items()}
        leaves, spec = pytree.tree_flatten(value)
        if len(leaves) == 1 and leaves[0] is value:
            return value
        return pytree.tree_unflatten([self._faked(leaf, given) for leaf in leaves], spec)

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
        if not written and not any(
            isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat)) for leaf in leaves
        ):
            if getattr(func, "__name__", "") not in EFFECT_ONLY:
                return result
        if self.data is not None and self.data.is_new_number(result):
            self._bind(result, self._emit(func, args, kwargs))
            self._nodes[id(result)].meta["val"] = result
            return result
        if not written and all(isinstance(leaf, (torch.SymInt, int)) for leaf in leaves) and leaves:
            return result  # sizes: made again from their expressions where they are used
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
        """Runs and records a function that sets settings of torch, by name."""
        result = func(*args, **kwargs)
        self.state_node(func, args, kwargs)
        self.settings_written.update(names)
        return result

    def close_contexts(self) -> None:
        """The trace ends: leaves what the program is still in."""
        for context in reversed(list(self.open_contexts)):
            context.close(for_good=False)
        settings.nest_autocast(-self.autocast_nesting)


class _Mode(TorchFunctionMode):
    """Hands every torch function to its recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.recorder.call(func, args, kwargs or {})
        except Break as error:
            self.recorder.broken = error
            raise


def _unlike_a_graph_value(value: Any) -> bool:
    """Whether a tensor lacks what the rest of the tracer asks of one (sizes, strides)."""
    return isinstance(value, torch.Tensor) and (value.is_nested or value.dtype in _QUANTIZED)


def _without_weights(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator returns None for weights that nobody asked for; its fake returns a tensor all
    the same.
    """
    needed = kwargs.get("need_weights", args[10] if len(args) > 10 else True)
    return result if needed else (result[0], None)
