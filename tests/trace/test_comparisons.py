"""Comparison, membership and their reflected and missing methods, against CPython."""

from __future__ import annotations

import abc
import array
import collections
import decimal
import enum
import fractions
import types

import numpy

from tests.support.named_programs import Programs, texts_of

program = Programs()


class Equal(dict):
    """A dictionary whose comparison leaves the answer to the other operand."""

    def __eq__(self, other):
        return NotImplemented

    __hash__ = None


@program
def counter_and_dict(x):
    counter, eager = collections.Counter("aab"), {"a": 2, "b": 1}
    return x + 1, counter == eager, eager == counter, counter != eager, counter == {"a": 1}


@program
def ordered_and_plain_dict(x):
    item, other = collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)
    return x + 1, item == other, item == dict(other), dict(item) == other, item != other


@program
def dict_whose_eq_declines(x):
    return x + 1, {} == Equal({}), Equal({}) == {}, {1: 2} == Equal({1: 2}), {} != Equal({})


class ListOfOwn(list):
    def __eq__(self, other):
        return NotImplemented

    __hash__ = None


@program
def list_whose_eq_declines(x):
    return x + 1, [1] == ListOfOwn([1]), ListOfOwn([1]) == [1], ListOfOwn([1]) == ListOfOwn([1])


class IntOfOwn(int):
    def __eq__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented

    __hash__ = int.__hash__


@program
def int_whose_eq_declines(x):
    a = IntOfOwn(3)
    return x + 1, a == 3, 3 == a, a == a, a == IntOfOwn(3), 3 != a, 2 < a, a > 2


@program(graphs=None, breaks=None)
def fraction_and_decimal(x):
    half, same = fractions.Fraction(1, 2), decimal.Decimal("0.5")
    return x + 1, half == same, same == half, half != same, half < decimal.Decimal(1)


@program
def fraction_and_numbers(x):
    half = fractions.Fraction(1, 2)
    return x + 1, half == 0.5, 0.5 == half, half == 1, half < 1, 1 > half, half == 0.5 + 0j


@program
def numpy_scalars(x):
    item, two = numpy.float64(1.5), numpy.int64(2)
    return x + 1, item == 1.5, two == 2, 2 == two, item < two, two >= 2, item != two, two in [1, 2]


class NoEqual:
    __eq__ = None
    __hash__ = None


class NoOrder:
    __lt__ = None


@program
def method_that_is_none(x):
    return x + 1, texts_of(
        lambda: NoEqual() == 1,
        lambda: 1 == NoEqual(),
        lambda: NoEqual() != 1,
        lambda: NoOrder() < 1,
        lambda: 1 > NoOrder(),
        lambda: NoEqual() in [1],
    )


class NoAdd:
    __iadd__ = None
    __radd__ = None

    def __add__(self, other):
        return "add"


@program
def inplace_method_that_is_none(x):
    def add():
        value = NoAdd()
        value += 1
        return value

    return x + 1, NoAdd() + 1, texts_of(add, lambda: 1 + NoAdd())


class NoContains:
    __contains__ = None

    def __iter__(self):
        return iter([1])


class NoIter:
    __iter__ = None

    def __getitem__(self, key):
        return [1, 2][key]


@program
def containers_with_none(x):
    return x + 1, texts_of(
        lambda: 1 in NoContains(),
        lambda: 1 in NoIter(),
        lambda: list(NoIter()),
        lambda: [*NoIter()],
    )


class NoHash:
    __hash__ = None


class NoBool:
    __bool__ = None


@program(graphs=None, breaks=None)
def truth_and_hash_of_none(x):
    return x + 1, texts_of(lambda: hash(NoHash()), lambda: bool(NoBool()), lambda: {NoHash(): 1})


class Own:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return NotImplemented

    __hash__ = object.__hash__


@program
def both_decline(x):
    a = Own(1)
    return x + 1, a == a, a == Own(1), a != a, a != Own(1), a == None, a in [a], Own(1) in [a]  # noqa: E711


