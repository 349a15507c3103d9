# ruff: noqa: UP030  (the forms of formatting are what is tested)
"""Built-in functions and the methods of Python's own types, on values that change from call to
call.

Each program is called with a tensor and a value; what native code reads of the value must be
guarded.
"""

from __future__ import annotations

import cmath
import collections
import itertools
import math
import operator

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager, same

X = torch.randn(3, 4)


class Word(str):
    def __eq__(self, other):
        return str(self).lower() == str(other).lower()

    def __hash__(self):
        return hash(str(self).lower())


class Money:
    """A number written in Python."""

    def __init__(self, cents):
        self.cents = cents

    def __add__(self, other):
        return Money(self.cents + (other.cents if isinstance(other, Money) else other))

    __radd__ = __add__

    def __abs__(self):
        return Money(abs(self.cents))

    def __round__(self, digits=0):
        return round(self.cents, -digits)

    def __float__(self):
        return self.cents / 100

    def __index__(self):
        return self.cents

    def __divmod__(self, other):
        return divmod(self.cents, other)

    def __rdivmod__(self, other):
        return divmod(other, self.cents)

    def __floor__(self):
        return self.cents // 100

    def __lt__(self, other):
        return self.cents < other.cents

    def __eq__(self, other):
        return isinstance(other, Money) and self.cents == other.cents

    def __hash__(self):
        return self.cents % 3

    def __len__(self):
        return self.cents

    def __reversed__(self):
        return iter([self.cents, 0])

    def __str__(self):
        return f"${self.cents / 100:.2f}"

    def __format__(self, spec):
        return f"{self.cents:{spec}}"


class Deck:
    """A sequence by the old protocol."""

    def __init__(self, cards):
        self.cards = cards

    def __len__(self):
        return len(self.cards)

    def __getitem__(self, i):
        return self.cards[i]


