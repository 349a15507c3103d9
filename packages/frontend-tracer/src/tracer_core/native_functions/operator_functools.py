"""The operator module, functools, and callable objects with their own call semantics."""

from __future__ import annotations

import _operator
import collections
import dataclasses
import dis
import functools
import gc
import inspect
import operator
import reprlib
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import Frame, LazyValue, contents
from tracer_core.guards.cached_calls import WithRest
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import SourceKind
from tracer_core.guards.value_kinds import instances_have, is_constant
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import (
    CALLED_CODES,
    CALLED_TYPES,
    PURE,
    SHALLOW,
    breaks,
    declare,
    special,
    special_rows,
)
from tracer_core.native_effects.pure_functions import outside_reads
from tracer_core.native_functions.prints_logs_warnings import LOGGING, logs_as_before
from tracer_core.trace import special_methods
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.guarded_calls import applied, query
from tracer_core.trace.specialization_constants import is_constant_code, is_specialization_constant
from tracer_core.trace.tracer import Tracer

# -- the operator module --

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
_UNARY = {"neg": "-", "pos": "+", "invert": "~", "inv": "~"}
_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)


@special_rows({getattr(operator, name): (symbol,) for name, symbol in _BINARY.items()})
@special_rows(
    {getattr(operator, f"i{name.rstrip('_')}"): (f"{sign}=",) for name, sign in _BINARY.items()}
)
def binary(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    return tracer.operators.binary(symbol, left, right)


@special_rows({operator.concat: ("+",), operator.iconcat: ("+=",)})
def concatenate(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    """Concatenates sequences; C handles numbers and objects with ``__add__``."""
    if not (isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES)):
        tracer.break_graph(
            "native_python", f"concat() of a {type(left).__name__} and a {type(right).__name__}"
        )
    return tracer.operators.binary(symbol, left, right)


@special_rows({getattr(operator, name): (symbol,) for name, symbol in _COMPARE.items()})
def compare(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    return tracer.operators.compare(symbol, left, right)


@special_rows({getattr(operator, name): (symbol,) for name, symbol in _UNARY.items()})
def unary(tracer: Tracer, symbol: str, value: Any) -> Any:
    return tracer.operators.unary(symbol, value)


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    operator.abs: lambda tracer, value: tracer.calls.call_value(abs, [value], {}),
    operator.not_: lambda tracer, value: not tracer.operators.to_bool(value),
    operator.truth: lambda tracer, value: tracer.operators.to_bool(value),
    operator.is_: lambda tracer, left, right: tracer.operators.same(left, right),
    operator.is_not: lambda tracer, left, right: not tracer.operators.same(left, right),
    operator.index: lambda tracer, value: operator.index(tracer.operators.index(value)),
    operator.getitem: lambda tracer, *args: tracer.containers.getitem(*args),
    operator.setitem: lambda tracer, *args: tracer.containers.setitem(*args),
    operator.delitem: lambda tracer, *args: tracer.containers.delitem(*args),
    operator.contains: lambda tracer, held, item: tracer.containers.contains(item, held),
    operator.call: lambda tracer, f, /, *args, **kw: tracer.calls.prepare(f, [*args], kw),
}
#: Name of a function that came with CPython 3.14 -> handler.
_LATER: dict[str, Callable[..., Any]] = {
    "is_none": lambda tracer, value: tracer.operators.same(value, None),
    "is_not_none": lambda tracer, value: not tracer.operators.same(value, None),
}
for _function, _handler in _OPERATIONS.items():
    special(_function)(_handler)
for _name, _handler in _LATER.items():
    if hasattr(operator, _name):
        special(getattr(operator, _name))(_handler)
declare(PURE, [_operator._compare_digest])
declare(SHALLOW, [operator.itemgetter, operator.attrgetter, operator.methodcaller])


@special(operator.length_hint)
def length_hint(tracer: Tracer, value: Any, default: Any = 0) -> Any:
    if type(default) is not int:
        tracer.break_graph("native_python", f"length_hint() with a {type(default).__name__}")
    asks = tracer.entries.python_method(value, "__length_hint__")
    if asks or not instances_have(type(value), "__len__"):
        tracer.break_graph("unknown_native", f"length_hint() of a {type(value).__name__}")
    return tracer.calls.call_value(len, [value], {})


@special(operator.countOf)
def count_of(tracer: Tracer, items: Any, value: Any) -> int:
    return sum(
        special_methods.same_value(tracer, item, value) for item in tracer.containers.stream(items)
    )


@special(operator.indexOf)
def index_of(tracer: Tracer, items: Any, value: Any) -> int:
    for i, item in enumerate(tracer.containers.stream(items)):
        if special_methods.same_value(tracer, item, value):
            return i
    raise ValueError("sequence.index(x): x not in sequence")


# -- functools --


@special(functools.reduce)
def reduce_of(tracer: Tracer, function: Any, iterable: Any, *initial: Any) -> Any:
    items = tracer.containers.native_iterator(tracer.containers.iterate(iterable))
    result = initial[0] if initial else next(items, ABSENT)
    if result is ABSENT:
        raise TypeError("reduce() of empty iterable with no initial value")
    for item in items:
        result = tracer.calls.call_value(function, [result, item], {})
    return result


@special(functools.partial)
def partial_of(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return functools.partial(function, *args, **kwargs)


@special(functools.cmp_to_key)
def cmp_to_key(tracer: Tracer, mycmp: Any) -> Any:
    return functools.cmp_to_key(lambda a, b: tracer.calls.call_value(mycmp, [a, b], {}))


breaks(
    "native_python",
    "a cache of results is made, which lives outside the program",
    [functools.lru_cache],
)


# -- callable objects --


def _call_partial(tracer: Tracer, partial: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    source = tracer.provenance.source_of(partial)
    slots = {name: getattr(partial, name) for name in ("func", "args", "keywords")}
    if source is not None:
        for name, value in slots.items():
            slot = tracer.provenance.sources.slot(source, name)
            slots[name] = tracer.provenance.read_varying(value, slot)
    first = tracer.containers.spread(slots["args"])
    named = tracer.containers.mapping(slots["keywords"])
    return tracer.calls.prepare(slots["func"], [*first, *args], {**named, **kwargs})


def _call_weakref(tracer: Tracer, reference: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = reference()
    source = tracer.provenance.source_of(reference)
    if source is None:
        return value
    tracer.provenance.follows_late = True
    return tracer.provenance.read(value, tracer.provenance.sources.make(source, SourceKind.CALLED))


def _title(cached: Any) -> str:
    """Returns the name of a cached function; that of a partial has none."""
    return str(getattr(cached, "__qualname__", type(cached.__wrapped__).__name__))


def _call_cached(tracer: Tracer, cached: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """functools.lru_cache: guards the cached answer, which is repeated on every call. So a cleared
    or outdated cache gives eager's answer."""
    code = getattr(cached.__wrapped__, "__code__", None)
    if code is not None and _changes_state(code):
        tracer.break_graph(
            "native_python", f"the cached function {_title(cached)} changes what is outside it"
        )
    values = [*args, *kwargs.values()]
    odd = [value for value in values if not is_constant_code(tracer, value)]
    if not odd:
        _check_miss(tracer, cached, args, kwargs)
        return _query(tracer, query, _guarded_query(tracer, cached, args, kwargs))
    if all(isinstance(value, torch.Tensor) and torch_private.is_fake(value) for value in odd):
        return tracer.calls.prepare(
            cached.__wrapped__, args, kwargs
        )  # a new tensor is never in a cache
    first = args[0] if args else None
    if (
        len(odd) == 1
        and first is odd[0]
        and not tracer.provenance.is_fresh(first)
        and tracer.operators.is_identity_comparable(first)
    ):
        _check_miss(tracer, cached, args, kwargs)
        return _query(
            tracer, applied, _guarded_query(tracer, cached, args[1:], kwargs, WithRest), first
        )
    if all(is_specialization_constant(tracer, value) for value in odd):
        _check_miss(tracer, cached, args, kwargs)
        return _query(tracer, query, _guarded_query(tracer, cached, args, kwargs))
    tracer.break_graph(
        "native_python", f"the cached function {_title(cached)} is called with objects as keys"
    )


#: Methods that change their object.
_CHANGING = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove"),
        *("discard", "add", "update", "clear", "setdefault", "sort", "reverse", "write"),
    }
)


@functools.cache
def _changes_state(code: types.CodeType) -> bool:
    """Returns whether code visibly changes variables or objects from outside it: the answer is
    asked for again before every call, which would be too early."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    outside = [False, False]  # whether the last two instructions load something from outside
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in ("CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"):
            continue
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"):
            return True
        if name in ("STORE_DEREF", "DELETE_DEREF") and value in code.co_freevars:
            return True
        if outside[-1] and name in ("LOAD_METHOD", "LOAD_ATTR") and value in _CHANGING:
            return True
        if name in ("STORE_SUBSCR", "DELETE_SUBSCR") and any(outside[-2:]):
            return True
        outside.append(
            name.startswith("LOAD_GLOBAL")
            or (name == "LOAD_DEREF" and value in code.co_freevars)
            or (name.startswith("LOAD_FAST") and value in arguments)
        )
    return False


def _guarded_query(
    tracer: Tracer,
    cached: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    kind: Any = functools.partial,
) -> Any:
    """Returns the call as an object, one per distinct call, so that it is guarded once."""
    handle = _handle(cached, args, kwargs, kind)
    return tracer.native_calls.queries.setdefault(handle, kind(cached, *args, **kwargs))


def _handle(cached: Any, args: list[Any], kwargs: Any, kind: Any = functools.partial) -> Any:
    values = (*args, *kwargs.values())
    return kind, id(cached), len(args), values, repr(values), tuple(kwargs)


def _query(tracer: Tracer, guarded: Any, *parts: Any) -> Any:
    try:
        return guarded(tracer, *parts)
    except Exception as error:
        tracer.break_graph("native_python", f"a cached function raised {type(error).__name__}")


#: Modules whose cached functions read nothing that a program changes: type expressions (torch's
#: profiler looks up an `Optional["..."]` in an optimizer's first step), and which packages of which
#: versions are installed (a mixture of experts asks in its first layer).
_LOOK_UPS = frozenset(
    {"typing", "transformers.utils.import_utils", "diffusers.utils.import_utils",
     "accelerate.utils.imports", "peft.import_utils"}
)  # fmt: skip


def _check_miss(tracer: Tracer, cached: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Breaks the graph on a cache miss while side effects are pending, since the function then runs
    for real. Exempt are functions that read nothing of what has changed: those of `_LOOK_UPS`, those
    whose code says so (einops parses each pattern once), and those that log a message once."""
    module = getattr(cached.__wrapped__, "__globals__", {}).get("__name__")
    if not tracer.effects.changes or module in _LOOK_UPS:
        return
    if _reads_no_change(tracer, cached.__wrapped__, [*args, *kwargs.values()]):
        return
    if _logs_alone(cached.__wrapped__) and logs_as_before(tracer, *args, *kwargs.values()):
        return
    if not cached.cache_parameters()["typed"] and _is_cached(cached, args, kwargs):
        return
    if tracer.native_calls.queries.get(_handle(cached, args, kwargs)) is None:
        tracer.break_graph(
            "native_python", f"the cached function {_title(cached)} runs after a change of state"
        )


@functools.cache
def _logs_alone(function: Any) -> bool:
    """Returns whether a function does nothing but hand its arguments to a method of the first of
    them that logs, as transformers' `warning_once` does."""
    if type(function) is not types.FunctionType:
        return False
    names = [item for item in dis.get_instructions(function.__code__) if item.argval in LOGGING]
    code = function.__code__
    return (
        len(names) == 1
        and len(code.co_names) == 1
        and not (code.co_freevars or code.co_cellvars or set(code.co_consts[1:]) - {None})
        and _PASSES_ON.issuperset(instruction.opname for instruction in dis.get_instructions(code))
    )


#: Instructions of a function that calls one method with its arguments.
_PASSES_ON = frozenset(
    {
        *("RESUME", "CACHE", "PUSH_NULL", "NOP", "EXTENDED_ARG", "POP_TOP", "PRECALL", "KW_NAMES"),
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST", "LOAD_CONST", "LOAD_METHOD"),
        *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_ATTR", "BUILD_MAP", "BUILD_TUPLE"),
        *("DICT_MERGE", "LIST_EXTEND", "BUILD_LIST", "LIST_TO_TUPLE", "CALL_INTRINSIC_1"),
        *("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RETURN_VALUE", "RETURN_CONST"),
    }
)


def _is_cached(cached: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether a cache, which is not typed, has the answer to a call."""
    tables = [r for r in gc.get_referents(cached) if type(r) is dict and r is not cached.__dict__]
    if not kwargs:
        alone = len(args) == 1 and type(args[0]) in (int, str)
        key = args[0] if alone else tuple(args)
        return any(key in table for table in tables)
    named = tuple(part for pair in kwargs.items() for part in pair)
    for table in tables:
        for key in list(table):  # a mark, which is an object(), stands before the keywords
            if type(key) is tuple and len(key) == len(args) + 1 + len(named):
                if type(mark := key[len(args)]) is object and (*args, mark, *named) in table:
                    return True
    return False


def _reads_no_change(tracer: Tracer, function: Any, values: list[Any]) -> bool:
    """Returns whether a function's result hangs on constants and on nothing that the program has
    changed."""
    if type(function) is not types.FunctionType or not all(map(is_constant, values)):
        return False
    read = outside_reads(function)
    changed = {id(change.obj) for change in tracer.effects.changes.values()}
    return read is not None and changed.isdisjoint(map(id, read))


def _arguments(tracer: Tracer, getter: Any) -> tuple[Any, ...]:
    """Returns the getter's constructor arguments; it is immutable, so its identity is guarded."""
    source = tracer.provenance.source_of(getter)
    if source is not None:
        tracer.provenance.guard(GuardKind.IS, source, getter)
    return tuple(getter.__reduce__())


def _call_itemgetter(tracer: Tracer, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return getter(*args, **kwargs)  # raises Python's own error
    items = tuple(tracer.containers.getitem(args[0], key) for key in _arguments(tracer, getter)[1])
    return items if len(items) > 1 else items[0]


def _call_attrgetter(tracer: Tracer, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return getter(*args, **kwargs)
    result = []
    for path in _arguments(tracer, getter)[1]:
        value = args[0]
        for name in path.split("."):
            value = tracer.attributes.getattr(value, name)
        result.append(value)
    return tuple(result) if len(result) > 1 else result[0]


def _call_methodcaller(tracer: Tracer, caller: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return caller(*args, **kwargs)
    described = _arguments(tracer, caller)
    if described[0] is operator.methodcaller:
        (name, *rest), named = described[1], {}
    else:  # a partial of methodcaller that holds the keywords
        maker, rest = described[0], list(described[1])
        name, named = maker.args[0], maker.keywords
        rest = [*maker.args[1:], *rest]
    return tracer.calls.prepare(tracer.attributes.getattr(args[0], name), rest, dict(named))


CALLED_TYPES.update({
    # functools.cmp_to_key's key function: its keys call back into the tracer.
    type(functools.cmp_to_key(lambda a, b: 0)): lambda tracer, function, args,
    kwargs: function(*args, **kwargs),
    functools.partial: _call_partial,
    weakref.ReferenceType: _call_weakref,
    functools._lru_cache_wrapper: _call_cached,
    operator.itemgetter: _call_itemgetter,
    operator.attrgetter: _call_attrgetter,
    operator.methodcaller: _call_methodcaller,
})  # fmt: skip


# -- Python functions recognized by their code --


def _call_generic(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a functools.singledispatch function."""
    if not args:
        raise TypeError(f"{function.__name__} requires at least 1 positional argument")
    cls = tracer.attributes.getattr(args[0], "__class__")
    implementation = _dispatch(tracer, function.dispatch, [cls], {})
    return tracer.calls.prepare(implementation, args, kwargs)


def _dispatch(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``generic.dispatch(cls)``: guards the registry's answer."""
    cache = inspect.getclosurevars(function).nonlocals.get("dispatch_cache")
    if type(cache) is not weakref.WeakKeyDictionary:  # each question would run the program's code
        tracer.break_graph("unknown_native", f"a {type(cache).__name__} caches what is dispatched")
    return query(tracer, functools.partial(function, *args, **kwargs))


def _call_wrapped(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """recursive_repr: the repr of an object, which a thread does not compute inside itself."""
    outer = inspect.getclosurevars(function).nonlocals
    wrapped = outer["user_function"]
    for frame in tracer.frames if args else ():
        if frame.function is wrapped and _argument(frame) is args[0]:
            return outer.get("fillvalue", "...")
    return tracer.calls.prepare(wrapped, args, kwargs)


def _argument(frame: Frame) -> Any:
    """Returns a frame's first variable."""
    held = frame.locals[0]
    if isinstance(held, types.CellType):
        held = contents(held)
    return held.value if type(held) is LazyValue else held


def _call_cached_property(
    tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    return tracer.calls.prepare(polyfills.cached_property_get, args, kwargs)


_generic: Any = functools.singledispatch(lambda value: value)
CALLED_CODES[_generic.__code__] = _call_generic
CALLED_CODES[_generic.dispatch.__code__] = _dispatch
for _maker in (
    reprlib.recursive_repr(),
    getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr()),
):
    CALLED_CODES[_maker(lambda self: "").__code__] = _call_wrapped
CALLED_CODES[functools.cached_property.__get__.__code__] = _call_cached_property
