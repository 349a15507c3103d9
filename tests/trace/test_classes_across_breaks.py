"""Classes, protocols and aliases of typing that are made inside and used after a graph break."""

from __future__ import annotations

import abc
import collections
import datetime
import enum
import functools
import sys
import types
import typing
from typing import NamedTuple

import pytest

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.named_programs import Programs, X, texts_of

program = Programs()


@program(graphs=None, breaks=None)
def metaclass_answers_every_question(x):
    class Meta(type):
        def __getattribute__(cls, name):
            return True

    class A(metaclass=Meta):
        attr = False

    class HasDict:
        pass

    class Mixed(HasDict, type):
        pass

    class B(metaclass=Mixed):
        y = 4

    return x + 1, A.attr, A.nothing, B.__dict__["y"]


@program(graphs=None, breaks=None)
def aliases_and_unions_name_the_classes_that_are_rebuilt(x):
    class Group(NamedTuple):
        key: int

    class A:
        pass

    alias, union = Group[int], A | str
    print(end="")
    return x + 1, alias.__origin__ is Group, type(alias(1)) is Group, union == A | str


@program(graphs=None, breaks=None)
def protocols_of_a_trace_know_their_instances_after_a_break(x):
    class P(typing.Protocol):
        def go(self): ...

    class A:
        def go(self):
            return 1

    class Heir(P):
        pass

    @functools.singledispatch
    def kind(value):
        return "base"

    kind.register(P)(lambda value: "protocol")
    said = texts_of(lambda: isinstance(A(), P))
    checked = typing.runtime_checkable(P)
    print(end="")
    return x + 1, said, kind(Heir()), isinstance(A(), checked), isinstance(3, checked)


@program(graphs=None, breaks=None)
def protocols_and_their_heirs_are_initialised_after_a_break(x):
    class P(typing.Protocol):
        pass

    class Plain:
        def __init__(self):
            self.made = "plain"

    class Heir(P):
        pass

    class Both(P, Plain):
        pass

    tracer_core.graph_break()
    said = texts_of(P, lambda: Heir(1), lambda: Heir(2))
    return x + 1, said, Both().made, isinstance(Heir(), Heir)


@program(graphs=None, breaks=None)
def classes_that_typing_makes_are_of_the_caller(x):
    Row = NamedTuple("Row", [("a", int)])  # noqa: UP014 (the call is what is tested)
    Entry = typing.TypedDict("Entry", {"a": int})  # noqa: UP013
    Other = typing.TypedDict("Other", {"b": str}, total=False)  # noqa: UP013
    Id = typing.NewType("Id", int)
    result = [Row, Entry, Other, Id]
    return (
        x + Id(1),
        [item.__module__ for item in result],
        tuple(Row(3)),
        Entry(a=1),
        Other.__total__,
    )


@program(graphs=None, breaks=None)
def members_of_an_enumeration_whose_text_cannot_be_read(x):
    class Day(datetime.date, enum.Enum):
        FIRST = 2023, 11, 1

        def __new__(cls, *given):
            day = datetime.date.__new__(cls, *given)
            day._value_ = given
            return day

    tracer_core.graph_break()
    same = Day.FIRST is Day["FIRST"]
    tracer_core.graph_break()
    return x + 1, same, texts_of(lambda: repr(Day.FIRST), errors=TypeError), Day.FIRST.year


@program(graphs=None, breaks=None)
def typing_caches_aliases_of_a_class_that_is_made_in_each_call(x):
    Entry = typing.TypedDict("Entry", {"a": int})  # noqa: UP013
    item, other = typing.Optional[Entry], typing.Union[None, Entry]  # noqa: UP045
    tracer_core.graph_break()
    same = item == other, item.__args__[0] is Entry, other.__args__[1] is Entry
    return x + 1, same, item is typing.Optional[Entry]  # noqa: UP045


@program(graphs=None, breaks=None)
def an_alias_of_an_alias_lives_across_a_break(x):
    Ts = typing.TypeVarTuple("Ts")

    class Pack(typing.Generic[*Ts]):
        pass

    def go(*args):
        pass

    go.__annotations__["args"] = typing.Unpack[Pack[int, str]]
    tracer_core.graph_break()
    type_hints = typing.get_type_hints(go)
    tracer_core.graph_break()
    return x + 1, type_hints == {"args": typing.Unpack[Pack[int, str]]}


@program
def super_passes_over_a_method_in_c(x):
    class Lists(collections.defaultdict):
        def copies(self):
            return super(collections.defaultdict, self).copy(), super().copy()

    eager, own = Lists(list, a=1).copies()
    return x + 1, type(eager) is dict, type(own) is Lists, eager == own


@program(graphs=None, breaks=None)
def a_protocol_without_functions(x):
    @typing.runtime_checkable
    class P(typing.Protocol):
        y = None

    class A:
        pass

    class B:
        y = 1

    tracer_core.graph_break()
    return x + 1, isinstance(A(), P), isinstance(B(), P)


@program(graphs=None, breaks=None)
def typing_knows_its_own_hook_after_a_break(x):
    @typing.runtime_checkable
    class P(typing.Protocol):
        y: int

        def go(self): ...

    class A:
        y = 1

        def go(self): ...

    tracer_core.graph_break()
    same = vars(P)["__subclasshook__"] is typing._proto_hook if sys.version_info >= (3, 12) else 0
    return x + 1, same, texts_of(lambda: issubclass(A, P), lambda: issubclass(int, P))