ON_LISTS = {
    "index": lambda x, v: x * v.index(2),
    "index-bounds": lambda x, v: x * v.index(2, 1, 10),
    "count": lambda x, v: x * v.count(2),
    "contains": lambda x, v: x * (2 in v),
    "copy": lambda x, v: [x * i for i in v.copy()],
    "add": lambda x, v: (v + [7], [7] + v, v * 2, 2 * v),
    "compare": lambda x, v: (v < [1, 2], v == [3, 2, 1], v >= [0]),
    "sorted": lambda x, v: [x * i for i in sorted(v, reverse=True)],
    "min-max": lambda x, v: x * (max(v) - min(v)),
    "sum": lambda x, v: x * sum(v),
    "sum-start": lambda x, v: sum(v, 0.5),
    "any-all": lambda x, v: (any(v), all(v), x),
    "enumerate": lambda x, v: [x * i + j for i, j in enumerate(v, 2)],
    "zip": lambda x, v: [x * i * j for i, j in zip(v, v[1:], strict=False)],
    "reversed": lambda x, v: [x * i for i in reversed(v)],
    "map": lambda x, v: list(map(lambda i: x * i, v)),
    "filter": lambda x, v: [x * i for i in filter(lambda i: i > 1, v)],
    "filter-none": lambda x, v: [x * i for i in filter(None, v)],
    "slice": lambda x, v: (v[::-1], v[-2:], x),
    "unpack": lambda x, v: (lambda a, *b: (x * a, b))(*v),
    "tuple-methods": lambda x, v: (tuple(v).index(2), tuple(v).count(1),
    hash(tuple(v)) == hash(tuple(v)), x),
    "bytes-of": lambda x, v: (bytes(v), bytearray(v), x),
    "by-name": lambda x, v: (list.__len__(v), list.__contains__(v, 2), list.__getitem__(v, 0), x),
    "dict-fromkeys": lambda x, v: dict.fromkeys(v, x),
    "join": lambda x, v: ("-".join(str(i) for i in v), x),
    "iter-sentinel": lambda x, v: ([x * i for i in iter(iter(v).__next__, v[-1])], x),
    "next-default": lambda x, v: x * next((i for i in v if i > 1), 0),
    "counter": lambda x, v: (collections.Counter(v).most_common(1), x),
    "set-algebra": lambda x, v: (sorted(set(v) | {9}), set(v) & {1, 2}, set(v) - {1}, set(v) ^ {1,
    8}, x),
    "set-methods": lambda x, v: (set(v).union([4], (5,)), set(v).issubset(range(9)),
    frozenset(v).isdisjoint([8]), x),
    "divmod-pow": lambda x, v: (divmod(v[0], 2), pow(v[0], 2), pow(v[0], 2, 3), abs(-v[0]),
    round(v[0] / 3, 2), x),
    "texts": lambda x, v: (bin(v[0]), hex(v[0]), oct(v[0]), chr(v[0] + 64), ord("a"), ascii(v), x),
    "format": lambda x, v: (f"{v[0]:03d} {v!r}", "{0[1]}".format(v), "%s %d" % (v, v[0]),
    format(v[0], "x"), x),
    "math": lambda x, v: x * (math.sqrt(v[0]) + math.gcd(v[0], 6) + math.prod(v) + math.comb(5,
    v[0]) + math.hypot(*v)),
    "fsum": lambda x, v: x * (math.fsum(v) + math.dist(v,
    v) + math.floor(v[0] / 2) + math.ceil(v[0] / 2)),
    "cmath": lambda x, v: (cmath.sqrt(-v[0]), cmath.polar(complex(v[0], 1)), x),
    "operators": lambda x, v: (
        operator.add(v[0], 1), operator.itemgetter(0, -1)(v), operator.countOf(v, 2),
        operator.indexOf(v, 2),
        operator.concat(v, [1]), operator.length_hint(v), operator.index(v[0]), operator.inv(v[0]),
        x),
    "isinstance": lambda x, v: (isinstance(v, (int, list)), issubclass(type(v),
    collections.abc.Sequence), x),
    "deque": lambda x, v: (list(collections.deque(v, maxlen=2)), collections.deque(v).index(2), x),
    "heap": lambda x, v: (__import__("heapq").nsmallest(2, v), __import__("heapq").nlargest(1, v),
    x),
    "range": lambda x, v: (list(range(v[0])), range(9).index(v[0]), v[0] in range(3), len(range(0,
    9, v[0])), x),
    "int-methods": lambda x, v: (v[0].bit_length(), v[0].to_bytes(2, "big"),
    int.from_bytes(b"\x01", "big"), x),
    "slice-indices": lambda x, v: (slice(v[0], None, 2).indices(9), x),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_LISTS)
def test_list_of_numbers(name):
    same(
        ON_LISTS[name], (X, [3, 2, 1]), (X, [3, 2, 1]), (X, [4, 1, 2]), (X, [1, 2, 2, 5]), breaks=0
    )


ON_TEXT = {
    "case": lambda x, s: (s.upper(), s.title(), s.swapcase(), s.casefold(), x),
    "split": lambda x, s: (s.split("-"), s.rsplit("-", 1), s.partition("-"), s.splitlines(), x),
    "search": lambda x, s: (
        s.find("b"),
        s.count("a"),
        s.startswith(("a", "z")),
        "b" in s,
        s.rfind("a"),
        x,
    ),
    "strip": lambda x, s: (
        s.strip("a"),
        s.removeprefix("a"),
        s.removesuffix("c"),
        s.zfill(9),
        s.center(9, "*"),
        x,
    ),
    "asks": lambda x, s: (
        s.isalpha(),
        s.isdigit(),
        s.isidentifier(),
        s.islower(),
        len(s),
        hash(s) == hash(s),
        x,
    ),
    "translate": lambda x, s: (
        s.translate(str.maketrans("ab", "xy")),
        s.replace("a", "b"),
        s.expandtabs(2),
        x,
    ),
    "encode": lambda x, s: (
        s.encode(),
        s.encode("utf-16"),
        bytes(s, "utf-8"),
        str(s.encode(), "utf-8"),
        x,
    ),
    "format": lambda x, s: (
        "{:>9}|{!r}".format(s, s),
        "{a}".format_map({"a": s}),
        f"{s:>5}",
        "%5s" % s,
        x,
    ),
    "order": lambda x, s: (s < "b", max(s), sorted(s), s + "d", s * 2, s[::-1], x),
    "bytes": lambda x, s: (
        s.encode().hex(),
        s.encode().split(b"-"),
        bytes.fromhex("00ff"),
        b"-".join([s.encode()]),
        x,
    ),
    "bytearray": lambda x, s: (
        bytearray(s, "utf-8").upper(),
        bytes(bytearray(b"a") + s.encode()),
        x,
    ),
    "int": lambda x, s: (int(str(len(s)), 8), float(f"{len(s)}.5"), complex(f"{len(s)}j"), x),
    "numbers": lambda x, s: (
        (1.5).is_integer(),
        (0.5).as_integer_ratio(),
        float.fromhex("0x1p3"),
        (2).bit_count(),
        x,
    ),
}


