"""Interprets the special methods that C code would call on the program's objects.

C code calls them for comparing containers, hashing keys, and making numbers or strings from objects.
Where the interpreter cannot answer, the graph breaks. No special method written in Python runs
eagerly, except ``__hash__`` and ``__eq__`` of keys, which were interpreted just before and only
read.
"""

from __future__ import annotations

import collections
import copyreg
import enum
import gc
import itertools
import operator
import types
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.value_kinds import IDENTITY_TYPES, instances_have, is_constant, keys_of
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket
from tracer_core.trace.attribute_lookup import hides_class
from tracer_core.trace.generators import HOST_ITERATORS
from tracer_core.trace.host_objects import Hashed, HostValue, text_part, without_hash
from tracer_core.trace.native_reads import children
from tracer_core.trace.symbolic_scalars import SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_SEQUENCES = (list, tuple, collections.deque)
_SETS = (set, frozenset)
#: Types of C whose objects have no hash, or perhaps none.
_MAY_LACK_HASH = frozenset({list, dict, set, bytearray, tuple, slice, collections.deque})
_MADE: tuple[dict[Any, Any], ...] = ({}, collections.OrderedDict())
#: Types of the views of dictionaries.
VIEWS = frozenset({types.MappingProxyType}).union(
    type(view) for result in _MADE for view in (result.keys(), result.values(), result.items())
)


def mapping_of(view: Any) -> Any:
    """Returns the mapping behind a view of a dictionary or a mappingproxy."""
    (mapping,) = gc.get_referents(view)
    return mapping


#: Names of special methods whose result C code checks or converts -> function that has it checked.
_CHECKS: dict[str, Any] = {
    "__bool__": bool, "__len__": len, "__index__": lambda a: range(a).stop, "__hash__": hash,
    "__str__": str, "__repr__": repr, "__iter__": iter, "__int__": int, "__float__": float,
    "__complex__": complex, "__bytes__": bytes, "__dir__": dir,
}  # fmt: skip


def call_checked(tracer: Tracer, method: Any, obj: Any, name: str) -> Any:
    """Calls a special method without further arguments and checks its result as CPython does."""
    result = tracer.calls.call_value(method, [obj], {})
    if name in ("__hash__", "__index__"):
        result = tracer.scalars.specialized(result)  # C code uses the number itself
    if isinstance(result, SYMBOLS):
        return result
    if isinstance(result, torch.Tensor):
        raise Break("data_dependent_value", f"{name} of a {type(obj).__name__} gives a tensor")
    if name == "__iter__":
        if not instances_have(type(result), "__next__"):
            iter(HostValue(result))  # raises Python's own error
        return result
    return _CHECKS[name](HostValue(result))


# -- equality and order
# -------------------------------------------------------------------------------------


def equal(tracer: Tracer, left: Any, right: Any, ordered: bool = False) -> bool:
    """Returns left == right for containers that may hold the program's objects. ordered: as
    OrderedDict compares, the order of two of its instances included."""
    if isinstance(left, _SETS) and isinstance(right, _SETS):
        realize_keys(tracer, [*left, *right])
        return bool(left == right)
    if isinstance(left, dict) and isinstance(right, dict):
        return _equal_dicts(tracer, left, right, ordered)
    return any(
        isinstance(left, kind) and isinstance(right, kind) for kind in _SEQUENCES
    ) and _equal_items(tracer, left, right)


def _equal_items(tracer: Tracer, left: Any, right: Any) -> bool:
    if tracer.reads.length(left) != tracer.reads.length(right):
        return False
    return _differing(tracer, left, right) is None and len(left) == len(right)


def _differing(tracer: Tracer, left: Any, right: Any) -> tuple[Any, Any] | None:
    """Returns the first items of two sequences that differ; None if a list has lost them while
    they were compared."""
    pairs = zip(live_items(tracer, left), live_items(tracer, right), strict=False)
    for position, (a, b) in enumerate(pairs):
        if not same_value(tracer, a, b):
            lost = isinstance(left, list) and position >= min(len(left), len(right))
            return None if lost else (a, b)
    return None


