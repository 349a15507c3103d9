"""Keys and elements of containers with ``__hash__`` and ``__eq__`` of their own."""

from __future__ import annotations

import collections
import dataclasses
import enum

from tests.support.eager_reference import compare_with_eager
from tests.support.named_programs import Programs, X, Y, texts_of

program = Programs()


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

    compare_with_eager(
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

    compare_with_eager(
        make,
        (X,),
        lambda key: setattr(key, "name", "b"),
        (X,),
        lambda key: setattr(key, "name", "a"),
        (X,),
        breaks=0,
    )


@program.cases()
def test_subclass(name):
    program.run(name)
