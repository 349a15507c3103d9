"""Built-in functions and methods that call special methods of the program's objects."""

from __future__ import annotations

import _thread
import collections
import functools
import math
from typing import Any

import torch

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives.effects import PURE, declare, special
from tracer_core.natives.tables.frames import break_for_variables
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import special_methods
from tracer_core.trace.scalars import SYMBOLS

_NUMBERS = (int, float, complex, bool)


def _asks(name: str, function: Any) -> Any:
    """Handles a function of one object (and plain arguments) that calls one special method."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        method = tracer.entries.python_method(args[0], name) if args else None
        if method is not None:
            return tracer.calls.call_value(method, [*args, *kwargs.values()], {})
        if args and isinstance(args[0], SYMBOLS) and not kwargs:
            return tracer.scalars.operate(function, tuple(args))
        return _numeric(function)(tracer, args, kwargs)

    return handler


def _numeric(function: Any) -> Any:
    """Handles a function of numbers: converts objects with ``__index__`` to ints."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(a, torch.Tensor) for a in args):
            return tracer.native_calls.native(function, *args, **kwargs)
        plain = [
            tracer.scalars.payload(tracer.operators.index(tracer.scalars.concrete(a))) for a in args
        ]
        tracer.native_calls.native_reads(*plain, *kwargs.values())
        if not all(map(is_constant, plain)):
            for value in plain:
                if not isinstance(value, _NUMBERS) and type(value).__module__ not in (
                    "builtins",
                    "fractions",
                    "decimal",
                ):
                    if not tracer.entries.lacks(value, "__index__", "__float__"):
                        tracer.break_graph(
                            "unknown_native", f"{function.__name__} of a {type(value).__name__}"
                        )
        return function(*plain, **kwargs)

    return handler


special(abs)(_asks("__abs__", abs))
special(round)(_asks("__round__", round))
for _function in (bin, hex, oct, chr):
    special(_function)(_numeric(_function))


@special(divmod)
def divmod_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and tracer.scalars.symbolic and tracer.scalars.operates(*args):
        return tracer.operators.binary("//", *args), tracer.operators.binary("%", *args)
    return _binary(tracer, "divmod", divmod, "divmod()", args)


@special(pow)
def pow_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 3:
        method = tracer.entries.python_method(args[0], "__pow__")
        if method is not None:
            return tracer.calls.call_value(method, args, {})
        return _numeric(pow)(tracer, args, kwargs)
    if len(args) == 2 and not kwargs:
        return tracer.operators.binary("**", *args)
    return _numeric(pow)(tracer, args, kwargs)


def _binary(tracer: Tracing, name: str, function: Any, shown: str, args: list[Any]) -> Any:
    left, right = args
    order = [(left, f"__{name}__", right), (right, f"__r{name}__", left)]
    if type(left) is type(right):
        order.pop()
    elif issubclass(type(right), type(left)):
        order.reverse()
    asked = False
    for receiver, method_name, other in order:
        method = tracer.entries.python_method(receiver, method_name)
        if method is not None:
            asked = True
            result = tracer.calls.call_value(method, [receiver, other], {})
            if result is not NotImplemented:
                return result
    if asked:
        kinds = " and ".join(f"'{tracer.exceptions.type_name(value)}'" for value in (left, right))
        raise TypeError(f"unsupported operand type(s) for {shown}: {kinds}")
    return _numeric(function)(tracer, args, {})


@special(ascii)
def ascii_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> str:
    return (
        special_methods.repr_of(tracer, args[0]).encode("ascii", "backslashreplace").decode("ascii")
    )


@special(dir)
def dir_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    method = tracer.entries.python_method(args[0], "__dir__") if args else None
    if not args:
        break_for_variables(tracer, dir)
    if method is None:
        tracer.break_graph("native_python", "dir() lists names that are not guarded")
    return tracer.calls.call_value(sorted, [tracer.calls.call_value(method, [args[0]], {})], {})


# -- sequence methods that compare items
# -------------------------------------------------------------------------


def _equal_items(tracer: Tracing, container: Any, wanted: Any) -> Any:
    """Yields (position, item) of each item that equals `wanted`."""
    position = 0
    while position < tracer.reads.length(container):
        item = tracer.reads.list_item(container, position)
        if special_methods.same_value(tracer, item, wanted):
            yield position, item
        position += 1


