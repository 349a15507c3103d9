"""Exceptions, classes and look-ups at the language's edges, against CPython."""

from __future__ import annotations

import array
import collections
import decimal
import fractions
import functools
import reprlib
import types
import typing
import weakref

import torch

import tracer_core
from tests.support.named_programs import Programs, texts_of

program = Programs()


class Base:
    def __init__(self):
        self.n = 1

    @staticmethod
    def plain():
        return super().__init__

    @staticmethod
    def with_argument(value):
        return super().hello(value)

    @classmethod
    def of_class(cls):
        return cls.__name__

    def hello(self, more=0):
        return "base", more


class Derived(Base):
    @staticmethod
    def with_argument(value):
        return super().hello(3)

    @classmethod
    def of_class(cls):
        return "derived " + super().of_class()

    @property
    def shown(self):
        return super().hello()


@program(graphs=None, breaks=None)
def super_without_an_instance(x):
    says = texts_of(
        lambda: Base.plain(),
        lambda: Derived.with_argument(3),
        lambda: super(Base, 3).hello,
        lambda: super(3).hello,
        lambda: super(Derived, Base()).hello(),
        errors=(RuntimeError, TypeError, AttributeError),
    )
    return x + 1, says, Derived.of_class(), Derived().shown, Derived.with_argument(Derived())


class Queue(collections.deque):
    def __iter__(self):
        return iter(["own"])


class Counted(collections.deque):
    def __len__(self):
        return 77

    def __getitem__(self, key):
        return "item", key

    def __contains__(self, item):
        return item == "in"


class Reversing(collections.deque):
    def __reversed__(self):
        return iter("r")


@program(graphs=None, breaks=None)
def deque_subclasses(x):
    queue, counted = Queue([1, 2]), Counted([1, 2])
    first, *others = queue
    return (
        (x + 1, list(queue), [*queue], first, others, tuple(queue), list(reversed(queue)))
        + (len(queue), 1 in queue, queue[0], "own" in queue, queue == collections.deque([1, 2]))
        + (len(counted), counted[5], "in" in counted, 1 in counted, list(counted), bool(counted))
        + (list(reversed(Reversing([1, 2]))), list(map(str, queue)), list(zip(queue, counted)))
    )


class Described:
    def __get__(self, obj, kind):
        return "got", obj is None, kind.__name__


class Writable:
    def __get__(self, obj, kind):
        return "data", getattr(obj, "__name__", None)

    def __set__(self, obj, value):
        obj.noted = value


class Meta(type):
    described = Described()
    writable = Writable()

    @property
    def doubled(cls):
        return cls.__name__ * 2

    def method(cls):
        return "method of " + cls.__name__

    def __getattr__(cls, name):
        if name.startswith("any"):
            return "made " + name
        raise AttributeError(name)

    def __iter__(cls):
        return iter([cls.__name__])

    def __len__(cls):
        return 3

    def __getitem__(cls, key):
        return cls.__name__, key

    def __call__(cls, *args):
        result = super().__call__()
        result.args = args
        return result


class OfMeta(metaclass=Meta):
    described = "own"


class WithOwn(metaclass=Meta):
    writable = "hidden by the metaclass"
    doubled = "too"


@program(graphs=None, breaks=None)
def descriptors_of_metaclasses(x):
    WithOwn.writable = 5
    return (
        (x + 1, OfMeta.described, OfMeta.doubled, OfMeta.method(), OfMeta.anything)
        + (WithOwn.writable, WithOwn.doubled, WithOwn.noted, list(OfMeta), len(OfMeta), OfMeta[1])
        + (OfMeta(1, 2).args, hasattr(OfMeta(), "method"), hasattr(OfMeta, "none"), bool(OfMeta))
    )


@program(graphs=None, breaks=None)
def attributes_of_partials(x):
    bound = functools.partial(torch.add, alpha=2)
    return (
        x + 1,
        bound(x, 1),
        hasattr(bound, "__new__"),
        hasattr(bound, "__call__"),
        hasattr(functools.partial, "__new__"),
        bound.keywords,
        bound.func is torch.add,
        callable(bound),
        hasattr(functools.partial, "nothing"),
    )


@program(graphs=None, breaks=None)
def class_made_inside_across_a_break(x):
    class F:
        def value(self):
            return 3

    f = F()
    y = x + 1
    if y.sum() > 1e9:
        y = y * 2
    return y * f.value(), type(f) is F, isinstance(f, F), F.__name__, f.__class__ is F