def live_items(tracer: Tracer, sequence: Any) -> Iterator[Any]:
    """Yields the items of a sequence that the program may change meanwhile: C code reads a list by
    position, and refuses to go on in a deque."""
    positions: Iterator[int] = itertools.count()
    if isinstance(sequence, collections.deque):
        tracer.reads.length(sequence)
        positions = (i for i, _ in enumerate(collections.deque.__iter__(sequence)))
    for position in positions:
        if position >= tracer.reads.length(sequence):
            return
        yield tracer.reads.list_item(sequence, position)


def same_value(tracer: Tracer, left: Any, right: Any) -> bool:
    """Compares as containers compare their elements: identity first, then ==."""
    has_symbols = tracer.provenance.is_copy(left) or tracer.provenance.is_copy(right)
    if left is right or (not has_symbols and tracer.operators.same_object(left, right)):
        return True
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        raise Break("data_dependent_branch", "tensors are compared inside containers")
    return bool(tracer.operators.to_bool(tracer.operators.compare("==", left, right)))


def _equal_dicts(tracer: Tracer, left: Any, right: Any, ordered: bool) -> bool:
    if ordered and isinstance(right, collections.OrderedDict):
        if not _equal_items(tracer, list(tracer.reads.keys(left)), list(tracer.reads.keys(right))):
            return False
    mine, others = tracer.reads.keys(left), tracer.reads.keys(right)
    if len(mine) != len(others):
        return False
    missing = object()
    for key in mine:
        realize_key(tracer, key, right)
        other = tracer.reads.dict_get(right, key, missing)
        if other is missing or not same_value(
            tracer, tracer.reads.dict_get(left, key, None), other
        ):
            return False
    return True


def order(tracer: Tracer, symbol: str, left: Any, right: Any) -> Any:
    """Compares (<, <=, >, >=) two lists or two tuples: the first elements that differ decide."""
    deciding = _differing(tracer, left, right) or map(tracer.reads.length, (left, right))
    return tracer.operators.compare(symbol, *deciding)


# -- hashing
# ------------------------------------------------------------------------------------------------


def hash_of(tracer: Tracer, value: Any, inside: bool = False) -> int:
    """Returns hash(value). inside: the hash is not observed, so it may depend on an address."""
    value = tracer.scalars.concrete(value)
    method = tracer.entries.python_method(value, "__hash__")
    if method is not None:
        return int(call_checked(tracer, method, value, "__hash__"))
    if tracer.entries.is_disabled(value, "__hash__"):
        return hash(value)  # raises Python's own error
    value = tracer.scalars.payload(value)
    if is_constant(value):
        if not inside and not isinstance(value, (int, float, complex, type(None))):
            tracer.unguarded["the hash of a text differs between processes"] = None
        return hash(value)
    if isinstance(value, (tuple, frozenset)):
        kind = tuple if isinstance(value, tuple) else frozenset
        return hash(kind(Hashed(hash_of(tracer, item, inside)) for item in kind.__iter__(value)))  # type: ignore[arg-type]
    if type(value).__hash__ is None:
        return hash(value)  # raises Python's own error
    if isinstance(value, enum.Enum):
        return hash_of(tracer, value._name_)
    if inside:
        return hash(value)
    raise Break("unknown_native", "the hash of an object is a number that differs between runs")


def has_own_hash(tracer: Tracer, value: Any) -> bool:
    """Returns whether using `value` as a key runs user code."""
    if is_constant(value) or isinstance(value, (torch.Tensor, OpOverload, OpOverloadPacket)):
        return False
    if type(value) in (tuple, frozenset):
        return any(has_own_hash(tracer, item) for item in value)
    if isinstance(type(value), enum.EnumMeta) and hides_class(type(type(value))):
        static = tracer.entries.static
        if static(type(value), "__hash__") is enum.Enum.__hash__:  # that of its name
            return static(type(value), "__eq__") is not object.__eq__
    return bool(
        tracer.entries.python_method(value, "__hash__")
        or tracer.entries.python_method(value, "__eq__")
    )


def any_has_own_hash(tracer: Tracer, keys: Collection[Any]) -> bool:
    """Returns whether `has_own_hash` is true of a key. An optimizer's state, and the modules that
    were seen, have hundreds of keys of few types."""
    one_of_each = {type(key): key for key in keys}
    asked = keys if one_of_each.keys() & {tuple, frozenset} else one_of_each.values()
    return any(has_own_hash(tracer, key) for key in asked)


