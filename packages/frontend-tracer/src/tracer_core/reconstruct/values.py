"""Emits the Python that reconstructs a trace's values in a later call.

In: objects as they stood at the end of a trace (fakes among them). Out: lines of Python and, for
each object, an expression. An object that existed before the trace is fetched, never copied; two
references to one object stay two references to one object; cycles work. Objects of the user's
classes are made from their parts, so that none of their methods (`__init__`, `__reduce__`,
`__setstate__`, `append`, ...) runs.

Mutable objects are made empty first and filled when the expression that needed them is complete,
which allows cycles, and long chains without deep recursion.
"""

from __future__ import annotations

import _thread
import array
import collections
import enum
import functools
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import NULL, LazyValue
from tracer_core.bytecode.type_parameters import type_parameter
from tracer_core.fx_capture.graph_breaks import Restart
from tracer_core.fx_capture.provenance import IDENTITY_TYPES, is_constant
from tracer_core.guards.numpy_types import ARRAY
from tracer_core.guards.source import is_plain_name
from tracer_core.natives import polyfills
from tracer_core.reconstruct.containers import VIEWS, ContainerRebuilder
from tracer_core.reconstruct.objects import CannotRebuild, base_of
from tracer_core.reconstruct.runtime import DICT_ITERATORS, is_module_global, type_variable
from tracer_core.trace.generators import HOST_ITERATORS, TracedGenerator
from tracer_core.trace.live_generators import is_stepped
from tracer_core.trace.suspended_generators import (
    can_be_data,
    frame_parts,
    new_suspended_generator,
    set_frame,
)


