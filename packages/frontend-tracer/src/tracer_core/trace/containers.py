"""Traces membership tests, subscripts and iteration.

Special methods that are user code are interpreted. Containers that existed before the trace are
guarded as far as they are read.
"""

from __future__ import annotations

import array
import collections
import gc
import itertools
import operator
import sys
import types
import typing
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.template_strings import TEMPLATE
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.numpy_types import ARRAY
from tracer_core.guards.value_kinds import instances_have, is_constant
from tracer_core.limits import MAX_ITERATOR_DEPTH
from tracer_core.trace import special_methods, traced_arrays
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.component import Component
from tracer_core.trace.generators import HOST_ITERATORS, LazyIterator
from tracer_core.trace.host_objects import HostValue
from tracer_core.trace.live_generators import LiveGenerators
from tracer_core.trace.loops_over_scalars import VALUE_VIEWS, VALUES, ScalarLoops
from tracer_core.trace.operators import CONTAINERS, MUTABLE
from tracer_core.trace.special_methods import VIEWS
from tracer_core.trace.state_values import index_in

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Iterators that, if made in the trace, read nothing that existed before it.
_ITERABLES: tuple[Any, ...] = (
    [], (), {}, set(), "", b"", bytearray(), array.array("i"), range(0), {}.items(), {}.values(),
    reversed([]), collections.deque(), reversed(collections.deque()), reversed({}),
    reversed({}.items()), reversed({}.values()), collections.OrderedDict(),
)  # fmt: skip
NATIVE_ITERATORS: tuple[Any, ...] = tuple(
    {type(iter(x)) for x in _ITERABLES}
    | {
        enumerate,
        zip,
        map,
        filter,
        reversed,
        type(iter(int, 1)),
        type(itertools.tee(())[0]),
        *HOST_ITERATORS,
    }
    | {kind for kind in vars(itertools).values() if isinstance(kind, type)}
)
#: Iterators that run C code if what they hold does.
_IN_C = frozenset(NATIVE_ITERATORS) - frozenset(HOST_ITERATORS)
#: Type of an OrderedDict's iterators, which no source makes again.
_ORDERED: type = type(iter(collections.OrderedDict()))
_KEYS: tuple[type, ...] = (type({}.keys()), type(collections.OrderedDict().keys()))
_ITEMS: tuple[type, ...] = (type({}.items()), type(collections.OrderedDict().items()))


