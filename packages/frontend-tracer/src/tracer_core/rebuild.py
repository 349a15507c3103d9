"""Text that makes a trace's values again, in a later call.

In: objects as they stood at the end of a trace (fakes among them). Out: lines of Python and, for each
object, an expression. What always holds: an object that existed before is fetched, never copied; two
references to one object stay two references to one object; cycles through mutable containers work.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _thread
import collections
import enum
import gc
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.interpreter.class_making import GENERATED, bare_class, fill_class, make_enum
from tracer_core.interpreter.frame import NULL, Unread
from tracer_core.interpreter.generators import HOST_ITERATORS
from tracer_core.interpreter.tracebacks import rebuilt as rebuilt_traceback
from tracer_core.provenance import IDENTITY_TYPES, is_constant
from tracer_core.segments.breaks import Restart


class CannotRebuild(Exception):
    """No way is known to make this object again."""


class Rebuilder:
    """Mutable. fetch(source) and constant(object) give text; output(tensor or SymInt) gives the text of a
    graph output; source_of as in provenance; frames_passed(exception) gives
    the frames of its traceback, owner_of_traceback(traceback) its exception; contents(obj) gives an object's
    contents at the end; flush(obj) adds the lines that replay the changes of an object now.
    lines run after the graph, late_lines after the effects."""

    def __init__(
        self,
        fetch: Callable[[Any], str],
        constant: Callable[[Any], str],
        output: Callable[[Any], str],
        source_of: Callable[[Any], Any],
        frames_passed: Callable[[BaseException], tuple[tuple[types.CodeType, int], ...]],
        classes: dict[int, Any],
        owner_of_traceback: Callable[[types.TracebackType], BaseException | None],
        flush: Callable[[Any], None],
    ) -> None:
        self.lines: list[str] = []
        self.late_lines: list[str] = []
        self._fetch, self._constant, self._output, self._source_of = fetch, constant, output, source_of
        self._classes, self._flush = classes, flush
        self._frames_passed, self._owner_of_traceback = frames_passed, owner_of_traceback
        #: id -> (step, object): where native code made what has no description.
        self.births: dict[int, tuple[int, Any]] = {}
        self._memo: dict[int, str] = {}
        self._alive: list[Any] = []

    def value(self, obj: Any) -> str:
        """The expression of an object; adds the lines that it needs."""
        if type(obj) is Unread:
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
            return self._remember(obj, self._output(obj))
        maker = _MAKERS.get(type(obj))
        if maker is not None:
            return maker(self, obj)
        if id(obj) in self._classes:
            return self._class(self._classes[id(obj)])
        if isinstance(obj, enum.Enum) and id(type(obj)) in self._classes:
            return self._new(obj, f"{self.value(type(obj))}({self.value(obj._value_)})")
        if isinstance(obj, IDENTITY_TYPES):
            return self._constant(obj)
        if isinstance(obj, BaseException):
            return self._exception(obj)
        if isinstance(obj, HOST_ITERATORS):
            raise Restart(obj.born, "unsupported_value", f"the iterator {obj.code_name} outlives the segment")
        return self._reduced(obj)

    def _remember(self, obj: Any, text: str) -> str:
        self._memo[id(obj)] = text
        self._alive.append(obj)
        return text

    def _new(self, obj: Any, text: str) -> str:
        name = f"n{len(self._alive)}"
        self.lines.append(f"{name} = {text}")
        return self._remember(obj, name)

    def _items(self, values: Any) -> str:
        return ", ".join(self.value(v) for v in values)

    # -- containers --

    def _list(self, obj: list[Any]) -> str:
        if not _may_contain_itself(obj):
            return self._new(obj, f"[{self._items(obj)}]")
        name = self._new(obj, "[]")
        for item in obj:
            self.lines.append(f"{name}.append({self.value(item)})")
        return name

    def _tuple(self, obj: tuple[Any, ...]) -> str:
        text = self._items(obj)
        return self._new(obj, f"({text},)" if obj else "()")

    def _dict(self, obj: dict[Any, Any]) -> str:
        if not _may_contain_itself(obj.values()):
            pairs = ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in obj.items())
            return self._new(obj, "{" + pairs + "}")
        name = self._new(obj, "{}")
        for key, value in obj.items():
            self.lines.append(f"{name}[{self.value(key)}] = {self.value(value)}")
        return name

    def _set(self, obj: Any) -> str:
        return self._new(obj, f"{self._constant(type(obj))}([{self._items(obj)}])")

    def _deque(self, obj: Any) -> str:
        return self._new(obj, f"{self._constant(type(obj))}([{self._items(obj)}], {obj.maxlen!r})")

    def _view(self, obj: Any) -> str:
        """A dictionary's keys(), values() or items()."""
        (mapping,) = (referent for referent in gc.get_referents(obj) if isinstance(referent, dict))
        return self._new(obj, f"{self.value(mapping)}.{_VIEWS[type(obj)]}()")

    def _slice(self, obj: slice) -> str:
        return f"slice({self._items((obj.start, obj.stop, obj.step))})"

    def _dict_iterator(self, obj: Any) -> str:
        """Advanced as far, over the same dictionary: it must notice when that changes its size."""
        found = [referent for referent in gc.get_referents(obj) if isinstance(referent, dict)]
        if not found:
            return self._new(obj, f"{self._constant(spent_iterator)}({self._constant(type(obj))})")
        (mapping,) = found
        self._flush(mapping)  # an iterator must not see the replay as a change
        left = operator.length_hint(obj)
        stale = not left and not _at_end(obj, mapping)
        parts = f"{self.value(mapping)}, {_DICT_ITERATORS[type(obj)]!r}, {len(mapping) - left}, {stale}"
        return self._new(obj, f"{self._constant(dict_iterator)}({parts})")

    def _deque_iterator(self, obj: Any) -> str:
        """Advanced as far, over the same deque: it must notice when that changes."""
        kind, (held, consumed) = obj.__reduce__()[:2]
        self._flush(held)
        left = operator.length_hint(obj)
        stale = bool(left) and _is_stale(obj)
        parts = f"{self._constant(kind)}, {self.value(held)}, {consumed}, {stale}"
        return self._new(obj, f"{self._constant(deque_iterator)}({parts})")

    # -- exceptions --

    def _exception(self, obj: BaseException) -> str:
        """Without running the user's ``__init__`` again."""
        args = self.value(obj.args)
        name = self._new(obj, f"{self._constant(new_exception)}({self._constant(type(obj))}, {args})")
        for key, value in obj.__dict__.items():
            self.lines.append(f"{name}.__dict__[{key!r}] = {self.value(value)}")
        for link in ("__cause__", "__context__"):
            if getattr(obj, link) is not None:
                self.lines.append(f"{name}.{link} = {self.value(getattr(obj, link))}")
        passed = self._frames_passed(obj)
        if passed:
            trace = f"{self._constant(rebuilt_traceback)}({self._constant(passed)})"
            self.lines.append(f"{name}.__traceback__ = {trace}")
        if obj.__suppress_context__:
            self.lines.append(f"{name}.__suppress_context__ = True")
        return name

    def _traceback(self, obj: types.TracebackType) -> str:
        owner = self._owner_of_traceback(obj)
        return "None" if owner is None else f"{self.value(owner)}.__traceback__"

    # -- code --

    def _function(self, obj: types.FunctionType) -> str:
        if _is_importable(obj):
            return self._constant(obj)
        closure = obj.__closure__
        cells = self.value(closure) if closure else "None"
        name = self._new(
            obj,
            f"{self._constant(types.FunctionType)}({self._constant(obj.__code__)}, "
            f"{self._constant_namespace(obj)}, {obj.__name__!r}, {self.value(obj.__defaults__)}, {cells})",
        )
        if obj.__kwdefaults__:
            self.lines.append(f"{name}.__kwdefaults__ = {self.value(obj.__kwdefaults__)}")
        code = obj.__code__
        written: Any = code.co_consts[0] if code.co_consts and isinstance(code.co_consts[0], str) else None
        usual = {"__qualname__": code.co_qualname, "__doc__": written, "__annotations__": {},
                 "__module__": obj.__globals__.get("__name__")}  # fmt: skip
        for attribute, value in usual.items():
            found = getattr(obj, attribute)
            if found != value:
                self.lines.append(f"{name}.{attribute} = {self.value(found)}")
        if obj.__dict__:
            self.lines.append(f"{name}.__dict__.update({self.value(dict(obj.__dict__))})")
        return name

    def _constant_namespace(self, function: types.FunctionType) -> str:
        source = self._source_of(function.__globals__)
        return self._fetch(source) if source is not None else self._constant(function.__globals__)

    def _cell(self, obj: types.CellType) -> str:
        name = self._new(obj, f"{self._constant(types.CellType)}()")
        try:
            contents = obj.cell_contents
        except ValueError:
            return name
        self.lines.append(f"{name}.cell_contents = {self.value(contents)}")
        return name

    def _method(self, obj: types.MethodType) -> str:
        parts = f"{self.value(obj.__func__)}, {self.value(obj.__self__)}"
        return self._new(obj, f"{self._constant(types.MethodType)}({parts})")

    def _bound_builtin(self, obj: Any) -> str:
        receiver = getattr(obj, "__self__", None)
        # A pybind11 function's receiver is its own description, not an object of the program.
        described = type(receiver).__module__.startswith("pybind11")
        if receiver is None or described or isinstance(receiver, (types.ModuleType, type)):
            return self._constant(obj)
        return self._new(obj, f"getattr({self.value(receiver)}, {obj.__name__!r})")

    def _super(self, obj: Any) -> str:
        return self._new(obj, f"super({self.value(obj.__thisclass__)}, {self.value(obj.__self__)})")

    def _wrapper(self, obj: Any) -> str:
        """A property, static method or class method: one of a class made here holds functions made here."""
        if isinstance(obj, property):
            parts = [obj.fget, obj.fset, obj.fdel]
        else:
            parts = [obj.__func__]
        if all(part is None or self._source_of(part) is not None for part in parts):
            return self._constant(obj)
        return self._new(obj, f"{self._constant(type(obj))}({self._items(parts)})")

    def _mapping_proxy(self, obj: Any) -> str:
        (mapping,) = gc.get_referents(obj)
        return self._new(obj, f"{self._constant(types.MappingProxyType)}({self.value(mapping)})")

    # -- classes made here --

    def _class(self, made: Any) -> str:
        """A class made in the segment is made again, empty first: its functions may refer to it."""
        cls = made.cls
        try:
            if made.recipe:
                entries = ", ".join(f"({k!r}, {self.value(v)})" for k, v in made.recipe["entries"])
                maker, keywords = self._constant(make_enum), self.value(made.recipe["keywords"])
                parts = f"{self.value(type(cls))}, {cls.__name__!r}, {self.value(cls.__bases__)}, [{entries}]"
                return self._new(cls, f"{maker}({parts}, {keywords})")
            first = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            if "__slots__" in cls.__dict__:
                first["__slots__"] = cls.__dict__["__slots__"]
            parts = (
                f"{self.value(type(cls))}, {cls.__name__!r}, {self.value(cls.__bases__)}, {self.value(first)}"
            )
            name = self._new(cls, f"{self._constant(bare_class)}({parts})")
            entries = ", ".join(
                f"({key!r}, {self.value(value)})"
                for key, value in cls.__dict__.items()
                if key not in GENERATED
                and key not in first
                and not isinstance(value, types.MemberDescriptorType)
            )
        except CannotRebuild as error:
            reason = f"the class {cls.__name__} outlives the segment and cannot be made again: {error}"
            raise Restart(made.born, "class_statement", reason) from error
        self.lines.append(f"{self._constant(fill_class)}({name}, [{entries}])")
        if "_abc_impl" in cls.__dict__:
            self.lines.append(f"{self._constant(_abc._abc_init)}({name})")
        return name

    # -- everything else --

    def _reduced(self, obj: Any) -> str:
        """By the pickle protocol's description of the object."""
        if is_module_global(obj):
            return self._constant(obj)
        try:
            described = obj.__reduce_ex__(4)
        except Exception as error:
            step, born = self.births.get(id(obj), (0, None))
            if born is obj:
                raise Restart(
                    step, "unsupported_value", f"a {type(obj).__name__} outlives the segment"
                ) from None
            raise CannotRebuild(f"a {type(obj).__module__}.{type(obj).__qualname__}: {error}") from error
        if isinstance(described, str):
            return self._constant(obj)
        function, args, state, items, pairs = (*described, None, None, None)[:5]
        self._alive.append(described)
        call = f"{self._constant(function)}({self._items(args)})"
        name = self._new(obj, call)
        if state is not None:
            self._restore_state(obj, name, state)
        if items is not None:
            for item in items:
                self.lines.append(f"{name}.append({self.value(item)})")
        if pairs is not None:
            for key, value in pairs:
                self.lines.append(f"{name}[{self.value(key)}] = {self.value(value)}")
        return name

    def _restore_state(self, obj: Any, name: str, state: Any) -> None:
        if hasattr(type(obj), "__setstate__"):
            # The position of an iterator is cut to the length of its list, which effects may still change.
            lines = self.late_lines if type(obj) in _POSITIONED else self.lines
            lines.append(f"{name}.__setstate__({self.value(state)})")
            return
        attributes, slots = state if type(state) is tuple and len(state) == 2 else (state, None)
        for key, value in (attributes or {}).items():
            self.lines.append(f"{name}.__dict__[{key!r}] = {self.value(value)}")
        for key, value in (slots or {}).items():
            self.lines.append(f"object.__setattr__({name}, {key!r}, {self.value(value)})")