@pytest.mark.parametrize("name", ON_TEXT)
def test_text(name):
    same(ON_TEXT[name], (X, "abc"), (X, "abc"), (X, "a-b-c"), (X, "zaB1"), breaks=0)


ON_DICTS = {
    "views": lambda x, d: (list(d.keys()), list(d.values()), list(d.items()), x),
    "union": lambda x, d: (d | {"z": 1}, {"z": 1} | d, x),
    "reversed": lambda x, d: (list(reversed(d)), list(reversed(d.items())), x),
    "get": lambda x, d: (d.get("a"), d.get("q", 5), "a" in d, len(d), x),
    "equal": lambda x, d: (d == {"a": 1}, d != {}, d.keys() == {"a"}, x),
    "copy": lambda x, d: (d.copy(), dict(d, q=2), dict(d.items()), dict([("k", x)]), x),
    "ordered": lambda x, d: (list(collections.OrderedDict(d)), collections.OrderedDict(d) == d, x),
    "default": lambda x, d: (collections.defaultdict(list, d)["new"], x),
    "default-counts": lambda x, d: (_count(d), x),
    "counter": lambda x, d: ((collections.Counter(d) + collections.Counter(a=2)).most_common(), x),
    "chain-map": lambda x, d: (dict(collections.ChainMap({"a": 9}, d)), x),
    "key-views": lambda x, d: (sorted(d.keys() & {"a", "b"}), sorted(d.keys() | {"q"}), x),
    "unpack": lambda x, d: ((lambda **kw: kw)(**d), x),
    "sorted-by-value": lambda x, d: (sorted(d, key=d.get), max(d, key=d.__getitem__), x),
}


def _count(d):
    counts = collections.defaultdict(int)
    for value in d.values():
        counts[value] += 1
    return dict(counts)


def test_what_is_no_pair_for_a_dictionary():
    def fn(x):
        def key_only():
            yield "key"
            raise TypeError("the program's own")

        result = (
            lambda: [key_only()],
            lambda: [("a", x), key_only()],
            lambda: [1],
            lambda: [x.dim()],
        )
        actual = []
        for make in result:
            for use in (dict, {}.update, collections.OrderedDict):
                try:
                    use(make())
                except TypeError as error:
                    actual.append((str(error), getattr(error, "__notes__", None)))
        return x + 1, actual

    same(fn, (X,), (X + 1,), breaks=None)


@pytest.mark.parametrize("name", ON_DICTS)
def test_dict(name):
    same(
        ON_DICTS[name],
        (X, {"a": 1}),
        (X, {"a": 1}),
        (X, {"b": 2, "a": 1}),
        (X, {"a": 3, "c": 1}),
        breaks=0,
    )


def push(x, cents):
    import heapq

    heap = [Money(c) for c in cents]
    heapq.heapify(heap)
    heapq.heappush(heap, Money(2))
    return (
        x * heapq.heappop(heap).cents,
        [m.cents for m in heap],
        heapq.heappushpop(heap, Money(0)).cents,
    )


def bisected(x, cents):
    import bisect

    items = sorted(cents)
    bisect.insort(items, 2)
    actual = (
        bisect.bisect_left([Money(c) for c in items], Money(3)),
        bisect.bisect(items, -2, key=lambda c: -c),
    )
    return x * actual[0], items, actual


