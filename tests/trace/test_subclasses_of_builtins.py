"""Subclasses of int, float, str, list, dict, tuple and set made by users; keys and elements with
methods of their own.
"""

from __future__ import annotations

import collections
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.named_programs import Programs, X, Y
from tracer_core.testing import compare

program = Programs()


class MyInt(int):
    def half(self):
        return self // 2


class Odd(int):
    def __add__(self, other):
        return Odd(int(self) + int(other) + 1)

    __radd__ = __add__

    def __eq__(self, other):
        return int(self) % 2 == int(other) % 2

    def __hash__(self):
        return int(self) % 2

    def __bool__(self):
        return True

    def __lt__(self, other):
        return int(self) > int(other)

    def __repr__(self):
        return f"Odd({int(self)})"


class MyFloat(float):
    pass


class Tag(str):
    def __new__(cls, text, weight=1):
        tag = super().__new__(cls, text)
        tag.weight = weight
        return tag

    def shout(self):
        return Tag(self.upper() + "!", self.weight + 1)

    def __add__(self, other):
        return Tag(str.__add__(self, other), self.weight)


class Rows(list):
    def total(self):
        return sum(self)

    def __getitem__(self, key):
        actual = super().__getitem__(key)
        return Rows(actual) if isinstance(key, slice) else actual

    def append(self, item):
        super().append(item * 10)


