"""Standard library calls in compiled functions: run, interpreted or an explained break; always
eager's answer.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import calendar
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import itertools
import json
import logging
import numbers
import operator
import os
import pathlib
import random
import re
import statistics
import string
import struct
import sys
import textwrap
import time
import types
import typing
import uuid
import weakref
import zlib

import packaging.version
import pytest
import torch
from test.support import import_helper

import tracer_core
from tests.support.eager_reference import same, twin
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- what is captured whole
# ---------------------------------------------------------------------------------


class Point(typing.NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Config:
    n: int = 1
    names: list = dataclasses.field(default_factory=list)
    inner: object = None


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


def pure(x, n):
    """n changes between the calls."""


PLAIN = {
    "re.match": lambda x, n: (re.match(r"(\w)(\d+)", f"a{n}").group(2), re.sub("a", "b", f"a{n}"),
    x),
    "re.compiled": lambda x, n: (re.compile(r"\d").findall(f"a{n}b3"), re.split("b", f"ab{n}"), x),
    "re.finditer": lambda x, n: ([m.span() for m in re.finditer("a", "aba" * n)], re.escape("a.b"),
    x),
    "re.sub-function": lambda x, n: (re.sub(r"\d", lambda m: str(int(m.group()) * n), "1 2 3"), x),
    "re.sub-nothing": lambda x, n: (re.sub("b|c", lambda m: None, "abac" * n), x),
    "re.groupdict": lambda x, n: (re.search(r"(?P<k>\d+)", f"x{n}").groupdict(), x),
    "string": lambda x, n: (string.ascii_letters[n], string.Template("$a").substitute(a=n),
    string.capwords("a b"), x),
    "textwrap": lambda x, n: (textwrap.dedent("  a\n  b"), textwrap.shorten("a b c d", 5 + n), x),
    "statistics": lambda x, n: (statistics.mean([1, n]), statistics.median([n, 5, 1]),
    statistics.pstdev([n, 2]), x),
    "fractions": lambda x, n: (x * float(fractions.Fraction(n, 3)), fractions.Fraction(n, 6) + 1),
    "datetime": lambda x, n: ((datetime.date(2024, 1, n) + datetime.timedelta(days=n)).isoformat(),
                              datetime.datetime(2024, 1, n, tzinfo=datetime.UTC).weekday(), x),
    "enum": lambda x, n: (Color(n % 2 + 1).name, Color["RED"].value, list(Color),
    Color.RED in Color, x),
    "enum-flags": lambda x, n: ((Flags.A | Flags.B).value, bool(Flags.A & Flags.B), Flags(n % 4),
    x),
    "enum-int": lambda x, n: (Level.HIGH > n, x * Level.HIGH, Level(5), max(Level)),
    "dataclass": lambda x, n: (Config(n).n, Config(n) == Config(n), repr(Config(n)), x),
    "dataclass-tools": lambda x, n: ([f.name for f in dataclasses.fields(Config)],
    dataclasses.is_dataclass(Config), x),
    "dataclass-replace": lambda x, n: (dataclasses.replace(Version(1), minor=n), Version(1,
    n) < Version(2), x),
    "asdict": lambda x, n: (dataclasses.asdict(Config(n, ["a"], Version(n))),
    dataclasses.astuple(Version(n)), x),
    "namedtuple": lambda x, n: (Point(n, 2)._asdict(), Point(n, 2)._replace(b=3), Point._fields,
    x * Point(n, 2).a),
    "typing": lambda x, n: (typing.cast(int, n), typing.get_type_hints(Config)["n"],
    typing.get_args(list[int]), x),
    "types": lambda x, n: (types.SimpleNamespace(a=n).a, types.MappingProxyType({"k": n})["k"], x),
    "numbers": lambda x, n: (isinstance(n, numbers.Integral), isinstance(x, numbers.Number), x),
    "heap-bisect": lambda x, n: (__import__("bisect").bisect([1, 3, 5], n), sorted([n, 2]), x),
    "json": lambda x, n: (json.dumps({"a": [n, None, 1.5]}, sort_keys=True),
    json.loads(f'{{"k": [{n}]}}'), x),
    "struct": lambda x, n: (struct.pack("<ih", n, 2), struct.unpack("<i", struct.pack("<i", n)),
    struct.calcsize("q"), x),
    "hashlib": lambda x, n: (hashlib.sha256(str(n).encode()).hexdigest(),
    hashlib.md5(b"a").digest(), x),
    "uuid": lambda x, n: (str(uuid.UUID(int=n)), uuid.uuid5(uuid.NAMESPACE_DNS, str(n)).hex, x),
    "codes": lambda x, n: (base64.b64encode(str(n).encode()), binascii.crc32(b"a"),
    zlib.adler32(bytes([n])), x),
    "paths": lambda x, n: (os.path.join("a", str(n)), os.path.splitext("b.c"),
    os.path.basename("/a/b"), x),
    "pure-paths": lambda x, n: (str(pathlib.PurePosixPath("a") / str(n)),
    pathlib.PurePosixPath("a/b.c").suffix, x),
    "inspect": lambda x, n: (list(inspect.signature(pure).parameters), inspect.isfunction(pure),
    x * n),
    "inspect-default": lambda x, n: (inspect.signature(with_default).parameters["k"].default,
    x * n),
    "functools.reduce": lambda x, n: functools.reduce(lambda a, b: a * b, [x, n, 2]),
    "functools.partial": lambda x, n: functools.partial(torch.mul, x)(n),
    "functools.partialmethod": lambda x, n: Machine().double(x, n),
    "functools.cached_property": lambda x, n: (m := Machine(n), x * m.power, m.power, vars(m))[1:],
    "functools.singledispatch": lambda x, n: (shape_of(x), shape_of(n), shape_of("s")),
    "functools.singledispatchmethod": lambda x, n: (Machine().kind(x), Machine().kind(n)),
    "functools.total_ordering": lambda x, n: (Size(n) >= Size(2), Size(n) <= Size(2), max(Size(n),
    Size(2)).n, x),
    "functools.cmp_to_key": lambda x, n: (sorted([3, n, 2], key=functools.cmp_to_key(lambda a,
    b: b - a)), x),
    "functools.wraps": lambda x, n: (doubled(x, n), doubled.__name__),
    "operator.getters": lambda x, n: (operator.itemgetter(1, 0)([n, x]),
    operator.attrgetter("real", "imag")(n),
                                      operator.methodcaller("mul", n)(x),
                                      operator.methodcaller("sum", dim=0)(x)),
    "operator.inplace": lambda x, n: (operator.iadd([1], [n]), operator.imul(n, 2),
    operator.ior({1}, {n}), x),
    "itertools.infinite": lambda x, n: (list(itertools.islice(itertools.count(n, 2), 3)),
    list(itertools.repeat(n, 2)), x),
    "itertools.filters": lambda x, n: (list(itertools.filterfalse(lambda i: i < n, [1, 2, 3])),
                                       list(itertools.compress("abc", [n, 0, 1])),
                                       list(itertools.takewhile(lambda i: i < n, range(9))),
                                       list(itertools.dropwhile(lambda i: i < n, range(5))), x),
    "itertools.groupby": lambda x, n: ([(k, list(g)) for k, g in itertools.groupby([1, 1, n, 3])],
                                       [(k, len(list(g))) for k, g in itertools.groupby("aAb",
                                       key=str.lower)], x),
    "itertools.groupby-skipped": lambda x, n: ([k for k, _ in itertools.groupby([1, 1, n, n, 3])],
    x),
    "itertools.accumulate": lambda x, n: list(itertools.accumulate([x, n, 2], operator.mul)),
    "itertools.accumulate-lazy": lambda x,
    n: (list(itertools.islice(itertools.accumulate(itertools.count(n)), 3)),
                                               list(itertools.accumulate([1], initial=n)), x),
    "itertools.combine": lambda x, n: (list(itertools.product([1, n], repeat=2)),
    list(itertools.permutations("ab")),
                                       list(itertools.combinations([1, n, 3], 2)),
                                       list(itertools.pairwise([1, n])), x),
    "itertools.tee": lambda x, n: ([list(t) for t in itertools.tee(map(lambda i: i * n, [1, 2]))],
    x),
    "itertools.zip_longest": lambda x, n: (list(itertools.zip_longest([1], [n, 2], fillvalue=0)),
    x),
    "itertools.starmap": lambda x, n: list(itertools.starmap(torch.mul, [(x, n), (x, 2)])),
    "itertools.chain": lambda x, n: (list(itertools.chain.from_iterable([[1], (n,)])),
    list(itertools.chain("a", [n])), x),
    "contextlib": lambda x, n: (scaled(x, n), quiet(x, n), stacked(x, n)),
    "copy": lambda x, n: (copy.copy([n, x]), copy.deepcopy({"a": [n]}), copy.copy(Config(n)).n,
    copy.deepcopy(n)),
    "copy-aliases": lambda x, n: ((lambda a: (a[0] is a[1], a, x))(copy.deepcopy([inner := [n],
    inner]))),
    "copy-tensor": lambda x, n: copy.deepcopy([x, x, n]),
    "copy-user": lambda x, n: (copy.deepcopy(Copied(n)).n, copy.copy(Copied(n)).n, x),
    "copy-object": lambda x, n: (copy.deepcopy(Config(n, ["a"], Config(2))), x),
    "ordered": lambda x, n: (list(collections.OrderedDict.fromkeys([n, 1])),
    collections.Counter([n, n, 1]), x),
    "user-dict": lambda x, n: (collections.UserDict({"a": n})["a"],
    list(collections.UserList([n])), x),
    "sys": lambda x, n: (sys.version_info >= (3, 8), sys.maxsize > n, sys.getrecursionlimit() > 0,
    sys.intern("a"), x),
    "clockless-uuid": lambda x, n: (uuid.UUID(int=n) == uuid.UUID(int=1), x),
    "property-by-name": lambda x, n: (Machine.size.fget(Machine(n)),
    Machine.size.__get__(Machine(n)), x),
    "function-call": lambda x, n: (pure.__call__(x, n), with_default.__get__(x)(k=n)),
    "repr-containers": lambda x, n: (repr(collections.deque([n], 3)),
    repr(collections.OrderedDict(a=Point(n, 1))), x),
}  # fmt: skip


def with_default(x, k=7, *, m=None):
    return k


def doubling(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * 2

    return wrapper


@doubling
def doubled(x, n):
    return x * n


class Machine:
    def __init__(self, n=2):
        self.n = n

    def scale(self, x, k, by):
        return x * k * by

    double = functools.partialmethod(scale, by=2)

    @functools.cached_property
    def power(self):
        return self.n**2

    @functools.singledispatchmethod
    def kind(self, value):
        return "object"

    @kind.register
    def _(self, value: int):
        return "int"

    @property
    def size(self):
        return self.n + 1


@functools.singledispatch
def shape_of(value):
    return "unknown"


@shape_of.register
def _(value: torch.Tensor):
    return value * 2


@shape_of.register
def _(value: int):
    return value + 1


@functools.total_ordering
class Size:
    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n

    def __eq__(self, other):
        return self.n == other.n


class Copied:
    def __init__(self, n):
        self.n = n

    def __copy__(self):
        return Copied(self.n + 1)

    def __deepcopy__(self, memo):
        return Copied(copy.deepcopy([self.n], memo)[0] * 10)


@contextlib.contextmanager
def scaling(log, n):
    log.append(n)
    try:
        yield n * 2
    finally:
        log.append("out")


def scaled(x, n):
    log = []
    with scaling(log, n) as k, contextlib.nullcontext(3) as three:
        x = x * k + three
    return x, log


def quiet(x, n):
    with contextlib.suppress(KeyError):
        x = x * n
        raise KeyError(n)
    return x


def stacked(x, n):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "done")
        k = stack.enter_context(scaling(log, n))
        x = x + k
    return x, log


@pytest.mark.parametrize("name", PLAIN)
def test_captured_whole(name):
    same(PLAIN[name], (X, 2), (Y, 2), (X, 3), (Y, 1), breaks=0)


# -- what ends the graph, and says why
# ------------------------------------------------------------------------


class Holder:
    pass


OUTSIDE = {
    "time": ("side_effect_native", lambda x: (time.time() > 0, x * 2)),
    "time-methods": ("side_effect_native", lambda x: (time.perf_counter_ns() > 0,
    time.monotonic() > 0, x * 2)),
    "datetime.now": ("side_effect_native", lambda x: (datetime.datetime.now().year > 2000, x * 2)),
    "date.today": ("side_effect_native", lambda x: (datetime.date.today().year > 2000, x * 2)),
    "random-entropy": ("side_effect_native", lambda x: (random.Random().random() >= 0, x + 1)),
    "random-shuffle": ("side_effect_native", lambda x: (random.shuffle([1, 2, 3]), x + 1)),
    "uuid4": ("side_effect_native", lambda x: (len(uuid.uuid4().hex), x + 1)),
    **{  # since Python 3.14
        name: ("side_effect_native", lambda x, name=name: (len(vars(uuid)[name]().hex), x + 1))
        for name in ("uuid6", "uuid7", "uuid8") if hasattr(uuid, name)
    },
    "environment": ("side_effect_native", lambda x: (os.getpid() > 0, x + 1)),
    "cwd": ("side_effect_native", lambda x: (os.path.abspath("a") == os.path.join(os.getcwd(),
    "a"), x + 1)),
    "exists": ("side_effect_native", lambda x: (os.path.exists("/"), os.path.isfile("/"), x + 1)),
    "path-exists": ("side_effect_native", lambda x: (pathlib.Path("/").exists(), x + 1)),
    "islink": ("side_effect_native", lambda x: (os.path.islink("/"), x + 1)),
    "month": ("side_effect_native", lambda x: (calendar.TextCalendar().prmonth(2026, 11), x + 1)),
    "revealed": ("side_effect_native", lambda x: (typing.reveal_type(3), x + 1)),
    "samples": ("side_effect_native",
    lambda x: (len(statistics.NormalDist().samples(2)), random.random() < 1, x + 1)),
    "decimal": ("unknown_native", lambda x: (str(decimal.Decimal("1.10") + 1), x + 1)),
    "copy-module": ("native_python", lambda x: (copy.deepcopy(LINEAR)(x) * 2)),
    "copy-view": ("unsupported_value", lambda x: (copy.deepcopy(x[0]), x + 1)),
    "address": ("unknown_native", lambda x: (id(x) == id(x), x + 1)),
    "default-repr": ("unknown_native", lambda x: (len(repr(Holder())) > 3, x + 1)),
    "cached-objects": ("native_python", lambda x: (remember([1].__class__, Holder, x=x), x)),
    "lru_cache-made": ("native_python", lambda x: (functools.lru_cache(lambda k: k + 1)(2), x + 1)),
    "match-kept": ("unsupported_value", lambda x: (m := re.match("(a)", "ab"), print(end="", flush=[]),
    m.group(1), x)[2:]),
    "weak-list": ("side_effect_native", lambda x: (weakref.getweakrefs(LINEAR) is not None, x + 1)),
    "pack-into": ("unknown_native", lambda x: (struct.pack_into("b", b := bytearray(2), 0, 1),
    bytes(b), x)[1:]),
    "memoryview": ("unknown_native", lambda x: (bytes(memoryview(b"abc")[1:]), x + 1)),
    "dump": ("side_effect_native", lambda x: (json.dump({"a": 1}, io_sink()), x + 1)),
}  # fmt: skip
LINEAR = torch.nn.Linear(4, 4)


def io_sink():
    import io

    return io.StringIO()


@functools.lru_cache
def remember(*args, **kwargs):
    return len(args)


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.filterwarnings("ignore")
def test_explained_break(name):
    kind, fn = OUTSIDE[name]
    seen = same(fn, (X,), (Y,), (X,), breaks=None)
    kinds = {kind for kind, _, _ in seen.counter.breaks}
    assert kind in kinds, seen.counter.breaks


# -- hidden state is asked again
# --------------------------------------------------------------------------------


def test_lru_cache_keeps_what_it_knows_and_forgets_when_told():
    def make():
        scale = {"n": 2}

        @functools.lru_cache
        def scaled(n):
            return n * scale["n"]

        return (lambda x: x * scaled(3)), types.SimpleNamespace(scale=scale, cached=scaled)

    # The cache remembers 6 although its function would now say 15, until it is cleared.
    twin(
        make,
        (X,),
        lambda w: w.scale.update(n=5),
        (X,),
        lambda w: w.cached.cache_clear(),
        (X,),
        (Y,),
        breaks=0,
    )


def test_lru_cache_calls_its_function_as_often_as_eager():
    def make():
        calls = []

        @functools.cache
        def shape(n, name="a"):
            calls.append(n)
            return [n]

        def f(x, n):
            kept = shape(n, name="b")
            kept.append(len(kept))
            return x * kept[0], len(kept), shape(n, name="b") is kept

        return f, calls

    twin(make, (X, 1), (X, 2), (X, 1), (Y, 2), breaks=None)


def test_lru_cache_on_a_method():
    class Grid(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 2

        @functools.lru_cache(maxsize=4)
        def ramp(self, n):
            return torch.arange(n) * self.n

        def forward(self, x):
            return x + self.ramp(4)

    twin(
        Grid,
        (X,),
        lambda m: setattr(m, "n", 3),
        (X,),
        lambda m: type(m).ramp.cache_clear(),
        (X,),
        (Y,),
        breaks=0,
    )


def test_lru_cache_after_a_change_of_state_runs_for_real():
    def make():
        box = {"n": 1}

        @functools.cache
        def twice(k):
            return box["n"] * k

        def f(x):
            box["n"] += 1
            return x * twice(10)

        return f, box

    twin(make, (X,), (X,), (Y,), breaks=None)


class _Parsed:
    """What a pattern says, as einops keeps it."""

    empty = ""

    def __init__(self, pattern):
        left, right = pattern.split("->")
        self.order = [left.split().index(name) for name in right.split() if name != self.empty]

    @staticmethod
    def swapped(order):
        return sorted(order, reverse=True)


_DIRECTIONS = ("forward", "backward")


@functools.lru_cache(64)
def _recipe(pattern, *, direction):
    if direction not in _DIRECTIONS:
        raise ValueError(direction)
    parsed = _Parsed(pattern)
    return tuple(parsed.order if direction == "forward" else _Parsed.swapped(parsed.order))


def test_lru_cache_of_what_only_its_arguments_decide_needs_no_break_after_a_change():
    def make():
        box = {"n": 1}

        def f(x):
            box["n"] += 1
            return x.permute(_recipe("a b -> b a", direction="forward")) * box["n"]

        return f, box

    _recipe.cache_clear()
    twin(make, (X,), (X,), lambda w: _recipe.cache_clear(), (X,), (Y,), breaks=0)


def test_lru_cache_reads_a_changed_class_attribute_or_cell_for_real():
    """A cache that is asked before the change is made would keep the answer of before."""

    def make():
        mode = "one"

        class Held:
            mode = "one"

            def times(self, k):
                return k if self.mode == "one" else 2 * k

        @functools.cache
        def by_class(k):
            return Held().times(k)

        @functools.cache
        def by_cell(k):
            return k if mode == "one" else 2 * k

        def f(x):
            nonlocal mode
            mode = "two" if mode == "one" else "one"
            Held.mode = mode
            return x * by_class(10) + by_cell(10)

        return f, types.SimpleNamespace(by_class=by_class, by_cell=by_cell)

    def forget(w):
        w.by_class.cache_clear()
        w.by_cell.cache_clear()

    twin(make, (X,), forget, (X,), forget, (Y,), forget, (X,), (Y,), breaks=None)


_MODE = "one"


@functools.cache
def _by_a_global(k):
    return k if _MODE == "one" else 2 * k


def test_lru_cache_reads_a_changed_global_for_real():
    def f(x):
        global _MODE
        _MODE = "two" if _MODE == "one" else "one"
        return x * _by_a_global(10)

    wanted, got = [], []
    for results, function in ((wanted, f), (got, tracer_core.compile(f, backend="eager"))):
        globals()["_MODE"] = "one"
        for x in (X, X, Y, X):
            _by_a_global.cache_clear()
            results.append(function(x))
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(a, b)


def test_bisect_reads_what_it_compares():
    """Guards name the items that a search of a long list compared, which decide about its result."""
    places = list(range(0, 2000, 2))
    moved, beside = places.copy(), places.copy()
    moved[700:] = [place + 1 for place in moved[700:]]
    beside[3] = 7

    def f(x, items):
        kept = [items[0], items[1]]
        bisect.insort(kept, 3, key=lambda item: -item)
        return x + bisect.bisect(items, 1401), bisect.bisect_left(items, 5), kept

    twin(lambda: f, (X, places), (X, moved), (X, beside), (X, places), graphs=None, breaks=0)
    assert len(tracer_core.explain(f)(X, places).guards) < 60


def test_a_type_written_after_a_change_of_state():
    """`Optional[...]` is not in typing's cache yet (ours runs before eager's): torch's profiler
    writes one a process.
    """

    def make():
        box = {"n": 1}

        def f(x, name):
            box["n"] += 1
            return x * box["n"], typing.Optional[name]  # noqa: UP045 (the call is what is tested)

        return f, box

    (eager, wanted), (fn, box) = make(), make()
    compiled = tracer_core.compile(fn, backend="eager")
    with CaptureCounter() as counter:
        for x, name in ((X, "NotWrittenYet"), (X, "NotWrittenYet"), (Y, "NorThis")):
            got = compiled(x, name)
            compare(eager(x, name), got)
            assert box == wanted
    assert not counter.breaks


def test_singledispatch_sees_new_implementations():
    def make():
        @functools.singledispatch
        def weight(value):
            return 1

        return (lambda x, v: x * weight(v)), weight

    def register(weight):
        weight.register(int, lambda value: 7)

    twin(make, (X, 2), (X, "a"), register, (X, 2), (X, "a"), breaks=0)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("environ", lambda: os.environ.get("TRACER_TEST_VALUE", "none")),
        (
            "environ-item",
            lambda: (
                os.environ["TRACER_TEST_VALUE"] if "TRACER_TEST_VALUE" in os.environ else "none"
            ),
        ),
        ("getenv", lambda: os.getenv("TRACER_TEST_VALUE", "none")),
        ("recursion", lambda: str(sys.getrecursionlimit())),
        ("threads", lambda: str(torch.get_num_threads())),
        ("log-level", lambda: str(logging.getLogger("tracer.tests").isEnabledFor(logging.INFO))),
        ("effective-level", lambda: str(logging.getLogger("tracer.tests").getEffectiveLevel())),
    ],
)
def test_settings_of_the_process_are_guarded(name, read, monkeypatch):
    compiled = tracer_core.compile(lambda x: (x * 2, read()), backend="eager")
    with CaptureCounter() as counter:
        assert compiled(X)[1] == read()
        monkeypatch.setenv("TRACER_TEST_VALUE", "set")
        limit = sys.getrecursionlimit()
        threads = torch.get_num_threads()
        logger = logging.getLogger("tracer.tests")
        try:
            sys.setrecursionlimit(limit + 7)
            torch.set_num_threads(3 if threads != 3 else 2)
            logger.setLevel(logging.DEBUG)
            assert compiled(X)[1] == read()
        finally:
            sys.setrecursionlimit(limit)
            torch.set_num_threads(threads)
            logger.setLevel(logging.NOTSET)
    assert not counter.breaks


# -- logging
# ------------------------------------------------------------------------------------------------------

LOGGER = logging.getLogger("tracer.tests.natives")


def test_messages_nobody_wants_are_no_break():
    def f(x):
        LOGGER.debug("shape %s", tuple(x.shape))
        LOGGER.log(5, "x")
        if LOGGER.isEnabledFor(logging.DEBUG):
            x = x + 100
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        assert torch.equal(compiled(X), X * 2)
    assert len(counter.graphs) == 1 and not counter.breaks


def test_a_level_switched_on_is_seen(caplog):
    def f(x):
        LOGGER.info("size %d", x.shape[0])
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    compiled(X)
    assert not caplog.records
    with caplog.at_level(logging.INFO, LOGGER.name), CaptureCounter() as counter:
        for _ in range(2):
            assert torch.equal(compiled(X), X * 2)
    assert [record.getMessage() for record in caplog.records] == ["size 3", "size 3"]
    assert {kind for kind, _, _ in counter.breaks} == {"side_effect_native"}
    compiled(X)
    assert len(caplog.records) == 2


def test_warning_once_is_said_once(caplog):
    @functools.lru_cache(None)
    def warning_once(self, *args, **kwargs):
        self.warning(*args, **kwargs)

    def f(x):
        warning_once(LOGGER, "slow path")
        return x * 2

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        for x in (X, Y, X):
            assert torch.equal(compiled(x), x * 2)
    assert len(caplog.records) == 1 and not counter.breaks and len(counter.graphs) == 1


# -- library code is not interpreted step by step
# -------------------------------------------------------------------


def steps_of(fn, *args):
    """Instructions interpreted to trace one call."""
    from tracer_core.trace.tracer import Tracer

    seen = []
    eager = Tracer.run_chain

    def run_chain(self, frames):
        try:
            return eager(self, frames)
        finally:
            seen.append(self.steps)

    Tracer.run_chain = run_chain
    try:
        with CaptureCounter() as counter:
            tracer_core.compile(fn, backend="eager")(*args)
    finally:
        Tracer.run_chain = eager
    assert not counter.breaks
    return sum(seen)


LIBRARY_CALLS = {
    "signature": lambda x: (x * 2, list(inspect.signature(with_default).parameters)),
    "regex": lambda x: (x * 2, re.sub(r"(a+)b*", "c", "aaab" * 9)),
    "version": lambda x: (
        x * 2,
        packaging.version.parse("2.4.1") >= packaging.version.parse("2.0"),
    ),
    "json": lambda x: (x * 2, json.dumps({"a": list(range(9))}, indent=2)),
    "textwrap": lambda x: (x * 2, textwrap.fill("word " * 50)),
    "statistics": lambda x: (x * 2, statistics.stdev([1, 2, 3, 4])),
    "logging": lambda x: (x * 2, LOGGER.debug("nothing")),
    "type-hints": lambda x: (x * 2, typing.get_type_hints(Config)),
    "uuid": lambda x: (x * 2, uuid.uuid5(uuid.NAMESPACE_URL, "a")),
    "splitext": lambda x: (x * 2, os.path.splitext("a/b.c"), os.path.normpath("a/../b")),
    "splitroot": lambda x: (x * 2, pathlib.PurePath("/a/b.c").root, pathlib.PurePath("a//b").parts),
}


@pytest.mark.parametrize("name", LIBRARY_CALLS)
def test_steps(name):
    assert steps_of(LIBRARY_CALLS[name], X) < 80


def test_library_code_with_the_programs_objects_is_interpreted():
    """json.dumps with the program's own default= calls it: it may not run behind the tracer's
    back.
    """
    calls = []

    def default(value):
        calls.append(value.n)
        return value.n

    def f(x):
        return x * 2, json.dumps([Size(3)], default=default)

    want = f(X)
    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(2):
        got = compiled(X)
        assert got[1] == want[1] and torch.equal(got[0], want[0])
    assert calls == [3, 3, 3]


# -- values of the library's own immutable types
# -----------------------------------------------------------------------

CHANGED = {
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3), lambda x, v: (x * float(v),
    v + 1)),
    "date": (datetime.date(2024, 1, 2), datetime.date(2024, 1, 3), lambda x, v: (x * v.day,
    v.isoformat())),
    "datetime": (datetime.datetime(2024, 1, 2, 3), datetime.datetime(2024, 1, 2, 4), lambda x,
    v: (x, v.strftime("%H"))),
    "zone": (
        datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 2, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        lambda x, v: (x * v.hour, v.isoformat()),
    ),
    "timedelta": (datetime.timedelta(1), datetime.timedelta(2), lambda x, v: (x * v.days, v * 2)),
    "pattern": (re.compile("a+"), re.compile("b+"), lambda x, v: (x, v.findall("aabb"), v.pattern)),
    "path": (pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a/c"), lambda x, v: (x, v.name,
    str(v / "d"))),
    "getter": (operator.itemgetter(0), operator.itemgetter(1), lambda x, v: (x, v([1, 2]))),
    "partial": (functools.partial(max, 3), functools.partial(min, 3), lambda x, v: (x, v(5))),
    "namespace": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), lambda x, v: x * v.a),
    "enum": (Color.RED, Color.BLUE, lambda x, v: (x * v.value, v.name, v is Color.RED)),
    "bytearray": (bytearray(b"ab"), bytearray(b"cd"), lambda x, v: (x, bytes(v))),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"getter"}))  # these do not compare equal
def test_argument_changes(name):
    first, second, fn = CHANGED[name]
    same(fn, (X, first), (X, second), (Y, first), breaks=None if name == "bytearray" else 0)


@pytest.mark.parametrize("name", CHANGED)
def test_attribute_changes(name):
    first, second, fn = CHANGED[name]

    def make():
        box = Holder()
        box.value = copy.copy(first)
        return (lambda x: fn(x, box.value)), types.SimpleNamespace(box=box)

    twin(make, (X,), lambda w: setattr(w.box, "value", second), (X,), (Y,), breaks=None)


def test_a_cache_is_guarded_once_for_many_calls():
    def f(x):
        for _ in range(50):
            x = x + remember(1, 2)
        return x

    same(f, (X,), (Y,), breaks=0)
    guards = [str(guard) for guard in tracer_core.explain(f)(X).guards]
    assert 0 < sum("remember" in guard for guard in guards) < 5, guards


@pytest.mark.parametrize("pattern", ["a", "b", "a(b)?", "x*", "c$"])
def test_a_function_of_sub_that_returns_no_text(pattern):
    def f(x, n):
        try:
            return re.sub(pattern, lambda match: n, "abac"), x
        except TypeError as error:
            return str(error), x + n

    fast = tracer_core.compile(f, backend="eager")
    for n in (1, 1, 2):
        assert fast(torch.ones(1), n) == f(torch.ones(1), n)


def test_a_library_of_c_that_was_loaded_again():
    """Its classes look up attributes as the first one's do, by functions that the table lacks."""
    again = import_helper.import_fresh_module("decimal", fresh=["_decimal"])

    def f(x):
        context = again.Context(prec=5)
        context.flags[again.Inexact] = True
        return x + sum(context.flags.values()), context.traps[again.InvalidOperation]

    def g(x):
        try:
            return functools.partial(max, 3).nothing
        except AttributeError as error:
            return str(error), x + 1

    for function in (f, g):
        fast = tracer_core.compile(function, backend="eager")
        for _ in range(2):
            assert str(fast(torch.ones(2))) == str(function(torch.ones(2)))