class Meta(type):
    def __eq__(cls, other):
        return cls.__name__ == getattr(other, "__name__", other)

    __hash__ = type.__hash__

    def __lt__(cls, other):
        return cls.__name__ < other.__name__

    def __contains__(cls, item):
        return item == "in"

    def __instancecheck__(cls, obj):
        return obj == 5


class OfMeta(metaclass=Meta):
    pass


class AfterMeta(metaclass=Meta):
    pass


@program
def classes_with_a_metaclass(x):
    return (
        x + 1,
        OfMeta == "OfMeta",
        OfMeta == AfterMeta,
        OfMeta != AfterMeta,
        AfterMeta < OfMeta,
        "in" in OfMeta,
        isinstance(5, OfMeta),
        isinstance(6, OfMeta),
    )


class Virtual(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return True if hasattr(other, "quack") else NotImplemented


@Virtual.register
class Registered:
    pass


class Duck:
    def quack(self):
        pass


@program
def virtual_subclasses(x):
    return (
        x + 1,
        isinstance(Registered(), Virtual),
        isinstance(Duck(), Virtual),
        isinstance(3, Virtual),
        issubclass(Registered, Virtual),
        issubclass(Duck, (int, Virtual)),
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.MutableMapping),
        isinstance(Duck(), collections.abc.Hashable),
    )


class Three:
    def __index__(self):
        return 3


class IndexOnly(int):
    def __index__(self):
        return 40

    def __int__(self):
        return 50

    def __complex__(self):
        return 60j


@program
def membership_in_a_range(x):
    return (
        x + 1,
        3 in range(5),
        3.0 in range(5),
        Three() in range(5),
        IndexOnly(3) in range(5),
        "a" in range(3),
    )


@program
def int_subclasses_with_conversions(x):
    n = IndexOnly(3)
    return (
        x + 1,
        int(n),
        complex(n),
        float(n),
        [0, 1, 2, 3, 4][n],
        list(range(n))[-1],
        "ab" * n,
        hex(n),
        n.__index__(),
        n + 1,
        bytes(n),
    )


@program
def floats_and_text_of_subclasses(x):
    class Text(str):
        def __eq__(self, other):
            return "eq"

        __hash__ = str.__hash__

    return (
        x + 1,
        Text("a") == "a",
        "a" == Text("b"),
        Text("a") != "a",
        Text("a") < "b",
        {Text("a"): 1}["a"],
    )


@program
def membership_stops_at_the_first_equal(x):
    items = iter([1, 2, 3, 4])
    actual = 2 in items
    squares = (n * n for n in range(6))
    also = 9 in squares
    doubled = map(lambda n: 2 * n, [1, 2, 3, 4])
    third = 4 in doubled
    return x + 1, actual, list(items), also, list(squares), third, list(doubled)


class Iterated:
    def __init__(self):
        self.seen = []

    def __iter__(self):
        for i in range(5):
            self.seen.append(i)
            yield i


@program
def membership_in_an_iterable_object(x):
    value = Iterated()
    return x + 1, 2 in value, value.seen, 9 in value, value.seen


class Noted:
    """Says which comparisons ran."""

    def __init__(self, n, notes):
        self.n, self.notes = n, notes

    def __eq__(self, other):
        self.notes.append((self.n, getattr(other, "n", other)))
        return self.n == getattr(other, "n", other)

    __hash__ = None


@program
def order_of_comparisons(x):
    notes = []
    items = [Noted(i, notes) for i in range(4)]
    actual = Noted(2, notes) in items, 1 in tuple(items), Noted(1, notes) in iter(items)
    where = items.index(2), items.count(3)
    return x + 1, actual, where, notes


@program
def membership_in_dict_views(x):
    table = {"a": 1, "b": [2]}
    return (
        x + 1,
        "a" in table.keys(),
        1 in table.values(),
        [2] in table.values(),
        ("a", 1) in table.items(),
        ("b", [2]) in table.items(),
        ("c", 1) in table.items(),
        5 in table.items(),
    )