def _is_replaced(tracer: Tracer, key: Any) -> bool:
    """Returns whether the trace works on a copy of the object behind a key."""
    if type(key) is tuple:
        return any(_is_replaced(tracer, part) for part in key)
    return isinstance(key, HOST_ITERATORS) and not tracer.provenance.is_fresh(key)


def as_given(iterable: Any, items: list[Any]) -> Any:
    """Returns the members of a set to be as C code takes them: the table of a new set, and so its
    order, depends on whether they came from a set, a dictionary or one by one."""
    is_snapshot = type(iterable) is dict or isinstance(iterable, _SETS)
    if is_snapshot and len(items) == len(iterable) and all(map(operator.is_, items, iterable)):
        return iterable
    return items


def check_hashable(key: Any, kind: type) -> None:
    """Raises the error of C code for a key without a hash. kind: of the dictionary or set that the
    key is looked up in; CPython 3.14 names it."""
    if type(key) in _MAY_LACK_HASH or type(key).__hash__ is None:
        use_as_key(key, kind)


def use_as_key(key: Any, kind: type) -> None:
    """Has C code take the hash of a key of a dictionary or set; it words the error of one without."""
    set().add(key) if issubclass(kind, _SETS) else {}.setdefault(key)


def realize_key(tracer: Tracer, key: Any, container: Any, kind: type | None = None) -> None:
    """Interprets the user code of a lookup of `key` in a dictionary or set. Afterwards C code may
    run that code again: its answers are guarded, and it changed nothing. kind: of the container, if
    `container` is a list of keys."""
    kind = kind or type(container)
    tracer.scalars.payload(key)
    if _is_replaced(tracer, key):
        raise Break("unsupported_value", "a generator from before this region is looked up")
    own, known = has_own_hash(tracer, key), [item for item in keys_of(container) if item is not key]
    _note_parts(tracer, [key, *known], container)
    if not own and not any_has_own_hash(tracer, known):
        return
    if type(key).__hash__ is None:
        use_as_key(key, kind)
    if not tracer.provenance.is_fresh(container):
        if isinstance(container, dict):
            tracer.reads.keys(container)
        else:
            tracer.reads.expand(container)
    for item in (key, *known):
        if has_own_hash(tracer, item):
            _realize_fields(tracer, item)
    before = tracer.side_effects.activity()
    number = _looked_up_hash(tracer, key, kind)
    for other in known:
        if (own or has_own_hash(tracer, other)) and _stored_hash(tracer, other) == number:
            tracer.operators.to_bool(tracer.operators.compare("==", other, key))
    if tracer.side_effects.activity() != before:
        raise Break(
            "unknown_native", f"__hash__ or __eq__ of a {type(key).__name__} does more than read"
        )


#: C objects that compare and hash by the objects that they are made of -> these.
COMPARED_BY_PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinMethodType: ("__name__", "__self__"),
    types.MethodWrapperType: ("__name__", "__self__"),
    weakref.ReferenceType: (),
}


def parts_of(tracer: Tracer, value: Any) -> list[Any]:
    """Returns what an object that is in `COMPARED_BY_PARTS` is made of, guarded."""
    if type(value) is weakref.ReferenceType:
        referent = tracer.calls.call_value(value, [], {})
        if has_own_hash(tracer, referent):
            raise Break("unknown_native", "a weak reference compares by code of the program")
        return [value if referent is None else referent]
    return [tracer.attributes.getattr(value, part) for part in COMPARED_BY_PARTS[type(value)]]


def _note_parts(tracer: Tracer, keys: Sequence[Any], container: Any = None) -> None:
    """Guards what decides whether bound methods or weak references are one key: C code compares
    their parts. container: from before the trace, perhaps, that holds the keys."""
    compared = [item for key in keys for item in _members(key) if type(item) in COMPARED_BY_PARTS]
    if not compared:
        return
    if container is not None and not tracer.provenance.is_fresh(container):
        if isinstance(container, dict):
            tracer.reads.keys(container)
        else:
            tracer.reads.expand(container)
    for key in keys:
        if type(key) in (tuple, frozenset):
            tracer.reads.expand(key)
    for item in compared:
        tracer.provenance.note_hashed(*parts_of(tracer, item))


def _members(key: Any) -> Iterator[Any]:
    """Yields a key, or the members of a tuple or frozenset."""
    if type(key) in (tuple, frozenset):
        for part in key:
            yield from _members(part)
    else:
        yield key