class Rebuilder(ContainerRebuilder):
    """Reconstructs values. Mutable. fetch(source) and constant(object) give text; output(tensor or
    SymInt) gives the text of a graph output; source_of as in provenance; frames_passed(exception)
    gives the frames of its traceback, owner_of_traceback(traceback) its exception; flush(obj) adds
    the lines that replay the changes of an object now; made_here(function): whether the trace made
    a function; attributes_of(tensor): attributes set on an intermediate tensor. lines run after the
    graph, late_lines after the side effects."""

    def __init__(
        self,
        *,
        fetch: Callable[[Any], str],
        constant: Callable[[Any], str],
        output: Callable[[Any], str],
        source_of: Callable[[Any], Any],
        frames_passed: Callable[[BaseException], tuple[tuple[types.CodeType, int], ...]],
        classes: dict[int, Any],
        owner_of_traceback: Callable[[types.TracebackType], BaseException | None],
        flush: Callable[[Any], None],
        made_here: Callable[[Any], bool],
        attributes_of: Callable[[torch.Tensor], dict[str, Any]],
    ) -> None:
        self.lines: list[str] = []
        self.late_lines: list[str] = []
        self._fetch, self._constant, self._output, self._source_of = (
            fetch,
            constant,
            output,
            source_of,
        )
        self._frames_passed, self._made_here, self._attributes_of = (
            frames_passed,
            made_here,
            attributes_of,
        )
        self._classes, self._flush, self._owner_of_traceback = classes, flush, owner_of_traceback
        #: id -> (step, object): where native code made an object that no text can reconstruct.
        self.allocation_sites: dict[int, tuple[int, Any]] = {}
        self._memo: dict[int, str] = {}
        self._alive: list[Any] = []
        self._pending: collections.deque[Callable[[], None]] = collections.deque()
        self._depth = 0
        #: The trace ends at a graph break, across which generators are live.
        self.suspends = False
        #: Nesting of C objects being described; the trace does not see their parts.
        self._in_native = 0

    def value(self, obj: Any) -> str:
        """Returns the expression of an object; adds the lines that it needs."""
        self._depth += 1
        try:
            text = self._value(obj)
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._fill_pending()
        return text

    def has_made(self, obj: Any) -> bool:
        """Returns whether the lines make this object, for the result or for an object that contains
        it."""
        return id(obj) in self._memo

    def _value(self, obj: Any) -> str:
        if type(obj) is LazyValue:
            return self._fetch(obj.source)
        if obj is NULL:
            return self._constant(NULL)
        if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._output(obj)
        known = self._memo.get(id(obj))
        if known is not None:
            return known
        source = self._source_of(obj)
        if source is not None:
            return self._fetch(source)
        if is_constant(obj):
            return self._constant(obj)
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        maker = _MAKERS.get(type(obj))
        if maker is not None:
            return maker(self, obj)
        if id(obj) in self._classes:
            return self._class(self._classes[id(obj)])
        if isinstance(obj, enum.Enum) and id(type(obj)) in self._classes:
            return self._new(obj, f"{self._value(type(obj))}({self._value(obj._value_)})")
        if isinstance(obj, IDENTITY_TYPES) or isinstance(obj, _IMMUTABLE):
            return self._constant(obj)
        if isinstance(obj, HOST_ITERATORS):
            if (
                self.suspends
                and type(obj) is TracedGenerator
                and not self._in_native
                and can_be_data(obj, is_stepped)
            ):
                return self._generator(obj)
            raise Restart(
                obj.born, "unsupported_value", f"the iterator {obj.code_name} outlives the segment"
            )
        if isinstance(obj, BaseException):
            return self._exception(obj)
        if is_module_global(obj):
            return self._constant(obj)
        base = None if _is_stand_in(obj) else base_of(type(obj))
        return self._reduced(obj) if base is None else self._instance(obj, base)

    def _fill_pending(self) -> None:
        """Fills the objects that were made empty. Filling may make more of them."""
        while self._pending:
            fill = self._pending.popleft()
            self._depth += 1
            try:
                fill()
            finally:
                self._depth -= 1

    def _remember(self, obj: Any, text: str) -> str:
        self._memo[id(obj)] = text
        self._alive.append(obj)
        return text

    def _new(self, obj: Any, text: str) -> str:
        name = f"n{len(self._alive)}"
        self.lines.append(f"{name} = {text}")
        return self._remember(obj, name)

    def _items(self, values: Any) -> str:
        return ", ".join([self._value(v) for v in values])

    def _generator(self, obj: TracedGenerator) -> str:
        """Emits a generator that is live across a graph break, with its frame as data."""
        name = self._new(
            obj, f"{self._constant(new_suspended_generator)}({obj.name!r}, {obj.code_name!r})"
        )
        self._pending.append(lambda: self.lines.append(self.frame_text(name, obj)))
        return name

    def frame_text(self, name: str, obj: TracedGenerator) -> str:
        """Returns a line that sets where a generator stands."""
        layout, values = frame_parts(obj)
        parts = "".join(f"{self._value(value)}, " for value in values)
        where = "None" if layout is None else self._constant(layout)
        return (
            f"{self._constant(set_frame)}({name}, {where}, ({parts}), {obj.started},"
            f" {obj.finished})"
        )

    def rewritten(self, name: str, obj: TracedGenerator) -> str:
        """Returns `frame_text` for a generator from before the trace; adds lines it needs."""
        self._depth += 1
        try:
            text = self.frame_text(name, obj)
        finally:
            self._depth -= 1
        self._fill_pending()
        return text

    def _tensor(self, obj: torch.Tensor) -> str:
        text = self._output(obj)
        attributes = self._attributes_of(obj)
        if not attributes:
            return self._remember(obj, text)
        name = self._new(obj, text)
        self._pending.append(lambda: self._set_tensor_attributes(name, attributes))
        return name

    def _set_tensor_attributes(self, name: str, attributes: dict[str, Any]) -> None:
        if "grad" in attributes:
            self.lines.append(f"{name}.grad = {self._value(attributes['grad'])}")
        self._set_attributes(
            name, {key: value for key, value in attributes.items() if key != "grad"}
        )

    def _traceback(self, obj: types.TracebackType) -> str:
        owner = self._owner_of_traceback(obj)
        if owner is None:
            return "None"
        text = self._value(owner)
        self._fill_pending()
        return f"{text}.__traceback__"

    # -- code --

    def _function(self, obj: types.FunctionType) -> str:
        if not self._made_here(obj):
            return self._constant(obj)
        closure, code = obj.__closure__, obj.__code__
        cells = self._value(closure) if closure else "None"
        name = self._new(
            obj,
            f"{self._constant(types.FunctionType)}({self._constant(code)},"
            f" {self._constant_namespace(obj)}, {obj.__name__!r}, {self._value(obj.__defaults__)},"
            f" {cells})",
        )
        plain = types.FunctionType(code, obj.__globals__, code.co_name, None, closure)
        for field in _FUNCTION_FIELDS:
            value = getattr(obj, field, None)
            if value != getattr(plain, field, None):
                self._pending.append(functools.partial(self._set_field, name, field, value))
        if obj.__dict__:
            self._pending.append(lambda: self._set_attributes(name, obj.__dict__))
        return name

    def _set_field(self, name: str, field: str, value: Any) -> None:
        text = self._value(value)
        self._fill_pending()
        self.lines.append(f"{name}.{field} = {text}")

    def _constant_namespace(self, function: types.FunctionType) -> str:
        source = self._source_of(function.__globals__)
        return self._fetch(source) if source is not None else self._constant(function.__globals__)

    def _cell(self, obj: types.CellType) -> str:
        name = self._new(obj, f"{self._constant(types.CellType)}()")
        self._pending.append(lambda: self._fill_cell(name, obj))
        return name

    def _fill_cell(self, name: str, obj: types.CellType) -> None:
        try:
            contents = obj.cell_contents
        except ValueError:
            return
        self.lines.append(f"{name}.cell_contents = {self._value(contents)}")

    def _method(self, obj: types.MethodType) -> str:
        if isinstance(
            obj.__self__, HOST_ITERATORS
        ):  # a method of a host object that replaces one of Python's own
            return self._new(
                obj, f"getattr({self._value(obj.__self__)}, {obj.__func__.__name__!r})"
            )
        parts = f"{self._value(obj.__func__)}, {self._value(obj.__self__)}"
        return self._new(obj, f"{self._constant(types.MethodType)}({parts})")

    def _bound_builtin(self, obj: Any) -> str:
        receiver = getattr(obj, "__self__", None)
        # A pybind11 function's receiver is an internal record, not an object of the program.
        described = type(receiver).__module__.startswith("pybind11")
        if receiver is None or described or isinstance(receiver, (types.ModuleType, type)):
            return self._constant(obj)
        return self._new(obj, f"getattr({self._value(receiver)}, {obj.__name__!r})")

    def _super(self, obj: Any) -> str:
        return self._new(
            obj, f"super({self._value(obj.__thisclass__)}, {self._value(obj.__self__)})"
        )

    def _partial(self, obj: Any) -> str:
        parts = [self._value(obj.func), *map(self._value, obj.args)]
        keywords = self._value(obj.keywords)
        self._fill_pending()  # partial() copies its keywords, which must be filled
        name = self._new(
            obj, f"{self._constant(functools.partial)}({', '.join(parts)}, **{keywords})"
        )
        if obj.__dict__:
            self._pending.append(lambda: self._set_attributes(name, obj.__dict__))
        return name

    def _weakref(self, obj: Any) -> str:
        target = obj()
        if target is None:
            raise self._no_way(obj)
        parts = [target] if obj.__callback__ is None else [target, obj.__callback__]
        return self._new(obj, f"{self._constant(weakref.ref)}({self._items(parts)})")

    # -- everything else --

    def _type_parameter(self, obj: Any) -> str:
        """Emits a TypeVar, ParamSpec or TypeVarTuple, which are C types from 3.12 on."""
        if obj.__module__ == "typing" and is_plain_name(obj.__name__):  # made by def f[T]
            stars = _STARS[type(obj)]
            return self._new(obj, f"{self._constant(type_parameter)}({stars!r}, {obj.__name__!r})")
        parts, options = (), {}
        if type(obj) is not typing.TypeVarTuple:
            options = {name: value for name in _VARIANCES if (value := getattr(obj, f"__{name}__"))}
            options |= {} if obj.__bound__ is None else {"bound": obj.__bound__}
            parts = getattr(obj, "__constraints__", ())
        described = (
            f"{obj.__name__!r}, {obj.__module__!r}, {self._value(parts)}, {self._value(options)}"
        )
        self._fill_pending()
        return self._new(
            obj, f"{self._constant(type_variable)}({self._constant(type(obj))}, {described})"
        )

    def _refused(self, obj: Any) -> str:
        """Rejects an object that replaces one of Python's own only while a trace runs."""
        raise self._no_way(obj)

    def _no_way(self, obj: Any) -> BaseException:
        """Returns the exception that ends this trace. A `Restart` breaks before the instruction
        that made the object, so that eager mode makes it."""
        kind = type(obj)
        step, born = self.allocation_sites.get(id(obj), (0, None))
        if born is obj:
            return Restart(step, "unsupported_value", f"a {kind.__name__} outlives the segment")
        return CannotRebuild(f"a {kind.__module__}.{kind.__qualname__}", kind)

    def _reduced(self, obj: Any) -> str:
        """Emits an object of a C type from its pickle description (`__reduce_ex__`)."""
        kind = type(obj)
        if kind.__module__ not in _C_MODULES and not _is_stand_in(obj):
            raise self._no_way(obj)
        try:
            if isinstance(obj, ARRAY) and obj.base is not None:  # type: ignore[attr-defined]
                raise CannotRebuild("a view of an array", type(obj))
            described = obj.__reduce_ex__(4)
        except Exception as error:
            raise self._no_way(obj) from error
        if isinstance(described, str):
            return self._constant(obj)
        function, args, state, items = (*described, None, None)[:4]
        if items is not None or (state is not None and not hasattr(kind, "__setstate__")):
            raise self._no_way(obj)
        if not _is_stand_in(obj) and not _gives(function, args, kind):
            raise self._no_way(obj)
        self._alive.append(described)
        self._in_native += 1
        text = self._items(args)
        self._in_native -= 1
        self._fill_pending()
        name = self._new(obj, f"{self._constant(function)}({text})")
        if state is not None:
            # An iterator's position is cut to the length of its list, which side effects may still
            # change.
            lines = self.late_lines if kind in _POSITIONED else self.lines
            lines.append(f"{name}.__setstate__({self._value(state)})")
        return name


