"""Traces operators, comparisons and truth tests.

Special methods that are user code are interpreted; operators on tensors reach the recorder.
Containers that existed before the trace are guarded as far as the operation reads them.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.opcodes.operators import BINARY, COMPARE, INPLACE, UNARY
from tracer_core.fx_capture.provenance import WRAPPED
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.numpy_types import ARRAY, DTYPE
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.value_kinds import IDENTITY_TYPES, INTERNED, is_constant
from tracer_core.torch_private.names import classes
from tracer_core.trace import (
    assertions,
    cpython_warnings,
    special_methods,
    state_values,
    torch_function,
    traced_arrays,
)
from tracer_core.trace.attribute_lookup import ABSENT, is_slot, is_subtype, is_tensor_like
from tracer_core.trace.component import Component
from tracer_core.trace.native_reads import children
from tracer_core.trace.symbolic_scalars import SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
#: Types of numbers and strings, each with what stands for them in a trace.
_SAME_TYPE = (
    {int, torch.SymInt}, {float, torch.SymFloat}, {bool, torch.SymBool}, {str}, {bytes}, {complex},
)  # fmt: skip
MUTABLE = (list, dict, set, collections.deque, bytearray, array.array)


def _only_constants(container: Any) -> bool:
    return all(
        is_constant(item) or (isinstance(item, CONTAINERS) and _only_constants(item))
        for item in children(container)
    )


def _invert_true() -> object:
    return operator.invert(True)


class Operators(Component):
    """Operators in a trace."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.entries, self.attributes = tracer.entries, tracer.attributes
        #: Integers that the trace found smaller or larger than another.
        self.compared: set[tuple[int, int]] = set()

    # -- helpers --

    def index(self, value: Any) -> Any:
        """Returns operator.index(value) if a Python method defines it."""
        return special_methods.index(self.tracer, value)

    def native_operands(self, *values: Any) -> None:
        """Guards what a native operator reads in its operands; breaks for unknown types."""
        for value in values:
            if isinstance(
                value, (*CONTAINERS, *special_methods.VIEWS, types.GenericAlias, types.UnionType)
            ):
                self.tracer.reads.expand(value)
            if not (isinstance(value, CONTAINERS) or is_constant(value) or is_tensor_like(value)):
                self._check_native_operand(value)

    def _check_native_operand(self, value: Any) -> None:
        if self.tracer.scalars.payload(value) is not value or torch_function.acts_as_tensor(value):
            return
        cls = type(value)
        if isinstance(value, (*ARRAY, *DTYPE)) and self.provenance.is_fresh(value):
            return  # made in the trace, of plain data
        if isinstance(value, memoryview) and not self.provenance.is_fresh(value):
            raise Break("unsupported_value", "the memory behind a memoryview is compared")
        if cls.__flags__ & HEAP_TYPE or cls.__module__ not in _BUILTIN_MODULES:
            safe = (type, types.ModuleType, torch.finfo, torch.iinfo, _COMPARED_BY_FUNCTION)
            if isinstance(value, enum.Enum) and not self.entries.python_method(value, "__eq__"):
                return  # a member of a str or int enumeration compares as its value does
            if not isinstance(value, safe) and not self.is_identity_comparable(value):
                raise Break("unknown_native", f"an operator on a {cls.__module__}.{cls.__name__}")

    def is_identity_comparable(self, value: Any) -> bool:
        """Returns whether an instance's operators are those of object, or of a known safe base."""
        cls = type(value)
        if isinstance(value, _SAFE_INSTANCES):
            return True
        # An enum member hashes by its name, which never changes.
        named = isinstance(value, enum.Enum)
        hashes = named or self.entries.special(cls, "__hash__") is object.__hash__
        return hashes and self.entries.special(cls, "__eq__") is object.__eq__

    def _on_arrays(self, *operands: Any) -> bool:
        return any(traced_arrays.is_array(self.tracer, operand) for operand in operands)

    # -- operators --

    def apply(self, function: Any, *operands: Any) -> Any:
        """Applies an operator of the `operator` module; on tensors the graph keeps the user's
        operator."""
        if torch_function.any_acts_as_tensor(operands):
            return torch_function.call(self.tracer, function, operands, {})
        if any(isinstance(operand, torch.Tensor) for operand in operands):
            if any(isinstance(operand, _VIEWS) for operand in operands):
                raise Break("unknown_native", "a view of a dictionary iterates over a tensor")
            self.entries.guard_operator(function.__name__.strip("_"))
            return self.recorder.call(function, operands, {})
        if any(type(operand) in SYMBOLS for operand in operands):
            return self.tracer.scalars.operate(function, operands)
        return function(*operands)

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        written, inplace = symbol, symbol.endswith("=")
        symbol = symbol.rstrip("=")
        name, native = BINARY[symbol]
        if self._on_arrays(left, right):
            native = INPLACE[symbol] if inplace else native
            return traced_arrays.call(self.tracer, native, [left, right], {})
        scalars = self.tracer.scalars
        if scalars.symbolic:
            left, right = scalars.beside(left, right), scalars.beside(right, left)
            if scalars.operates(left, right):
                return scalars.operate(native, (left, right))
        if inplace:
            method = self.entries.operator_method(left, f"__i{name}__")
            if method is not ABSENT:
                result = self.tracer.calls.call_value(method, [left, right], {})
                if result is not NotImplemented:
                    return result
            elif isinstance(left, torch.Tensor) or isinstance(left, MUTABLE):
                reflected = None
                if isinstance(left, _EXTENDED):  # C calls the other operand first for + and *
                    reflected = self.entries.python_method(right, f"__r{name}__")
                if reflected is not None and symbol in ("+", "*"):
                    result = self.tracer.calls.call_value(reflected, [right, left], {})
                    if result is not NotImplemented:
                        return result
                return self.inplace(symbol, left, right)
        shown = "** or pow()" if symbol == "**" and not inplace else written
        result = self.answered(name, shown, left, right)
        if result is not NotImplemented:
            return result
        if self._formats(name, left):
            return special_methods.percent(self.tracer, left, right)
        if self._no_operator(name, left, right):
            # Raises Python's own error.
            return (INPLACE[symbol] if inplace else native)(left, right)
        if symbol == "*":
            left, right = self._counts(left, right)
        self.native_operands(left, right)
        if inplace and not isinstance(right, torch.Tensor):
            native = INPLACE[symbol]  # the same operator, but with its own error message
        return self.apply(native, left, right)

    def answered(self, name: str, shown: str, left: Any, right: Any) -> Any:
        """Returns what the operands' methods in Python give; NotImplemented if C code decides.
        shown: the operator in Python's error."""
        asked = [item for item in self._candidates(name, left, right) if item[0] is not ABSENT]
        for method, args in asked:
            result = self.tracer.calls.call_value(method, args, {})
            if result is not NotImplemented:
                return result
        if asked and not self._formats(name, left):
            halves = [(left, f"__{name}__")]
            halves += [(right, f"__r{name}__")] if type(left) is not type(right) else []
            for operand, half in halves:
                # Numbers are asked too, but for numbers only.
                if type(operand) not in _NUMBERS and is_slot(
                    self.entries.special(type(operand), half), half
                ):
                    reason = f"{type(operand).__name__}.{half} is asked last"
                    raise Break("native_python", reason)
            kinds = self._types_of(left, right)
            raise TypeError(f"unsupported operand type(s) for {shown}: {kinds}")
        return NotImplemented

    def _types_of(self, left: Any, right: Any) -> str:
        return " and ".join(
            f"'{self.tracer.exceptions.type_name(value)}'" for value in (left, right)
        )

    def _candidates(self, name: str, left: Any, right: Any) -> list[tuple[Any, list[Any]]]:
        mine, kind = type(left), type(right)
        forward = (self.entries.operator_method(left, f"__{name}__"), [left, right])
        other = ABSENT if mine is kind else self.entries.operator_method(right, f"__r{name}__")
        reflected = (other, [right, left])
        if other is not ABSENT and is_subtype(kind, mine):
            own = None
            if mine.__flags__ & HEAP_TYPE:
                own = self.entries.special(mine, f"__r{name}__")
            if own is not other:
                return [reflected, forward]
        if self._formats(name, left):
            return []
        if forward[0] is ABSENT and other is not ABSENT:
            if self._native_handles(name, left, right) or self._values_handle(name, left, right):
                return []
        return [forward, reflected]

    def _formats(self, name: str, left: Any) -> bool:
        """Returns whether this is ``%`` of a string, which formats whatever the right operand is."""
        return (
            name == "mod"
            and isinstance(left, (str, bytes, bytearray))
            and self.entries.operator_method(left, "__mod__") is ABSENT
        )

    def _no_operator(self, name: str, left: Any, right: Any) -> bool:
        """Returns whether neither operand's class has the operator, so that no code would run."""
        free = [self.entries.lacks(left, f"__{name}__"), self.entries.lacks(right, f"__r{name}__")]
        return any(free) and all(
            lacking or type(value) in _KNOWN_TYPES for lacking, value in zip(free, (left, right),
            strict=True)
        )  # fmt: skip

    def _counts(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Returns operands of a repetition, the count converted by ``__index__``."""
        if isinstance(left, _SEQUENCES):
            return left, self.index(right)
        return (self.index(left), right) if isinstance(right, _SEQUENCES) else (left, right)

    def _values_handle(self, name: str, left: Any, right: Any) -> bool:
        """Returns whether the left operand's C operator handles the right one's kind of number."""
        mine, other = self.tracer.scalars.payload(left), self.tracer.scalars.payload(right)
        if type(mine) not in _HOLDERS or type(other) not in _HOLDERS:
            return False
        method = getattr(type(mine), f"__{name}__", None)
        try:
            return method is not None and method(mine, other) is not NotImplemented
        except ArithmeticError:
            return True

    def _native_handles(self, name: str, left: Any, right: Any) -> bool:
        return (
            isinstance(left, torch.Tensor)
            and not hasattr(type(right), "__torch_function__")
            and isinstance(right, (int, float, torch.Tensor))
        )

    def inplace(self, symbol: str, left: Any, right: Any) -> Any:
        if isinstance(left, torch.Tensor):
            self.native_operands(right)
            return self.apply(INPLACE[symbol], left, right)
        if isinstance(left, (list, collections.deque)) and symbol == "+":
            self.tracer.containers.extend(left, right)
            return left
        if isinstance(left, dict) and symbol == "|":
            update = _UPDATES[isinstance(left, collections.OrderedDict)]
            self.tracer.calls.call_value(update, [left, right], {})
            return left
        self.tracer.side_effects.before_change(left)
        self.native_operands(right)
        return INPLACE[symbol](left, right)

    def unary(self, symbol: str, value: Any) -> Any:
        name, native = UNARY[symbol]
        if self._on_arrays(value):
            return traced_arrays.call(self.tracer, native, [value], {})
        if type(value) in SYMBOLS:
            return self.tracer.scalars.operate(native, (value,))
        method = self.entries.operator_method(value, name)
        if method is not ABSENT:
            return self.tracer.calls.call_value(method, [value], {})
        if self.entries.lacks(value, name):
            return native(value)  # raises Python's own error
        if symbol == "~" and type(value) is bool:
            cpython_warnings.warn_as(self.tracer, _invert_true)
            value = int(value)
        self.native_operands(value)
        return self.apply(native, value)

    def compare(self, symbol: str, left: Any, right: Any) -> Any:
        name, reflected, native = COMPARE[symbol]
        if type(left) is int and type(right) is int and symbol not in ("==", "!="):
            self.compared.add((left, right))
        if self._on_arrays(left, right):
            return traced_arrays.call(self.tracer, native, [left, right], {})
        scalars = self.tracer.scalars
        if scalars.symbolic:
            left, right = scalars.beside(left, right), scalars.beside(right, left)
        order = [(left, name, right), (right, reflected, left)]
        if type(right) is not type(left) and is_subtype(type(right), type(left)):
            order.reverse()
        tensors = is_tensor_like(left) or is_tensor_like(right)
        for receiver, method_name, other in order:
            if tensors and is_tensor_like(receiver):
                continue
            result = self._compared(method_name, receiver, other, native=not tensors)
            if result is not NotImplemented:
                return result
        if tensors:
            self.native_operands(left, right)
            return self.apply(native, left, right)
        if symbol in ("==", "!="):
            return self.same_object(left, right) == (symbol == "==")
        raise TypeError(
            f"'{symbol}' not supported between instances of {self._types_of(left, right)}"
        )

    def _compared(self, name: str, receiver: Any, other: Any, native: bool = True) -> Any:
        """Returns what one operand's method of a comparison gives. native: call C methods too."""
        method = self.entries.operator_method(receiver, name)
        if method is not ABSENT:
            return self.tracer.calls.call_value(method, [receiver, other], {})
        result = self.entries.special(type(receiver), name)
        if result is object.__ne__ or native:
            return self.compare_eagerly(result, receiver, other, native)
        return NotImplemented

    def compare_eagerly(self, method: Any, receiver: Any, other: Any, native: bool = True) -> Any:
        """Traces a C method of a comparison (a slot wrapper) on the program's objects."""
        name, owner = method.__name__, getattr(method, "__objclass__", None)
        if owner is types.NoneType:  # since Python 3.13; the same functions
            method, owner = getattr(object, name), object
        if method is object.__ne__:
            equal = self._compared("__eq__", receiver, other, native)
            return equal if equal is NotImplemented else not self.to_bool(equal)
        if method is object.__eq__:
            return True if self.same_object(receiver, other) else NotImplemented
        if owner is object:
            return NotImplemented
        if isinstance(receiver, _HOLDERS) and owner in _HOLDERS:
            if not isinstance(other, (*_HOLDERS, bytearray)) and not is_constant(other):
                if isinstance(receiver, bytes) and self.has_buffer(other):
                    raise Break("unknown_native", "bytes are compared with a buffer")
                return NotImplemented
            return method(self.tracer.scalars.payload(receiver), self.tracer.scalars.payload(other))
        for family in _FAMILIES:
            if isinstance(receiver, family):
                if not isinstance(other, family):
                    return NotImplemented
                return self._compare_containers(method, receiver, other)
        if all(is_subtype(type(value), types.SimpleNamespace) for value in (receiver, other)):
            item, two = (self.attributes.getattr(value, "__dict__") for value in (receiver, other))
            return self._compared(name, item, two)
        if type(receiver) is type(other) and type(receiver) in special_methods.COMPARED_BY_PARTS:
            if name in ("__eq__", "__ne__"):
                return self._compare_parts(receiver, other) == (name == "__eq__")
        self.native_operands(receiver, other)
        result = method(receiver, other)
        if result is False:
            self.same_object(
                receiver, other
            )  # guards that objects compared by identity stay different
        return result

    def _compare_parts(self, left: Any, right: Any) -> bool:
        """Returns whether bound methods or weak references are equal: C code compares their parts,
        by identity but for names."""
        pairs = zip(
            special_methods.parts_of(self.tracer, left),
            special_methods.parts_of(self.tracer, right),
            strict=True,
        )
        return all(a == b if type(a) is str else self.same_object(a, b) for a, b in pairs)

    def has_buffer(self, value: Any) -> bool:
        """Returns whether C code may read the value's bytes."""
        if self.entries.python_method(value, "__buffer__"):
            return True
        try:
            memoryview(value)
        except TypeError:
            return False
        return True

    def _compare_containers(self, method: Any, left: Any, right: Any) -> Any:
        name = method.__name__
        if name in ("__eq__", "__ne__"):
            if not (self._plain(left) and self._plain(right)):
                ordered = method.__objclass__ is collections.OrderedDict
                equal = special_methods.equal(self.tracer, left, right, ordered)
                return equal == (name == "__eq__")
        elif isinstance(left, (list, tuple)) and not (is_constant(left) and is_constant(right)):
            return special_methods.order(self.tracer, _SYMBOLS_OF[name], left, right)
        self.native_operands(left, right)
        if self.tracer.scalars.symbolic:
            result = method(_as_numbers(left), _as_numbers(right))
        else:
            result = method(left, right)
        if result == (name == "__ne__"):
            self._guard_difference(left, right)
        return result

    def _guard_difference(self, left: Any, right: Any) -> None:
        """Guards that containers of objects that compare by identity stay different. Their lengths
        and constants are guarded already."""
        if type(left) is not type(right) or _only_constants(left) or _only_constants(right):
            return
        if not isinstance(left, (list, tuple)) or self.tracer.scalars.symbolic:
            raise Break("unknown_native", "containers of objects are compared, and differ")
        if len(left) != len(right):
            return
        item, other = next(
            (item, other)
            for item, other in zip(left, right, strict=True)
            if item is not other and item != other
        )
        if isinstance(item, CONTAINERS) and isinstance(other, CONTAINERS):
            self._guard_difference(item, other)
        else:
            self.same_object(item, other)

    def _plain(self, container: Any, depth: int = 6) -> bool:
        """Returns whether comparing the container runs no user code."""
        return all(
            is_constant(child)
            or (
                isinstance(child, CONTAINERS)
                and depth > 0
                and self.entries.operator_method(child, "__eq__") is ABSENT
                and self._plain(child, depth - 1)
            )
            or (not isinstance(child, torch.Tensor) and self.is_identity_comparable(child))
            for child in children(container)
        )

    def same(self, left: Any, right: Any) -> bool:
        kinds = {type(left), type(right)}
        if not any(kinds <= alike for alike in _SAME_TYPE):
            return self.same_object(left, right)
        if kinds.isdisjoint(SYMBOLS):
            return self.provenance.same_constant(left, right)
        if not self.to_bool(self.compare("==", left, right)):
            return False
        integers = torch.SymFloat not in kinds
        if integers and self.tracer.scalars.concrete(left) in INTERNED:
            return True
        raise Break("native_python", "whether two equal numbers are one object")

    def same_object(self, left: Any, right: Any) -> bool:
        """Returns ``left is right`` for values other than symbolic scalars, which stay symbolic."""
        if left is not right and type(left) is type(right):
            if self.provenance.is_copy(left) or self.provenance.is_copy(right):
                return self.provenance.same_copy(left, right)
        if left is right:
            return True  # reached by two paths; a guard keeps both leading to one object
        if (
            type(left) is type(right)
            and (type(left) in WRAPPED or not isinstance(left, IDENTITY_TYPES))
            and not is_constant(left)
        ):
            source, other = self.provenance.source_of(left), self.provenance.source_of(right)
            if source is not None and other is not None:
                self.provenance.guard(GuardKind.NOT_SAME, source, other)
        return False

    def to_bool(self, value: Any) -> bool:
        if value is True or value is False or value is None:
            return value is True
        if id(value) in self.tracer.scalars.numbers:
            return bool(self.tracer.scalars.operate(operator.ne, (value, 0)))
        if type(value) is torch.SymBool:
            undecided = self.tracer.undecided.outcome(value)
            return bool(value) if undecided is None else undecided
        if isinstance(value, torch.Tensor):
            value = self.tracer.fakes.current(value)
            known = self.recorder.ranges.as_bool(value)
            if known is None:
                known = assertions.assumed(self.tracer, value)
            if known is None:
                known = state_values.value_of(self.tracer, value, as_bool=True)
            if known is None:
                known = assertions.speculated(self.tracer, value)
            if known is not None:
                return assertions.answered(self.tracer, bool(known))
            raise Break(
                "data_dependent_branch", f"a branch on a tensor of shape {tuple(value.shape)}"
            )
        if self._on_arrays(value):
            traced_arrays.to_bool(self.tracer, value)
        for name in ("__bool__", "__len__"):
            method = self.entries.python_method(value, name)
            if method is not None:
                return bool(special_methods.call_checked(self.tracer, method, value, name))
            if self.entries.is_disabled(value, name):
                return bool(value)  # raises Python's own error
        if isinstance(value, CONTAINERS):
            return self._bool_of_container(value)
        value = self.tracer.scalars.payload(value)
        if isinstance(value, (bytearray, array.array)):
            self.tracer.reads.expand(value)
            return bool(value)
        decided = any(
            self.entries.static(type(value), name) is not ABSENT for name in ("__bool__", "__len__")
        )
        if decided and not (
            is_constant(value)
            or self.provenance.is_fresh(value)
            or isinstance(value, (enum.Enum, type))
        ):
            raise Break("unknown_native", f"the truth of a {type(value).__name__}")
        return bool(value)

    def _bool_of_container(self, value: Any) -> bool:
        if isinstance(value, dict):
            return bool(self.tracer.reads.keys(value))
        if isinstance(value, (list, tuple)):
            return self.tracer.reads.length(value) != 0
        self.tracer.reads.expand(value)
        return bool(value)


def _as_numbers(container: Any) -> Any:
    """Returns a sequence with 0 and 1 for bools, which symbols are not compared with."""
    if type(container) not in (list, tuple):
        return int(container) if type(container) is bool else container
    return type(container)(map(_as_numbers, container))


#: Modules whose C types have operators that run no user code.
_BUILTIN_MODULES = ("builtins", "types", "functools", "collections")
_EXTENDED = (list, collections.deque, bytearray, array.array)
_NUMBERS = (bool, int, float, complex)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()))
_UPDATES: tuple[Any, Any] = (dict.update, collections.OrderedDict.update)
_HOLDERS = (int, float, complex, str, bytes)
_COMPARED_BY_FUNCTION = type(functools.cmp_to_key(lambda a, b: 0))
#: Kinds of containers that C code compares with each other.
_FAMILIES = (list, tuple, dict, (set, frozenset), collections.deque)
_SYMBOLS_OF = {name: symbol for symbol, (name, _, _) in COMPARE.items()}
#: Types whose operators refuse objects that have none of their own.
_KNOWN_TYPES = (int, float, complex, str, list, tuple, dict, type(None))
_SEQUENCES = (list, tuple, str, bytes, collections.deque)
_SAFE_INSTANCES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    *classes("Generator _C._SDPBackend"),
    # which hash by their operator in C++
    *classes("OpOverload OpOverloadPacket", of="_ops"),
)