def _realize_fields(tracer: Tracer, obj: Any) -> None:
    """Replaces symbols by numbers in the fields of an object whose methods C code calls."""
    tracer.scalars.specialized(getattr(obj, "__dict__", None))
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        held = getattr(obj, name, None)
        number = tracer.scalars.specialized(held)
        if number is not held:
            object.__setattr__(obj, name, number)


def realize_keys(tracer: Tracer, keys: list[Any], kind: type = set) -> None:
    """Calls `realize_key` for elements that are put into one container of a kind."""
    tracer.provenance.note_hashed(*keys)
    for key in keys:
        if isinstance(key, (tuple, frozenset)):
            tracer.reads.expand(key)  # C code compares their members
    _note_parts(tracer, keys)
    if any_has_own_hash(tracer, keys):
        for i, key in enumerate(keys):
            realize_key(tracer, key, keys[:i], kind)


def _looked_up_hash(tracer: Tracer, key: Any, kind: type) -> int:
    try:
        return _key_hash(tracer, key)
    except TypeError as error:
        raised = error
    if type(raised) is TypeError:  # C code may put it into words of its own
        use_as_key(without_hash(type(key), raised), kind)
    raise raised


def _key_hash(tracer: Tracer, key: Any) -> int:
    if not has_own_hash(tracer, key):
        return hash(key)
    number = hash_of(tracer, key, inside=True)
    tracer.reads.key_hashes.setdefault(id(key), (key, number, tracer.outer_step))
    return number


def _stored_hash(tracer: Tracer, key: Any) -> int:
    """Returns the hash that a container keeps for its key. C code does not compute it again."""
    try:
        number = _key_hash(tracer, key)
    except Exception as error:
        raise Break(
            "unknown_native", f"the hash of a {type(key).__name__} in a container"
        ) from error
    if has_own_hash(tracer, key) and tracer.reads.key_hashes[id(key)][1] != number:
        raise Break("unknown_native", f"the hash of a {type(key).__name__} has changed")
    return number


def check_hashed_again(tracer: Tracer, keys: list[Any]) -> None:
    """Checks that keys have the hashes that they were put into a container with, and are not
    compared, when generated code puts them into one again. Otherwise restarts with a break before
    the instruction that hashed them, so that eager mode makes the container."""
    hashes = collections.Counter[int]()
    for key in keys if any_has_own_hash(tracer, keys) else ():
        before = tracer.side_effects.activity()
        try:
            number = _stored_hash(tracer, key)
        except (Break, Restart):
            number, hashes = 0, collections.Counter({0: 1})
        hashes[number] += 1
        known = tracer.reads.key_hashes.get(id(key))
        if known is None or known[0] is not key:
            continue
        if hashes[number] > 1 or tracer.side_effects.activity() != before:
            raise Restart(
                known[2], "unsupported_value", f"a {type(key).__name__} would be hashed again"
            )


# -- numbers
# ------------------------------------------------------------------------------------------------


def index(tracer: Tracer, value: Any) -> Any:
    """Traces operator.index(value) of the program's objects: an int needs no method."""
    if isinstance(value, int):
        return tracer.scalars.payload(value)
    method = tracer.entries.python_method(value, "__index__")
    return value if method is None else call_checked(tracer, method, value, "__index__")


def hashable_key(tracer: Tracer, key: Any) -> Any:
    """Returns a subscript for a C container: objects with ``__index__`` become integers."""
    if type(key) is slice:
        parts = [hashable_key(tracer, part) for part in (key.start, key.stop, key.step)]
        same = all(a is b for a, b in zip(parts, (key.start, key.stop, key.step), strict=True))
        return key if same else slice(*parts)
    if type(key) is tuple:
        parts = [hashable_key(tracer, part) for part in key]
        return key if all(a is b for a, b in zip(parts, key, strict=True)) else tuple(parts)
    return index(tracer, key)


# -- strings
# ---------------------------------------------------------------------------------------------------

_ERROR_TEXTS = (BaseException.__dict__["__str__"], KeyError.__dict__["__str__"])
_BRACKETS: dict[type, tuple[str, str, str]] = {
    list: ("[", "]", "[]"), tuple: ("(", ")", "()"), set: ("{", "}", "set()"),
    frozenset: ("frozenset({", "})", "frozenset()"),
}  # fmt: skip


