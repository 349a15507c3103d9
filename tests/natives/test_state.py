"""Native code on objects that existed before: each program's world changes between its calls."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import heapq
import inspect
import io
import itertools
import json
import operator
import os
import random
import re
import statistics
import struct
import threading
import types
import typing
import weakref

import numpy as np
import pytest
import torch

from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


@dataclasses.dataclass
class Options:
    n: int = 1
    names: list = dataclasses.field(default_factory=list)
    inner: typing.Any = None


class Thing:
    def __init__(self, n=1):
        self.n = n

    def __repr__(self):
        return f"<{self.n}>"

    def __eq__(self, other):
        return isinstance(other, Thing) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __lt__(self, other):
        return self.n < other.n

    def __len__(self):
        return self.n

    def __float__(self):
        return float(self.n)

    def __index__(self):
        return self.n

    def __iter__(self):
        return iter(range(self.n))


def world(**values):
    return types.SimpleNamespace(**values)


def bump(name, **changes):
    def step(w):
        vars(getattr(w, name)).update(changes)

    return step


def wrapped_twice():
    """A method whose function two decorators wrap, as torch.optim does with step()."""

    def step(self, a, b=1):
        return a

    def outer(*args):
        return step(*args)

    outer.hooked = True
    return functools.wraps(functools.wraps(step)(lambda *args: step(*args)))(outer)


#: name -> (make the world, the program, what changes between two calls, breaks or None)
READ = {
    "namespace-equal": (lambda: world(a=world(k=1), b=world(k=1)), lambda x, w: (x, w.a == w.b),
    bump("a", k=2), None),
    "namespace-repr": (lambda: world(a=world(k=1)), lambda x, w: (x, repr(w.a)), bump("a", k=2),
    None),
    "repr-of-things": (lambda: world(t=[Thing()]), lambda x, w: (x, repr(w.t), f"{w.t}"),
    lambda w: setattr(w.t[0], "n", 5), 0),
    "percent": (lambda: world(t=Thing()), lambda x, w: (x, "%s %r" % (w.t, [w.t])), bump("t", n=3),
    0),
    "percent-dict": (lambda: world(d={"a": 1}), lambda x, w: (x, "%(a)s" % w.d),
    lambda w: w.d.update(a=2), 0),
    "format": (lambda: world(t=Thing()), lambda x, w: (x, "{0.n} {k!r}".format(w.t, k=w.t)),
    bump("t", n=3), 0),
    "deque-repr": (lambda: world(q=collections.deque([Thing()])), lambda x, w: (x, repr(w.q)),
                   lambda w: setattr(w.q[0], "n", 5), 0),
    "ordered-repr": (lambda: world(q=collections.OrderedDict(a=Thing())), lambda x, w: (x,
    repr(w.q)),
                     lambda w: setattr(w.q["a"], "n", 5), 0),
    "sorted": (lambda: world(t=[Thing(1), Thing(2)]), lambda x, w: (x, [t.n for t in sorted(w.t)]),
               lambda w: setattr(w.t[0], "n", 5), 0),
    "min-key": (lambda: world(t=[Thing(1), Thing(2)]), lambda x, w: (x, min(w.t, key=len).n,
    max(w.t).n),
                lambda w: setattr(w.t[0], "n", 5), 0),
    "index-in": (lambda: world(t=[Thing(1), Thing(2)]), lambda x, w: (x, w.t.count(Thing(5)),
    Thing(5) in w.t),
                 lambda w: setattr(w.t[1], "n", 5), 0),
    "list-equal": (lambda: world(t=[Thing(1)], u=[Thing(1)]), lambda x, w: (x, w.t == w.u,
    w.t < w.u),
                   lambda w: setattr(w.t[0], "n", 5), 0),
    "set-of-things": (lambda: world(t=[Thing(1), Thing(1)]), lambda x, w: (x, len(set(w.t))),
                      lambda w: setattr(w.t[1], "n", 5), 0),
    "tuple-key": (lambda: world(t=Thing(1)), lambda x, w: (x, {(1, Thing(1)): "a"}.get((1, w.t))),
    bump("t", n=5), 0),
    "float-of": (lambda: world(t=Thing()), lambda x, w: (x * float(w.t), abs(float(w.t))),
    bump("t", n=3), 0),
    "list-of": (lambda: world(t=Thing(2)), lambda x, w: (x, list(w.t), sum(w.t), [*w.t], max(w.t)),
    bump("t", n=3), 0),
    "zip-map": (lambda: world(t=Thing(2)), lambda x, w: [x * a * b for a, b in zip(w.t, map(len,
    [w.t] * 9), strict=False)],
                bump("t", n=3), 0),
    "join": (lambda: world(v=["a", "b"]), lambda x, w: (x, ",".join(w.v)),
    lambda w: w.v.append("c"), 0),
    "join-dict": (lambda: world(d={"a": 1}), lambda x, w: (x, ",".join(w.d)),
    lambda w: w.d.update(b=1), 0),
    "sum-values": (lambda: world(d={"a": 1}), lambda x, w: x * sum(w.d.values()),
    lambda w: w.d.update(b=4), 0),
    "max-by": (lambda: world(d={"a": 1, "b": 2}), lambda x, w: (x, max(w.d, key=w.d.get)),
    lambda w: w.d.update(a=4), 0),
    "json": (lambda: world(d={"a": [{"b": 1}]}), lambda x, w: (x, json.dumps(w.d)),
             lambda w: w.d["a"][0].update(b=2), 0),
    "statistics": (lambda: world(v=[1, 2, 6]), lambda x, w: (x * statistics.mean(w.v)),
    lambda w: w.v.append(11), 0),
    "asdict": (lambda: world(o=Options(1, ["a"], Options(2))), lambda x, w: (x,
    dataclasses.asdict(w.o)),
               lambda w: setattr(w.o.inner, "n", 7), 0),
    "replace": (lambda: world(o=Options(1)), lambda x, w: (x, dataclasses.replace(w.o, names=[2])),
    bump("o", n=4), 0),
    "fields": (lambda: world(o=Options(1)), lambda x, w: [x * getattr(w.o,
    f.name) for f in dataclasses.fields(w.o)[:1]],
               bump("o", n=4), 0),
    "dataclass-equal": (lambda: world(o=Options(1), p=Options(1)), lambda x, w: (x, w.o == w.p,
    str(w.o)),
                        bump("o", n=4), 0),
    "deepcopy": (lambda: world(o=Options(1, ["a"])), lambda x, w: (x, copy.deepcopy(w.o),
    copy.deepcopy(w.o) is w.o),
                 lambda w: w.o.names.append("b"), 0),
    "deepcopy-shared": (lambda: world(o=[v := [1], v]), lambda x, w: (x, (c := copy.deepcopy(w.o)),
    c[0] is c[1]),
                        lambda w: w.o[0].append(2), 0),
    "copy": (lambda: world(v=[[1]]), lambda x, w: (x, (c := copy.copy(w.v)) is w.v, c[0] is w.v[0],
    c),
             lambda w: w.v[0].append(2), 0),
    "weakref": (lambda: world(t=(t := Thing()), r=weakref.ref(t)), lambda x, w: x * w.r().n,
    bump("t", n=3), 0),
    "partial": (lambda: world(f=functools.partial(lambda x, k, v: x * k * v["n"], k=2, v={"n": 1})),
                lambda x, w: w.f(x), lambda w: w.f.keywords["v"].update(n=4), 0),
    "attrgetter": (lambda: world(g=operator.attrgetter("n"), t=Thing()), lambda x, w: x * w.g(w.t),
    bump("t", n=3), 0),
    "getter-replaced": (lambda: world(g=operator.itemgetter(0)), lambda x, w: (x, w.g([1, 2])),
                        lambda w: setattr(w, "g", operator.itemgetter(1)), 0),
    "signature": (lambda: world(f=lambda a, b=1: a), lambda x, w: (x, str(inspect.signature(w.f))),
                  lambda w: setattr(w.f, "__defaults__", (5,)), 0),
    "signature-wrapped": (lambda: world(f=wrapped_twice()), lambda x, w: (x, str(inspect.signature(w.f))),
                          lambda w: setattr(w.f.__wrapped__.__wrapped__, "__defaults__", (5,)), 0),
    "signature-replaced": (lambda: world(f=wrapped_twice()), lambda x, w: (x, str(inspect.signature(w.f))),
                           lambda w: setattr(w.f, "__wrapped__", lambda z: z), 0),
    "signature-given": (lambda: world(f=wrapped_twice()), lambda x, w: (x, str(inspect.signature(w.f))),
                        lambda w: setattr(w.f, "__signature__", inspect.signature(bump)), None),
    "pattern": (lambda: world(p=re.compile("a")), lambda x, w: (x, w.p.sub("b", "aab")),
                lambda w: setattr(w, "p", re.compile("b")), 0),
    "struct": (lambda: world(s=struct.Struct("<i")), lambda x, w: (x, w.s.pack(1)),
               lambda w: setattr(w, "s", struct.Struct("<q")), None),
    "counter": (lambda: world(c=itertools.count(1)), lambda x, w: x * next(w.c),
    lambda w: next(w.c), None),
    "random-object": (lambda: world(r=random.Random(3)), lambda x, w: x * w.r.random(),
    lambda w: w.r.seed(9), None),
    "abc-register": (lambda: world(k=collections.abc.Hashable), lambda x, w: (x, isinstance([],
    w.k)),
                     lambda w: setattr(w, "k", collections.abc.Sized), 0),
    "chain-map": (lambda: world(m=collections.ChainMap({}, {"a": 1})), lambda x, w: x * w.m["a"],
                  lambda w: w.m.maps[0].update(a=5), 0),
    "user-list": (lambda: world(m=collections.UserList([1])), lambda x, w: x * w.m[0] + len(w.m),
                  lambda w: w.m.append(5), 0),
    "user-string": (lambda: world(m=collections.UserString("ab")), lambda x, w: (x,
    w.m.upper().data, len(w.m)),
                    lambda w: setattr(w.m, "data", "cde"), 0),
    "proxy": (lambda: world(m=types.MappingProxyType({"a": 1}), d=None), lambda x, w: (x, w.m["a"],
    len(w.m), "b" in w.m),
              lambda w: setattr(w, "m", types.MappingProxyType({"a": 2, "b": 3})), None),
    "views-compared": (lambda: world(d={"a": 1}), lambda x, w: (x, w.d.keys() == {"a"},
    w.d.items() <= {("a", 1)}),
                       lambda w: w.d.update(b=1), 0),
    "range-slice": (lambda: world(v=[1, 2, 3]), lambda x, w: (x, w.v[Thing(1) :], w.v[Thing(2)]),
                    lambda w: w.v.__setitem__(2, 9), 0),
    "type-hints": (lambda: world(k=Options), lambda x, w: (x, sorted(typing.get_type_hints(w.k))),
                   lambda w: setattr(w, "k", Thing), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_native_code_reads_is_guarded(name):
    make, fn, change, breaks = READ[name]

    def program():
        w = make()
        return (lambda x: fn(x, w)), w

    compare_with_eager(program, (X,), (Y,), change, (X,), (Y,), breaks=breaks)


def _heap(x, w):
    heapq.heappush(w.heap, 0)
    return x * heapq.heappop(w.heap)


def _scan(x, w):
    with contextlib.redirect_stdout(w.out):
        print("inside", flush=[])
    return x * 2


CHANGE = {
    "heap": (lambda: world(heap=[1, 5, 3]), _heap),
    "heap-of-things": (lambda: world(heap=[]), lambda x, w: (heapq.heappush(w.heap,
    (Thing(len(w.heap)), 1)), x)[1]),
    "insort": (lambda: world(v=[1, 5]), lambda x, w: (__import__("bisect").insort(w.v, 3), x)[1]),
    "counter-update": (lambda: world(c=collections.Counter("a")), lambda x, w: (w.c.update("ab"),
    w.c.subtract("b"), x)[2]),
    "default-dict": (lambda: world(d=collections.defaultdict(list)), lambda x,
    w: (w.d["k"].append(len(w.d["k"])), x)[1]),
    "ordered-move": (lambda: world(d=collections.OrderedDict(a=1, b=2)), lambda x,
    w: (w.d.move_to_end("a"), x)[1]),
    "ordered-pop": (lambda: world(d=collections.OrderedDict(a=1, b=2)),
                    lambda x, w: (w.d.popitem(last=False) if w.d else None, x)[1]),
    "deque": (lambda: world(q=collections.deque([1, 2, 3], maxlen=4)),
              lambda x, w: (w.q.rotate(1), w.q.extendleft([7]), w.q.insert(1,
              2) if len(w.q) < 4 else None, x)[3]),
    "deque-iadd": (lambda: world(q=collections.deque([1])), lambda x, w: (w.q.__iadd__([2]),
    w.q.__imul__(2), x)[2]),
    "set-updates": (lambda: world(s={1, 2}), lambda x, w: (w.s.difference_update([2]),
    w.s.symmetric_difference_update({3}),
                                                         w.s.__ior__({4}), w.s.intersection_update({1, 3, 4}), x)[4]),
    "list-sort": (lambda: world(v=[3, 1, 2]), lambda x, w: (w.v.sort(key=lambda i: -i),
    w.v.reverse(), x)[2]),
    "list-of-things": (lambda: world(v=[Thing(3), Thing(1)]), lambda x, w: (w.v.sort(),
    w.v.remove(Thing(1)),
                                                                            w.v.append(Thing(1)),
                                                                            x)[3]),
    "cached-property": (lambda: world(m=Cached(3)), lambda x, w: x * w.m.square),
    "dict-ior": (lambda: world(d={"a": 1}), lambda x, w: (w.d.__ior__({"b": 2}), operator.ior(w.d,
    {"c": 3}), x)[2]),
    "setattr": (lambda: world(t=Thing()), lambda x, w: (setattr(w.t, "n", w.t.n + 1),
    x * w.t.n)[1]),
    "setitem-by-name": (lambda: world(v=[1, 2]), lambda x, w: (operator.setitem(w.v, 0, len(w.v)),
    operator.delitem(w.v, 1)
                                                              if len(w.v) > 1 else None, x)[2]),
    "accumulated": (lambda: world(v=[]), lambda x, w: (w.v.extend(itertools.accumulate([1, 2],
    operator.mul)), x)[1]),
    "lazy-map": (lambda: world(v=[]), lambda x, w: (list(map(w.v.append, range(2))), x)[1]),
    "redirect": (lambda: world(out=io.StringIO()), _scan),
    "environ": (lambda: world(), lambda x, w: (os.environ.__setitem__("TRACER_X", "1"),
    os.environ["TRACER_X"], x)[1:]),
}  # fmt: skip


class Cached:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def square(self):
        return self.n * self.n


@pytest.mark.parametrize("name", CHANGE)
def test_what_native_code_changes_is_changed_once(name):
    make, fn = CHANGE[name]

    def program():
        w = make()
        return (lambda x: fn(x, w)), w

    compare_with_eager(program, (X,), (Y,), (X,), breaks=None)


RAISE = {
    "remove": lambda x, v: v.remove(9),
    "index": lambda x, v: v.index(9),
    "tuple-index": lambda x, v: tuple(v).index(9),
    "pop": lambda x, v: [].pop(),
    "dict-pop": lambda x, v: {}.pop("k"),
    "popitem": lambda x, v: {}.popitem(),
    "zip-strict": lambda x, v: list(zip(v, [1], strict=True)),
    "int": lambda x, v: int("x" * len(v)),
    "sorted": lambda x, v: sorted([*v, "a"]),
    "min": lambda x, v: min([]),
    "reduce": lambda x, v: functools.reduce(operator.add, []),
    "unpack": lambda x, v: dict([(1, 2, 3)]),
    "sum": lambda x, v: sum(["a"]),
    "sqrt": lambda x, v: __import__("math").sqrt(-len(v)),
    "unhashable": lambda x, v: {v: 1},
    "attrgetter": lambda x, v: operator.attrgetter("nope")(v),
    "next": lambda x, v: next(iter([])),
    "len": lambda x, v: len(3),
    "iter": lambda x, v: iter(3),
    "format": lambda x, v: f"{v[0]:q}",
    "percent": lambda x, v: "%d" % "a",
    "join": lambda x, v: ",".join(v),
    "chr": lambda x, v: chr(-len(v)),
    "enum": lambda x, v: __import__("enum").Enum("E", "A")(5),
    "json": lambda x, v: json.loads("{" * len(v)),
    "pattern": lambda x, v: re.compile("(" * len(v)),
    "struct": lambda x, v: struct.unpack("i", bytes(len(v))),
    "singledispatch": lambda x, v: functools.singledispatch(lambda a: a)(),
    "partial": lambda x, v: functools.partial(3),
    "islice": lambda x, v: list(itertools.islice(v, -1)),
    "deepcopy": lambda x, v: copy.deepcopy(inspect.currentframe),
    "isinstance": lambda x, v: isinstance(x, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISE)
@pytest.mark.filterwarnings("ignore")
def test_errors_are_pythons_own(name):
    def f(x, v):
        try:
            return RAISE[name](x, v), x * 2
        except Exception as error:
            return type(error), str(error), x + 1

    same(f, (X, [1, 2]), (Y, [1, 2, 3]), breaks=None)
    same(RAISE[name], (X, [1, 2]), (Y, [1, 2, 3]), breaks=None)


def test_a_functions_own_description_is_guarded():
    def make():
        def target(a, b=1, *, c=2):
            return a

        w = world(f=target)
        return (
            lambda x: (
                x,
                inspect.getfullargspec(w.f).defaults,
                inspect.signature(w.f).parameters["c"].default,
            )
        ), w

    def change(w):
        w.f.__defaults__ = (7,)

    def change_keyword(w):
        w.f.__kwdefaults__ = {"c": 9}

    compare_with_eager(make, (X,), (Y,), change, (X,), change_keyword, (X,), breaks=0)


def test_decorators_of_the_library_change_what_existed_before():
    def make():
        class Plain:
            n: int = 1

        w = world(k=Plain)

        def f(x):
            typing.final(w.k)
            return x * 2, getattr(w.k, "__final__", False)

        return f, w

    compare_with_eager(make, (X,), (Y,), breaks=None)


def test_registering_with_an_abstract_class():
    def make():
        class Shape(collections.abc.Sized):
            pass

        class Square:
            pass

        w = world(shape=Shape, square=Square)

        def f(x):
            before = isinstance(w.square(), w.shape)
            w.shape.register(w.square)
            return x * 2, before, isinstance(w.square(), w.shape)

        return f, w

    compare_with_eager(make, (X,), (Y,), breaks=None)


def test_attributes_of_a_thread():
    def make():
        w = world(local=threading.local())
        w.local.n = 2

        def f(x):
            own = threading.local()
            own.a = 3
            w.local.n += 1
            return x * w.local.n * own.a

        return f, w

    compare_with_eager(make, (X,), (Y,), (X,), kinds=("unknown_native",))


def test_a_generator_of_numpys_random_numbers():
    def f(x):
        numbers = np.random.default_rng(0)
        return x * numbers.random(), numbers.integers(5)

    same(f, (X,), (Y,), breaks=None)