_VIEWS: dict[type, str] = {
    type(getattr(kind(), name)()): name
    for kind in (dict, collections.OrderedDict)
    for name in ("keys", "values", "items")
}
_POSITIONED: tuple[type, ...] = (type(iter([])), type(reversed([])))


def is_module_global(obj: Any) -> bool:
    """Whether the module that defines an object's class holds it as one of its names: a sentinel, not a value."""
    module = sys.modules.get(type(obj).__module__)
    return module is not None and any(value is obj for value in list(vars(module).values()))


def _is_importable(function: types.FunctionType) -> bool:
    """Whether a function is what its module has under its name: then no trace made it."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
        found = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    return found is function


def _may_contain_itself(values: Any) -> bool:
    return any(
        isinstance(v, (list, dict, types.CellType, types.FunctionType)) or hasattr(v, "__dict__")
        for v in values
    )


_DICT_ITERATORS: dict[type, str] = {
    type(iter(getattr({}, name)())): name for name in ("keys", "values", "items")
}


def dict_iterator(mapping: dict[Any, Any], view: str, consumed: int, stale: bool) -> Any:
    """An iterator over a dictionary that has given `consumed` items. stale: its dictionary has changed size."""
    if stale:
        marker = object()
        mapping[marker] = None
        iterator = iter(getattr(mapping, view)())
        del mapping[marker]
        return iterator
    iterator = iter(getattr(mapping, view)())
    for _ in range(consumed):
        next(iterator)
    return iterator


def deque_iterator(kind: Any, held: Any, consumed: int, stale: bool) -> Any:
    """An iterator over a deque that has given `consumed` items. stale: the deque has changed since it was made."""
    iterator = kind(held, consumed)
    if stale and held:
        held.append(held.pop())
    return iterator


def _is_stale(iterator: Any) -> bool:
    """Whether an iterator with items left refuses to go on; it is advanced."""
    try:
        next(iterator)
    except RuntimeError:
        return True
    return False


def spent_iterator(kind: type) -> Any:
    """A dictionary iterator of this type that has ended."""
    iterator = iter(getattr({}, _DICT_ITERATORS[kind])())
    next(iterator, None)
    return iterator


def _at_end(iterator: Any, mapping: dict[Any, Any]) -> bool:
    """Whether an iterator without items left has seen all of its dictionary; it is spent afterwards."""
    try:
        next(iterator, None)
    except RuntimeError:
        return False
    return True


def new_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of this class with these arguments, made by the constructors of its base written in C."""
    made: BaseException = _c_method(kind, "__new__")(kind, *args)
    try:
        _c_method(kind, "__init__")(made, *args)
    except TypeError:
        made.args = args  # the class takes other arguments than those that it stored
    return made


