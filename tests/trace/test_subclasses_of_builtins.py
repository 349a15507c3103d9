"""Subclasses of int, float, str, list, dict, tuple and set made by users; keys and elements with
methods of their own.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same, twin
from tests.support.named_programs import Programs, X, Y, texts_of
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
    twin(
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

    twin(lambda: f, (X, Rows([1])), (X, Rows([1, 2])), (X, Rows([1])), breaks=0)


def test_attributes_of_a_dict_subclass_argument():
    def f(x, config):
        config.seen = True
        return x * config.scale if config.flag else x

    twin(
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


# -- keys and elements with __hash__ and __eq__
# -----------------------------------------------------------------------


class Key:
    def __init__(self, name, other=None):
        self.name, self.other = name, other

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


@dataclasses.dataclass(frozen=True)
class Spot:
    row: int
    column: int = 0


class Same:
    """All hash alike, so that every lookup compares."""

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return isinstance(other, Same) and self.n == other.n


@program
def dictionary_with_keys_of_a_class(x):
    d = {Key("a"): x, Key("b"): 2}
    d[Key("a")] = d[Key("a")] + 1
    d.setdefault(Key("c"), []).append(1)
    removed = d.pop(Key("b"))
    del d[Key("c")]
    return d[Key("a")] * removed, len(d), Key("b") in d, d.get(Key("z"), 7), [k.name for k in d]


@program
def missing_key_of_a_class(x):
    try:
        return {Spot(1): 2}[Spot(2)]
    except KeyError as error:
        return x + 1, error.args[0] == Spot(2), str(error)


@program
def sets_of_objects(x):
    a, b = {Spot(1), Spot(2), Spot(1)}, {Spot(2), Spot(3)}
    a.add(Spot(1))
    a.discard(Spot(9))
    return (
        x * len(a),
        len(a | b),
        len(a & b),
        len(a - b),
        a == {Spot(2), Spot(1)},
        Spot(2) in b,
        a.isdisjoint({Spot(7)}),
        len(a ^ b),
    )


@program
def colliding_hashes(x):
    d = {Same(i): i for i in range(4)}
    d[Same(2)] = 20
    return x * d[Same(2)], len(d), len({Same(1), Same(1), Same(2)}), Same(9) in d


@program
def tuples_with_objects_as_keys(x):
    d = {(Spot(1), "a"): x}
    return (
        d[Spot(1), "a"] + 1,
        (Spot(2), "a") in d,
        hash((Spot(1), 2)) == hash((Spot(1), 2)),
        len({(Key("k"),), (Key("k"),)}),
    )


@program
def dictionaries_and_comprehensions_over_objects(x):
    keys = [Key(n) for n in "aba"]
    d = {k: i for i, k in enumerate(keys)}
    merged = {**d, Key("a"): 9} | {Key("z"): 1}
    return (
        x * len(d),
        [k.name for k in merged],
        list(merged.values()),
        dict.fromkeys([Spot(1), Spot(1)], 0) == {Spot(1): 0},
    )


@program
def equal_numbers_and_text_are_one_key(x):
    item = 1
    d = {item: "int", item == 1: "bool", float(item): "float", "1": "text"}
    return x + len(d), d[1], d[1.0], {0, False, 0.0, -0.0}, {(1, 2): 3}[1.0, 2]


@program
def default_dict_and_counter_with_objects(x):
    groups = collections.defaultdict(list)
    for n in range(4):
        groups[Key(n % 2)].append(n)
    return x * len(groups), groups[Key(1)], [k.name for k in groups]


@program
def enumeration_members_as_keys(x):
    class Mode(enum.Enum):
        A = 1
        B = 2

    return (
        x * {Mode.A: 3, Mode.B: 4}[Mode.B],
        Mode.A in {Mode.A},
        [m for m in {Mode.B: 0}] == [Mode.B],
    )


@program
def unhashable_objects(x):
    class NoHash:
        __hash__ = None

    return x + 1, texts_of(
        lambda: {NoHash(): 1}, lambda: {NoHash()}, lambda: hash(NoHash()), lambda: {}[NoHash()],
        lambda: NoHash() in {1}, lambda: hash((1, [])), lambda: {[1]: 2}, lambda: {}.get({}),
    )  # fmt: skip


@program
def hash_that_raises(x):
    class Bad:
        def __hash__(self):
            raise ValueError("no hash")

    try:
        {Bad(): 1}
    except ValueError as error:
        return x + 1, str(error)


@program
def hash_must_be_a_number(x):
    class Bad:
        def __hash__(self):
            return "text"

    try:
        hash(Bad())
    except TypeError as error:
        return x + 1, str(error)


@program
def eq_that_is_not_a_bool(x):
    class Loose:
        def __eq__(self, other):
            return [other]

        __hash__ = None

    return x + 1, Loose() == 3, Loose() in [1], [1, Loose()].count(5), (Loose() != 3) is False


@program
def remove_index_count_with_objects(x):
    spots = [Spot(1), Spot(2), Spot(1)]
    spots.remove(Spot(1))
    return (
        x * spots.index(Spot(1)),
        spots.count(Spot(2)),
        [s.row for s in spots],
        (Spot(1), Spot(2)).index(Spot(2), 1),
        collections.deque(spots).count(Spot(2)),
    )


@program(graphs=None, kinds=("unknown_native",))
def a_key_that_counts_its_hashes(x):
    class Counting:
        calls = 0

        def __init__(self):
            self.hashed = 0

        def __hash__(self):
            self.hashed += 1
            return 1

        def __eq__(self, other):
            return self is other

    key = Counting()
    d = {key: 1}
    return x * d[key], key.hashed


@program
def identity_is_asked_before_equality(x):
    nan = float("nan")

    class Never:
        def __eq__(self, other):
            return False

        __hash__ = object.__hash__

    never = Never()
    return (
        x + 1,
        never in [never],
        [nan] == [nan],
        nan in (nan,),
        [never] == [never],
        {never: 1}[never],
        never == never,
    )


@program
def comparison_with_a_tensor_inside_a_container(x):
    return x + 1, [x] == [x], (x, 1) == (x, 1), [x] != [x], {"k": x} == {"k": x}, x in [x]


def test_keys_of_an_argument_dictionary():
    def f(x, d):
        d[Spot(2)] = 5
        return x * d[Spot(1)] + d.get(Spot(3), 0)

    twin(
        lambda: f,
        (X, {Spot(1): 2}),
        (X, {Spot(1): 3}),
        (X, {Spot(1): 2, Spot(3): 4}),
        (Y, {Spot(1): 2}),
        breaks=None,
    )


def test_a_key_whose_name_changes_between_calls():
    def make():
        key = Key("a")
        table = {"a": 2, "b": 3}

        def f(x):
            return x * {Key("a"): 1, Key("c"): 4}.get(key, 7), table[key.name]

        return f, key

    twin(
        make,
        (X,),
        lambda key: setattr(key, "name", "b"),
        (X,),
        lambda key: setattr(key, "name", "a"),
        (X,),
        breaks=0,
    )


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

    twin(make, (X,), (X,), grow, (X,), (X,), grow, (X,), breaks=None)


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
