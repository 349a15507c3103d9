"""What operators, comparisons, subscripts, truth and iteration mean in a trace.

In: operands as real objects (tensors may be fakes). Out: the result. What always holds: operands whose
special methods are user code have them interpreted; operators on tensors reach the recorder; sourced
containers are guarded as far as the operation reads them.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.guards.guard import GuardKind
from tracer_core.interpreter import objects, overloads
from tracer_core.interpreter.answers import Answer
from tracer_core.interpreter.attributes import ABSENT, Attributes, has_python
from tracer_core.interpreter.generators import HOST_ITERATORS, LazyIterator
from tracer_core.interpreter.numbers import SYMBOLS
from tracer_core.numpy_types import ARRAY, DTYPE
from tracer_core.provenance import IDENTITY_TYPES, is_constant

_BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "+": ("add", operator.add), "-": ("sub", operator.sub), "*": ("mul", operator.mul),
    "/": ("truediv", operator.truediv), "//": ("floordiv", operator.floordiv), "%": ("mod", operator.mod),
    "**": ("pow", operator.pow), "@": ("matmul", operator.matmul), "&": ("and", operator.and_),
    "|": ("or", operator.or_), "^": ("xor", operator.xor), "<<": ("lshift", operator.lshift),
    ">>": ("rshift", operator.rshift),
}  # fmt: skip
_INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv,
    "//": operator.ifloordiv, "%": operator.imod, "**": operator.ipow, "@": operator.imatmul,
    "&": operator.iand, "|": operator.ior, "^": operator.ixor, "<<": operator.ilshift, ">>": operator.irshift,
}  # fmt: skip
_COMPARE: dict[str, tuple[str, str, Callable[[Any, Any], Any]]] = {
    "<": ("__lt__", "__gt__", operator.lt), "<=": ("__le__", "__ge__", operator.le),
    "==": ("__eq__", "__eq__", operator.eq), "!=": ("__ne__", "__ne__", operator.ne),
    ">": ("__gt__", "__lt__", operator.gt), ">=": ("__ge__", "__le__", operator.ge),
}  # fmt: skip
_UNARY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "-": ("__neg__", operator.neg), "+": ("__pos__", operator.pos), "~": ("__invert__", operator.invert),
}  # fmt: skip
_WRAPPED = (
    functools.partial,
    functools.partialmethod,
    functools.singledispatchmethod,
    staticmethod,
    classmethod,
)
_SIMPLE_KEYS = frozenset({str, int, bool, float, type(None), bytes, type})
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_UNHASHABLE = frozenset({list, dict, set, bytearray, tuple, slice, collections.deque})
_MUTABLE = (list, dict, set, collections.deque, bytearray, array.array)
#: Iterators that read nothing that existed before the trace when they were made in it.
_ITERABLES: tuple[Any, ...] = (
    [], (), {}, set(), "", b"", bytearray(), array.array("i"), range(0), {}.items(), {}.values(), reversed([]),
    collections.deque(),
    reversed(collections.deque()), reversed({}), reversed({}.items()), reversed({}.values()), collections.OrderedDict(),
)  # fmt: skip
_NATIVE_ITERATORS: tuple[Any, ...] = tuple(
    {type(iter(x)) for x in _ITERABLES}
    | {enumerate, zip, map, filter, reversed, type(iter(int, 1)), type(itertools.tee(())[0]), *HOST_ITERATORS}
    | {kind for kind in vars(itertools).values() if isinstance(kind, type)}
)


def _only_constants(container: Any) -> bool:
    parts = [*container.keys(), *container.values()] if isinstance(container, dict) else container
    return all(is_constant(p) or (isinstance(p, _CONTAINERS) and _only_constants(p)) for p in parts)


class Operations(Attributes):
    """Operators of the tracer."""

    # -- helpers --

    def python_method(self, obj: Any, name: str) -> Any:
        """A special method of the object's class if it is user code, else None."""
        cls = type(obj)
        if not cls.__flags__ & (1 << 9) or self._is_tensor_like(obj):
            return None
        found = self.special(cls, name)
        if has_python(found):
            return found
        if isinstance(found, _WRAPPED) and not isinstance(obj, type):
            self.break_graph("unknown_native", f"{cls.__name__}.{name} is a {type(found).__name__}")
        return None

    def lacks(self, value: Any, *names: str) -> bool:
        """Whether no class of a value has these special methods: C code that looks for them finds none."""
        cls = type(value)
        if not cls.__flags__ & (1 << 9):
            return False
        return all(
            (found := self.special(cls, name)) is ABSENT or found is object.__dict__.get(name, ABSENT)
            for name in names
        )

    def index(self, value: Any) -> Any:
        """operator.index(value) where a method written in Python says it."""
        return objects.index(self, value)

    def check_key(self, key: Any, container: Any) -> None:
        if type(key) not in _SIMPLE_KEYS or not _SIMPLE_KEYS.issuperset(map(type, container)):
            objects.settle_key(self, key, container)

    def _is_tensor_like(self, value: Any) -> bool:
        return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))

    def _native_operands(self, *values: Any) -> None:
        """Guards what a native operator reads in its operands; breaks for unknown types."""
        for value in values:
            if isinstance(value, _CONTAINERS):
                self.expand(value)
            elif not (is_constant(value) or self._is_tensor_like(value)):
                self._check_native_operand(value)

    def _check_native_operand(self, value: Any) -> None:
        if self.payload(value) is not value or overloads.acts_as_tensor(value):
            return
        cls = type(value)
        if isinstance(value, (*ARRAY, *DTYPE)) and self.is_fresh(value):
            return  # made here, of plain data
        if cls.__flags__ & (1 << 9) or cls.__module__ not in (
            "builtins",
            "types",
            "functools",
            "collections",
        ):
            safe = (type, types.ModuleType, torch.finfo, torch.iinfo, _COMPARED_BY_FUNCTION)
            if isinstance(value, enum.Enum) and not self.python_method(value, "__eq__"):
                return  # a member of a str or int enumeration compares as its value does
            if not isinstance(value, safe) and not self.is_identity_comparable(value):
                self.break_graph("unknown_native", f"an operator on a {cls.__module__}.{cls.__name__}")

    def is_identity_comparable(self, value: Any) -> bool:
        """An instance whose operators are those of object, or of a known safe base."""
        cls = type(value)
        if isinstance(value, _SAFE_INSTANCES):
            return True
        # An enum's hash is that of its member's name, which never changes.
        hashes = isinstance(value, enum.Enum) or self.special(cls, "__hash__") is object.__hash__
        return hashes and self.special(cls, "__eq__") is object.__eq__

    # -- operators --

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        written, inplace = symbol, symbol.endswith("=")
        symbol = symbol.rstrip("=")
        name, native = _BINARY[symbol]
        if self._numbers:
            left, right = self.beside(left, right), self.beside(right, left)
            if type(left) in SYMBOLS and not isinstance(right, torch.Tensor):
                return self.operate(native, (left, right))
            if type(right) in SYMBOLS and not isinstance(left, torch.Tensor):
                return self.operate(native, (left, right))
        if inplace:
            method = self.python_method(left, f"__i{name}__")
            if method is not None:
                result = self.call_value(method, [left, right], {})
                if result is not NotImplemented:
                    return result
            elif isinstance(left, torch.Tensor) or isinstance(left, _MUTABLE):
                return self._inplace(symbol, left, right)
        for method, args in self._candidates(name, left, right):
            if method is None:
                continue
            result = self.call_value(method, args, {})
            if result is not NotImplemented:
                return result
        if self._no_operator(name, left, right):
            return (_INPLACE[symbol] if inplace else native)(left, right)  # raises Python's own error
        if self.python_method(left, f"__{name}__") or self.python_method(right, f"__r{name}__"):
            kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
            shown = "** or pow()" if symbol == "**" and not inplace else written
            raise TypeError(f"unsupported operand type(s) for {shown}: {kinds}")
        if symbol == "%" and isinstance(left, str):
            return objects.percent(self, left, right)
        if symbol == "*":
            left, right = self._counts(left, right)
        self._native_operands(left, right)
        if inplace and not isinstance(right, torch.Tensor):
            native = _INPLACE[symbol]  # the same, and where it fails it says so in other words
        return self.operator(native, left, right)

    def _candidates(self, name: str, left: Any, right: Any) -> list[tuple[Any, list[Any]]]:
        forward = (self.python_method(left, f"__{name}__"), [left, right])
        reflected = (
            self.python_method(right, f"__r{name}__") if type(left) is not type(right) else None,
            [right, left],
        )
        if symbol_is_text_formatting(name, left, right):
            return []
        if reflected[0] is not None and issubclass(type(right), type(left)):
            own = self.special(type(left), f"__r{name}__") if type(left).__flags__ & (1 << 9) else None
            return [reflected, forward] if own is not reflected[0] else [forward, reflected]
        if forward[0] is None and reflected[0] is not None:
            if self._native_handles(name, left, right) or self._values_handle(name, left, right):
                return []
        return [forward, reflected]

    def _no_operator(self, name: str, left: Any, right: Any) -> bool:
        """Whether neither operand's class knows the operator, so that no code at all would run."""
        known = (int, float, complex, str, list, tuple, dict, type(None))
        free = [self.lacks(left, f"__{name}__"), self.lacks(right, f"__r{name}__")]
        return any(free) and all(
            lacking or type(value) in known for lacking, value in zip(free, (left, right), strict=True)
        ) and not (name == "mod" and isinstance(left, str))  # fmt: skip

    def _counts(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Operands of a repetition: an object may stand for the number."""
        if isinstance(left, _SEQUENCES):
            return left, self.index(right)
        return (self.index(left), right) if isinstance(right, _SEQUENCES) else (left, right)

    def _values_handle(self, name: str, left: Any, right: Any) -> bool:
        """Whether the operator of C of the left operand knows the right one's kind of number."""
        mine, other = self.payload(left), self.payload(right)
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

    def _inplace(self, symbol: str, left: Any, right: Any) -> Any:
        if isinstance(left, torch.Tensor):
            self._native_operands(right)
            return self.operator(_INPLACE[symbol], left, right)
        if isinstance(left, (list, collections.deque)) and symbol == "+":
            items = self.spread(right)
            self.before_append(left, items)
            (list if isinstance(left, list) else collections.deque).extend(left, items)  # type: ignore[arg-type]
            return left
        self.before_change(left)
        self._native_operands(right)
        return _INPLACE[symbol](left, right)

    def unary(self, symbol: str, value: Any) -> Any:
        name, native = _UNARY[symbol]
        if id(value) in self._numbers:
            return self.operate(native, (value,))
        method = self.python_method(value, name)
        if method is not None:
            return self.call_value(method, [value], {})
        if self.lacks(value, name):
            return native(value)  # raises Python's own error
        self._native_operands(value)
        return self.operator(native, value)

    def compare(self, symbol: str, left: Any, right: Any) -> Any:
        name, reflected, native = _COMPARE[symbol]
        if self._numbers:
            left, right = self.beside(left, right), self.beside(right, left)
        order = [(left, name, right), (right, reflected, left)]
        if type(right) is not type(left) and issubclass(type(right), type(left)):
            order.reverse()
        asked = False
        for receiver, method_name, other in order:
            method = self.python_method(receiver, method_name)
            if method is None and isinstance(receiver, _HOLDERS) and isinstance(other, _HOLDERS):
                result = self._compare_values(method_name, receiver, other)
                if result is not NotImplemented:
                    return result
            if method is None and method_name == "__ne__":
                equal = self.python_method(receiver, "__eq__")
                if equal is not None and self._static(type(receiver), "__ne__") is object.__ne__:
                    asked = True
                    result = self.call_value(equal, [receiver, other], {})
                    if result is not NotImplemented:
                        return not self.truth(result)
                continue
            if method is not None:
                asked = True
                result = self.call_value(method, [receiver, other], {})
                if result is not NotImplemented:
                    return result
        if asked and symbol in ("==", "!="):
            return (left is right) == (symbol == "==")
        if symbol in ("==", "!=") and not self._is_tensor_like(left) and not self._is_tensor_like(right):
            return self._equal(left, right) == (symbol == "==")
        if self._no_order(asked, name, reflected, left, right):
            kinds = f"'{type(left).__name__}' and '{type(right).__name__}'"
            raise TypeError(f"'{symbol}' not supported between instances of {kinds}")
        if (
            type(left) is type(right)
            and type(left) in (list, tuple)
            and not (is_constant(left) and is_constant(right))
        ):
            return objects.order(self, symbol, left, right)
        self._native_operands(left, right)
        return self.operator(native, left, right)

    def _compare_values(self, name: str, left: Any, right: Any) -> Any:
        """The comparison of C of two numbers or texts, one of them of a subclass."""
        mine, other = self.payload(left), self.payload(right)
        if type(mine) not in _HOLDERS or type(other) not in _HOLDERS or (mine is left and other is right):
            return NotImplemented
        return getattr(type(mine), name)(mine, other)

    def _no_order(self, asked: bool, name: str, reflected: str, left: Any, right: Any) -> bool:
        """Whether the comparison is known to find no method."""
        if self._is_tensor_like(left) or self._is_tensor_like(right):
            return False
        known = (int, float, complex, str, list, tuple, dict, type(None))
        sides = ((left, name), (right, reflected))
        silent = [self.python_method(value, method) or self.lacks(value, method) for value, method in sides]
        return any(silent) and all(
            quiet or type(value) in known for quiet, value in zip(silent, (left, right), strict=True)
        )

    def _equal(self, left: Any, right: Any) -> bool:
        if isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
            if not (self._plain(left) and self._plain(right)):
                return objects.equal(self, left, right)
        if type(left) is type(right) is types.SimpleNamespace:
            return objects.equal(self, self.getattr(left, "__dict__"), self.getattr(right, "__dict__"))
        for value in (left, right):
            if isinstance(value, _CONTAINERS):
                self.expand(value)
            elif not is_constant(value):
                if self.payload(value) is not value:
                    continue
                if self.is_identity_comparable(value):
                    continue
                self._check_native_operand(value)
        equal = bool(self.payload(left) == self.payload(right))
        if not equal:
            self._guard_difference(left, right)
        return equal

    def _guard_difference(self, left: Any, right: Any) -> None:
        """Objects that compare by identity were different: they must be so next time."""
        if not isinstance(left, _CONTAINERS) and not isinstance(right, _CONTAINERS):
            self.same(left, right)
        elif type(left) is type(right) and not (_only_constants(left) or _only_constants(right)):
            self.break_graph("unknown_native", "containers of objects are compared, and differ")

    def _plain(self, container: Any, depth: int = 6) -> bool:
        """Whether comparing the container runs no user code."""
        children = [*container.keys(), *container.values()] if isinstance(container, dict) else container
        return all(
            is_constant(child)
            or (isinstance(child, _CONTAINERS) and depth > 0 and self._plain(child, depth - 1))
            or (not isinstance(child, torch.Tensor) and self.is_identity_comparable(child))
            for child in children
        )

    def same(self, left: Any, right: Any) -> bool:
        if left is right:
            return True  # reached by two paths, it has a guard that both lead to one object
        if type(left) is type(right) and not isinstance(left, IDENTITY_TYPES) and not is_constant(left):
            one, other = self.provenance.source_of(left), self.provenance.source_of(right)
            if one is not None and other is not None:
                self.provenance.guard(GuardKind.NOT_SAME, one, other)
        return False

    def truth(self, value: Any) -> bool:
        if value is True or value is False or value is None:
            return value is True
        if id(value) in self._numbers:
            return bool(self.operate(operator.ne, (value, 0)))
        if isinstance(value, torch.Tensor):
            known = self.recorder.ranges.truth(value)
            if known is not None:
                return known
            self.break_graph("data_dependent_branch", f"a branch on a tensor of shape {tuple(value.shape)}")
        if isinstance(value, _CONTAINERS):
            method = self.python_method(value, "__bool__") or self.python_method(value, "__len__")
            if method is None:
                return self._truth_of_container(value)
        for name in ("__bool__", "__len__"):
            method = self.python_method(value, name)
            if method is not None:
                return bool(objects.ask(self, method, value, name))
        value = self.payload(value)
        if isinstance(value, (bytearray, array.array)):
            self.expand(value)
            return bool(value)
        decided = any(self._static(type(value), name) is not ABSENT for name in ("__bool__", "__len__"))
        if decided and not (
            is_constant(value) or self.is_fresh(value) or isinstance(value, (enum.Enum, type))
        ):
            self.break_graph("unknown_native", f"the truth of a {type(value).__name__}")
        return bool(value)

    def _truth_of_container(self, value: Any) -> bool:
        if isinstance(value, dict):
            return bool(self.keys(value))
        if isinstance(value, (list, tuple)):
            return self.length(value) != 0
        self.expand(value)
        return bool(value)

    def contains(self, item: Any, container: Any) -> bool:
        container = self.unproxied(container)
        method = self.python_method(container, "__contains__")
        if method is not None:
            return self.truth(self.call_value(method, [container, item], {}))
        if isinstance(container, torch.Tensor):
            self.break_graph("data_dependent_value", "`in` on a tensor")
        item = self.concrete(item)
        if isinstance(container, dict):
            if is_constant(item):
                return self.dict_get(container, item, ABSENT) is not ABSENT
            self.check_key(item, container)
            self.keys(container)
            return dict.__contains__(container, item)
        if isinstance(container, (list, tuple, collections.deque)):
            return self._contains_in_sequence(item, container)
        if isinstance(container, (bytearray, array.array)):
            self.expand(container)
            item = self.index(item)
            if is_constant(item):
                return item in container
        if isinstance(container, (str, bytes, range)):
            item, container = self.payload(self.index(item)), self.payload(container)
            return item in container
        if self.python_method(container, "__iter__") or isinstance(container, _NATIVE_ITERATORS):
            return any(
                item is other or self.truth(self.compare("==", item, other))
                for other in self.spread(container)
            )
        if isinstance(container, (set, frozenset)):
            self.check_key(item, container)
        elif self.lacks(container, "__contains__", "__iter__", "__getitem__"):
            return item in container  # raises Python's own error
        else:
            self._native_operands(item)
        self.expand(container)
        if isinstance(container, (set, frozenset)) or type(container).__name__ in (
            "dict_keys",
            "dict_values",
        ):
            return item in container
        self.break_graph("unknown_native", f"`in` on a {type(container).__name__}")

    def _contains_in_sequence(self, item: Any, container: Any) -> bool:
        for other in self.spread(container):
            if self.same(item, other):
                return True
            if isinstance(item, torch.Tensor) or isinstance(other, torch.Tensor):
                self.break_graph("data_dependent_branch", "`in` compares tensors")
            if self.truth(self.compare("==", other, item)):
                return True
        return False

    # -- subscripts --

    def getitem(self, container: Any, key: Any) -> Any:
        container = self.unproxied(container)
        method = self.python_method(container, "__getitem__")
        if method is not None:
            return self.call_value(method, [container, key], {})
        if isinstance(container, dict):
            return self._dict_item(container, self.concrete(key))
        key = objects.plain_key(self, key)
        if isinstance(container, torch.Tensor):
            self._native_operands(key)
            return self.operator(operator.getitem, container, key)
        key = self.concrete(key)
        if isinstance(container, (list, tuple)) and type(key) in (int, bool):
            n = self.length(container)
            if not -n <= key < n:
                kind = "tuple" if isinstance(container, tuple) else "list"
                raise IndexError(f"{kind} index out of range")
            return self.list_item(container, key if key >= 0 else key + n)
        if isinstance(container, type):
            return self._class_getitem(container, key)
        parts = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        if any(isinstance(part, torch.Tensor) for part in parts):
            self.break_graph("data_dependent_value", f"a tensor is the index of a {type(container).__name__}")
        if self.lacks(container, "__getitem__"):
            return container[key]  # raises Python's own error
        self._native_operands(key)
        self.expand(container)
        if isinstance(container, (*_CONTAINERS, str, bytes, range, bytearray, array.array)) or type(container).__module__ in (
            "typing", "types", "collections"):  # fmt: skip
            return container[key]
        if isinstance(container, ARRAY) and self.is_fresh(container) and is_constant(key):
            return self.born(container[key])  # type: ignore[index]
        if type(container) is types.MappingProxyType:
            return self.call_value(types.MappingProxyType.__getitem__, [container, key], {})
        self.break_graph("unknown_native", f"subscript of a {type(container).__name__}")

    def _class_getitem(self, cls: type, key: Any) -> Any:
        method = self.python_method(cls, "__getitem__")
        if method is not None:
            return self.call_value(method, [cls, key], {})
        return cls[key]  # type: ignore[index]

    def _dict_item(self, container: dict[Any, Any], key: Any) -> Any:
        value = self.dict_get(container, key, ABSENT)
        if value is not ABSENT:
            return value
        missing = self.python_method(container, "__missing__")
        if missing is not None:
            return self.call_value(missing, [container, key], {})
        if isinstance(container, collections.defaultdict):
            return self._default_item(container, key)
        if isinstance(container, collections.Counter):
            return 0
        raise KeyError(key)

    def _default_item(self, container: Any, key: Any) -> Any:
        factory = container.default_factory
        if factory is None:
            raise KeyError(key)
        value = self.call_value(factory, [], {})
        self.setitem(container, key, value)
        return value

    def setitem(self, container: Any, key: Any, value: Any) -> None:
        method = self.python_method(container, "__setitem__")
        if method is not None:
            self.call_value(method, [container, key, value], {})
            return
        if isinstance(container, torch.Tensor):
            key = objects.plain_key(self, key)
            self._native_operands(key, value)
            self.operator(operator.setitem, container, key, value)
            return
        key = self.concrete(key)
        if isinstance(container, dict):
            self.check_key(key, container)
            if type(key) in _UNHASHABLE:
                hash(key)  # raises Python's own error, before anything is noted as changed
            self.before_store(container, key)
        else:
            key = objects.plain_key(self, key)
            self._change(container, "__setitem__")
        container[key] = value

    def delitem(self, container: Any, key: Any) -> None:
        method = self.python_method(container, "__delitem__")
        if method is not None:
            self.call_value(method, [container, key], {})
            return
        key = self.concrete(key)
        if isinstance(container, dict):
            self.check_key(key, container)
            if not self.has_key(container, key):
                raise KeyError(key)
            self.before_remove(container, key)
        else:
            key = objects.plain_key(self, key)
            self._change(container, "__delitem__")
        del container[key]

    def _change(self, container: Any, name: str) -> None:
        if not isinstance(container, _MUTABLE):
            if is_constant(container) or isinstance(container, tuple) or self.lacks(container, name):
                return  # the operation raises Python's own error
            self.break_graph("unsupported_mutation", f"an item of a {type(container).__name__} is set")
        self.before_change(container)

    # -- iteration --

    def iterate(self, value: Any) -> Any:
        if isinstance(value, _NATIVE_ITERATORS):
            return value
        value = self.unproxied(value)
        if isinstance(value, torch.Tensor):
            if value.dim() == 0:
                raise TypeError("iteration over a 0-d tensor")
            return iter(self.native(torch.Tensor.unbind, value, 0))
        method = self.python_method(value, "__iter__")
        if method is not None:
            return objects.ask(self, method, value, "__iter__")
        if isinstance(value, (list, tuple, dict)):
            return self._iterate_container(value)
        value = self.payload(value)
        if is_constant(value):
            return iter(value)
        if self.python_method(value, "__getitem__"):
            return self._by_subscripts(value)
        if self.lacks(value, "__iter__", "__getitem__"):
            return iter(value)  # raises Python's own error
        self.expand(value)
        if isinstance(value, (*_CONTAINERS, bytearray, array.array)) or type(value).__name__ in _VIEW_NAMES:
            return iter(value)
        if isinstance(value, ARRAY) and self.is_fresh(value) and value.ndim == 1:  # type: ignore[attr-defined]
            return iter(list(value))  # type: ignore[call-overload]
        self.break_graph(
            "unknown_native", f"iteration over a {type(value).__module__}.{type(value).__name__}"
        )

    def _by_subscripts(self, value: Any) -> LazyIterator:
        """The old protocol: value[0], value[1], ... until IndexError."""
        numbers = itertools.count()

        def step() -> Any:
            try:
                return self.getitem(value, next(numbers))
            except IndexError:
                raise StopIteration from None

        return LazyIterator(self, f"iterator over a {type(value).__name__}", step)

    def _iterate_container(self, value: Any) -> Any:
        if self.is_fresh(value):
            return iter(value)
        # The iterator of the container itself: the program may change it while it loops.
        if isinstance(value, dict):
            self.keys(value)
        else:
            for i in range(self.length(value)):
                self.list_item(value, i)
        return iter(value)

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        method = self.python_method(iterator, "__next__")
        if method is not None and not isinstance(iterator, HOST_ITERATORS):
            try:
                return True, self.call_value(method, [iterator], {})
            except StopIteration as stop:
                return False, stop.value
        if self.lacks(iterator, "__next__"):
            return True, next(iterator)  # raises Python's own error
        if not self.is_fresh(iterator):
            self.break_graph(
                "live_iterator", f"a {type(iterator).__name__} from before this segment is advanced"
            )
        if not isinstance(iterator, _NATIVE_ITERATORS) and type(iterator).__module__ not in (
            "itertools",
            "builtins",
        ):
            self.break_graph("unknown_native", f"a {type(iterator).__name__} is advanced")
        try:
            return True, next(iterator)
        except StopIteration as stop:
            return False, stop.value

    def spread(self, value: Any) -> list[Any]:
        if type(value) in (list, tuple):
            return [self.list_item(value, i) for i in range(self.length(value))]
        if type(value).__name__ in _VIEW_NAMES or is_constant(value):
            self.expand(value)
            return list(value)
        iterator = self.iterate(value)
        items: list[Any] = []
        while True:
            more, item = self.advance(iterator)
            if not more:
                return items
            items.append(item)

    def mapping(self, value: Any) -> dict[Any, Any]:
        value = self.unproxied(value)
        if isinstance(value, dict) and not self.python_method(value, "keys"):
            objects.settle_keys(self, list(dict.keys(value)))
            return {key: self.dict_get(value, key, None) for key in self.keys(value)}
        keys = self.spread(self.call_value(self.getattr(value, "keys"), [], {}))
        objects.settle_keys(self, keys)
        return {key: self.getitem(value, key) for key in keys}

    def format(self, value: Any, spec: str) -> str:
        if isinstance(value, torch.Tensor):
            self.break_graph("data_dependent_value", "a tensor is formatted")
        value = self.concrete(value)
        method = self.python_method(value, "__format__")
        if method is not None:
            return format(Answer(self.call_value(method, [value, spec], {})))
        if not spec:
            return str(self.call_value(str, [value], {}))
        if self.lacks(value, "__format__"):
            return format(value, spec)  # raises Python's own error
        self._native_operands(value)
        return format(value, spec)


def symbol_is_text_formatting(name: str, left: Any, right: Any) -> bool:
    """text % anything: only a subclass of text gets to answer instead."""
    return name == "mod" and type(left) is str and not isinstance(right, str)


_HOLDERS = (int, float, complex, str, bytes)
_COMPARED_BY_FUNCTION = type(functools.cmp_to_key(lambda a, b: 0))
_SEQUENCES = (list, tuple, str, bytes, collections.deque)
_VIEW_NAMES = frozenset({"dict_keys", "dict_values", "dict_items", "odict_keys", "odict_values", "odict_items",
                         "mappingproxy"})  # fmt: skip
_SAFE_INSTANCES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    torch.Generator,
    torch._C._SDPBackend,
)