@special(list.count, tuple.count, collections.deque.count)
def count(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    return sum(1 for _ in _equal_items(tracer, *args))


@special(list.index, tuple.index, collections.deque.index)
def index(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    container, wanted, *limits = args
    if any(type(limit) is not int for limit in limits):
        tracer.break_graph("native_python", "index() within limits that are no plain integers")
    start, stop, _ = slice(*limits,
    *(() if len(limits) == 2 else (None,))).indices(len(container)) if limits else (
        0, None, 1)  # fmt: skip
    if len(limits) == 1:
        start, stop = (limits[0] if limits[0] >= 0 else max(0, len(container) + limits[0])), None
    for position, _item in _equal_items(tracer, container, wanted):
        if position >= start and (stop is None or position < stop):
            return int(position)
    if isinstance(container, tuple):
        raise ValueError("tuple.index(x): x not in tuple")
    raise ValueError(
        f"{special_methods.repr_of(tracer, wanted)} is not in {type(container).__name__}"
    )


@special(list.remove, collections.deque.remove)
def remove(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    container, wanted = args
    for position, _item in _equal_items(tracer, container, wanted):
        tracer.side_effects.before_change(container)
        del container[position]
        return
    if isinstance(container, list):
        raise ValueError("list.remove(x): x not in list")
    tracer.break_graph("native_python", "what is removed is not in the deque")


@special(list.__contains__, tuple.__contains__, collections.deque.__contains__)
def contains(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return any(True for _ in _equal_items(tracer, *args))


def _compares(symbol: str, *kinds: type) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        left, right = args
        if not any(isinstance(left, kind) and isinstance(right, kind) for kind in kinds):
            return NotImplemented
        if symbol in ("==", "!="):
            return special_methods.equal(tracer, left, right) == (symbol == "==")
        return special_methods.order(tracer, symbol, left, right)

    return handler


special(list.__eq__, tuple.__eq__, dict.__eq__, collections.OrderedDict.__eq__)(
    _compares("==", list, tuple, dict)
)
special(list.__ne__, tuple.__ne__, dict.__ne__)(_compares("!=", list, tuple, dict))
special(list.__lt__, tuple.__lt__)(_compares("<", list, tuple))
special(list.__le__, tuple.__le__)(_compares("<=", list, tuple))
special(list.__gt__, tuple.__gt__)(_compares(">", list, tuple))
special(list.__ge__, tuple.__ge__)(_compares(">=", list, tuple))


@special(tuple.__hash__, frozenset.__hash__)
def container_hash(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    return special_methods.hash_of(tracer, args[0])


@special(list.__repr__, tuple.__repr__, dict.__repr__, set.__repr__, object.__str__)
def container_repr(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> str:
    return special_methods.repr_of(tracer, args[0])


@special(str.__mod__)
def percent(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> str:
    return special_methods.percent(tracer, *args)


@special(functools.cmp_to_key)
def cmp_to_key(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = args[0] if args else kwargs["mycmp"]
    return functools.cmp_to_key(lambda a, b: tracer.calls.call_value(function, [a, b], {}))


# -- explicit descriptor calls
# -------------------------------------------------------------------------------------


@special(classmethod.__get__, staticmethod.__get__)
def descriptor_get(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    raw, obj, *rest = args
    return tracer.attributes.get_descriptor(raw, obj, rest[0] if rest else type(obj), "__func__")


@special(property.__delete__)
def property_delete(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    if args[0].fdel is None:
        tracer.break_graph("native_python", "a property without a deleter says its name")
    tracer.calls.call_value(args[0].fdel, [args[1]], {})


# -- identities
# ----------------------------------------------------------------------------------------------------

#: Modules that use an object's id and the thread id to detect recursive reprs.
_REPR_GUARDS = frozenset({"dataclasses", "reprlib"})


def _only_guards(function: Any, reason: str) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if tracer.frames[-1].globals.get("__name__") in _REPR_GUARDS:
            return function(*args)
        tracer.break_graph("unknown_native", f"{function.__name__}: {reason}")

    return handler


special(id)(_only_guards(id, "the address of an object differs between calls"))
special(_thread.get_ident)(_only_guards(_thread.get_ident, "the thread differs between calls"))


@special(_thread.RLock)
def new_lock(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _thread.RLock()


# -- math
# --------------------------------------------------------------------------------------------------------

for _name, _method in (("floor", "__floor__"), ("ceil", "__ceil__"), ("trunc", "__trunc__")):
    special(getattr(math, _name))(_asks(_method, getattr(math, _name)))


# -- exception groups
# ----------------------------------------------------------------------------------------------


def _of_group(method: Any) -> Any:
    """split and subgroup: the condition may be a user function."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        group, condition = args
        tracer.exceptions.look_into(group)
        if tracer.entries.python_method(group, "derive"):
            tracer.break_graph(
                "unknown_native", f"{type(group).__name__}.derive is asked by {method.__name__}"
            )
        if not isinstance(condition, (type, tuple)):
            function, condition = (
                condition,
                lambda error: tracer.operators.truth(
                    tracer.calls.call_value(function, [error], {})
                ),
            )
        parts = method(group, condition)
        for part in parts if isinstance(parts, tuple) else (parts,):
            if part is not None and part is not group:
                tracer.exceptions.same_history(group, part)
        return parts

    return handler


for _split in (BaseExceptionGroup.split, BaseExceptionGroup.subgroup):
    special(_split)(_of_group(_split))
declare(PURE, [BaseExceptionGroup.derive])


@special(BaseException.add_note)
def add_note(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    error, note = args
    if not tracer.provenance.is_fresh(error):
        tracer.break_graph(
            "unsupported_mutation", "a note is added to an exception from before this segment"
        )
    tracer.side_effects.mutations += 1
    error.add_note(note)