def repr_of(tracer: Tracer, value: Any, inside: tuple[int, ...] = ()) -> str:
    """Returns repr(value), the objects in containers included."""
    if isinstance(value, torch.Tensor):
        raise Break("data_dependent_value", "a tensor is turned into text")
    value = tracer.scalars.concrete(value)
    method = tracer.entries.python_method(value, "__repr__")
    if method is not None:
        return call_checked(tracer, method, value, "__repr__")  # type: ignore[no-any-return]
    value = tracer.scalars.payload(value)
    if is_constant(value):
        return repr(value)
    if type(value) in _BRACKETS or type(value) is dict:
        if id(value) in inside:
            return "{...}" if type(value) is dict else "[...]"
        return _repr_container(tracer, value, (*inside, id(value)))
    if isinstance(value, BaseExceptionGroup) and GROUPS_PRINT_THEIR_MEMBERS:
        return f"{type(value).__name__}{_repr_arguments(tracer, _printed_of_group(tracer, value))}"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}{_repr_arguments(tracer, tracer.attributes.getattr(value, 'args'))}"
    if tracer.entries.static(type(value), "__repr__") is object.__dict__[
        "__repr__"
    ] and not isinstance(value, (type, types.ModuleType)):
        raise Break(
            "unknown_native", "the text of an object is its address, which differs between runs"
        )
    if type(value) is types.SimpleNamespace:
        if id(value) in inside:
            return "namespace(...)"
        inside = (*inside, id(value))
        fields = tracer.containers.mapping(tracer.attributes.getattr(value, "__dict__")).items()
        return f"namespace({', '.join(f'{name}={_shown(tracer, item, inside)}' for name, item in fields)})"
    parts = _printed_parts(tracer, value)
    if parts is not None and id(value) not in inside:
        inside = (*inside, id(value))
        texts = ", ".join(_shown(tracer, part, inside) for part in parts)
        return f"{type(value).__name__}({texts})"
    tracer.native_calls.native_reads(value)
    if isinstance(value, _PRINTED_AS) and not all(map(is_constant, children(value))):
        if (
            tracer.entries.special(type(value), "__repr__") is not object.__repr__
            and type(value) in _PRINTED_AS
        ):
            return repr(_with_texts(tracer, value))
        raise Break("unknown_native", f"a {type(value).__name__} of objects is printed")
    _check_printed(tracer, value)
    return repr(value)


#: Whether the repr of an exception group is that of its members, whatever ``args`` has become since:
#: so in late releases of 3.14.
GROUPS_PRINT_THEIR_MEMBERS = "__repr__" in vars(BaseExceptionGroup)


def _printed_of_group(tracer: Tracer, group: BaseExceptionGroup[Any]) -> tuple[Any, Any]:
    """Returns what such a repr shows: the message, and the members as the kind of sequence that the
    group was made of."""
    args = tracer.attributes.getattr(group, "args")
    members = tracer.attributes.getattr(group, "exceptions")
    inputs = tracer.reads.list_item(args, 1) if tracer.reads.length(args) > 1 else members
    if not isinstance(inputs, (list, tuple)):
        raise Break("unknown_native", f"a {type(group).__name__} shows what it was made of")
    shown = tracer.containers.spread(members)
    return tracer.attributes.getattr(group, "message"), (
        shown if isinstance(inputs, list) else tuple(shown))  # fmt: skip


def _printed_parts(tracer: Tracer, value: Any) -> tuple[Any, ...] | None:
    """Returns the objects that C code prints between the parentheses of a slice, of a view of a
    dictionary, or of a mappingproxy that the trace has made."""
    if type(value) is slice:
        return value.start, value.stop, value.step
    if not tracer.provenance.is_fresh(value):
        return None
    if type(value) is types.MappingProxyType:
        return (tracer.attributes.unproxied(value),)
    return (tracer.containers.spread(value),) if type(value) in VIEWS else None


def _check_printed(tracer: Tracer, value: Any) -> None:
    """Breaks for an object whose string shows contents that are not guarded."""
    if not isinstance(value, _PRINTED_AS_READ) and not tracer.provenance.is_fresh(value):
        raise Break(
            "unsupported_value", f"the text of a {type(value).__name__} from before this region"
        )


#: Containers that C code prints.
_PRINTED_AS = (collections.deque, collections.OrderedDict, collections.defaultdict)
#: Types of values whose string shows only what is guarded by then.
_PRINTED_AS_READ = (*IDENTITY_TYPES, types.ModuleType, *_PRINTED_AS, *_BRACKETS, dict,
                    torch.SymInt, torch.SymFloat)  # fmt: skip