@program(graphs=None, breaks=None)
def the_bases_of_a_generic_named_tuple(x):
    class Pair(NamedTuple, typing.Generic[T]):
        a: T

    tracer_core.graph_break()
    return x + 1, Pair.__bases__ == (tuple, typing.Generic), Pair.__mro__[1] is tuple, Pair(3).a


@program(graphs=None, breaks=None)
def classes_that_typing_makes_after_a_break(x):
    tracer_core.graph_break()

    class Entry(typing.TypedDict):
        a: int

    Row = NamedTuple("Row", [("a", int)])  # noqa: UP014 (the call is what is tested)
    tracer_core.graph_break()
    return x + 1, Row(3).a, Row.__mro__[1] is tuple, Entry(a=1), Entry.__required_keys__


T = typing.TypeVar("T")


class Crate(typing.Generic[T]):
    pass


@program(graphs=None, breaks=None)
def aliases_of_typing_are_the_ones_in_its_cache_after_a_break(x):
    def forms():
        return (
            typing.Annotated[int, "text"], typing.Callable[[int], str], typing.Literal[3],
            list[T], Crate[int], Crate[T], typing.Union[int, str],
        )  # fmt: skip

    class Text:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            return type(other) is Text

    first, odd = forms(), (typing.Annotated[int, []], typing.Annotated[int, Text()])
    tracer_core.graph_break()
    again = typing.Annotated[int, []], typing.Annotated[int, Text()]
    return (
        x + 1,
        all(a is b for a, b in zip(first, forms(), strict=True)),
        [a == b for a, b in zip(odd, again, strict=True)],
        odd[0] is again[0],
    )


@program(graphs=None, breaks=None)
def what_refers_to_a_class_refers_to_one_class_after_a_break(x):
    met = []

    class Found:
        def __get__(self, obj, owner=None):
            met.append((obj, owner))
            return lambda: 1

    class Base:
        found = Found()

    class A(Base):
        def go(self):
            return super().found()

    a = A()
    a.go()
    method, order, slot = A.mro, A.mro(), a.__repr__
    failed, parts = KeyError(A), functools.partial(isinstance, a)
    print(end="")
    return (
        x + 1, met == [(a, A)], method() == order == [A, Base, object], slot() == repr(a),
        failed.args[0] is A, parts(A),
    )  # fmt: skip


@program(graphs=None, breaks=None)
def wrapped_methods_keep_their_texts_after_a_break(x):
    def decorated(method):
        @classmethod
        @functools.wraps(method.__func__)
        def wrapper(*args):
            return method.__func__(*args)

        wrapper.mark = 3
        return wrapper

    class A:
        @functools.singledispatchmethod
        @decorated
        @classmethod
        def kind(cls, value: int) -> str:
            """Says its kind."""
            return str(value)

    print(end="")
    held = vars(A)["kind"].func
    return x * held.mark, held.__doc__, A.kind.__doc__, A().kind(3), held.__name__


@program
def the_cell_of_a_class_is_empty(x):
    class A:
        def go(self):
            nonlocal __class__
            del __class__
            super()

    return x + 1, texts_of(lambda: A().go(), errors=RuntimeError)


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self): ...


def test_protocols_ask_the_object_too():
    class A:
        pass

    def make():
        return lambda value, x: (isinstance(value, Goes), x + 1)

    a, able, blocked = A(), A(), A()
    able.go, blocked.go = print, None
    compare_with_eager(make, (a, X), (able, X), (blocked, X), (a, X))


@program
def an_abstract_class_asked_before_it_is_ready(x):
    ready = []

    class Base:
        def __init_subclass__(cls, **words):
            super().__init_subclass__()
            ready.append(words)

    class A(Base, metaclass=abc.ABCMeta, word=1):
        pass

    return x + 1, ready, isinstance(3, A)


def test_a_metaclass_that_answers_any_name():
    class Meta(type):
        def __getattribute__(self, name):
            return lambda: name

    class Outer(metaclass=Meta): ...

    def f(x):
        class Inner(metaclass=Meta):
            def attribute():
                return False

        return x + 1, Inner.attribute(), Outer.attribute()

    def g(x):
        return x + 1, Outer.attribute()

    for value in (f, g):
        same(value, (X,), (X,), breaks=None)


@program(graphs=None, breaks=None)
def an_entry_whose_name_is_no_text(x):
    class Name:
        def __hash__(self):
            return hash("first")

        def __eq__(self, other):
            A.__bases__ = (Second,)

    class First:
        first = second = "of First"

    class Second:
        first = second = "of Second"

    A = type("A", (First,), {Name(): 5})
    tracer_core.graph_break()
    # LOAD_ATTR looks a name up once more when CPython specialises it.
    return x + 1, getattr(A, "first"), getattr(A, "second")


@program(graphs=None, breaks=None)
def a_module_class_that_notes_what_it_is_asked(x):
    log = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            log.append(name)
            return super().__getattribute__(name)

    module = Module("m")
    module.a = 1
    return x + module.a, log


@pytest.mark.sweep(keep=10)
@program.cases()
def test_class(name):
    program.run(name)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, BaseException])
def test_a_set_name_that_raises_anything(kind):
    def fn(x):
        class Raising:
            def __set_name__(self, owner, name):
                raise kind("no")

        raising = Raising()
        try:

            class Holder:
                attribute = raising
        except BaseException as error:
            return x, type(error), getattr(error, "__notes__", None), str(error)

    same(fn, (1,), (2,))
