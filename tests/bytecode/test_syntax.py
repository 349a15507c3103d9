"""Syntax: match, walrus, f-strings, unpacking, scopes, arguments, closures, comprehensions,
recursion, generators, async.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import NamedTuple

import torch

from tests.support.named_programs import Programs, texts_of

program = Programs()


@dataclasses.dataclass
class Point:
    x: object
    y: object = 0


class Size(NamedTuple):
    w: int
    h: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


LIMIT = 7


def kind_of(subject):
    match subject:
        case None | True | False:
            return "single"
        case 0 | 1.5 | "text" | b"bytes":
            return f"literal {subject!r}"
        case Colour.RED:
            return "red"
        case Point(x=0, y=0):
            return "origin"
        case Point(a, y=int() as b) if b > 5:
            return f"far {a} {b}"
        case Point(a, b):
            return f"point {a} {b}"
        case Plain(1, b=[c, *_]):
            return f"plain {c}"
        case Size(w, h) if w == h:
            return f"square {w}"
        case [] | {}:
            return "empty"
        case [x]:
            return f"one {x}"
        case [1, *middle, 9]:
            return f"between {middle}"
        case [[a, b], {"k": c}]:
            return f"nested {a} {b} {c}"
        case (a, b, *rest):
            return f"many {a} {b} {rest}"
        case {"type": "box", "size": (w, h), **others}:
            return f"box {w} {h} {others}"
        case {"type": str(name)}:
            return f"typed {name}"
        case int(n) | float(n):
            return f"number {n}"
        case str() as s:
            return f"text {s}"
        case _:
            return "other"


SUBJECTS = [
    None,
    True,
    0,
    1.5,
    "text",
    b"bytes",
    Colour.RED,
    Colour.BLUE,
    Point(0, 0),
    Point(1, 9),
    Point(1, 2),
]
SUBJECTS += [
    Plain(1, [4, 5]),
    Plain(2, []),
    Size(3, 3),
    Size(1, 2),
    [],
    {},
    [5],
    [1, 2, 3, 9],
    [[1, 2], {"k": 3}],
]
SUBJECTS += [
    (1, 2, 3, 4),
    range(3),
    {"type": "box", "size": (1, 2), "c": 3},
    {"type": "ball"},
    {"type": 4},
    12,
    2.25,
]
SUBJECTS += ["words", {1, 2}, object]


@program
def match_every_pattern(x):
    return x + 1, [kind_of(subject) for subject in SUBJECTS]


@program
def match_a_class_with_properties_and_getattr(x):
    class Lazy:
        __match_args__ = ("v",)

        @property
        def v(self):
            return 3

        def __getattr__(self, name):
            return f"got {name}"

    match Lazy():
        case Lazy(3, other=o):
            return x + 1, o


@program
def match_mapping_of_a_user_class(x):
    class Table(dict):
        def __missing__(self, key):
            return "missing"

    match Table(a=1):
        case {"b": b}:
            return x + 100, b
        case {"a": a, **rest}:
            return x * a, rest


@program
def match_wrong_patterns_raise(x):
    return x + 1, texts_of(
        lambda: _match_too_many(Plain(1, 2)), lambda: _match_no_class(3),
        lambda: _match_twice(Plain(1, 2)),
    )  # fmt: skip


def _match_too_many(subject):
    match subject:
        case Plain(1, 2, 3):
            return 1


def _match_no_class(subject):
    match subject:
        case LIMIT():
            return 1


def _match_twice(subject):
    match subject:
        case Plain(1, a=1):
            return 1


@program
def match_tensors_in_sequences(x):
    match (x, {"mask": x > 0}):
        case (torch.Tensor() as t, {"mask": torch.Tensor() as m}):
            return torch.where(m, t, -t)


@program
def walrus(x):
    values = [y for v in (1, 2, 3) if (y := v * 2) > 2]
    while (n := len(values)) < 4:
        values.append(n)
    return x * y, values, n, (last := values[-1]) + last


@program
def f_strings(x):
    width, value, name = 8, 3.14159, "é"
    return (x + 1, f"{value:{width}.2f}|{value!r:>10}|{name!a}|{name!s:^{width - 3}}|{{}}|{width=}|{value=:.1f}|{'a' 'b'}",
            f"{[i for i in range(3)]}", f"{(lambda v: v * 2)(4)}",
            f"{x.shape[0]:04d} {tuple(x.shape)}",
            f"{1e10:,} {True} {None}")  # fmt: skip


@program
def unpacking_everywhere(x):
    a, (b, *c), *d = 1, (2, 3, 4), 5, 6
    first, *_, last = range(5)
    [e, f] = {"e": 1, "f": 2}
    (g,) = "z"
    merged = {"a": 1, "b": 2, **dict(a=3)}
    return x * a, b, c, d, first, last, e, f, g, [*range(2), *"ab"], (*c, *d), {*c, 3}, merged


@program
def unpacking_errors(x):
    return x + 1, texts_of(
        lambda: _unpack(1), lambda: _unpack([1]), lambda: _unpack([1, 2, 3]),
        lambda: _unpack_star([]),
        errors=(TypeError, ValueError),
    )  # fmt: skip


def _unpack(value):
    a, b = value
    return a, b


def _unpack_star(value):
    a, *b = value
    return a, b


@program
def chained_comparisons_and_boolean_values(x):
    log = []

    def say(v):
        log.append(v)
        return v

    return (
        x + 1,
        say(1) < say(2) < say(2) < say(9),
        say(0) or say("") or say(5),
        say(1) and say(0) and say(3),
        not say(0),
        log,
    )


@program
def conditional_expressions_and_nested_lambdas(x):
    pick = lambda c: (lambda v: v + 1) if c else (lambda v: v * 2)
    return pick(True)(x), pick(False)(x), (lambda *a, k=3, **kw: (a, k, kw))(1, 2, k=4, z=5)


@program
def argument_kinds(x):
    def f(a, b=2, /, c=3, *args, d, e=5, **kwargs):
        return a, b, c, args, d, e, kwargs

    return (
        x + 1,
        f(1, d=4),
        f(1, 2, 3, 4, 5, d=6, e=7, b=8),
        f(*[1, 2], d=3, z=4),
        f(1, *(2,), *[3, 4], d=0),
    )


@program
def argument_errors(x):
    def f(a, /, b, *, c):
        return a, b, c

    def g():
        return 0

    texts, item = [], {"b": 1}
    for step in (lambda: f(), lambda: f(1, 2), lambda: f(1, 2, 3, c=4), lambda: f(a=1, b=2, c=3),
    lambda: f(1, 2, c=3, d=4),
                 lambda: f(1, 2, b=3, c=4), lambda: g(1), lambda: g(k=1), lambda: f(*3),
                 lambda: f(**3),
                 lambda: f(1, **item, **item), lambda: f(**{1: 2})):  # fmt: skip
        try:
            step()
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


@program
def defaults_are_made_once(x):
    def f(v, seen=[]):
        seen.append(v)
        return len(seen)

    def g(*, table={}):
        table[len(table)] = 1
        return len(table)

    return x * f(1), f(2), f(3, []), f(4), g(), g(), f.__defaults__


@program
def defaults_see_the_definition(x):
    k = 1

    def f(v=k):
        return v

    k = 5
    return x * f(), k


@program
def closures_over_loop_variables(x):
    late = [lambda: i for i in range(3)]
    early = [lambda i=i: i for i in range(3)]
    result = []
    for n in range(3):

        def get():
            return n

        result.append(get)
    return x + 1, [f() for f in late], [f() for f in early], [f() for f in result]


@program
def nonlocal_through_several_levels(x):
    total = 0

    def outer():
        count = 0

        def inner(v):
            nonlocal total, count
            total += v
            count += 1
            return count

        return [inner(v) for v in (1, 2, 3)]

    return x * total, outer(), total


@program
def deleting_names(x):
    value = 3
    texts = []

    def inner():
        nonlocal value
        del value

    inner()
    try:
        value
    except NameError as error:
        texts.append((type(error).__name__, str(error)))
    value = 4
    items = [1, 2, 3, 4]
    del items[0], items[-1:]
    return x * value, items, texts


@program
def comprehension_scopes(x):
    n = 2
    table = {k: [v * n for v in range(k)] for k in range(3) if k}
    pairs = [(a, b) for a in range(3) for b in range(a) if a + b > 1]
    gen = (a * n for a in [1, 2])
    n = 10
    nested = [[c for c in row if c] for row in ([0, 1], [2, 0])]
    return x + 1, table, pairs, list(gen), nested, {len(s) for s in ("a", "bb")}, "a" in locals


locals = {"a": 1}  # a global that hides the builtin


@program
def recursion_and_mutual_recursion(x):
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    def deep(n):
        return n if n == 0 else 1 + deep(n - 1)

    return x * factorial(5), even(10), odd(7), deep(200)


@program
def decorators_with_and_without_arguments(x):
    log = []

    def plain(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            log.append(f.__name__)
            return f(*args, **kwargs)

        return inner

    def times(n):
        def decorate(f):
            @functools.wraps(f)
            def inner(*args):
                return f(*args) * n

            return inner

        return decorate

    @plain
    @times(3)
    def add(a, b):
        """Adds."""
        return a + b

    return add(x, 1), add.__name__, add.__doc__, add.__wrapped__.__wrapped__(1, 2), log


@program
def partial_and_partial_of_partial(x):
    add = functools.partial(lambda a, b, *, c=0: a + b + c, x, c=5)
    more = functools.partial(add, c=7)
    return add(1), more(b=2) if False else more(2), more.keywords, more.args[0] is x


@program
def imports_inside(x):
    import math
    from math import floor as down

    import torch.nn.functional as F
    from torch.nn import functional

    if x.dim() == 2:
        from collections import OrderedDict as Table
    else:
        from collections import UserDict as Table
    try:
        import no_such_module_at_all
    except ImportError:
        no_such_module_at_all = None
    return (
        F.relu(x) * math.sqrt(4),
        down(2.5),
        functional is F,
        list(Table(a=1)),
        no_such_module_at_all,
    )


program.found["imports_inside"][1].update(graphs=None, breaks=None)


@program
def globals_read_and_written(x):
    global LIMIT
    old = LIMIT
    LIMIT = old + 1
    now = LIMIT
    LIMIT = old
    return x * now, old


@program
def while_else_for_else_and_nested_breaks(x):
    log = []
    for i in range(3):
        for j in range(3):
            if j == i:
                break
            if i == 2:
                continue
            log.append((i, j))
        else:
            log.append("never")
    while i > 0:
        i -= 1
        if i == 5:
            break
    else:
        log.append("else")
    return x + i, log


@program
def augmented_assignment_of_every_target(x):
    class Box:
        v = 1

    box, table, rows = Box(), {"k": [1]}, [1, 2, 3]
    box.v += 2
    table["k"] += [2]
    rows[0] -= 5
    rows[1:2] += [9]
    rows[-1] **= 2
    n = 7
    n //= 2
    n <<= 3
    n |= 1
    n ^= 5
    n %= 7
    return x * box.v, table, rows, n


@program
def slices_of_everything(x):
    rows = list(range(6))
    rows[1:3] = [10]
    rows[::2] = [0] * len(rows[::2])
    del rows[-1]
    return (
        x[1:, ::2],
        x[..., None].shape,
        rows,
        "abcdef"[::-2],
        (1, 2, 3)[slice(None, 2)],
        range(9)[2:8:3],
        rows[5:],
        b"abc"[1:],
    )


@program.cases()
def test_syntax(name):
    program.run(name)
