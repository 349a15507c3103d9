"""Values of a loop body: an interned DAG of ops from `inductor_backend.ir.ops`.

In: an op name, argument values and an attribute. Out: `Value`. What always holds: equal values are
the same object (so common subexpressions vanish by construction and comparison is identity), every
value knows its dtype and the loop variables it depends on, and building an op that `OPS` lacks
raises.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index, substitute
from inductor_backend.ir.ops import OPS, compute_dtype


class Value:
    """One op. name, args, attr as `OPS` says; dtype: of the result; variables: loop variables
    needed.
    """

    __slots__ = ("__weakref__", "args", "attr", "dtype", "name", "operands", "variables")

    variables: frozenset[int]

    def __init__(self, name: str, args: tuple[Value, ...], attr: Any, dtype: torch.dtype) -> None:
        self.name, self.args, self.attr, self.dtype = name, args, attr, dtype
        needed: frozenset[int] = frozenset()
        for arg in args:
            needed |= arg.variables
        indices = self.indices()
        for index in indices:
            needed |= index.variables()
        self.variables = needed
        #: Every value that must be computed first: arguments and what the indices read.
        self.operands: tuple[Value, ...] = (
            *args, *(value for index in indices for value in index.indirect_values())
        )  # fmt: skip

    def indices(self) -> tuple[Index, ...]:
        """The index expressions in the attribute."""
        if self.name in ("load", "masked_load"):
            indices: tuple[Index, ...] = self.attr[1]
            return indices
        return (self.attr,) if self.name == "index" else ()

    @property
    def buffer(self) -> str:
        """The buffer that a load reads."""
        name: str = self.attr[0]
        return name

    def __repr__(self) -> str:
        inside = [repr(arg) for arg in self.args]
        if self.attr is not None:
            inside.append(str(self.attr))
        return f"{self.name}({', '.join(inside)})"


_INTERNED: weakref.WeakValueDictionary[Any, Value] = weakref.WeakValueDictionary()


_NEUTRAL_OPS = frozenset({"add", "sub", "mul", "div"})


def make(name: str, *args: Value, attr: Any = None) -> Value:
    """The value of that op. Raises KeyError for an unknown op, ValueError for a wrong arity."""
    if name in _NEUTRAL_OPS and len(args) == 2:
        same = _neutral(name, args)
        if same is not None:
            return same
    if name == "round_to" and args[0].name == name and args[0].attr == attr:
        return args[0]
    if name == "round_to" and args[0].name == "constant":
        number, dtype = args[0].attr
        rounded = torch.tensor(number, dtype=dtype).to(attr).item()
        return make("constant", attr=(rounded, dtype))
    key = (name, args, attr) if name != "constant" else (name, attr, str(attr[0]), type(attr[0]))
    result = _INTERNED.get(key)
    if result is not None:
        return result
    spec = OPS[name]
    if spec.arity != len(args):
        raise ValueError(f"op {name!r} takes {spec.arity} values, got {len(args)}")
    return _INTERNED.setdefault(
        key, Value(name, args, attr, spec.dtype([a.dtype for a in args], attr))
    )


def _is_constant(value: Value, number: int) -> bool:
    return value.name == "constant" and value.attr[0] == number


def _neutral(name: str, args: tuple[Value, ...]) -> Value | None:
    """The operand that the op returns unchanged, bit for bit (so not float + 0: -0.0 would become
    0.0).
    """
    if name in ("mul", "div") and _is_constant(args[1], 1):
        return args[0]
    if name == "mul" and _is_constant(args[0], 1):
        return args[1]
    if name in ("add", "sub") and _is_constant(args[1], 0) and not args[0].dtype.is_floating_point:
        return args[0]
    return None


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """A float that the call brings."""

    #: What computes it in the generated module.
    text: str
    #: Where kernels read it, a float64 without dimensions.
    buffer: str


def const(value: Any, dtype: torch.dtype) -> Value:
    """A constant of the compute dtype of `dtype`, or a number of the call (`ScalarValue`, an
    expression over sizes).
    """
    dtype = compute_dtype(dtype)
    if isinstance(value, ScalarValue):
        return cast(load(value.buffer, (), torch.float64), dtype)
    if hasattr(value, "free_symbols"):
        return cast(make("index", attr=Index(value)), dtype)
    if dtype == torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    return make("constant", attr=(value, dtype))


def load(buffer: str, index: Sequence[Index], dtype: torch.dtype) -> Value:
    return make("load", attr=(buffer, tuple(index), dtype))


def cast(value: Value, dtype: torch.dtype) -> Value:
    """The value as torch converts it to the compute dtype of `dtype`; nothing where it has it
    already.
    """
    target = compute_dtype(dtype)
    return value if value.dtype == target else make("cast", value, attr=target)


def topological(roots: Iterable[Value], known: Iterable[Value] = ()) -> list[Value]:
    """Every value below the roots, operands before users, each once; neither known ones nor what only
    they need."""
    order: list[Value] = []
    done: set[Value] = set(known)
    stack: list[Value] = [*roots]
    stack.reverse()
    while stack:
        value = stack[-1]
        if value not in done:
            waiting = [operand for operand in value.operands if operand not in done]
            if waiting:
                waiting.reverse()
                stack += waiting
                continue
            done.add(value)
            order.append(value)
        stack.pop()
    return order


def checked(value: Value, position: Sequence[Index]) -> Value:
    """Attaches the checks of positions on which the value does not depend: a dimension of size 1,
    an expanded one, or a tensor of equal numbers needs no index, but eager rejects a bad one all
    the same."""
    indirect_values = [value for index in position for value in index.indirect_values()]
    checks = [node for node in topological(indirect_values) if node.name == "check_index"]
    items = set(topological([value])) if checks else set()
    for check in checks:
        if check not in items:
            value = make("where", make("ge", check, const(0, torch.int64)), value, value)
    return value


#: On integers these report a divisor of zero.
DIVISIONS = frozenset({"trunc_div", "floor_div", "fmod", "mod"})


def may_fail(value: Value) -> bool:
    """Whether computing a value may report an error (``tc_fail`` in C++)."""
    return value.name == "check_index" or (
        value.name in DIVISIONS and not value.dtype.is_floating_point
    )


def required(value: Value, condition: Value) -> Value:
    """Returns the value; the kernel raises where the condition does not hold."""
    place = make("where", condition, const(0, torch.int64), const(-1, torch.int64))
    check = make("check_index", place, attr=1)
    return make("where", make("ge", check, const(0, torch.int64)), value, value)


class Rewriter:
    """Rebuilds values with loop variables replaced (`by[p]`) and chosen loads replaced.

    on_load: called with (load value, its new index tuple); returns a replacement or None to keep
    the load. Results are remembered, so sharing in the DAG is kept.
    """

    def __init__(
        self,
        by: Sequence[Index] | None,
        on_load: Callable[[Value, tuple[Index, ...]], Value | None] | None = None,
    ) -> None:
        self.by, self.on_load = by, on_load
        self._memo: dict[Value, Value] = {}

    def index(self, index: Index) -> Index:
        return substitute(index, self.by, self._known)

    def _known(self, value: Value) -> Value:
        return self(value)

    def __call__(self, root: Value) -> Value:
        memo = self._memo
        if root not in memo:
            for value in topological([root]):
                if value not in memo:
                    memo[value] = self._rebuild(value)
        return memo[root]

    def _rebuild(self, value: Value) -> Value:
        if self.by is None and not value.args and value.name == "constant":
            return value
        args = tuple(self._memo[arg] for arg in value.args)
        if value.name in ("load", "masked_load"):
            index = tuple(self.index(i) for i in value.attr[1])
            new = make(value.name, *args, attr=(value.attr[0], index, value.attr[2]))
            replaced = self.on_load(new, index) if self.on_load is not None else None
            return new if replaced is None else replaced
        if value.name == "index":
            return make("index", attr=self.index(value.attr))
        return make(value.name, *args, attr=value.attr) if args != value.args else value