def _with_texts(tracer: Tracer, value: Any) -> Any:
    """Returns the same container of host objects that print the interpreted string."""
    if isinstance(value, collections.deque):
        return collections.deque([text_part(tracer, item) for item in value], value.maxlen)
    result = value.copy()
    result.clear()
    for key, item in value.items():
        result[text_part(tracer, key)] = text_part(tracer, item)
    return result


def _shown(tracer: Tracer, value: Any, inside: tuple[int, ...] = ()) -> str:
    """Returns `repr_of` as part of another string: one of a subclass counts as a str."""
    return str.__str__(repr_of(tracer, value, inside))


def _repr_arguments(tracer: Tracer, args: tuple[Any, ...]) -> str:
    return f"({_shown(tracer, args[0])})" if len(args) == 1 else repr_of(tracer, args)


def _repr_container(tracer: Tracer, value: Any, inside: tuple[int, ...]) -> str:
    if type(value) is dict:
        pairs = tracer.containers.mapping(value).items()
        texts = [f"{_shown(tracer, k, inside)}: {_shown(tracer, v, inside)}" for k, v in pairs]
        return "{" + ", ".join(texts) + "}"
    left, right, empty = _BRACKETS[type(value)]
    texts = [_shown(tracer, item, inside) for item in tracer.containers.spread(value)]
    if type(value) is tuple and len(texts) == 1:
        return f"({texts[0]},)"
    return f"{left}{', '.join(texts)}{right}" if texts else empty


def str_of(tracer: Tracer, value: Any) -> str:
    """Traces str(value)."""
    if isinstance(value, torch.Tensor):
        raise Break("data_dependent_value", "a tensor is turned into text")
    value = tracer.scalars.concrete(value)
    method = tracer.entries.python_method(value, "__str__")
    if method is not None:
        return call_checked(tracer, method, value, "__str__")  # type: ignore[no-any-return]
    by_repr = tracer.entries.static(type(value), "__str__") is object.__dict__["__str__"]
    if by_repr and tracer.entries.python_method(value, "__repr__"):
        return repr_of(tracer, value)  # the __str__ of numbers and objects calls repr
    value = tracer.scalars.payload(value)
    if is_constant(value):
        return str(value)
    if (
        isinstance(value, BaseException)
        and tracer.entries.static(type(value), "__str__") in _ERROR_TEXTS
    ):
        args = tracer.attributes.getattr(value, "args")
        if not args:
            return ""
        if len(args) != 1:
            return repr_of(tracer, args)
        only = tracer.reads.list_item(args, 0)
        return repr_of(tracer, only) if issubclass(type(value), KeyError) else str_of(tracer, only)
    if isinstance(value, BaseException):
        if not tracer.provenance.is_fresh(value):
            raise Break(
                "unsupported_value",
                f"the text of a {type(value).__name__} from before this region",
            )
        return str(value)
    if tracer.entries.static(type(value), "__str__") is object.__dict__["__str__"]:
        return repr_of(tracer, value)
    tracer.native_calls.native_reads(value)
    _check_printed(tracer, value)
    return str(value)


def percent(tracer: Tracer, template: str, values: Any) -> str:
    """Traces template % values."""
    tracer.scalars.payload(template)
    if isinstance(values, dict):
        parts: Any = {
            key: text_part(tracer, value)
            for key, value in tracer.containers.mapping(values).items()
        }
    elif isinstance(values, tuple):
        parts = tuple(text_part(tracer, value) for value in tracer.containers.spread(values))
    else:
        if isinstance(values, collections.deque):  # it has items but C code takes it for no mapping
            raise Break("unknown_native", "a deque is formatted by %")
        parts = text_part(tracer, values)
        single = str if isinstance(template, str) else (str, bytes, bytearray)
        if parts is not values and (
            isinstance(values, single) or not instances_have(type(values), "__getitem__")
        ):
            parts = (parts,)
    text: str = template % parts
    return text


def format_text(tracer: Tracer, template: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Traces template.format(*args, **kwargs)."""
    parts = [text_part(tracer, value) for value in args]
    return template.format(
        *parts, **{name: text_part(tracer, value) for name, value in kwargs.items()}
    )
