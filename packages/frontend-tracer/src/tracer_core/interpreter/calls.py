"""What a call means in a trace: inline, record, run natively, or break.

In: a callable and its arguments. Out: a value, or a `Frame` to run. What always holds: a Python function
is interpreted; a C function runs only if the effect table or torch's operators know it; a break inside
a call that native code made turns into a break before that native call (`Restart`).
"""

from __future__ import annotations

import array
import builtins
import collections
import enum
import types
import typing
from collections.abc import Set
from typing import Any

import torch

from tracer_core import markers, torch_private
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.layout import HEAP_TYPE
from tracer_core.interpreter import instances, objects, overloads
from tracer_core.interpreter.attributes import ABSENT, has_python
from tracer_core.interpreter.binding import bind
from tracer_core.interpreter.code import UNSUPPORTED, decode
from tracer_core.interpreter.frame import Frame
from tracer_core.interpreter.generators import HOST_ITERATORS, TracedGenerator
from tracer_core.interpreter.items import Items
from tracer_core.natives import libraries, policy, reading
from tracer_core.natives.arity import fits
from tracer_core.natives.effects import (
    CALLED_CODES,
    CALLED_PACKAGES,
    CALLED_TYPES,
    Effect,
    EffectKind,
    effect_of,
    unbound,
)
from tracer_core.natives.taking_numbers import keeps_symbols
from tracer_core.provenance import is_constant
from tracer_core.segments.breaks import Break, Restart, RunNatively

_HOOK_TABLES = ("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
                 "_global_forward_pre_hooks")  # fmt: skip
_MODULE_CALL = torch.nn.Module.__call__
_C_FUNCTIONS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
#: Nested inlined calls, and those of them that run below native code (which use the host's stack).
_DEPTH_LIMIT, _NESTING_LIMIT = 900, 60
_PLAIN_KEYS = frozenset({str, int, bool, float, type(None), bytes, type})
#: Methods that keep their arguments and ask them nothing.
_STORING = frozenset({"append", "appendleft", "clear", "popleft", "reverse"})
_ASKED_BY_C = ("__index__", "__float__", "__int__", "__iter__", "__len__", "__bool__", "__str__", "__eq__", "__hash__",
               "__format__", "__getitem__", "__complex__", "__trunc__", "__contains__")  # fmt: skip
_PRIMITIVES = (int, float, complex, str, bytes)


