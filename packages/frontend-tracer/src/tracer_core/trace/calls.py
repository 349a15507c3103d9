"""Traces calls: inline, put into the graph, run eagerly, or graph break.

Python functions are interpreted: `prepare` returns the `Frame` to run. A C function runs only if
the native effects table or torch's operators know it. A break in a call made by native code becomes
a break before that native code (`Restart`).
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import markers, torch_private
from tracer_core.bytecode.arguments import bind
from tracer_core.bytecode.code import decode, is_eager_only
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.host_builtins import builtins_of
from tracer_core.compiled_module import called_by_torch, original_class, purpose_of
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break, Restart, RunEagerly
from tracer_core.guards.guard import GuardKind, function_facts
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.own_reference import outlives_entries
from tracer_core.guards.source import Source
from tracer_core.limits import MAX_INLINED_CALLS, MAX_INLINED_NATIVE_CALLS
from tracer_core.native_effects import inline_policy
from tracer_core.native_effects.effects import (
    CALLABLES_IN_C,
    CALLED_CODES,
    CALLED_PACKAGES,
    CALLED_TYPES,
    effect_of,
)
from tracer_core.native_effects.symbolic_arguments import is_number_slot
from tracer_core.torch_private.module_calls import call_implementation
from tracer_core.torch_private.names import classes
from tracer_core.trace import instance_creation, library_calls, torch_function
from tracer_core.trace.attribute_lookup import ABSENT, Entries, has_python, is_slot
from tracer_core.trace.component import Component
from tracer_core.trace.generators import HOST_ITERATORS, TracedGenerator
from tracer_core.trace.guarded_calls import identity

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_HOOK_TABLES = ("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
                 "_global_forward_pre_hooks")  # fmt: skip
_MODULE_CALL = torch.nn.Module.__call__
_LAZY_MODULES = classes("nn.modules.lazy.LazyModuleMixin")


class Calls(Component):
    """Calls in a trace. Mutable. natives: code that is not inlined -> the kind of break."""

    def __init__(self, tracer: Tracer, natives: Mapping[types.CodeType, str]) -> None:
        super().__init__(tracer)
        self.natives, self.entries = natives, tracer.entries
        self.native_calls = tracer.native_calls
        #: Every code object that was run, with one of its functions.
        self.interpreted: dict[types.CodeType, types.FunctionType] = {}
        #: Generators with handlers (try, with), whose handlers may run on close.
        self.generators: list[TracedGenerator] = []

    # -- entry points of the machine --

    def call(self, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        result = self.prepare(function, args, kwargs)
        if type(result) is Frame:
            if len(self.tracer.frames) > MAX_INLINED_CALLS:
                crossed("MAX_INLINED_CALLS")
                raise RunEagerly(f"more than {MAX_INLINED_CALLS} nested calls")
            self.tracer.frames.append(result)
        else:
            frame.stack.append(result)

    def call_value(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = self.prepare(function, args, kwargs)
        return self.run_nested(result) if type(result) is Frame else result

    def run_nested(self, frame: Frame, error: BaseException | None = None) -> Any:
        """Runs a frame to its end below native code. A break inside becomes a break before that
        code."""
        base = len(self.tracer.frames)
        if base > MAX_INLINED_CALLS or self.tracer.nesting > MAX_INLINED_NATIVE_CALLS:
            deep = base > MAX_INLINED_CALLS
            crossed("MAX_INLINED_CALLS" if deep else "MAX_INLINED_NATIVE_CALLS")
            raise RunEagerly("calls are nested too deep to be interpreted")
        self.tracer.frames.append(frame)
        self.tracer.nesting += 1
        rule, frame.on_return = frame.on_return, None
        try:
            if error is not None:
                self.tracer.unwind(error, base)
            value = self.tracer.run(base)
        except Break as inner:
            if self.tracer.nesting == 1:
                location = inner.location or self.tracer.users_line()
                raise Restart(self.tracer.outer_step, inner.kind, inner.reason, location) from None
            raise
        finally:
            del self.tracer.frames[base:]
            self.tracer.nesting -= 1
        if type(value) is LazyValue:
            value = self.tracer.open(value)
        if rule is None:
            return value
        if value is not None:
            raise TypeError(
                f"__init__() should return None, not '{self.tracer.exceptions.type_name(value)}'"
            )
        return rule[1]

    def resume_generator(self, frame: Frame, error: BaseException | None) -> Any:
        try:
            return self.run_nested(frame, error)
        except Restart as restart:
            generator = frame.generator
            # A generator with a break in it runs in eager mode.
            if restart.location and self.provenance.is_fresh(generator):
                raise Restart(
                    generator.allocation_step, restart.kind, restart.reason, restart.location
                ) from None
            raise

    # -- dispatch --

    def prepare(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Returns the result of a call, or the frame that computes it."""
        if self.tracer.scalars.numbers and not self.tracer.scalars.passes(function):
            args = [self.tracer.scalars.specialized(value) for value in args]
            kwargs = {
                name: self.tracer.scalars.specialized(value) for name, value in kwargs.items()
            }
        kind = type(function)
        if is_number_slot(function):
            args = [self.tracer.scalars.concrete(value) for value in args]
        if kind is types.MethodType:
            if isinstance(function.__self__, HOST_ITERATORS):
                return function(*args, **kwargs)
            receiver = self._method_part(function, "__self__")
            return self.prepare(self._method_part(function, "__func__"), [receiver, *args], kwargs)
        if kind.__flags__ & HEAP_TYPE and _answers_any_name(kind):
            if issubclass(kind, type):
                return instance_creation.instantiate(self.tracer, function, args, kwargs)
            handler = CALLED_TYPES.get(kind)  # looking for marks would run the program's code
            if handler is not None:
                return handler(self.tracer, function, args, kwargs)
            return self.call_object(function, args, kwargs)
        role = markers.role(function) if kind is not type else None
        if role is not None:
            return self._marked(role, function, args, kwargs)
        if kind is types.FunctionType:
            return self.call_function(function, args, kwargs)
        if isinstance(function, CALLABLES_IN_C):
            return self.native_calls.call_native(function, args, kwargs)
        if isinstance(function, type):
            return instance_creation.instantiate(self.tracer, function, args, kwargs)
        handler = CALLED_TYPES.get(kind)
        if handler is not None:
            return handler(self.tracer, function, args, kwargs)
        if inline_policy.is_torch_operator(function):
            return self.native_calls.call_torch(function, args, kwargs)
        return self.call_object(function, args, kwargs)

    def _method_part(self, method: Any, name: str) -> Any:
        value = getattr(method, name)
        source = self.provenance.source_of(method)
        return value if source is None else self.provenance.read(
            value, self.sources.slot(source, name))  # fmt: skip

    def _marked(
        self, role: markers.FunctionRole, function: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if role is markers.FunctionRole.IS_COMPILING:
            return self.tracer.is_compiling()
        if role is markers.FunctionRole.GRAPH_BREAK:
            text = str(next(iter((*args, *kwargs.values())), ""))
            raise Break("requested", text or "graph_break()")
        if role is markers.FunctionRole.DISALLOW:
            raise Break("disabled", f"{function!r} was marked with disallow_in_graph")
        named = getattr(function, "__qualname__", None) or repr(function)
        self.tracer.unguarded[f"{named}() is marked with {role.value}: it is not followed"] = None
        if role is markers.FunctionRole.SUBSTITUTED:
            return self.prepare(markers.substitute_of(function), args, kwargs)
        if role is markers.FunctionRole.ALLOW:
            return self.native_calls.call_torch_node(function, args, kwargs)
        self.native_calls.native_reads(*args, *kwargs.values())
        return function(*args, **kwargs)

    def call_function(
        self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        row = effect_of(function)
        if row is not None:
            return self.native_calls.apply_effect(row, function, args, kwargs)
        package = function.__globals__.get("__name__", "").partition(".")[0]
        handler = CALLED_CODES.get(function.__code__) or CALLED_PACKAGES.get(package)
        if handler is not None:
            return handler(self.tracer, function, args, kwargs)
        decision, kind, reason = inline_policy.decide(function)
        behind = markers.compiled(function)
        if behind is not None:
            return self.prepare(behind.original, args, kwargs)
        if library_calls.runs_eagerly(self.tracer, function, args, kwargs):
            self.native_calls.native_reads(*args, *kwargs.values())
            result = function(*args, **kwargs)
            if function.__name__ == "__init__":  # what it has put into the object is native too
                self.native_calls.note_allocation(tuple(getattr(args[0], "__dict__", {}).values()))
            return self.native_calls.note_allocation(result)
        if decision is inline_policy.Decision.BREAK:
            simple = torch_private.before_tagging(function)
            if simple is not None:
                return self.prepare(simple, args, kwargs)
            raise Break(kind, reason)
        if decision is inline_policy.Decision.IGNORE:
            return None
        if decision is inline_policy.Decision.NATIVE:
            if torch_function.any_acts_as_tensor((*args, *kwargs.values())):
                return torch_function.call(self.tracer, function, args, kwargs)
            self.native_calls.native_reads(*args, *kwargs.values())
            return self.native_calls.native(function, *args, **kwargs)
        return self.frame_of(function, args, kwargs)

    def frame_of(
        self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Returns a frame ready to run `function`; a TracedGenerator for a generator function."""
        if self.provenance.is_fresh(function) and not self.tracer.names.made_here(function):
            self.provenance.constant(function)
            self.provenance.held.append(function)
        if type(function.__globals__) is not dict:
            raise Break("native_python", "a function whose globals are a subclass of dict")
        if function.__code__.co_flags & 0x20 and is_eager_only(function.__code__):
            raise RunEagerly("a generator reads frames, perhaps when it is closed", True)
        if function.__code__ in self.natives:
            kind = self.natives[function.__code__]
            raise Break(kind, f"{function.__qualname__} runs as plain Python from now on")
        self.interpreted[function.__code__] = function
        self._guard_code(function)
        code = decode(function.__code__)
        if code.unsupported:
            raise Break("unsupported_opcode", f"{function.__qualname__} uses {code.unsupported}")
        frame = Frame(function, code)
        bind(self.tracer, frame, args, kwargs)
        if frame.code.is_generator:
            generator = TracedGenerator(self.tracer, frame)
            if frame.code.exceptions:
                self.generators.append(generator)
            return generator
        return frame

    def read_by_code(self, function: types.FunctionType, source: Source) -> bool:
        """Guards a function that the program only calls: what it was made of, not its identity, which
        is another in each call. Returns False for one that is guarded by its identity."""
        provenance = self.provenance
        known = provenance.source_of(function)
        if known is None:
            if not self._is_made_anew(function):
                return False
            provenance.register(function, source)
        elif provenance.has_identity(function, known) or not self._is_made_anew(function):
            return False
        elif known is not source:
            provenance.guard(GuardKind.SAME, source, known)
        known = known or source
        provenance.guard(GuardKind.FUNCTION, known, function_facts(function))
        self.tracer.names.guard_namespace(function, known)
        return True

    def _is_made_anew(self, function: types.FunctionType) -> bool:
        """Returns whether a function may be another one in the next call, and is plain: nothing but
        its code says what a call of it does."""
        package = function.__globals__.get("__name__", "")
        return not (
            outlives_entries(function)
            or self.tracer.names.made_here(function)
            or function.__dict__
            or type(function.__globals__) is not dict
            or builtins_of(function) is not builtins.__dict__
            or function.__code__ in CALLED_CODES
            or package.partition(".")[0] in CALLED_PACKAGES
            or effect_of(function) is not None
            or library_calls.is_known(package)
            or inline_policy.decide(function)[0] is not inline_policy.Decision.INLINE
        )

    def _guard_code(self, function: types.FunctionType) -> None:
        """Guards a function's code, which can be replaced in the same function object."""
        source = self.provenance.source_of(function)
        if source is not None:
            self.provenance.read(function.__code__, self.sources.slot(source, "__code__"))

    # -- objects --

    def call_object(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        cls = type(function)
        # A compiled module is called as its class says: its attributes have sources.
        purpose = purpose_of(function)
        if isinstance(purpose, markers.Disabled):
            identity(self.tracer, function)
            raise Break("disabled", purpose.reason)
        lazy: Any = function
        if isinstance(function, _LAZY_MODULES) and lazy.has_uninitialized_params():
            raise Break("native_python", f"a {cls.__name__} makes its parameters")
        if isinstance(function, torch.nn.Module) and self._is_unhooked_module(function):
            return self.prepare(self.tracer.attributes.getattr(function, "forward"), args, kwargs)
        if (
            isinstance(function, torch.nn.Module)
            and self.tracer.frames
            and self._has_backward_hooks(function)
        ):
            raise Break("autograd_in_graph", f"a {cls.__name__} with backward hooks is called")
        if purpose is not None:
            cls = original_class(function)
        method = self.entries.static(cls, "__call__")
        if has_python(method):
            self.entries.class_entry(cls, "__call__")
            return self.prepare(method, [function, *args], kwargs)
        if method is not ABSENT and not isinstance(function, (*CALLABLES_IN_C, types.FunctionType)):
            if isinstance(method, types.FunctionType) or (hasattr(method,
            "__get__") and not isinstance(
                method, (types.WrapperDescriptorType, types.MethodDescriptorType))):  # fmt: skip
                return self.prepare(method.__get__(function, cls), args, kwargs)
        if method is ABSENT:
            raise TypeError(
                f"'{self.tracer.exceptions.type_name(function)}' object is not callable"
            )
        raise Break("unknown_native", f"a {cls.__module__}.{cls.__qualname__} is called")

    def _is_unhooked_module(self, module: torch.nn.Module) -> bool:
        """Returns whether calling the module only calls its forward; guarded."""
        if self.entries.static(type(module), "__call__") is not _MODULE_CALL:
            return False
        if called_by_torch(module) or not self._has_no_hooks(module):
            return False
        self.entries.class_entry(type(module), "__call__")
        return True

    def call_past_slot(
        self, module: torch.nn.Module, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Traces ``Module._call_impl``, the call of a compiled module."""
        if self._has_no_hooks(module):
            return self.prepare(self.tracer.attributes.getattr(module, "forward"), args, kwargs)
        return self.prepare(call_implementation, [module, *args], kwargs)

    def _has_no_hooks(self, module: torch.nn.Module) -> bool:
        """Returns whether neither the module nor all modules have hooks; if so, guarded."""
        names = torch.nn.modules.module.__dict__
        if any(names[table] for table in _GLOBAL_HOOKS) or module._backward_hooks:
            return False
        for table in _HOOK_TABLES:
            hooks = self.entries.instance_entry(module, table)
            if hooks is ABSENT or len(hooks):
                return False  # the code that then runs reads, and so guards, these hooks
            self.tracer.reads.keys(hooks)
        holder = self.provenance.constant(torch.nn.modules.module)
        for table in _GLOBAL_HOOKS:
            source = self.sources.attribute(holder, table)
            if self.provenance.source_of(names[table]) is None:
                self.provenance.register(names[table], source)
            self.provenance.guard(GuardKind.EMPTY, source)
        return True

    def _has_backward_hooks(self, module: torch.nn.Module) -> bool:
        tables = [
            self.entries.instance_entry(module, name) for name in _HOOK_TABLES if "backward" in name
        ]
        if any(table is not ABSENT and self.tracer.reads.keys(table) for table in tables):
            return True
        names = torch.nn.modules.module.__dict__
        return any(names[name] for name in _GLOBAL_HOOKS if "backward" in name)


def _answers_any_name(cls: type) -> bool:
    """Returns whether attribute lookup on the class's objects runs the program's code."""
    for name in ("__getattribute__", "__getattr__"):
        result = Entries.static(cls, name)
        if result is ABSENT or is_slot(result, "__getattribute__"):
            continue
        module = result.__globals__.get("__name__", "") if has_python(result) else ""
        if module.partition(".")[0] != "torch":
            return True
    return False