def _gives(function: Any, args: tuple[Any, ...], kind: type) -> bool:
    """Returns whether a pickle description makes an object of the very type, not a substitute."""
    if function in (iter, reversed) and len(args) == 1:
        return type(function(args[0])) is kind
    return not isinstance(function, type) or function is kind or kind.__module__.startswith("numpy")


def _is_stand_in(obj: Any) -> bool:
    """Returns whether an object is the tracer's own, describing one of torch's."""
    return type(obj).__module__.startswith("tracer_core.")


_FUNCTION_FIELDS = (
    "__qualname__",
    "__doc__",
    "__module__",
    "__kwdefaults__",
    "__annotations__",
    "__type_params__",
)
_STARS = {typing.TypeVar: "", typing.ParamSpec: "**", typing.TypeVarTuple: "*"}
_VARIANCES = ("covariant", "contravariant", "infer_variance")
_POSITIONED: tuple[type, ...] = (type(iter([])), type(reversed([])))
#: Objects that are immutable and hold only immutable objects.
_IMMUTABLE = (
    re.Pattern, re.Match, types.GenericAlias, types.UnionType, torch.finfo, torch.iinfo,
    *torch_private.DEVICE_PROPERTIES,
)  # fmt: skip
#: Modules of C types whose pickle description is complete and made without user code.
_C_MODULES = frozenset(
    {"builtins", "itertools", "functools", "operator", "_operator", "collections", "datetime",
    "decimal", "types",
     "torch.return_types", "torch", "fractions", "zoneinfo", "uuid", "numpy", "numpy.dtypes"}
)  # fmt: skip
_MAKERS: dict[type, Callable[[Rebuilder, Any], str]] = {
    list: Rebuilder._list,
    tuple: Rebuilder._tuple,
    torch.Size: Rebuilder._size,
    dict: Rebuilder._dict,
    collections.OrderedDict: Rebuilder._ordered,
    collections.defaultdict: Rebuilder._defaultdict,
    set: Rebuilder._set,
    frozenset: Rebuilder._frozenset,
    collections.deque: Rebuilder._deque,
    slice: Rebuilder._slice,
    bytearray: Rebuilder._buffer,
    array.array: Rebuilder._buffer,
    types.FunctionType: Rebuilder._function,
    types.CellType: Rebuilder._cell,
    types.MethodType: Rebuilder._method,
    types.BuiltinFunctionType: Rebuilder._bound_builtin,
    types.MethodWrapperType: Rebuilder._bound_builtin,
    types.MappingProxyType: Rebuilder._proxy,
    functools.partial: Rebuilder._partial,
    weakref.ReferenceType: Rebuilder._weakref,
    super: Rebuilder._super,
    _thread.RLock: lambda r, obj: r._new(obj, f"{r._constant(_thread.RLock)}()"),
    property: Rebuilder._wrapper,
    staticmethod: Rebuilder._wrapper,
    classmethod: Rebuilder._wrapper,
    types.TracebackType: Rebuilder._traceback,
    polyfills.GroupBy: Rebuilder._refused,
    type(iter(collections.deque())): Rebuilder._deque_iterator,
    type(reversed(collections.deque())): Rebuilder._deque_iterator,
    **dict.fromkeys(VIEWS, Rebuilder._view),
    **dict.fromkeys(DICT_ITERATORS, Rebuilder._dict_iterator),
    type(iter(set())): Rebuilder._set_iterator,
    **({} if sys.version_info < (3, 12) else dict.fromkeys(_STARS, Rebuilder._type_parameter)),
}