ON_OBJECTS = {
    "sum": lambda x, v: x * sum((Money(c) for c in v), Money(0)).cents,
    "sum-int-start": lambda x, v: x * sum(Money(c) for c in v).cents,
    "abs-round": lambda x, v: (abs(Money(-v[0])).cents, round(Money(v[0]), 1), x),
    "float-index": lambda x, v: (
        float(Money(v[0])),
        hex(Money(v[0])),
        [1, 2, 3, 4, 5, 6][Money(v[0])],
        x,
    ),
    "divmod": lambda x, v: (divmod(Money(7), v[0]), divmod(9, Money(v[0])), x),
    "math": lambda x, v: (
        math.sqrt(Money(v[0])),
        math.floor(Money(v[0])),
        math.gcd(Money(v[0]), 4),
        x,
    ),
    "sorted": lambda x, v: ([m.cents for m in sorted(map(Money, v))], x),
    "sorted-key-tuples": lambda x, v: (
        [m.cents for m in sorted(map(Money, v), key=lambda m: (m, 1))],
        x,
    ),
    "list-sort": lambda x, v: (_sort([Money(c) for c in v]), x),
    "min-max": lambda x, v: (
        min(map(Money, v)).cents,
        max([Money(c) for c in v], key=float).cents,
        x,
    ),
    "index-count": lambda x, v: (
        list(map(Money, v)).index(Money(2)),
        [Money(c) for c in v].count(Money(2)),
        x,
    ),
    "in": lambda x, v: (Money(2) in [Money(c) for c in v], Money(2) in {Money(c) for c in v}, x),
    "remove": lambda x, v: (_remove([Money(c) for c in v]), x),
    "set": lambda x, v: (len({Money(c) for c in v} | {Money(2)}), x),
    "dict-keys": lambda x, v: ({Money(c): c for c in v}[Money(2)], x),
    "len-truth": lambda x, v: (len(Money(v[0])), bool(Money(0)), x),
    "reversed": lambda x, v: (list(reversed(Money(v[0]))), list(reversed(Deck(v))), x),
    "iterate-deck": lambda x, v: (
        [x * c for c in Deck(v)],
        sum(Deck(v)),
        list(zip(Deck(v), v, strict=True)),
    ),
    "format": lambda x, v: (
        f"{Money(v[0])!s} {Money(v[0]):04d}",
        "%s" % Money(v[0]),
        "{}".format(Money(v[0])),
        x,
    ),
    "format-in-list": lambda x, v: (str([Word("a"), v[0]]), "%s" % [v], x),
    "word": lambda x, v: (Word("A") == "a", Word("A") in ["b", "a"], "-".join([Word("A"), "b"]), x),
    "heap": push,
    "bisect": bisected,
    "chain": lambda x, v: (
        [m.cents for m in __import__("itertools").chain(map(Money, v), [Money(1)])],
        x,
    ),
    "method-of-type": lambda x, v: (list(map(Money.__float__, map(Money, v))), x),
    "update-mapping": lambda x, v: (_updated(v), x),
}


class Table:
    """A mapping by keys() and subscripts."""

    def __init__(self, n):
        self.n = n

    def keys(self):
        return range(self.n)

    def __getitem__(self, i):
        return i * i


def _updated(v):
    d = {0: "old"}
    d.update(Table(v[0]))
    return d, dict(Table(2)), {**Table(2)}


def _sort(items):
    items.sort(reverse=True)
    return [m.cents for m in items]


def _remove(items):
    items.remove(Money(2))
    return [m.cents for m in items]


@pytest.mark.parametrize("name", ON_OBJECTS)
def test_objects_with_their_own_methods(name):
    same(
        ON_OBJECTS[name],
        (X, [3, 2, 1]),
        (X, [3, 2, 1]),
        (X, [4, 1, 2]),
        (X, [1, 2, 2, 5]),
        breaks=0,
    )


class Named:
    pass


class Pretends:
    said: type = Named

    @property
    def __class__(self):
        return type(self).said


class PretendsByGetattribute:
    def __getattribute__(self, name):
        return Named if name == "__class__" else object.__getattribute__(self, name)