class Attr(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Lower(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key.lower(), value)

    def __getitem__(self, key):
        return super().__getitem__(key.lower())

    def __contains__(self, key):
        return super().__contains__(key.lower())

    def get(self, key, default=None):
        return self[key] if key in self else default


class Pair(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    @property
    def first(self):
        return self[0]

    def __add__(self, other):
        return Pair(self[0] + other[0], self[1] + other[1])


class Bits(set):
    def toggle(self, item):
        self.symmetric_difference_update({item})
        return self


@program
def int_subclass_without_methods_of_its_own(x):
    n = MyInt(6)
    return (
        x * n,
        n.half(),
        n + 1,
        type(n + 1).__name__,
        -n,
        n < 7,
        n == 6,
        [1, 2, 3][MyInt(1)],
        list(range(MyInt(2))),
        f"{n:03d}",
        str(n),
    )


@program
def int_subclass_with_its_own_operators(x):
    a, b = Odd(1), Odd(4)
    return (
        x * int(a + b),
        2 + a,
        a == 3,
        a != 3,
        a < b,
        bool(Odd(0)),
        repr(a),
        hash(b),
        a in [7],
        {a: 1}[Odd(5)],
        max(a, b),
    )


@program
def float_subclass(x):
    f = MyFloat(1.5)
    return x * f, f + 1, f.is_integer(), round(f), int(f), f > 1, abs(MyFloat(-2.0)), divmod(f, 1)


@program
def str_subclass(x):
    t = Tag("ab", 3)
    return (x * t.weight, t.shout(), t.shout().weight, t + "c", (t + "c").weight, t == "ab",
    len(t), t[0], "a" in t,
            {t: 1}["ab"], f"{t}-{t!r}", t.replace("a", "z"), sorted([Tag("b"), Tag("a")])[0],
            "".join([t, "x"]))  # fmt: skip


@program
def list_subclass(x):
    rows = Rows([1, 2])
    rows.append(3)
    return (
        x * rows.total(),
        rows[:2].total(),
        type(rows[0:1]).__name__,
        rows[-1],
        len(rows),
        30 in rows,
        rows + [1],
        [*rows],
        rows == [1, 2, 30],
    )


@program
def dict_subclass_with_attributes(x):
    d = Attr(a=1)
    d.b = x
    return d.b * d.a, hasattr(d, "c"), list(d), getattr(d, "c", 5), dict(d, a=2)["a"]


@program
def dict_subclass_with_its_own_items(x):
    d = Lower()
    d["AB"] = x
    return d["aB"] * 2, "Ab" in d, d.get("zz", 3), list(d), len(d), {**d}.keys() == {"ab"}


@program
def tuple_subclass(x):
    p = Pair(1, 2)
    a, b = p
    return (
        x * p.first + b,
        tuple(p + (3, 4)),
        type(p + p).__name__,
        p == (1, 2),
        hash(p) == hash((1, 2)),
        {p: 5}[1, 2],
        a,
    )


@program
def set_subclass(x):
    bits = Bits([1, 2])
    bits.toggle(3).toggle(1)
    return x * len(bits), sorted(bits), 3 in bits, bits == {2, 3}, sorted(bits | {9})


@program
def ordered_dict_counter_and_deque_subclasses(x):
    class Last(collections.OrderedDict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.move_to_end(key, last=False)

    class Window(collections.deque):
        def mean(self):
            return sum(self) / len(self)

    last, window = Last(), Window(maxlen=2)
    for i in range(3):
        last[i] = i
        window.append(i)
    return x * window.mean(), list(last), collections.Counter("aab").most_common(1)


@pytest.mark.parametrize(
    "value", [MyInt(3), MyFloat(2.5), Tag("abc", 4)], ids=["int", "float", "str"]
)
def test_argument_of_a_subclass_is_guarded_by_its_value(value):
    def f(x, v):
        return x * len(v) if isinstance(v, str) else x * v

    other = type(value)("abcd") if isinstance(value, str) else type(value)(value + 1)
    compare_with_eager(
        lambda: f,
        (X, value),
        (X, other),
        (X, value),
        (X, str(value) if isinstance(value, str) else 3),
        breaks=0,
    )


def test_list_subclass_argument_is_read_and_written():
    def f(x, rows):
        rows.append(2)
        return x * rows.total()

    compare_with_eager(lambda: f, (X, Rows([1])), (X, Rows([1, 2])), (X, Rows([1])), breaks=0)


def test_attributes_of_a_dict_subclass_argument():
    def f(x, config):
        config.seen = True
        return x * config.scale if config.flag else x

    compare_with_eager(
        lambda: f,
        (X, Attr(scale=2, flag=True)),
        (X, Attr(scale=3, flag=True)),
        (X, Attr(flag=False)),
        breaks=0,
    )


class Picky:
    """Everything about copying it is its own."""

    __slots__ = ("a", "b", "__dict__")

    def __new__(cls, a):
        assert a is not None
        return super().__new__(cls)

    def __init__(self, a):
        self.a, self.c = a, a + 1

    def __reduce__(self):
        raise RuntimeError("not to be asked")

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2 if name == "a" else value)

    def __getstate__(self):
        raise RuntimeError("not to be asked")


RETURNED = {
    "list": (lambda x: Rows([x, 1]), list),
    "dict": (lambda x: Lower(Ab=1) | {"q": x}, dict),
    "dict_with_attributes": (lambda x: Attr(a=x), dict),
    "tuple": (lambda x: Pair(x, 2), tuple),
    "set": (lambda x: Bits([1, 2]), sorted),
    "str": (lambda x: Tag("ab", 5), lambda t: (str(t), t.weight)),
    "int": (lambda x: Odd(3), int),
    "object": (lambda x: Picky(x), lambda o: (o.a, o.c, hasattr(o, "b"), sorted(o.__dict__))),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_an_object_of_a_subclass_is_returned(kind):
    """It is made again without its own methods, which would change or refuse it."""
    make, look = RETURNED[kind]
    compiled = tracer_core.compile(make, backend="eager")
    for x in (X, Y, X):
        want, got = make(x), compiled(x)
        assert type(want) is type(got)
        compare(look(want), look(got))


# -- __torch_function__ and __array__
# ----------------------------------------------------------------------------------


class Wrapped:
    """Acts as a tensor in torch functions."""

    calls: list = []

    def __init__(self, tensor, tag=""):
        self.tensor, self.tag = tensor, tag

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def open_up(value):
            if isinstance(value, Wrapped):
                return value.tensor
            return [open_up(v) for v in value] if isinstance(value, (list, tuple)) else value

        result = func(*map(open_up, args), **(kwargs or {}))
        return Wrapped(result, f"{func.__name__}") if isinstance(result, torch.Tensor) else result


@program
def torch_function_of_an_argument(x):
    w = Wrapped(x)
    out = torch.add(w, 1)
    return out.tensor * 2, out.tag, isinstance(out, Wrapped)


@program
def torch_function_on_the_right_of_an_operator(x):
    return torch.mul(x, Wrapped(x + 1)).tensor, (x * Wrapped(x)).tensor, (x @ Wrapped(x.t())).tag


@program
def torch_function_in_a_list(x):
    return torch.cat([Wrapped(x), x]).tensor, torch.stack((x, Wrapped(x)), dim=1).tag


@program
def torch_function_of_functional(x):
    return torch.nn.functional.relu(Wrapped(x)).tensor, torch.nn.functional.linear(
        Wrapped(x), x
    ).tensor


@program
def torch_function_that_refuses(x):
    class Refuses:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    try:
        torch.add(x, Refuses())
    except TypeError as error:
        return x + 1, "no implementation found" in str(error)


class Longer:
    """Says that it has 100 items more than it has."""

    def __len__(self):
        return 100 + super().__len__()


class LongerList(Longer, list): ...


class LongerDict(Longer, dict): ...


class LongerTuple(Longer, tuple): ...


class LongerDeque(Longer, collections.deque): ...


@program
def containers_made_here_that_say_another_length(x):
    items, pair = LongerList([1, 2]), LongerTuple((1, x))
    table = LongerDict(a=1)
    return (
        x + 1,
        [*items],
        items + [3],
        items[-1],
        items[:],
        len(items),
        pair[-1],
        [*pair],
        {**table},
    )


def test_containers_that_say_another_length():
    def grow(world):
        world[0].append(1)
        world[1]["b"] = 1
        world[2].append(2)

    def make():
        items, table, line = LongerList(), LongerDict(), LongerDeque()

        def f(x):
            return [*items], items[:], list(table), dict(table), [*line], len(items), x + len(line)

        return f, [items, table, line]

    compare_with_eager(make, (X,), (X,), grow, (X,), (X,), grow, (X,), breaks=None)


class CountedList(list):
    count = 0

    def append(self, item):
        self.count += 1
        super().append(item)

    def __len__(self):
        return 7


@program(graphs=None, breaks=None)
def methods_of_a_base_in_c_outlive_a_graph_break(x):
    items = CountedList()
    append, length = super(CountedList, items).append, super(CountedList, items).__len__
    tracer_core.graph_break()
    append(x)
    items.append(x + 1)
    return items[0], items.count, length()


class CountingReference(weakref.ref):
    calls = 0

    def __call__(self):
        self.calls += 1
        return super().__call__(), self.calls


def test_a_reference_that_counts_its_calls():
    target = torch.nn.ReLU()

    def f(x):
        reference = CountingReference(target)
        first, second = reference(), reference()
        return x + second[1], first[0] is target, first[1], reference.calls

    same(f, (X,), (X,), breaks=None)


@program.cases()
def test_subclass(name):
    program.run(name)
