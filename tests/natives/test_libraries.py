"""Standard library calls in compiled functions: run, interpreted or an explained break; always
eager's answer.
"""

from __future__ import annotations

import base64
import binascii
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

import pytest
import torch

from tests.support.eager_reference import same
from tests.support.library_programs import (
    Color,
    Config,
    Holder,
    Size,
    remember,
    with_default,
)

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- what is captured whole
# ---------------------------------------------------------------------------------


class Point(typing.NamedTuple):
    a: int
    b: int


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


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


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.filterwarnings("ignore")
def test_explained_break(name):
    kind, fn = OUTSIDE[name]
    seen = same(fn, (X,), (Y,), (X,), breaks=None)
    kinds = {kind for kind, _, _ in seen.counter.breaks}
    assert kind in kinds, seen.counter.breaks
