"""What a compiled function gives back: objects of every kind, made anew in each call, with the same
references to one another as eager's, and without running the user's constructors or pickle methods
again."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import typing
import weakref

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.described_results import described
from tests.support.eager_reference import same
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_tuple_that_holds_itself():
    def f(x):
        items = []
        pair = (items, x + 1)
        items.append(pair)
        return pair

    described(f, lambda t: (t[0][0] is t, t[1]))


def test_object_that_holds_itself():
    class Node:
        def __init__(self, value):
            self.value, self.me, self.kids = value, self, [self, {"me": self}]

    described(
        lambda x: Node(x + 1), lambda n: (n.me is n, n.kids[0] is n, n.kids[1]["me"] is n, n.value)
    )


def test_parents_and_children():
    class Tree:
        def __init__(self, value, parent=None):
            self.value, self.parent, self.children = value, parent, []
            if parent is not None:
                parent.children.append(self)

    def f(x):
        root = Tree(x)
        for i in range(3):
            Tree(x + i, root)
        return root

    described(f, lambda r: ([c.value for c in r.children], all(c.parent is r for c in r.children)))


def test_long_linked_list():
    def f(x):
        head = None
        for i in range(2000):
            head = {"next": head, "i": i}
        return head, x + 1

    def length(result):
        n, node = 0, result[0]
        while node is not None:
            n, node = n + 1, node["next"]
        return n, result[1]

    described(f, length)


def test_function_that_calls_itself():
    def f(x):
        def down(n):
            return x if n == 0 else down(n - 1) * 2

        return down

    described(f, lambda down: (down(3), down.__closure__[0].cell_contents is down))


def test_shared_list_in_two_places():
    def f(x):
        shared = [x + 1]
        return {"a": shared, "b": (shared, [shared])}

    described(f, lambda d: (d["a"] is d["b"][0] is d["b"][1][0], d["a"]))


def test_cell_shared_by_two_functions():
    def f(x):
        n = 0

        def up():
            nonlocal n
            n += 1
            return n

        def get():
            return x * n

        up()
        return up, get

    described(f, lambda r: (r[0](), r[0](), r[1]()))


@dataclasses.dataclass
class Plain:
    a: object
    b: int = 2
    made: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: int = 2


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object
    b: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: object
    b: int = 2


@pytest.mark.parametrize("cls", [Plain, Frozen, Slotted, FrozenSlotted])
def test_dataclass(cls):
    same(lambda x: cls(x + 1, x.shape[0]), (X,), (Y,), graphs=1)


def test_frozen_dataclasses_as_keys():
    @dataclasses.dataclass(frozen=True)
    class Key:
        name: str
        sizes: tuple

    def f(x):
        key = Key("a", tuple(x.shape))
        return [key, x + 1], key

    described(f, lambda r: (r[0][0] is r[1], r[1].sizes, {r[1]: 1}[r[1]]))


class Pair(typing.NamedTuple):
    a: object
    b: int = 0


def test_named_tuples():
    Point = collections.namedtuple("Point", "u v")
    same(lambda x: (Pair(x + 1), Point(x, [x])), (X,), (Y,), graphs=1)


def test_named_tuple_with_attributes():
    class Extended(Pair):
        pass

    def f(x):
        extended = Extended(x + 1, 5)
        extended.tag = [extended, 3]
        return extended

    described(f, lambda p: (p.a, p.b, type(p) is Extended, p.tag[0] is p, p.tag[1]))


def test_pickle_methods_do_not_run():
    class Fussy:
        def __init__(self, v):
            self.v = v

        def __getstate__(self):
            raise AssertionError("asked for its state")

        def __setstate__(self, state):
            raise AssertionError("given a state")

        def __reduce__(self):
            raise AssertionError("reduced")

        def __getnewargs__(self):
            raise AssertionError("asked for arguments")

    described(lambda x: Fussy(x + 1), lambda o: o.v)


def test_constructors_do_not_run_again():
    runs = []

    class Counted:
        def __new__(cls, v):
            runs.append("new")
            return super().__new__(cls)

        def __init__(self, v):
            runs.append("init")
            self.v = v

    compiled = tracer_core.compile(lambda x: Counted(x + 1), backend="eager")
    for n in (1, 2):
        assert torch.equal(compiled(X).v, X + 1)
        assert runs == ["new", "init"] * n


def test_setattr_does_not_run_again():
    class Locked:
        __slots__ = ("v", "__dict__")

        def __init__(self, v):
            object.__setattr__(self, "v", v)
            self.__dict__["w"] = 3

        def __setattr__(self, name, value):
            raise AttributeError(name)

    described(lambda x: Locked(x + 1), lambda o: (o.v, o.w))


@pytest.mark.parametrize("kind", ["list", "dict", "set", "ordered", "default", "deque", "counter"])
def test_subclass_of_a_container(kind):
    def no(self, *args):
        raise AssertionError("ran")

    base, method, value = {
        "list": (list, "append", lambda x: [1, x + 1]),
        "dict": (dict, "update", lambda x: {"a": x + 1}),
        "set": (set, "add", lambda x: {1, 2}),
        "ordered": (collections.OrderedDict, "move_to_end", lambda x: {"b": x + 1, "a": 1}),
        "default": (collections.defaultdict, "__contains__", lambda x: {"a": x + 1}),
        "deque": (collections.deque, "append", lambda x: [x + 1, 2]),
        "counter": (collections.Counter, "elements", lambda x: {"a": 2}),
    }[kind]
    cls = type("Own", (base,), {method: no})

    def f(x):
        result = cls(list, value(x)) if kind == "default" else cls(value(x))
        result.tag = [result, x]
        return result

    def look(result):
        items = list(result.items()) if isinstance(result, dict) else list(result)
        return (
            items,
            type(result) is cls,
            result.tag[0] is result,
            result.tag[1],
            getattr(result, "default_factory", None),
        )

    described(f, look)


@pytest.mark.parametrize("base", [str, int, float, tuple, frozenset, bytes])
def test_subclass_of_an_immutable(base):
    start = {str: "abc", int: 5, float: 0.5, tuple: (1, 2), frozenset: {3}, bytes: b"xy"}[base]
    cls = type("Own", (base,), {})

    def f(x):
        result = cls(start)
        result.tag = x + 1
        return result

    described(f, lambda result: (result == base(start), type(result) is cls, result.tag))


def test_bounded_deque():
    def f(x):
        d = collections.deque([1, 2, 3], maxlen=2)
        d.append(x + 1)
        return d

    described(f, lambda d: (list(d), d.maxlen))


def test_builtin_dictionaries():
    def f(x):
        d = collections.defaultdict(list)
        d["a"].append(x)
        o = collections.OrderedDict(b=1, a=x)
        o.move_to_end("b")
        return d, o, collections.ChainMap({"a": x}, {"b": 1})

    described(
        f, lambda r: (dict(r[0]), r[0].default_factory is list, list(r[1].items()), dict(r[2]))
    )


def test_namespaces_and_proxies():
    def f(x):
        inner = {"a": x + 1}
        return (
            types.SimpleNamespace(a=x, inner=inner),
            types.MappingProxyType(inner),
            inner.items(),
            inner.keys(),
        )

    def look(r):
        return (
            r[0].a,
            r[1]["a"],
            list(r[2]),
            list(r[3]),
            r[0].inner is not r[1],
            r[1]["a"] is r[0].inner["a"],
        )

    described(f, look)


def test_enum_members():
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    class Flag(enum.Flag):
        A = 1
        B = 2

    described(
        lambda x: (Colour(2), Colour["RED"], Flag.A | Flag.B, {Colour.RED: x + 1}),
        lambda r: (
            r[0] is Colour.BLUE,
            r[1] is Colour.RED,
            r[2] is (Flag.A | Flag.B),
            r[3][Colour.RED],
        ),
    )


def test_tensor_is_the_argument():
    def f(x):
        return x, x.contiguous(), [x.view(3, 4)], x.add_(0)

    described(f, lambda r: (r[0] is r[1], r[0] is r[2][0], r[0] is r[3], r[2][0]._base is r[0]))


def test_module_parts_are_themselves():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.register_buffer("b", torch.zeros(4))
            self.act = nn.ReLU()

        def forward(self, x):
            return self.w, self.b, self.act, [self], x + self.w, self.w.data, self.w.detach()

    m = M()
    compiled = tracer_core.compile(m, backend="eager")
    for _ in range(2):
        w, b, act, (me,), y, data, detached = compiled(X)
        assert w is m.w and b is m.b and act is m.act and me is m
        assert torch.equal(y, X + 1) and data.data_ptr() == m.w.data_ptr() == detached.data_ptr()
        assert not data.requires_grad


def test_modules_made_inside():
    def f(x):
        sequential = nn.Sequential(nn.ReLU(), nn.Identity())
        return sequential, sequential(x)

    described(f, lambda r: ([type(m) for m in r[0]], r[0](Y), r[1], r[0].training))


def test_huggingface_output():
    modeling_outputs = pytest.importorskip("transformers.modeling_outputs")

    def f(x):
        return modeling_outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    same(f, (X,), (Y,), graphs=1)
    described(
        f,
        lambda o: (
            o.last_hidden_state is o["last_hidden_state"],
            len(o),
            list(o.keys()),
            o.to_tuple(),
        ),
    )


def test_user_dict_and_list():
    def f(x):
        d = collections.UserDict(a=x)
        d["b"] = 2
        items = collections.UserList([x])
        items.append(d)
        return d, items

    described(f, lambda r: (dict(r[0]), r[1][1] is r[0], len(r[1])))


def test_generic_class():
    T = typing.TypeVar("T")

    class Holder(typing.Generic[T]):
        def __init__(self, value: T):
            self.value = value

    described(
        lambda x: (Holder[int](x + 1), Holder(x)),
        lambda r: (r[0].value, r[1].value, type(r[0]) is Holder),
    )


def test_abstract_and_protocol_classes():
    import abc

    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

    class Impl(Base):
        def __init__(self, v):
            self.v = v

        def go(self):
            return self.v

    described(lambda x: Impl(x + 1), lambda o: (o.go(), isinstance(o, Base)))


def test_weak_reference_to_what_existed():
    class Thing:
        pass

    thing = Thing()
    described(lambda x: (weakref.ref(thing), x + 1), lambda r: (r[0]() is thing, r[1]))


def test_attributes_set_on_an_intermediate_tensor():
    def f(x):
        y = x + 1
        y.tag, y.origin = "hello", [x, y]
        del y.tag
        y.tag = "again"
        return y, hasattr(y, "nothing"), hasattr(y, "fake_mode"), y.tag

    described(f, lambda r: (r[0], r[0].tag, r[0].origin[1] is r[0], list(vars(r[0])), r[1:]))


def test_attribute_of_an_intermediate_is_not_that_of_its_views():
    def f(x):
        y = x + 1
        y.tag = 1
        z = y.view(-1)
        return y, z, hasattr(z, "tag"), hasattr(y * 2, "tag")

    described(f, lambda r: (r[2:], hasattr(r[0], "tag"), hasattr(r[1], "tag")))


def test_value_without_a_way_back_breaks_where_it_is_made():
    def f(x):
        y = x * 2
        result = torch.Generator().manual_seed(5)
        return y + 1, result

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        for x in (X, Y, X):
            y, created = compiled(x)
            assert torch.equal(y, x * 2 + 1) and created.initial_seed() == 5
    assert len(counter.graphs) == 2 and counter.breaks
    first, second = compiled(X)[1], compiled(X)[1]
    assert first is not second


def test_lock_made_inside():
    import threading

    def f(x):
        return x + 1, threading.Lock()

    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(2):
        y, lock = compiled(X)
        assert torch.equal(y, X + 1) and lock.acquire(blocking=False)