class Calls(Items):
    """Calls of the tracer. outer_step: number of the instruction of the outermost chain being run."""

    outer_step: int
    #: Every code object that was run, with a function that has it.
    interpreted: dict[types.CodeType, types.FunctionType]
    natives: Set[types.CodeType]
    #: class -> its special methods in Python (natives/reading.py).
    methods_of: dict[type, frozenset[str]]
    #: id -> (step, object) of what native code made.
    births: dict[int, tuple[int, Any]]
    #: id -> exceptions that came through a frame of the program.
    raised: dict[int, Any]
    #: Generators with handlers (try, with), which may run when they are closed.
    generators: list[TracedGenerator]

    # -- entry points of the machine --

    def call(self, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        result = self.prepare(function, args, kwargs)
        if type(result) is Frame:
            if len(self.frames) > _DEPTH_LIMIT:
                raise RunNatively(f"more than {_DEPTH_LIMIT} nested calls")
            self.frames.append(result)
        else:
            frame.stack.append(result)

    def call_value(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = self.prepare(function, args, kwargs)
        return self.run_nested(result) if type(result) is Frame else result

    def run_nested(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs a frame to its end below native code. A break inside means: break before that code."""
        base = len(self.frames)
        if base > _DEPTH_LIMIT or self.nesting > _NESTING_LIMIT:
            raise RunNatively("calls are nested too deep to be interpreted")
        self.frames.append(frame)
        self.nesting += 1
        rule, frame.on_return = frame.on_return, None
        try:
            if error is not None:
                self.unwind(error, base)
            value = self.run(base)
        except Break as inner:
            if self.nesting == 1:
                location = inner.location or self.where()
                raise Restart(self.outer_step, inner.kind, inner.reason, location) from None
            raise
        finally:
            del self.frames[base:]
            self.nesting -= 1
        if rule is None or rule == "discard":
            return value
        if value is not None:
            raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
        return rule[1]

    def resume_generator(self, frame: Frame, error: BaseException | None) -> Any:
        try:
            return self.run_nested(frame, error)
        except Restart as restart:
            made = frame.generator
            if restart.location and self.is_fresh(made):  # one with a break in it is made for real
                raise Restart(made.born, restart.kind, restart.reason, restart.location) from None
            raise

    # -- dispatch --

    def prepare(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a call, or the frame that computes it."""
        if self._numbers and not keeps_symbols(function):
            args = [self.settled(value) for value in args]
            kwargs = {name: self.settled(value) for name, value in kwargs.items()}
        kind = type(function)
        if kind is types.MethodType:
            if isinstance(function.__self__, HOST_ITERATORS):
                return function(*args, **kwargs)
            receiver = self._method_part(function, "__self__")
            return self.prepare(self._method_part(function, "__func__"), [receiver, *args], kwargs)
        if kind.__flags__ & HEAP_TYPE and _answers_any_name(kind):
            if issubclass(kind, type):
                return instances.instantiate(self, function, args, kwargs)
            handler = CALLED_TYPES.get(kind)  # looking for marks would ask the program's code
            return (
                handler(self, function, args, kwargs) if handler else self.call_object(function, args, kwargs)
            )
        role = markers.role(function) if kind is not type else None
        if role is not None:
            return self._marked(role, function, args, kwargs)
        if kind is types.FunctionType:
            return self.call_function(function, args, kwargs)
        if isinstance(function, _C_FUNCTIONS):
            return self.call_native(function, args, kwargs)
        if isinstance(function, type):
            return instances.instantiate(self, function, args, kwargs)
        handler = CALLED_TYPES.get(kind)
        if handler is not None:
            return handler(self, function, args, kwargs)
        if policy.is_torch_operator(function):
            return self.call_torch(function, args, kwargs)
        return self.call_object(function, args, kwargs)

    def _method_part(self, method: Any, name: str) -> Any:
        value = getattr(method, name)
        source = self.provenance.source_of(method)
        return value if source is None else self.provenance.read(
            value, self.provenance.sources.make(source, "slot", name))  # fmt: skip

    def _marked(
        self, role: markers.FunctionRole, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if role is markers.FunctionRole.IS_COMPILING:
            return True
        if role is markers.FunctionRole.GRAPH_BREAK:
            self.break_graph(
                "requested", str(args[0] if args else kwargs.get("message", "")) or "graph_break()"
            )
        if role is markers.FunctionRole.DISALLOW:
            self.break_graph("disabled", f"{function!r} was marked with disallow_in_graph")
        if role is markers.FunctionRole.ALLOW:
            return self.call_torch_node(function, args, kwargs)
        self.native_reads(*args, *kwargs.values())
        return function(*args, **kwargs)

    def call_function(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        row = effect_of(function)
        if row is not None:
            return self.apply_effect(row, function, args, kwargs)
        package = function.__globals__.get("__name__", "").partition(".")[0]
        handler = CALLED_CODES.get(function.__code__) or CALLED_PACKAGES.get(package)
        if handler is not None:
            return handler(self, function, args, kwargs)
        decision, kind, reason = policy.decide(function)
        if decision is policy.Decision.BREAK:
            behind = markers.compiled(function)
            if behind is not None:
                return self.prepare(behind.original, args, kwargs)
        behind = markers.compiled(function)
        if behind is not None:
            return self.prepare(behind.original, args, kwargs)
        if libraries.runs_natively(self, function, args, kwargs):
            self.native_reads(*args, *kwargs.values())
            return self.born(function(*args, **kwargs))
        if decision is policy.Decision.BREAK:
            plain = torch_private.before_tagging(function)
            if plain is not None:
                return self.prepare(plain, args, kwargs)
            self.break_graph(kind, reason)
        if decision is policy.Decision.NATIVE:
            if overloads.any_acts_as_tensor(args) or overloads.any_acts_as_tensor(kwargs.values()):
                return overloads.call(self, function, args, kwargs)
            self.native_reads(*args, *kwargs.values())
            return self.native(function, *args, **kwargs)
        return self.frame_of(function, args, kwargs)

    def frame_of(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A frame ready to run `function`; a TracedGenerator for a generator function."""
        if self.is_fresh(function) and not self.made_here(function):
            self.provenance.constant(function)
        if function.__code__ in self.natives:
            self.break_graph("recompile_limit", f"{function.__qualname__} runs as plain Python from now on")
        self.interpreted[function.__code__] = function
        self._guard_code(function)
        code = decode(function.__code__)
        if code.unsupported:
            self.break_graph(
                "unsupported_opcode",
                f"{function.__qualname__} uses {code.unsupported}: {UNSUPPORTED.get(code.unsupported, 'no handler')}",
            )
        frame = Frame(function, code)
        bind(self, frame, args, kwargs)
        if frame.code.is_generator:
            made = TracedGenerator(self, frame)
            if frame.code.exceptions:
                self.generators.append(made)
            return made
        return frame

    def _guard_code(self, function: types.FunctionType) -> None:
        """A function's code can be replaced while the function stays the same object."""
        source = self.provenance.source_of(function)
        if source is not None:
            self.provenance.read(function.__code__, self.provenance.sources.make(source, "slot", "__code__"))

    # -- C functions --

    def call_native(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
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
        if policy.is_torch_operator(function):
            return self.call_torch(function, args, kwargs)
        return self.unknown(function, args, kwargs)

    def _apply_to_class(self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A class method written in C: handlers get the class first."""
        cls = function.__self__
        if row.kind is EffectKind.SPECIAL:
            return self.apply_effect(row, function, [cls, *args], kwargs)
        if any(has_python(self._static(cls, name)) for name in ("__new__", "__init__")):
            self.break_graph("unknown_native", f"{function.__qualname__} makes a {cls.__name__}")
        return self.apply_effect(row, function, args, kwargs)

    def unknown(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Slots that a class inherits from C bases, then: graph break."""
        name = getattr(function, "__name__", "")
        receiver = getattr(function, "__self__", None)
        if name == "__init__" and isinstance(receiver, BaseException) and self.is_fresh(receiver):
            return function(*args, **kwargs)
        if name == "__init__" and args and isinstance(args[0], BaseException) and self.is_fresh(args[0]):
            return function(*args, **kwargs)
        if name == "__new__" and args and isinstance(args[0], type):
            return instances.new_object(self, function, args[0], args[1:], kwargs)
        if name == "__init__" and isinstance(receiver, (dict, list, set, collections.deque)):
            args = [receiver, *args]  # super().__init__(...)
        if name == "__init__" and args and isinstance(args[0], dict):
            items = _make_dict(self, args[1:], kwargs)
            self.before_change(args[0])
            dict.update(args[0], items)
            return None
        if name == "__init__" and args and isinstance(args[0], list):
            values = self.spread(args[1]) if len(args) > 1 else []
            self.before_change(args[0])
            list.__init__(args[0], values)
            return None
        if name == "__init__" and args and isinstance(args[0], set):
            values = self.spread(args[1]) if len(args) > 1 else []
            objects.settle_keys(self, values)
            self.before_change(args[0])
            set.__init__(args[0], values)
            return None
        if name == "__init__" and args and isinstance(args[0], collections.deque):
            values = self.spread(args[1]) if len(args) > 1 else []
            self.before_change(args[0])
            collections.deque.__init__(args[0], values, *args[2:], **kwargs)
            return None
        if isinstance(receiver, (enum.Enum, BaseException)) and name in ("__reduce_ex__", "with_traceback"):
            return function(*args, **kwargs)
        module = getattr(function, "__module__", None) or getattr(
            getattr(function, "__objclass__", type(receiver)), "__module__", "?")  # fmt: skip
        if str(module).startswith("torch._C._distributed"):
            self.break_graph("processes", f"{name}() of torch.distributed is called")
        self.break_graph("unknown_native", f"{module}.{getattr(function, '__qualname__', name)}")

    def apply_effect(self, row: Effect, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if row.kind is EffectKind.SPECIAL:
            assert row.handler is not None
            if not fits(function, args, kwargs):
                name = getattr(function, "__qualname__", function)
                self.break_graph("native_python", f"the arguments do not fit {name}()")
            try:
                return row.handler(self, args, kwargs)
            except TypeError as error:
                # Words for a misfit are the function's own; where the program raised it, they are the program's.
                said = function in _SAYS_AS_OPERATORS or unbound(function) in _SAYS_AS_OPERATORS
                plain = said or _raised_beside(error, row.handler)
                if id(error) not in self.raised and not plain:
                    name = getattr(function, "__qualname__", function)
                    self.break_graph("native_python", f"{name}() refuses its arguments")
                raise
            except (IndexError, ValueError) as error:
                # The handler itself found an argument missing, which Python would say in its own way.
                if str(error).startswith(_MISSING) and _raised_in(error, row.handler):
                    name = getattr(function, "__qualname__", function)
                    self.break_graph("native_python", f"the arguments do not fit {name}()")
                raise
        if row.kind is EffectKind.BREAKS:
            self.break_graph(row.break_kind, f"{getattr(function, '__qualname__', function)}: {row.reason}")
        if row.kind is EffectKind.PURE:
            if getattr(function, "__module__", "") in ("math", "cmath"):
                args = [self.payload(objects.number(self, value)) for value in args]
            elif getattr(function, "__objclass__", None) in _PRIMITIVES:
                args = [self.payload(value) for value in args]
            self._settle_arguments(function, args, args)
            if reading.read_values(self, *args, *kwargs.values()):
                return self.native(function, *args, **kwargs)
            return self.born(function(*args, **kwargs))
        if row.kind is EffectKind.MOVES:
            self.native_reads(*args, *kwargs.values())
        elif row.kind is EffectKind.MUTATES:
            if not args:
                return function(*args, **kwargs)  # raises Python's own error
            stores = getattr(function, "__name__", "") in _STORING
            self._settle_arguments(function, args, args[:1] if stores else args)
            self.native_reads(*args[1:], *kwargs.values())
            self.before_change(args[0])
        elif row.kind is EffectKind.TORCH:
            return self.call_torch(function, args, kwargs)
        if instances.holds_tensor((args, kwargs)):
            return self.native(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _settle_arguments(self, function: Any, args: list[Any], asked: list[Any]) -> None:
        """Asks user code what C code would ask it. asked: the arguments whose special methods C code may call."""
        if args and isinstance(args[0], (dict, set, frozenset)):
            elements = [item for a in args for item in (a if isinstance(a, (set, frozenset, dict)) else [a])
                        if not isinstance(a, (list, tuple)) and item is not args[0]]  # fmt: skip
            if not _PLAIN_KEYS.issuperset(map(type, elements)):
                objects.settle_keys(self, elements)
            return
        for value in asked:
            if value is args[0] and isinstance(value, (list, tuple, collections.deque)):
                continue  # the receiver of one of these types' own methods
            if type(value).__flags__ & HEAP_TYPE and not isinstance(
                value, (type, enum.Enum, torch.nn.Module)
            ):
                for name in _ASKED_BY_C:
                    if self.python_method(value, name):
                        self.break_graph(
                            "unknown_native",
                            f"{getattr(function, '__qualname__', function)} may ask {type(value).__name__}.{name}",
                        )

    def born(self, result: Any) -> Any:
        """What native code made: where no text can make it again, a later break moves to here."""
        if type(result) is tuple:
            for part in result:
                self.born(part)
        elif not is_constant(result) and type(result) not in (list, dict, set):
            self.births[id(result)] = (self.outer_step, result)
        return result

    def native_reads(self, *values: Any) -> None:
        """Guards what a native function may read in its arguments."""
        for value in values:
            if isinstance(value, (list, tuple, dict, set, frozenset, collections.deque)):
                self.expand(value)
            elif is_constant(value) or self._is_tensor_like(value):
                continue
            elif (
                isinstance(value, _PRIMITIVES)
                and not isinstance(value, enum.Enum)
                and not self.is_fresh(value)
            ):
                self.payload(value)
            elif isinstance(value, (bytearray, array.array)):
                self.expand(value)
            elif _is_opaque_data(value) and not self.is_fresh(value):
                self.break_graph(
                    "unsupported_value", f"native code reads the contents of a {type(value).__name__}"
                )
            elif isinstance(value, HOST_ITERATORS):
                self.break_graph("unknown_native", "native code is handed a generator")
            elif hasattr(type(value), "__next__") and not self.is_fresh(value):
                self.break_graph(
                    "live_iterator", "native code is handed an iterator from before this segment"
                )

    def call_torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if overloads.any_acts_as_tensor(args) or overloads.any_acts_as_tensor(kwargs.values()):
            return overloads.call(self, function, args, kwargs)
        refused = self.recorder.refused(function, tuple(args), kwargs)
        if refused is not None:
            self.break_graph(*refused)
        args = [self.list_of(a) if isinstance(a, HOST_ITERATORS) else a for a in args]
        self.native_reads(*args, *kwargs.values())
        receiver = getattr(function, "__self__", None)
        if isinstance(receiver, torch.Tensor):
            # A bound method of the real or fake tensor: unbind, so that the mode sees the tensor.
            return self.native(getattr(torch.Tensor, function.__name__), receiver, *args, **kwargs)
        return self.native(function, *args, **kwargs)

    def list_of(self, iterable: Any) -> list[Any]:
        return self.spread(iterable)

    def call_torch_node(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function that the user allowed in graphs: one node."""
        self.native_reads(*args, *kwargs.values())
        return self.recorder.call(function, tuple(args), kwargs)

    # -- objects --

    def call_object(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        cls = type(function)
        # A compiled module needs nothing here: its class's __call__ is marked, and `call_function` puts the
        # original's in its place with the module itself, whose attributes have sources, as self.
        if isinstance(function, torch.nn.Module) and self._plain_module(function):
            return self.prepare(self.getattr(function, "forward"), args, kwargs)
        if isinstance(function, torch.nn.Module) and self.frames and self._has_backward_hooks(function):
            self.break_graph("autograd_in_graph", f"a {cls.__name__} with backward hooks is called")
        method = self._static(cls, "__call__")
        if has_python(method):
            self.class_entry(cls, "__call__")
            return self.prepare(method, [function, *args], kwargs)
        if method is not ABSENT and not isinstance(function, (*_C_FUNCTIONS, types.FunctionType)):
            if isinstance(method, types.FunctionType) or (hasattr(method, "__get__") and not isinstance(
                method, (types.WrapperDescriptorType, types.MethodDescriptorType))):  # fmt: skip
                return self.prepare(method.__get__(function, cls), args, kwargs)
        if method is ABSENT:
            raise TypeError(f"'{cls.__name__}' object is not callable")
        self.break_graph("unknown_native", f"a {cls.__module__}.{cls.__qualname__} is called")

    def _plain_module(self, module: torch.nn.Module) -> bool:
        """Whether calling the module is calling its forward: no hooks, guarded."""
        if self._static(type(module), "__call__") is not _MODULE_CALL:
            return False
        names = torch.nn.modules.module.__dict__
        if any(names[table] for table in _GLOBAL_HOOKS) or module._backward_hooks:
            return False
        self.class_entry(type(module), "__call__")
        for table in _HOOK_TABLES:
            hooks = self._instance_entry(module, table)
            if hooks is ABSENT or len(hooks):
                return False  # whatever is done then reads the hooks that it relies on
            self.keys(hooks)
        if self._instance_entry(module, "_compiled_call_impl") is not ABSENT:
            return False
        holder = self.provenance.constant(torch.nn.modules.module)
        for table in _GLOBAL_HOOKS:
            source = self.provenance.sources.attribute(holder, table)
            if self.provenance.source_of(names[table]) is None:
                self.provenance.register(names[table], source)
            self.provenance.guard(GuardKind.EMPTY, source)
        return True

    def _has_backward_hooks(self, module: torch.nn.Module) -> bool:
        tables = [self._instance_entry(module, name) for name in _HOOK_TABLES if "backward" in name]
        if any(table is not ABSENT and self.keys(table) for table in tables):
            return True
        names = torch.nn.modules.module.__dict__
        return any(names[name] for name in _GLOBAL_HOOKS if "backward" in name)


def _answers_any_name(cls: type) -> bool:
    """Whether looking up an attribute of the class's objects runs code of the program."""
    for name in ("__getattribute__", "__getattr__"):
        found: Any = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), None)
        if has_python(found) and found.__globals__.get("__name__", "").partition(".")[0] != "torch":
            return True
    return False


#: Functions that refuse an argument in the words of the operation that they stand for (iteration, hashing, ...), or in
#: those of the Python function behind them.
_SAYS_AS_OPERATORS = frozenset(
    {iter, next, list, tuple, set, frozenset, str, repr, hash, len, sorted, sum, min, max, any, all, zip, map, filter,
     type, type.__new__, builtins.__build_class__, dict.get, dict.__getitem__, dict.setdefault, dict.pop, dict.__contains__,
     typing.Generic.__dict__["__init_subclass__"]}
)  # fmt: skip
#: How Python says that a handler took an argument that is not there.
_MISSING = ("list index out of range", "not enough values to unpack", "too many values to unpack")


def _raised_in(error: BaseException, handler: Any) -> bool:
    """Whether an exception comes from a handler's own line."""
    raised = _raised_at(error)
    return raised is not None and raised is getattr(handler, "__code__", None)


def _raised_beside(error: BaseException, handler: Any) -> bool:
    """Whether an exception comes from a line of the handler's module, which raises Python's own errors."""
    raised, own = _raised_at(error), getattr(handler, "__code__", None)
    return raised is not None and own is not None and raised.co_filename == own.co_filename


def _raised_at(error: BaseException) -> types.CodeType | None:
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return None if entry is None else entry.tb_frame.f_code


def _is_opaque_data(value: Any) -> bool:
    """Whether an object holds data that no guard can describe: arrays and buffers."""
    return (
        isinstance(value, (memoryview, types.MappingProxyType))
        or type(value).__module__.partition(".")[0] == "numpy"
    )


def _make_dict(tracer: Calls, args: list[Any], kwargs: dict[str, Any]) -> dict[Any, Any]:
    row = effect_of(dict)
    assert row is not None and row.handler is not None
    result: dict[Any, Any] = row.handler(tracer, args, kwargs)
    return result