def _c_method(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        found = base.__dict__.get(name)
        if found is not None and not isinstance(found, (types.FunctionType, staticmethod)):
            return getattr(base, name)
    raise TypeError(f"{kind.__qualname__} has no {name} written in C")


_MAKERS: dict[type, Callable[[Rebuilder, Any], str]] = {
    list: Rebuilder._list,
    tuple: Rebuilder._tuple,
    dict: Rebuilder._dict,
    set: Rebuilder._set,
    frozenset: Rebuilder._set,
    collections.deque: Rebuilder._deque,
    slice: Rebuilder._slice,
    types.FunctionType: Rebuilder._function,
    types.CellType: Rebuilder._cell,
    types.MethodType: Rebuilder._method,
    types.BuiltinFunctionType: Rebuilder._bound_builtin,
    types.MethodWrapperType: Rebuilder._bound_builtin,
    super: Rebuilder._super,
    _thread.RLock: lambda r, obj: r._new(obj, f"{r._constant(_thread.RLock)}()"),
    property: Rebuilder._wrapper,
    staticmethod: Rebuilder._wrapper,
    classmethod: Rebuilder._wrapper,
    types.MappingProxyType: Rebuilder._mapping_proxy,
    types.TracebackType: Rebuilder._traceback,
    type(iter(collections.deque())): Rebuilder._deque_iterator,
    type(reversed(collections.deque())): Rebuilder._deque_iterator,
    **dict.fromkeys(_VIEWS, Rebuilder._view),
    **dict.fromkeys(_DICT_ITERATORS, Rebuilder._dict_iterator),
}
