"""What generated programs may use: classes, helpers and globals, as chunks of source text.

In: the text of a program. Out: the chunks that it needs, in order. What always holds: a chunk is
executed anew for each side of a comparison, so no object is shared between eager and compiled.
"""

from __future__ import annotations

import re

IMPORTS = """\
import abc, array, collections, contextlib, copy, dataclasses, datetime, enum, functools, hashlib, itertools, math, operator
import logging, random, re, struct, types, typing, weakref
import numpy
import torch
import torch.nn.functional as F
import tracer_core
from torch import nn
"""

#: name -> text. A chunk may use the names of earlier chunks.
CHUNKS: dict[str, str] = {
    "G_INT": "G_INT = 3",
    "G_FLOAT": "G_FLOAT = 1.5",
    "G_STR": "G_STR = 'abc'",
    "G_FLAG": "G_FLAG = True",
    "G_LIST": "G_LIST = [3, 1, 2]",
    "G_DICT": "G_DICT = {'a': 1, 'b': 2}",
    "G_SET": "G_SET = {1, 2}",
    "G_TUPLE": "G_TUPLE = (4, 5, 6)",
    "G_DEQUE": "G_DEQUE = collections.deque([1, 2], maxlen=5)",
    "G_TENSOR": "G_TENSOR = torch.arange(6.).reshape(2, 3) / 3",
    "G_TENSORS": "G_TENSORS = [torch.ones(2, 3), torch.full((2, 3), 0.5)]",
    "G_TDICT": "G_TDICT = {'a': torch.ones(2, 3), 'b': torch.full((2, 3), -0.5)}",
    "G_NESTED": "G_NESTED = {'a': [1, [2, 3]], 'b': {'a': 4}}",
    "Obj": """\
class Obj:
    count = 0
    shared = [1]

    def __init__(self, a=1, t=None):
        self.a = a
        self.t = torch.ones(2, 3) if t is None else t
        self.items = [a, 2]

    def bump(self, by=1):
        self.a += by
        return self.a

    def scaled(self, x, *, by=2):
        return x * by + self.a

    @property
    def twice(self):
        return self.a * 2

    @twice.setter
    def twice(self, value):
        self.a = value // 2

    @classmethod
    def made(cls, a):
        return cls(a + cls.count)

    @staticmethod
    def helper(n):
        return n - 1
""",
    "Sub": """\
class Sub(Obj):
    count = 2

    def __init__(self, a=1, t=None):
        super().__init__(a + 1, t)
        self.extra = {'k': a}

    def bump(self, by=1):
        return super().bump(by * 2) + 1

    def __getattr__(self, name):
        if name.startswith('dyn_'):
            return len(name)
        raise AttributeError(name)
""",
    "Slots": """\
class Slots:
    __slots__ = ('a', 't', 'missing')

    def __init__(self, a=1):
        self.a = a
        self.t = torch.full((2, 3), 2.0)
""",
    "Point": """\
@dataclasses.dataclass
class Point:
    n: int = 1
    t: typing.Any = dataclasses.field(default_factory=lambda: torch.ones(2, 3))
    tag: str = 'p'

    def moved(self, by):
        return dataclasses.replace(self, n=self.n + by)
""",
    "Frozen": """\
@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    n: int = 1
    s: str = 'f'
""",
    "Pair": "Pair = collections.namedtuple('Pair', 'p q', defaults=(7,))",
    "Typed": """\
class Typed(typing.NamedTuple):
    n: int
    t: typing.Any = 2

    def total(self):
        return self.n + 1
""",
    "Color": """\
class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def next(self):
        return Color.BLUE if self is Color.RED else Color.RED
""",
    "Level": """\
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3
""",
    "Vec": """\
class Vec:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, other):
        if isinstance(other, Vec):
            return Vec(*[a + b for a, b in zip(self.v, other.v)])
        return NotImplemented

    def __radd__(self, other):
        return Vec(*[other + a for a in self.v])

    def __iadd__(self, other):
        self.v.append(other)
        return self

    def __mul__(self, k):
        return Vec(*[a * k for a in self.v])

    def __neg__(self):
        return Vec(*[-a for a in self.v])

    def __eq__(self, other):
        return isinstance(other, Vec) and self.v == other.v

    def __lt__(self, other):
        return sum(self.v) < sum(other.v)

    def __hash__(self):
        return hash(tuple(self.v))

    def __len__(self):
        return len(self.v)

    def __bool__(self):
        return sum(self.v) > 0

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, value):
        self.v[i] = value

    def __delitem__(self, i):
        del self.v[i]

    def __contains__(self, item):
        return item in self.v

    def __iter__(self):
        for item in self.v:
            yield item

    def __call__(self, x):
        return x + len(self.v)

    def __repr__(self):
        return f'Vec{tuple(self.v)}'
""",
    "Managed": """\
class Managed:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append(1)
        return self.log

    def __exit__(self, kind, error, trace):
        self.log.append(0 if kind is None else len(kind.__name__))
        return self.swallow
""",
    "managed": """\
@contextlib.contextmanager
def managed(log, value=5):
    log.append(value)
    try:
        yield value + 1
    finally:
        log.append(-value)
""",
    "Desc": """\
class Field:
    def __set_name__(self, owner, name):
        self.name = '_' + name

    def __get__(self, obj, owner=None):
        return self if obj is None else obj.__dict__.get(self.name, 10)

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value + 1


class Desc:
    field = Field()

    def __init__(self, n):
        self.field = n
""",
    "Broken": """\
class Broken(ValueError):
    def __init__(self, code, note='n'):
        super().__init__(code, note)
        self.code = code
""",
    "Net": """\
class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.lin = nn.Linear(3, width)
        self.parts = nn.ModuleList([nn.Linear(width, 3), nn.ReLU()])
        self.register_buffer('seen', torch.zeros(()))
        self.scale = 2
        self.cache = {}
        with torch.no_grad():
            for k, p in enumerate(self.parameters()):
                p.copy_(torch.arange(p.numel()).reshape(p.shape) * 0.1 - k * 0.2)

    def forward(self, x):
        if self.training:
            self.seen.add_(1)
        y = self.lin(x)
        for part in self.parts:
            y = part(y)
        return y * self.scale
""",
    "Ring": """\
class Ring:
    def __init__(self, n):
        self.n = n
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.i
""",
    "Attrs": """\
class Attrs(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value
""",
    "Meta": """\
class Meta(type):
    registry = []

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.stamp = len(cls.__name__)
        return made


class Stamped(metaclass=Meta):
    def __init__(self, n=1):
        self.n = n
""",
    "count_up": """\
def count_up(n, start=0):
    total = start
    for i in range(n):
        got = yield total
        total += i if got is None else got
    return total
""",
    "chained": """\
def chained(n):
    result = yield from count_up(n, 1)
    yield result
""",
    "tensors": """\
def tensors(x, n):
    for i in range(n):
        yield x + i
        x = x * 2
""",
    "fact": """\
def fact(n):
    return 1 if n <= 1 else n * fact(n - 1)
""",
    "keywords": """\
def keywords(a, /, b=2, *args, c=3, **kw):
    return a + b * 2 + sum(args) + c * 5 + len(kw)
""",
    "deco": """\
def deco(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(*args, **kwargs)
    inner.calls = 1
    return inner


@deco
def decorated(x, k=2):
    return x * k
""",
    "memo": """\
@functools.lru_cache(maxsize=None)
def memo(n):
    return n * 3
""",
    "mutable_default": """\
def mutable_default(n, seen=[]):
    seen.append(n)
    return len(seen)
""",
    "counter": """\
def make_counter():
    total = 0
    history = []

    def add(n=1):
        nonlocal total
        total += n
        history.append(total)
        return total

    return add


counter = make_counter()
""",
    "read_late": """\
def make_late():
    def read(n=0):
        try:
            return late + n
        except NameError:
            return -1

    def fill(value):
        nonlocal late
        late = value

    if False:
        late = 0
    return read, fill


read_late, fill_late = make_late()
""",
    "OBJ": "OBJ = Obj(2)",
    "SUB": "SUB = Sub(3)",
    "SLOTS": "SLOTS = Slots(2)",
    "POINT": "POINT = Point(4)",
    "NET": "NET = Net()",
    "VEC": "VEC = Vec(1, 2)",
    "ATTRS": "ATTRS = Attrs(k=1, t=torch.ones(2, 3))",
    "PAIR": "PAIR = Pair(1, torch.ones(2, 3))",
    "FROZEN": "FROZEN = Frozen(3)",
}

#: A chunk that defines other names than its own.
_ALSO = {"fill_late": "read_late", "Field": "Desc", "decorated": "deco", "Stamped": "Meta"}


def needed(text: str) -> str:
    """The chunks that `text` uses, and those that these use, as one text."""
    wanted: set[str] = set()
    pending = [text]
    while pending:
        for word in set(re.findall(r"[A-Za-z_]\w*", pending.pop())):
            name = _ALSO.get(word, word)
            if name in CHUNKS and name not in wanted:
                wanted.add(name)
                pending.append(CHUNKS[name])
    chunks = [CHUNKS[name] for name in CHUNKS if name in wanted]
    return IMPORTS + "".join(
        f"\n{'' if '=' in c.splitlines()[0] else chr(10)}{c.rstrip()}\n" for c in chunks
    )
