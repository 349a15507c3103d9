"""The operator module: functions, and the getter and caller objects that it makes."""

from __future__ import annotations

import _operator
import collections
import operator
from typing import Any

from tracer_core.guards.guard import GuardKind
from tracer_core.natives.effects import PURE, SHALLOW, declare, special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import special_methods

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}


def _binary(symbol: str) -> Any:
    return lambda tracer, args, kwargs: tracer.operators.binary(symbol, *args)


def _compare(symbol: str) -> Any:
    return lambda tracer, args, kwargs: tracer.operators.compare(symbol, *args)


for _name, _symbol in _BINARY.items():
    special(getattr(operator, _name))(_binary(_symbol))
    _inplace = f"i{_name.rstrip('_')}"
    special(getattr(operator, _inplace))(_binary(f"{_symbol}="))
for _concat, _symbol in ((operator.concat, "+"), (operator.iconcat, "+=")):
    special(_concat)(
        lambda tracer, args, kwargs, _symbol=_symbol: _concatenated(tracer, _symbol, *args)
    )
for _name, _symbol in _COMPARE.items():
    special(getattr(operator, _name))(_compare(_symbol))
special(operator.neg)(lambda tracer, args, kwargs: tracer.operators.unary("-", *args))
special(operator.pos)(lambda tracer, args, kwargs: tracer.operators.unary("+", *args))
special(operator.invert)(lambda tracer, args, kwargs: tracer.operators.unary("~", *args))
special(operator.inv)(lambda tracer, args, kwargs: tracer.operators.unary("~", *args))
special(operator.abs)(lambda tracer, args, kwargs: tracer.calls.call_value(abs, args, {}))
special(operator.not_)(lambda tracer, args, kwargs: not tracer.operators.truth(args[0]))
special(operator.truth)(lambda tracer, args, kwargs: tracer.operators.truth(args[0]))
special(operator.getitem)(lambda tracer, args, kwargs: tracer.containers.getitem(*args))
special(operator.setitem)(lambda tracer, args, kwargs: tracer.containers.setitem(*args))
special(operator.delitem)(lambda tracer, args, kwargs: tracer.containers.delitem(*args))
special(operator.contains)(
    lambda tracer, args, kwargs: tracer.containers.contains(args[1], args[0])
)
special(operator.is_)(lambda tracer, args, kwargs: tracer.operators.same(*args))
special(operator.is_not)(lambda tracer, args, kwargs: not tracer.operators.same(*args))
special(operator.index)(
    lambda tracer, args, kwargs: operator.index(tracer.operators.index(args[0]))
)
special(operator.call)(lambda tracer, args, kwargs: tracer.calls.prepare(args[0], args[1:], kwargs))
special(operator.length_hint)(lambda tracer, args, kwargs: _length_hint(tracer, *args))
special(operator.countOf)(lambda tracer, args, kwargs: _count_of(tracer, *args))
special(operator.indexOf)(lambda tracer, args, kwargs: _index_of(tracer, *args))
declare(PURE, [_operator._compare_digest])
declare(SHALLOW, [operator.itemgetter, operator.attrgetter, operator.methodcaller])


def _concatenated(tracer: Tracing, symbol: str, left: Any, right: Any) -> Any:
    """Concatenates sequences; C handles numbers and objects with ``__add__``."""
    if not (isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES)):
        tracer.break_graph(
            "native_python", f"concat() of a {type(left).__name__} and a {type(right).__name__}"
        )
    return tracer.operators.binary(symbol, left, right)


_SEQUENCES = (list, tuple, str, bytes, bytearray, collections.deque)


def _length_hint(tracer: Tracing, value: Any, default: int = 0) -> Any:
    if type(default) is not int:
        tracer.break_graph("native_python", f"length_hint() with a {type(default).__name__}")
    if tracer.entries.python_method(value, "__length_hint__") or not hasattr(
        type(value), "__len__"
    ):
        tracer.break_graph("unknown_native", f"length_hint() of a {type(value).__name__}")
    return tracer.calls.call_value(len, [value], {})


def _count_of(tracer: Tracing, items: Any, value: Any) -> int:
    return sum(
        special_methods.same_value(tracer, item, value) for item in tracer.containers.spread(items)
    )


def _index_of(tracer: Tracing, items: Any, value: Any) -> int:
    for i, item in enumerate(tracer.containers.spread(items)):
        if special_methods.same_value(tracer, item, value):
            return i
    raise ValueError("sequence.index(x): x not in sequence")


# -- getters: callable objects
# -------------------------------------------------------------------


def _parts(tracer: Tracing, getter: Any) -> tuple[Any, ...]:
    """Returns the getter's constructor arguments; it is immutable, so its identity is guarded."""
    source = tracer.provenance.source_of(getter)
    if source is not None:
        tracer.provenance.guard(GuardKind.IS, source, getter)
    return tuple(getter.__reduce__())


def call_itemgetter(tracer: Tracing, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return getter(*args, **kwargs)  # raises Python's own error
    found = tuple(tracer.containers.getitem(args[0], key) for key in _parts(tracer, getter)[1])
    return found if len(found) > 1 else found[0]


def call_attrgetter(tracer: Tracing, getter: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return getter(*args, **kwargs)
    found = []
    for path in _parts(tracer, getter)[1]:
        value = args[0]
        for name in path.split("."):
            value = tracer.attributes.getattr(value, name)
        found.append(value)
    return tuple(found) if len(found) > 1 else found[0]


def call_methodcaller(tracer: Tracing, caller: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return caller(*args, **kwargs)
    described = _parts(tracer, caller)
    if described[0] is operator.methodcaller:
        (name, *rest), named = described[1], {}
    else:  # a partial of methodcaller that holds the keywords
        maker, rest = described[0], list(described[1])
        name, named = maker.args[0], maker.keywords
        rest = [*maker.args[1:], *rest]
    return tracer.calls.prepare(tracer.attributes.getattr(args[0], name), rest, dict(named))