class Containers(Component):
    """Containers and iterators in a trace. Mutable."""

    def __init__(self, tracer: Tracer, live_generators: LiveGenerators) -> None:
        super().__init__(tracer)
        self.entries, self.operators = tracer.entries, tracer.operators
        self.live_generators = live_generators
        self.loops = ScalarLoops(tracer)
        #: Iterators from before the trace whose items the trace began to take: it takes them all,
        #: where a loop that was begun before has a code region for its body.
        self.begun: dict[int, Any] = {}

    def contains(self, item: Any, container: Any) -> bool:
        container = self.tracer.attributes.unproxied(container)
        method = self.entries.python_method(container, "__contains__")
        if method is not None:
            return self.operators.to_bool(
                self.tracer.calls.call_value(method, [container, item], {})
            )
        if self.entries.is_disabled(container, "__contains__"):
            raise TypeError(f"'{type(container).__name__}' object is not a container")
        if isinstance(container, torch.Tensor):
            raise Break("data_dependent_value", "`in` on a tensor")
        item = self.tracer.scalars.concrete(item)
        if isinstance(container, dict):
            return self._contains_key(item, container)
        if isinstance(container, (list, tuple, collections.deque)):
            return self._is_among(item, self._advanced(self._iterate_container(container)))
        if isinstance(container, (bytearray, array.array)):
            self.tracer.reads.expand(container)
            item = self.operators.index(item)
        if isinstance(container, (str, bytes, bytearray, array.array)) or (
            isinstance(container, range) and type(item) in (int, bool)
        ):
            container = self.tracer.scalars.payload(container)
            if isinstance(container, bytes):
                item = self.operators.index(item)
            item = self.tracer.scalars.payload(item)
            if isinstance(container, (str, bytes)) or is_constant(item):
                return item in container
        if isinstance(container, (set, frozenset)):
            held = self.tracer.reads.holds_object(container, item)
            if held is not None:
                return held
            self.tracer.reads.check_key(item, container)
            self.tracer.reads.expand(container)
            return item in container
        if type(container) in _KEYS:
            special_methods.realize_key(self.tracer, item, container)
            self.tracer.reads.expand(container)
            return item in container
        if type(container) in _ITEMS:
            return self._has_item(item, container)
        protocol = ("__contains__", "__iter__", "__getitem__")
        if self.entries.lacks(container, *protocol) or not any(
            instances_have(type(container), name) for name in protocol
        ):
            return item in container  # raises Python's own error
        if (
            self.entries.python_method(container, "__iter__")
            or self.entries.lacks(container, "__contains__")
            or isinstance(container, (*NATIVE_ITERATORS, range))
            or type(container) in VIEWS
        ):
            try:
                others = self.stream(container)
            except TypeError:
                others = None
            if others is None:  # the error has no context
                kind = self.tracer.exceptions.type_name(container)
                return item in type(kind, (), {})()
            return self._is_among(item, others)
        raise Break("unknown_native", f"`in` on a {type(container).__name__}")

    def _contains_key(self, key: Any, container: dict[Any, Any]) -> bool:
        if is_constant(key):
            return self.tracer.reads.dict_get(container, key, ABSENT) is not ABSENT
        self.tracer.reads.check_key(key, container)
        self.tracer.reads.keys_for(container, key)
        return dict.__contains__(container, key)

    def _has_item(self, item: Any, view: Any) -> bool:
        """Returns whether a pair is among the items of a dictionary: C code looks up its key."""
        self.tracer.reads.expand(view)
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        key, wanted = self.tracer.reads.items(item)
        mapping = self.tracer.reads.viewed(view)
        value = self.tracer.reads.dict_get(mapping, key, ABSENT)
        return value is not ABSENT and special_methods.same_value(self.tracer, value, wanted)

    def _is_among(self, item: Any, others: Iterator[Any]) -> bool:
        """Searches as ``PySequence_Contains`` does, up to the first equal item."""
        return any(special_methods.same_value(self.tracer, other, item) for other in others)

    # -- subscripts --

    def index_of(self, key: Any) -> Any:
        """Returns an index: the integer in a tensor if it is known before the graph runs."""
        number = index_in(self.tracer, key) if isinstance(key, torch.Tensor) else None
        return key if number is None else number

    def getitem(self, container: Any, key: Any) -> Any:
        container = self.tracer.attributes.unproxied(container)
        if traced_arrays.has_array(self.tracer, (container, key), 0):
            key = special_methods.hashable_key(self.tracer, key)
            return traced_arrays.call(self.tracer, operator.getitem, [container, key], {})
        method = self.entries.python_method(container, "__getitem__")
        if method is not None:
            return self.tracer.calls.call_value(method, [container, key], {})
        if type(container) in (dict, list):
            number = self.tracer.scalars.looked_up(container, key)
            if number is not None:
                return number
        if isinstance(container, dict):
            return self._dict_item(container, self.tracer.scalars.concrete(key))
        key = special_methods.hashable_key(self.tracer, key)
        if isinstance(container, torch.Tensor):
            self.operators.native_operands(key)
            return self.operators.apply(operator.getitem, container, key)
        key = self.tracer.scalars.concrete(self.index_of(key))
        if isinstance(container, (list, tuple, collections.deque)) and type(key) in (int, bool):
            n = self.tracer.reads.length(container)
            if not -n <= key < n:
                base = next(
                    kind for kind in (tuple, list, collections.deque) if isinstance(container, kind)
                )
                raise IndexError(f"{base.__name__} index out of range")
            return self.tracer.reads.list_item(container, key if key >= 0 else key + n, varies=True)
        if isinstance(container, type):
            if container is typing.Union:  # which takes the members of other unions
                self.tracer.reads.expand(key)
            return container[key]  # type: ignore[index]
        bounds = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        if any(isinstance(bound, torch.Tensor) for bound in bounds):
            raise Break(
                "data_dependent_value", f"a tensor is the index of a {type(container).__name__}"
            )
        if self.entries.lacks(container, "__getitem__"):
            return container[key]  # raises Python's own error
        self.operators.native_operands(key)
        if type(container) in (list, tuple) and type(key) is slice:
            return self.loops.part(container, key)
        self.tracer.reads.expand(container)
        if isinstance(container, (*CONTAINERS, str, bytes, range, bytearray,
        array.array)) or type(container).__module__ in (
            "typing", "types", "collections"):  # fmt: skip
            return container[key]
        if (
            isinstance(container, ARRAY)
            and self.provenance.is_fresh(container)
            and is_constant(key)
        ):
            return self.tracer.native_calls.note_allocation(container[key])  # type: ignore[index]
        if type(container) is types.MappingProxyType:
            return self.tracer.calls.call_value(
                types.MappingProxyType.__getitem__, [container, key], {}
            )
        raise Break("unknown_native", f"subscript of a {type(container).__name__}")

    def _dict_item(self, container: dict[Any, Any], key: Any) -> Any:
        value = self.tracer.reads.dict_get(container, key, ABSENT, varies=True)
        if value is not ABSENT:
            return value
        missing = self.entries.python_method(container, "__missing__")
        if missing is not None:
            return self.tracer.calls.call_value(missing, [container, key], {})
        if isinstance(container, collections.defaultdict) and container.default_factory is not None:
            return self.store_missing(container, key, container.default_factory)
        if isinstance(container, collections.Counter):
            return 0
        raise KeyError(key)

    def store_missing(self, container: Any, key: Any, factory: Any) -> Any:
        """Traces what a defaultdict does for a key that it lacks."""
        value = self.tracer.calls.call_value(factory, [], {})
        if _STORED_BY_FACTORY:
            return self.tracer.calls.call_value(dict.setdefault, [container, key, value], {})
        self.setitem(container, key, value)
        return value

    def setitem(self, container: Any, key: Any, value: Any) -> None:
        of_array = type(container) in (*ARRAY, traced_arrays.TracedArray)
        if (of_array or traced_arrays.is_array(self.tracer, key)) and traced_arrays.has_array(
            self.tracer, (container, key, value)
        ):
            key = special_methods.hashable_key(self.tracer, key)
            traced_arrays.setitem(self.tracer, container, key, value)
            return
        method = self.entries.python_method(container, "__setitem__")
        if method is not None:
            self.tracer.calls.call_value(method, [container, key, value], {})
            return
        if isinstance(container, torch.Tensor):
            key = special_methods.hashable_key(self.tracer, key)
            self.operators.native_operands(key, value)
            self.operators.apply(operator.setitem, container, key, value)
            return
        key = self.tracer.scalars.concrete(key)
        if isinstance(container, dict):
            self.tracer.reads.check_key(key, container)
            special_methods.check_hashable(key, dict)  # before any change is registered
            self.tracer.side_effects.before_store(container, key)
        else:
            key = special_methods.hashable_key(self.tracer, key)
            if isinstance(key, slice):
                simple = isinstance(container, list) and key.step in (None, 1)
                if simple and sys.version_info < (3, 13):
                    # The limits are those of before the items are made.
                    key = slice(*key.indices(self.tracer.reads.length(container))[:2])
                value = self._slice_value(container, value)
            if isinstance(container, list) and _is_position(key, container):
                self.tracer.side_effects.before_item(container, key)
            else:
                self._change(container, "__setitem__")
        container[key] = value

    def _slice_value(self, container: Any, value: Any) -> Any:
        """Reads what ``container[a:b] = value`` reads of the value: all its items."""
        if isinstance(value, (bytearray, array.array)):
            self.tracer.reads.expand(value)
        elif isinstance(container, (list, bytearray)):
            value = self.tracer.scalars.payload(value)
            if not is_constant(value) and not self.entries.lacks(value, "__iter__", "__getitem__"):
                items = self.spread(value)
                if isinstance(container, bytearray) and not all(
                    type(item) is int for item in items
                ):
                    raise Break(
                        "unsupported_mutation", "a slice of a bytearray is set to other than int"
                    )
                return items
        return value  # other items raise Python's own error

    def delitem(self, container: Any, key: Any) -> None:
        method = self.entries.python_method(container, "__delitem__")
        if method is not None:
            self.tracer.calls.call_value(method, [container, key], {})
            return
        key = self.tracer.scalars.concrete(key)
        if isinstance(container, dict):
            self.tracer.reads.check_key(key, container)
            if not self.tracer.reads.has_key(container, key):
                raise KeyError(key)
            self.tracer.side_effects.before_remove(container, key)
        else:
            key = special_methods.hashable_key(self.tracer, key)
            self._change(container, "__delitem__")
        del container[key]

    def _change(self, container: Any, name: str) -> None:
        if not isinstance(container, MUTABLE):
            if (
                is_constant(container)
                or isinstance(container, tuple)
                or self.entries.lacks(container, name)
            ):
                return  # the operation raises Python's own error
            raise Break("unsupported_mutation", f"an item of a {type(container).__name__} is set")
        self.tracer.side_effects.before_change(container, name != "__setitem__")

    # -- iteration --

    def iterate(self, value: Any) -> Any:
        if isinstance(value, (*NATIVE_ITERATORS, types.GeneratorType)):
            if not self.provenance.is_fresh(value) and self.live_generators.is_read_ahead(value):
                self.begun[id(value)] = value
            return value
        value = self.tracer.attributes.unproxied(value)
        numbers = self.loops.over(value)
        if numbers is not None:
            return numbers
        if isinstance(value, torch.Tensor):
            if self.recorder.program_modes:
                raise Break("torch_mode", "iteration over a tensor inside a mode of the program")
            if self.tracer.fakes.current(value).dim() == 0:
                raise TypeError("iteration over a 0-d tensor")
            return iter(self.tracer.native_calls.native(torch.Tensor.unbind, value, 0))
        if traced_arrays.is_array(self.tracer, value):
            return self._by_subscripts(value, traced_arrays.length(self.tracer, value))
        method = self.entries.python_method(value, "__iter__")
        if method is not None:
            return special_methods.call_checked(self.tracer, method, value, "__iter__")
        if self.entries.is_disabled(value, "__iter__"):
            return iter(value)  # raises Python's own error
        if isinstance(value, (list, tuple, dict, collections.deque)):
            return self._iterate_container(value)
        value = self.tracer.scalars.payload(value)
        if isinstance(value, (set, frozenset)):
            self.tracer.reads.note_order(value)
        if is_constant(value):
            return iter(value)
        if self.entries.lacks(value, "__iter__") and self.entries.python_method(
            value, "__getitem__"
        ):
            return self._by_subscripts(value)
        if self.entries.lacks(value, "__iter__", "__getitem__"):
            return iter(value)  # raises Python's own error
        if type(value) in VALUE_VIEWS and self.provenance.is_fresh(value):
            self.tracer.reads.entries(special_methods.mapping_of(value))
        else:
            self.tracer.reads.expand(value)
        if isinstance(value, (set, frozenset)):
            self.tracer.reads.guard_order(value)
        if isinstance(value, (*CONTAINERS, bytearray, array.array)) or type(value) in VIEWS:
            return self.tracer.native_calls.note_allocation(iter(value))
        if isinstance(value, ARRAY) and self.provenance.is_fresh(value) and value.ndim == 1:  # type: ignore[attr-defined]
            return iter(list(value))  # type: ignore[call-overload]
        raise Break(
            "unknown_native", f"iteration over a {type(value).__module__}.{type(value).__name__}"
        )

    def _by_subscripts(self, value: Any, count: int | None = None) -> LazyIterator:
        """Iterates by the old protocol: value[0], value[1], ... until IndexError, or `count`."""
        numbers = itertools.count() if count is None else iter(range(count))

        def step() -> Any:
            number = next(numbers)
            try:
                return self.getitem(value, number)
            except IndexError:
                raise StopIteration from None

        return LazyIterator(self.tracer, f"iterator over a {type(value).__name__}", step)

    def _iterate_container(self, value: Any) -> Any:
        """Returns C code's iterator over a list, tuple, dict or deque itself: the program may change
        it meanwhile."""
        if not self.provenance.is_fresh(value):
            if isinstance(value, dict):
                self.tracer.reads.keys(value)
            else:
                self.tracer.reads.items(value)
        kinds: tuple[Any, ...] = (list, tuple, collections.OrderedDict, dict, collections.deque)
        built = next(kind.__iter__(value) for kind in kinds if isinstance(value, kind))
        return self.tracer.native_calls.note_allocation(built) if type(built) is _ORDERED else built

    def loop(self, value: Any) -> Any:
        if type(value) is TEMPLATE:
            return iter(self.tracer.attributes.template_parts(value))
        return self.iterate(value)

    def next_item(self, iterator: Any) -> tuple[bool, Any]:
        """Does `advance` for a call of next(): a loop over an iterator from before the trace has a
        region for its body, which such a call has not."""
        if self.provenance.is_fresh(iterator) or self.entries.python_method(iterator, "__next__"):
            return self.advance(iterator)
        return self.advance(iterator, iterator)

    def advance(self, iterator: Any, owner: Any = None) -> tuple[bool, Any]:
        """Returns (True, item), or (False, result) at the end. owner: of an iterator from before the
        trace that is advanced inside the trace, what generated code advances in its place."""
        if self.loops.knows(iterator):
            return self.loops.advance(iterator)
        method = self.entries.python_method(iterator, "__next__")
        if method is not None and not isinstance(iterator, HOST_ITERATORS):
            try:
                return True, self.tracer.calls.call_value(method, [iterator], {})
            except StopIteration as stop:
                return False, stop.value
        if self.entries.lacks(iterator, "__next__"):
            return True, next(iterator)  # raises Python's own error
        if not self.provenance.is_fresh(iterator) and not isinstance(iterator, HOST_ITERATORS):
            if owner is not None or self.tracer.nesting or id(iterator) in self.begun:
                replica = self.live_generators.replica(iterator)
                if replica is not None:
                    return self.advance(replica)
                known = self.live_generators.next_of(iterator, owner)
                if known is not None:
                    return known
            raise Break(
                "live_iterator", f"a {type(iterator).__name__} from before this region is advanced"
            )
        if not isinstance(iterator, NATIVE_ITERATORS) and type(iterator).__module__ not in (
            "itertools",
            "builtins",
        ):
            raise Break("unknown_native", f"a {type(iterator).__name__} is advanced")
        self.tracer.advanced_at = self.tracer.outer_step
        try:
            return True, next(iterator)
        except StopIteration as stop:
            return False, stop.value

    def spread(self, value: Any, varies: bool = False, limit: int | None = None) -> list[Any]:
        if type(value) in (list, tuple) or (varies and self.loops.is_sequence(value)):
            return self.tracer.reads.items(value, varies)
        if type(value) in VALUE_VIEWS and self.provenance.is_fresh(value):
            pairs = self.tracer.reads.entries(special_methods.mapping_of(value), varies)
            return [item for _, item in pairs] if type(value) is VALUES else list(pairs)
        if type(value) in VIEWS or is_constant(value):
            self.tracer.reads.expand(value)
            return list(value)
        if type(value) is TEMPLATE:
            return self.tracer.attributes.template_parts(value)
        return list(itertools.islice(self.stream(value), limit))

    def arguments(self, value: Any) -> list[Any]:
        return self.spread(value, varies=True)

    def stream(self, value: Any) -> Iterator[Any]:
        """Yields the items of an iterable as the program's own iteration gives them, one by one."""
        iterator = self.iterate(value)
        return iterator if self.runs_in_c(iterator) else self._advanced(iterator)

    def runs_in_c(self, iterator: Any) -> bool:
        """Returns whether nothing can be traced in taking the items of an iterator: it was made in
        the trace, of C iterators and constants."""
        if not self._runs_no_code(iterator, MAX_ITERATOR_DEPTH):
            return False
        self.tracer.advanced_at = self.tracer.outer_step
        return True

    def _runs_no_code(self, value: Any, depth: int) -> bool:
        if is_constant(value):
            return True
        if type(value) not in _IN_C or not self.provenance.is_fresh(value):
            return False
        if depth == 0:
            crossed("MAX_ITERATOR_DEPTH")
        return depth > 0 and all(
            part is type(value) or self._runs_no_code(part, depth - 1)
            for part in gc.get_referents(value)
        )

    def _advanced(self, iterator: Any) -> Iterator[Any]:
        while True:
            more, item = self.advance(iterator)
            if not more:
                return
            yield item

    def is_snapshot(self, value: Any) -> bool:
        """Returns whether reading all items of an iterable at once runs no code of the program."""
        return type(value) in (list, tuple) or type(value) in VIEWS or is_constant(value)

    def extend(self, target: Any, values: Any) -> None:
        """Traces ``extend`` of a list or deque. Items of an iterator arrive one by one: code that
        makes them sees those before."""
        add = (list if isinstance(target, list) else collections.deque).extend
        full = values is target or self.is_snapshot(values)
        for items in [self.spread(values)] if full else ([item] for item in self.stream(values)):
            self.tracer.side_effects.before_append(target, items)
            add(target, items)

    def mapping(self, value: Any) -> dict[Any, Any]:
        value = self.tracer.attributes.unproxied(value)
        if self._is_read_by_c(value):
            special_methods.realize_keys(self.tracer, list(dict.keys(value)), dict)
            return {
                key: self.tracer.reads.dict_get(value, key, None, varies=True)
                for key in self.tracer.reads.keys(value)
            }
        keys = self.spread(
            self.tracer.calls.call_value(self.tracer.attributes.getattr(value, "keys"), [], {})
        )
        special_methods.realize_keys(self.tracer, keys, dict)
        return {key: self.getitem(value, key) for key in keys}

    def _is_read_by_c(self, value: Any) -> bool:
        """Returns whether C code reads a mapping's entries, and asks none of its methods."""
        return isinstance(value, dict) and not self.entries.python_method(value, "__iter__")

    def entries_of(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the items of a mapping as C code reads them: all keys first, then each value."""
        value = self.tracer.attributes.unproxied(value)
        if self._is_read_by_c(value):
            yield from self.mapping(value).items()
            return
        keys = self.tracer.calls.call_value(self.tracer.attributes.getattr(value, "keys"), [], {})
        for key in self.spread(keys):
            yield key, self.getitem(value, key)

    def formatted(self, value: Any, spec: str) -> Any:
        """Returns a text, unread where it is that of a symbolic number: most messages are prepared
        for an error that is not raised."""
        text = self.tracer.scalars.text(value, spec)
        return self.format(value, spec) if text is None else text

    def joined(self, parts: list[Any]) -> LazyValue | None:
        return self.tracer.scalars.joined(parts)

    def added(self, left: Any, right: Any) -> LazyValue | None:
        """Does `ContainerSemantics.added`. A loop that collects its results in a tuple (``logits +=
        (step,)``) needs no graph for each length."""
        if type(left) is not LazyValue or type(left.value) is not tuple or type(right) is not tuple:
            return self.joined([left, right])
        if left.is_read or not right:
            return None
        self.provenance.guard(GuardKind.TYPE, left.source, tuple)
        return LazyValue(left.value + right, left.source, left.tail + right)

    def format(self, value: Any, spec: str) -> str:
        if isinstance(value, torch.Tensor):
            raise Break("data_dependent_value", "a tensor is formatted")
        value = self.tracer.scalars.concrete(value)
        method = self.entries.python_method(value, "__format__")
        if method is not None:
            return format(HostValue(self.tracer.calls.call_value(method, [value, spec], {})))
        if not spec:
            return self.tracer.calls.call_value(str, [value], {})  # type: ignore[no-any-return]
        if self.entries.lacks(value, "__format__"):
            return format(value, spec)  # raises Python's own error
        self.operators.native_operands(value)
        return format(value, spec)

    # -- displays: a break may leave a half-built one, which then existed before this trace --

    def list_append(self, target: Any, value: Any) -> None:
        before = self.tracer.side_effects.mutations
        self.tracer.side_effects.before_append(target, [value])
        if self.provenance.is_fresh(target):
            self.tracer.side_effects.mutations = before  # a comprehension's own list
        target.append(value)

    def list_extend(self, target: Any, values: list[Any]) -> None:
        self.tracer.side_effects.before_append(target, values)
        target.extend(values)

    def dict_update(self, target: Any, items: dict[Any, Any]) -> None:
        for key in items:
            self.tracer.reads.check_key(key, target)
        self.tracer.side_effects.before_change(target)
        target.update(items)

    def native_iterator(self, iterator: Any) -> Any:
        """Returns an iterator that native code may advance: user code in it is interpreted."""
        if isinstance(iterator, HOST_ITERATORS):
            return iterator
        if self.loops.knows(iterator):
            step = partial(_next, self, iterator)
            return LazyIterator(self.tracer, type(iterator).__name__, step, iter, iterator)
        if self.entries.python_method(iterator, "__next__") or id(iterator) in self.begun:
            return LazyIterator(self.tracer, type(iterator).__name__, lambda: _next(self, iterator))
        if not self.provenance.is_fresh(iterator):
            raise Break(
                "live_iterator", f"a {type(iterator).__name__} from before this region is advanced"
            )
        return iterator


def _next(containers: Containers, iterator: Any) -> Any:
    more, item = containers.advance(iterator)
    if more:
        return item
    raise StopIteration(item)


def _keeps_stored() -> bool:
    result: Any = collections.defaultdict(lambda: result.setdefault(0, 1) + 1)
    return bool(result[0] == 1)


#: Whether a defaultdict keeps what its factory has stored under the key (late releases of 3.14).
_STORED_BY_FACTORY = _keeps_stored()


def _is_position(key: Any, items: list[Any]) -> bool:
    """Returns whether a list has an item at this index."""
    size = list.__len__(items)
    return isinstance(key, int) and -size <= key < size
