"""Traces calls of C and torch functions: runs them eagerly by their native-effects row, puts them
into the graph, or breaks.

A C function runs only if the native effects table or torch's operators know it. What it reads is
guarded, and what it changes is saved before it runs.
"""

from __future__ import annotations

import array
import builtins
import collections
import enum
import re
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.tracebacks import raising_instruction
from tracer_core.fx_capture.function_traits import operator_name, receiver_of
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects import inline_policy
from tracer_core.native_effects.arity import fits
from tracer_core.native_effects.effects import Effect, EffectKind, effect_of, unbound
from tracer_core.torch_private.modules import is_distributed
from tracer_core.torch_private.names import MissingName, names
from tracer_core.torch_private.needed import pytree, set_grad_mode
from tracer_core.trace import (
    instance_creation,
    native_reads,
    special_methods,
    state_values,
    torch_function,
)
from tracer_core.trace.attribute_lookup import has_python, is_tensor_like
from tracer_core.trace.component import Component
from tracer_core.trace.generators import HOST_ITERATORS
from tracer_core.trace.guarded_reads import SIMPLE_KEYS
from tracer_core.trace.host_objects import call_with_polyfills
from tracer_core.trace.operators import CONTAINERS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Methods that store their arguments without calling them.
_STORING = frozenset({"append", "appendleft", "clear", "popleft", "reverse"})
#: Methods that change a dictionary.
_CHANGING = frozenset(
    [
        "__setitem__",
        "__delitem__",
        "__init__",
        "__ior__",
        "clear",
        "pop",
        "popitem",
        "setdefault",
        "update",
    ]
)
_QUERIED_BY_C = (
    "__index__", "__float__", "__int__", "__iter__", "__len__", "__bool__", "__str__", "__eq__",
    "__hash__", "__format__", "__getitem__", "__complex__", "__trunc__", "__contains__",
)  # fmt: skip
#: Methods of enumeration members and exceptions that read or set their own fields alone.
_OF_FIELDS = ("__reduce_ex__", "with_traceback")
_PRIMITIVES = (int, float, complex, str, bytes)
#: Functions that reject an argument in the words of the operation behind them (iteration, hashing,
#: ...), or of the Python function behind them.
_SAYS_AS_OPERATORS = frozenset(
    {
        iter, next, list, tuple, set, frozenset, str, repr, hash, len, sorted, sum, min, max, any,
        all, zip, map, filter, divmod, type, type.__new__, builtins.__build_class__, dict.get,
        dict.__getitem__, dict.setdefault, dict.pop, dict.__contains__,
        typing.Generic.__dict__["__init_subclass__"],
    }
)  # fmt: skip
#: What enters and leaves a torch-function mode.
_MODES = frozenset(names("__enter__ __exit__", of="overrides.TorchFunctionMode"))
#: How a handler takes arguments that its signature does not name.
_TAKING = frozenset({"BINARY_SUBSCR", "UNPACK_SEQUENCE", "UNPACK_EX"})