@program(graphs=None, breaks=None)
def bound_c_method_of_a_class_made_inside_across_a_break(x):
    class F(float):
        def __init__(self, value):
            self.given = value

    f = F.fromhex("0x1.8p+0")
    return x * f, type(f) is F, f.given


@program(graphs=None, breaks=None)
def fraction_of_whole_numbers_of_a_class_across_a_break(x):
    class Whole(int):
        numerator = property(lambda self: self)
        denominator = property(lambda self: Whole(1))

        def __mul__(self, other):
            return Whole(int(self) * int(other))

        __floordiv__ = __mul__

    fraction = fractions.Fraction(Whole(3), Whole(5))
    print(end="")
    return x + 1, type(fraction.numerator) is Whole, type(fraction.denominator) is Whole


@program(graphs=None, breaks=None)
def a_module_whose_class_hides_its_dictionary(x):
    class Hiding(types.ModuleType):
        __dict__ = 8

    hiding = Hiding("made")
    print(end="")
    return x + 1, texts_of(lambda: dir(hiding))


@program(graphs=None, breaks=None)
def memoryviews_keep_their_buffers_from_being_resized(x):
    buffer, numbers = bytearray(b"abc"), array.array("i", [1, 2])
    views = [memoryview(buffer)]
    _view = memoryview(numbers)  # never read again, and alive until the end
    texts = texts_of(
        lambda: buffer.append(1),
        lambda: numbers.append(3),
        lambda: buffer.pop(),
        errors=BufferError,
    )
    views[0][0] = 120
    return x + 1, texts, bytes(buffer), list(numbers)


@program(graphs=None, breaks=None)
def parameters_of_a_generic_class_with_a_base_from_before_a_break(x):
    item = typing.TypeVar("item")

    class Items(typing.Deque[item]):  # noqa: UP006
        pass

    print(end="")
    return x + 1, Items.__parameters__ == (item,), Items[int].__args__


_ITEM = typing.TypeVar("_ITEM")


@program(graphs=None, breaks=None)
def parameters_of_aliases_across_a_break(x):
    alias = list[_ITEM]
    print(end="")
    parameters = dict[str, alias].__parameters__
    print(end="")
    return x + 1, parameters[0] is _ITEM


class Nested(list):
    @reprlib.recursive_repr("+++")
    def __repr__(self):
        return "<" + ", ".join(map(repr, self)) + ">"


class Unprintable:
    def __repr__(self):
        raise ValueError("no text")


@program(graphs=None, breaks=None)
def recursive_texts(x):
    nested, unprintable = Nested("ab"), Unprintable()
    nested.append(nested)
    text = repr(nested)
    print(end="")
    nested.append("c")
    messages = reprlib.repr(unprintable) == f"<Unprintable instance at {id(unprintable):#x}>"
    return x + 1, text, repr(nested), messages


@program(graphs=None, breaks=None)
def c_types_that_look_up_attributes_in_their_own_way(x):
    class Precise(decimal.Context):
        def __init__(self):
            decimal.Context.__init__(self)
            self.prec, self.extra = 7, 3

    context, precise = decimal.Context(), Precise()
    context.flags = context.traps
    proxy = weakref.proxy(precise)
    proxy.other = 4
    third = precise.divide(decimal.Decimal(1), 3)
    return x + 1, context.flags == context.traps, precise.flags == context.flags, third, (
        precise.other, proxy.extra)  # fmt: skip


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = []
        self.linear = torch.nn.Linear(4, 4)

    def __getattribute__(self, name):
        if name in ("linear", "scale"):
            super().__getattribute__("__dict__")["notes"].append(name)
        return super().__getattribute__(name)

    def forward(self, x):
        return self.linear(x) * getattr(self, "scale", 2)


def test_a_modules_getattribute_sees_the_programs_lookups_only():
    torch.manual_seed(0)
    eager, other = Module(), Module()
    other.load_state_dict(eager.state_dict())
    eager.notes.clear()
    other.notes.clear()
    compiled = tracer_core.compile(other, backend="eager")
    x = torch.randn(2, 4)
    for _ in range(3):
        assert torch.equal(eager(x), compiled(x))
        assert eager.notes == other.notes


@program.cases()
def test_edges_equal_cpython(name):
    program.run(name)