@program
def membership_in_other_containers(x):
    return (
        x + 1,
        2 in array.array("i", [1, 2]),
        65 in b"ABC",
        b"B" in b"ABC",
        66 in bytearray(b"ABC"),
        "a" in types.MappingProxyType({"a": 1}),
        2 in collections.deque([1, 2]),
        1 in collections.ChainMap({1: 2}),
        "x" in collections.UserString("xy"),
    )


@program(graphs=None, breaks=None)
def membership_errors(x):
    return x + 1, texts_of(
        lambda: 1 in "abc",
        lambda: "a" in b"abc",
        lambda: 1 in 5,
        lambda: [] in {1},
        lambda: [] in {},  # noqa: RUF060
        lambda: {} in {1: 2}.keys(),
        lambda: 1 in object(),
        lambda: 300 in b"abc",
        errors=(TypeError, ValueError),
    )


@program
def set_comparisons(x):
    small, large = {1}, frozenset({1, 2})
    return (
        x + 1,
        small < large,
        small == frozenset({1}),
        large > small,
        small <= {1},
        {1}.__eq__([1]),
        {1: 2}.keys() == {1},
        {1: 2}.keys() <= large,
        {1: 2}.items() == {(1, 2)},
        {1: 2}.values() == {1: 2}.values(),
    )


@program
def methods_called_by_name(x):
    return (
        x + 1,
        (1).__eq__(1.0),
        (1.0).__eq__(1),
        [1].__eq__((1,)),
        {}.__eq__([]),
        "a".__lt__(1),
        object().__eq__(1),
        collections.deque([1]).__eq__(collections.deque([1])),
        collections.deque([1]).__ne__(collections.deque([2])),
        [1].__lt__([2]),
        (1,).__ge__((1,)),
    )


@program
def deques_compare(x):
    item, other = collections.deque([1, 2]), collections.deque([1, 3])
    return x + 1, item == other, item < other, item >= other, item != other, item == [1, 2]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@program
def enumerations_compare(x):
    return (
        x + 1,
        Color.RED == Color.RED,
        Color.RED == 1,
        Color.RED != Color.BLUE,
        Level.LOW < Level.HIGH,
        Level.LOW == 1,
        Color.RED in Color,
        Level.LOW in {1: 2},
        Level(1) is Level.LOW,
        texts_of(lambda: Color.RED < Color.BLUE),
    )


@program
def unequal_kinds(x):
    return x + 1, texts_of(
        lambda: [1] < (1,),
        lambda: {} < {},
        lambda: "a" < 1,
        lambda: 1j < 2j,
        lambda: None < None,
        lambda: collections.deque() < [],
        lambda: fractions.Fraction(1) < "a",
        lambda: object() < object(),
    )


@program
def results_that_are_no_booleans(x):
    class Any:
        def __eq__(self, other):
            return [other]

        def __lt__(self, other):
            return ""

        def __contains__(self, item):
            return [item]

        __hash__ = None

    return x + 1, Any() == 3, 3 == Any(), Any() != 3, Any() < 1, 1 > Any(), 1 in Any(), 3 in [Any()]


@program
def subclass_operand_is_asked_first(x):
    class Base:
        def __eq__(self, other):
            return "base"

        def __lt__(self, other):
            return "base lt"

        def __gt__(self, other):
            return "base gt"

        __hash__ = None

    class Derived(Base):
        def __eq__(self, other):
            return "derived"

        def __gt__(self, other):
            return "derived gt"

        __hash__ = None

    class Silent(Base):
        pass

    return (
        x + 1,
        Base() == Derived(),
        Base() < Derived(),
        Base() == Silent(),
        Base() < Silent(),
        Derived() < Base(),
    )


@program
def tensors_beside_other_operands(x):
    return x == 1, 1 == x, x < 0.5, x != x, (x == None), (x == "a")  # noqa: E711


@program.cases()
def test_comparisons_equal_cpython(name):
    program.run(name)