class NativeCalls(Component):
    """Calls of C and torch functions. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.entries = tracer.entries
        #: id -> (step, object) of results of native code.
        self.allocation_sites: dict[int, tuple[int, Any]] = {}
        #: Looked-up calls of functools caches, by their arguments (native_functions/operator_functools.py).
        self.queries: dict[Any, Any] = {}

    def call_native(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a C function."""
        row = effect_of(function)
        if row is None:
            raw = unbound(function)
            if raw is not None:
                row = effect_of(raw)
                slot = isinstance(raw, (types.WrapperDescriptorType, types.MethodDescriptorType))
                if row is not None and (slot or not isinstance(function.__self__, type)):
                    return self.apply_effect(row, raw, [function.__self__, *args], kwargs)
                if row is not None:
                    return self._apply_to_class(row, function, args, kwargs)
        if row is not None:
            return self.apply_effect(row, function, args, kwargs)
        if inline_policy.is_torch_operator(function):
            return self.call_torch(function, args, kwargs)
        return self.unknown(function, args, kwargs)

    def _apply_to_class(
        self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a class method written in C: handlers get the class first."""
        cls = function.__self__
        if row.kind is EffectKind.SPECIAL:
            return self.apply_effect(row, function, [cls, *args], kwargs)
        if any(has_python(self.entries.static(cls, name)) for name in ("__new__", "__init__")):
            raise Break("unknown_native", f"{function.__qualname__} makes a {cls.__name__}")
        return self.apply_effect(row, function, args, kwargs)

    def unknown(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Handles slots that a class inherits from C bases; otherwise breaks the graph."""
        name = getattr(function, "__name__", "")
        receiver = getattr(function, "__self__", None)
        if name == "__init__" and any(
            isinstance(arg, BaseException) and self.provenance.is_fresh(arg)
            for arg in (receiver, *args[:1])
        ):
            return function(*args, **kwargs)
        if name == "__new__" and args and isinstance(args[0], type):
            return instance_creation.new_object(self.tracer, function, args[0], args[1:], kwargs)
        if isinstance(receiver, (enum.Enum, BaseException)) and name in _OF_FIELDS:
            return function(*args, **kwargs)
        module = getattr(function, "__module__", None) or getattr(
            getattr(function, "__objclass__", type(receiver)), "__module__", "?")  # fmt: skip
        if is_distributed(str(module)):
            raise Break("processes", f"{name}() of torch.distributed is called")
        raise Break("unknown_native", f"{module}.{getattr(function, '__qualname__', name)}")

    def apply_effect(
        self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a C function by its row of the native effects table."""
        if args and isinstance(args[0], collections.OrderedDict) and _misses_order(function):
            raise Break("unknown_native", f"{function.__qualname__}() of an OrderedDict")
        if self.recorder.program_modes and _concerns_modes(row, function, args, kwargs):
            if function is set_grad_mode and not kwargs:
                return torch_function.by_mode(self.tracer, function, (), tuple(args), None)
            name = getattr(function, "__qualname__", function)
            raise Break("torch_mode", f"{name}() inside a mode of the program")
        match row.kind:
            case EffectKind.SPECIAL:
                return self._handled(row, function, args, kwargs)
            case EffectKind.BREAKS:
                name = getattr(function, "__qualname__", function)
                is_own = str(getattr(function, "__module__", "")).startswith("tracer_core.")
                raise Break(row.break_kind, row.reason if is_own else f"{name}: {row.reason}")
            case EffectKind.PURE:
                return self._pure(function, args, kwargs)
            case EffectKind.MOVES:
                self.native_reads(*args, *kwargs.values())
            case EffectKind.MUTATES:
                if not args:
                    return function(*args, **kwargs)  # raises Python's own error
                stores = getattr(function, "__name__", "") in _STORING
                self._realize_arguments(function, args, args[:1] if stores else args)
                self.native_reads(*args[1:], *kwargs.values())
                moves = getattr(function, "__name__", "") != "__setitem__"
                self.tracer.side_effects.before_change(args[0], moves)
        # No method of the items of a container is called.
        passed = (a for a in (*args, *kwargs.values()) if not isinstance(a, CONTAINERS))
        if any(map(instance_creation.holds_tensor, passed)):
            return self.native(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _handled(self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the row's handler; an argument mismatch raises Python's own error."""
        assert row.handler is not None
        name = getattr(function, "__qualname__", function)
        if not fits(function, args, kwargs):
            raise Break("native_python", f"the arguments do not fit {name}()")
        try:
            return row.handler(self.tracer, *row.bound, *args, **kwargs)
        except Break as broken:
            if row.atomic:
                raise Restart(self.tracer.outer_step, broken.kind, broken.reason) from None
            raise
        except MissingName as error:
            raise Break("missing_in_torch", f"{name}(): {error}") from error
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:
                raise Break("native_python", f"the arguments do not fit {name}()") from error
            # Argument errors use the function's own words, or the program's if it raised them.
            said = function in _SAYS_AS_OPERATORS or unbound(function) in _SAYS_AS_OPERATORS
            simple = said or _raised_beside(error, row.handler)
            if not (self.tracer.exceptions.was_raised(error) or simple):
                raise Break("native_python", f"{name}() refuses its arguments") from error
            raise
        except (IndexError, ValueError) as error:
            # The handler itself found an argument missing, which Python would word in its own way.
            if _lacks_argument(error, row.handler):
                raise Break("native_python", f"the arguments do not fit {name}()") from error
            raise

    def _pure(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if getattr(function, "__objclass__", None) in _PRIMITIVES:
            args = [self.tracer.scalars.payload(value) for value in args]
        self._realize_arguments(function, args, args)
        if native_reads.read_values(self.tracer, *args, *kwargs.values()):
            return self.native(function, *args, **kwargs)
        return self.note_allocation(function(*args, **kwargs))

    def _realize_arguments(self, function: Any, args: list[Any], asked: list[Any]) -> None:
        """Interprets the user code that C code would run. asked: the arguments whose special
        methods C code may call."""
        if args and isinstance(args[0], (dict, set, frozenset)):
            elements = [item for a in args
                        for item in (a if isinstance(a, (set, frozenset, dict)) else [a])
                        if not isinstance(a, (list, tuple)) and item is not args[0]]  # fmt: skip
            if not SIMPLE_KEYS.issuperset(map(type, elements)):
                special_methods.realize_keys(self.tracer, elements, type(args[0]))
            return
        for value in asked:
            if value is args[0] and isinstance(value, (list, tuple, collections.deque)):
                continue  # the receiver of one of these types' own methods
            if isinstance(value, str) and getattr(function, "__objclass__", None) is re.Pattern:
                continue  # whose methods read the characters alone
            if type(value).__flags__ & HEAP_TYPE and not isinstance(
                value, (type, enum.Enum, torch.nn.Module)
            ):
                for name in _QUERIED_BY_C:
                    if self.entries.python_method(value, name):
                        raise Break(
                            "unknown_native",
                            f"{getattr(function, '__qualname__', function)} may ask"
                            f" {type(value).__name__}.{name}",
                        )

    def note_allocation(self, result: Any) -> Any:
        """Registers the step that made a native result: if no source can make the result again, a
        later break moves to that step."""
        if type(result) is tuple:
            for part in result:
                self.note_allocation(part)
        elif not is_constant(result) and type(result) not in (list, dict, set):
            self.allocation_sites[id(result)] = (self.tracer.outer_step, result)
        return result

    def native(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs native code; its tensor operators go into the graph."""
        self.recorder.broken = None
        try:
            with self.recorder.mode:
                result = function(*args, **kwargs)
        finally:
            # Native code may catch the exception of a tensor read and continue without the values.
            if self.recorder.broken is not None:
                raise self.recorder.broken
        for leaf in pytree.tree_leaves(result):
            # Some factories (from_numpy) bypass modes: their results are not in the graph.
            if (
                isinstance(leaf, torch.Tensor)
                and not torch_private.is_fake(leaf)
                and self.provenance.is_fresh(leaf)
                and not self.tracer.subclasses.is_known(leaf)
            ):
                raise Break(
                    "real_tensor_in_trace",
                    f"{getattr(function, '__name__', function)}() made a real tensor",
                )
        return result

    def native_reads(self, *values: Any) -> None:
        """Guards what a native function may read in its arguments."""
        for value in values:
            self.tracer.reads.note_orders(value)
            if isinstance(value, (*CONTAINERS, bytearray, array.array)):
                self.tracer.reads.expand(value)
            elif is_constant(value) or is_tensor_like(value):
                continue
            elif (
                isinstance(value, _PRIMITIVES)
                and not isinstance(value, enum.Enum)
                and not self.provenance.is_fresh(value)
            ):
                self.tracer.scalars.payload(value)
            elif type(value) in special_methods.VIEWS:
                self.tracer.reads.expand(value)
            elif _is_opaque_data(value) and not self.provenance.is_fresh(value):
                raise Break(
                    "unsupported_value",
                    f"native code reads the contents of a {type(value).__name__}",
                )
            elif isinstance(value, HOST_ITERATORS):
                raise Break("unknown_native", "native code is handed a generator")
            elif hasattr(type(value), "__next__") and not self.provenance.is_fresh(value):
                raise Break(
                    "live_iterator", "native code is handed an iterator from before this segment"
                )

    def require_recordable(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Breaks for a call that no graph can hold."""
        refused = self.recorder.refused(function, args, kwargs)
        if refused is not None:
            raise Break(*refused)

    def call_torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls and records a torch operator."""
        if torch_function.any_acts_as_tensor((*args, *kwargs.values())):
            return torch_function.call(self.tracer, function, args, kwargs)
        read = state_values.READS.get(operator_name(function))
        if read is not None and len(args) <= 1 and not kwargs:
            value = read(self.tracer, receiver_of(function, tuple(args)))
            if value is not None:
                return value
        self.require_recordable(function, tuple(args), kwargs)
        args = [
            self.tracer.containers.spread(a) if isinstance(a, HOST_ITERATORS) else a for a in args
        ]
        self.native_reads(*args, *kwargs.values())
        receiver = getattr(function, "__self__", None)
        if isinstance(receiver, torch.Tensor):
            # A bound method of the real or fake tensor: unbind, so that the mode sees the tensor.
            return self.native(getattr(torch.Tensor, function.__name__), receiver, *args, **kwargs)
        return self.native(function, *args, **kwargs)

    def call_torch_node(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Puts a function that the user allowed in graphs into the graph as one node."""
        self.native_reads(*args, *kwargs.values())
        return self.recorder.call(function, tuple(args), kwargs)


def _misses_order(method: Any) -> bool:
    """Returns whether a method of dict leaves out the order that an OrderedDict keeps beside it."""
    return getattr(method, "__objclass__", None) is dict and method.__name__ in _CHANGING


def _concerns_modes(row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether a torch-function mode may see a call that a row answers for the graph alone, or
    whether the row tells of modes. Python functions ask modes about their tensors."""
    owner = getattr(function, "__objclass__", function)
    if row.kind is EffectKind.SHALLOW or owner in _MODES:
        return False
    if type(function) is types.FunctionType and not instance_creation.holds_tensor((args, kwargs)):
        return False
    return str(getattr(owner, "__module__", None) or "").partition(".")[0] == "torch"


def _lacks_argument(error: BaseException, handler: Any) -> bool:
    """Returns whether a handler's own subscript or unpacking found an argument missing."""
    raised = raising_instruction(error)
    return (
        raised is not None
        and raised[0].f_code is getattr(handler, "__code__", None)
        and raised[1] in _TAKING
    )


_ASKS_C = frozenset({call_with_polyfills.__code__, special_methods.use_as_key.__code__})


def _raised_beside(error: BaseException, handler: Any) -> bool:
    """Returns whether an exception comes from the handler's module, which raises Python's own
    errors, or from C code that was called with polyfills or for a key."""
    raised, own = raising_instruction(error), getattr(handler, "__code__", None)
    if raised is None or own is None:
        return False
    code = raised[0].f_code
    return code in _ASKS_C or code.co_filename == own.co_filename


def _is_opaque_data(value: Any) -> bool:
    """Returns whether an object holds data that no guard can describe: arrays and buffers."""
    return isinstance(value, memoryview) or type(value).__module__.partition(".")[0] == "numpy"