class PretendsByCount:
    def __init__(self):
        object.__setattr__(self, "kind", Named)

    @property
    def __class__(self):
        return object.__getattribute__(self, "kind")


@pytest.mark.parametrize("kind", [Pretends, PretendsByGetattribute, PretendsByCount])
def test_isinstance_of_an_object_that_says_its_class(kind):
    obj = kind()

    def fn(x):
        answers = [
            isinstance(obj, Named),
            isinstance(obj, kind),
            isinstance(obj, (int, Named)),
            isinstance(obj, int),
        ]
        return x + 1, answers, obj.__class__ is Named, type(obj) is kind

    same(fn, (X,), (X,), graphs=1)


def test_what_an_object_says_of_its_class_is_guarded():
    def make():
        obj = PretendsByCount()

        def fn(x):
            return x * 2 if isinstance(obj, Named) else x + 1

        return fn, View(lambda: None, obj)

    compare_with_eager(
        make,
        (X,),
        lambda obj: object.__setattr__(obj, "kind", int),
        (X,),
        (X,),
        graphs=2,
        recompiles=1,
    )


def test_an_abstract_class_asks_an_object_for_its_class():
    obj = Pretends()

    def fn(x):
        return x + 1, isinstance(obj, collections.abc.Iterable)

    same(fn, (X,), (X,), kinds=("unknown_native",))


def test_text_of_a_keyword_argument():
    def fn(x, value):
        return x + 1, str(object=value), str(object=b"ab", encoding="utf8")

    same(fn, (X, 5), (X, 6))


def test_dict_fromkeys_takes_no_keywords():
    def fn(x):
        try:
            return x + 1, dict.fromkeys("ab", value=3)
        except TypeError as error:
            return x - 1, str(error)

    same(fn, (X,), (X,), kinds=("native_python",))


def test_iterators_of_constants_are_run_by_c_code():
    """Item by item, five million would take minutes."""

    def f(x):
        forward, backward = itertools.tee(itertools.repeat(0, 5_000_000))
        has_any = any(forward)
        del backward
        first, second = itertools.tee(enumerate("abc"))
        begun = next(first)
        pairs = all(itertools.chain(zip(range(1, 9), "ab", strict=False), [0])), list(second)
        biggest = max(itertools.islice(itertools.count(3, 2), 50_000))
        digits = iter(range(10))
        return x + biggest, has_any, begun, pairs, list(first), 3 in digits, list(digits)

    same(f, (X,), (X,))


class Modular:
    """A number whose power of three answers for some moduli only."""

    def __init__(self, n):
        self.n = n

    def __pow__(self, other, modulus=None):
        if modulus is not None and not isinstance(modulus, int):
            return NotImplemented
        return Modular(pow(self.n, other, modulus))

    def __rpow__(self, other, modulus=None):
        return Modular(pow(other, self.n, getattr(modulus, "n", modulus)))


class Int(int):
    def __pow__(self, other, modulus=None):
        return Int(pow(int(self), int(other), modulus and int(modulus)))

    def __rpow__(self, other, modulus=None):
        return Int(pow(int(other), int(self), modulus and int(modulus)))

    def __repr__(self):
        return f"I({int(self)})"


@pytest.mark.parametrize(
    "make",
    [
        lambda: (Modular(2), 3, 5), lambda: (Modular(2), 3, 5.0), lambda: (2, Modular(3), 5),
        lambda: (2, 3, Modular(5)), lambda: (Int(2), 3, 5), lambda: (2, Int(3), 5),
        lambda: (2, 3, Int(5)), lambda: (2, Int(3), Int(5)), lambda: (2.0, 3, 5),
    ],
)  # fmt: skip
def test_the_power_of_three(make):
    def f(x, operands):
        try:
            actual = pow(*operands)
        except TypeError as error:
            return x - 1, str(error)
        return x + 1, type(actual).__name__, repr(getattr(actual, "n", actual))

    fast = tracer_core.compile(f, backend="eager")
    for _ in range(3):
        assert str(fast(torch.ones(2), make())) == str(f(torch.ones(2), make()))
