"""Constructs whose bytecode or meaning changed between CPython 3.11 and 3.14, at graph breaks too:
super-instructions, calls, bools, ``with``, comprehensions, frame locals, annotations, template
strings, ``finally``, monitoring, generators and the garbage collector.

Programs in the syntax of a later Python are source text, and are skipped on an earlier one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import itertools
import sys
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import module, same, twin
from tests.support.named_programs import Programs, X, Y, texts_of
from tracer_core import graph_break
from tracer_core.testing import compare

program = Programs()
at_breaks = program(graphs=None, breaks=None)


def broken(value):
    """Ends the graph where it is called."""
    graph_break()
    return value


# -- instructions on two variables --


@program
def pairs_of_variables(x):
    a, b = x, x + 1
    a, b = b, a
    c = a - b
    d = c
    a, b, c = c, a, b
    return a * b, c / (d + 2), a


@at_breaks
def pairs_of_variables_around_breaks(x):
    a, b = broken(x), broken(x + 1)
    a, b = b, broken(a)
    total = a
    for c, d in [(a, b), (b, a)]:
        e, f = broken(d), c
        total = total + e * f
    return total, broken(a) @ b.T, (a, b)


@program
def the_second_of_two_variables_is_unbound(x):
    a = b = x.sum()
    del b
    try:
        return a + b
    except UnboundLocalError as error:
        return a, str(error)


@program
def more_variables_than_a_pair_has_room_for(x):
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = x
    p, q = a + o, b - n
    q, p = p, q
    return p * q + c + d + e + f + g + h + i + j + k + l + m


# -- calls --


def described(*args, scale=1, **others):
    return [arg * scale for arg in args], sorted(others)


class Scaled:
    def __init__(self, by, *, extra=0):
        self.by, self.extra = by, extra

    def times(self, value, *, plus=0):
        return value * self.by + plus + self.extra

    def __call__(self, value, **more):
        return self.times(value, **more)


class Twice(Scaled):
    def times(self, value, *, plus=0):
        return super().times(value, plus=plus) * 2


@program
def calls_with_keywords(x):
    first = described(x, scale=2, other=x)
    second = described(*[x, x], **{"scale": 3, "a b": 1})
    twice = Twice(by=x.shape[0], extra=1)
    return first, second, twice.times(x, plus=2), twice(value=x, plus=1), dict(a=x, b=2)


@at_breaks
def calls_with_keywords_around_breaks(x):
    twice = Twice(broken(2), extra=broken(x.mean()))
    first = described(broken(x), scale=broken(2), other=broken(x))
    second = twice.times(broken(x), plus=broken(1))
    third = described(*broken([x]), **broken({"scale": 3}))
    return first, second, third, (broken(described) if x.dim() else None)(x, scale=4)


@program
def calls_that_do_not_fit(x):
    def named(a, /, b, *, c):
        return a, b, c

    return x + 1, texts_of(
        lambda: named(1, b=2),
        lambda: named(1, c=2),
        lambda: named(a=1, b=2, c=3),
        lambda: named(1, 2, c=3, d=4),
        lambda: named(1, 2, 3, c=4),
        lambda: named(1, 2, b=3, c=4),
        lambda: named(*[1, 2], **{"c": 1}, **{"c": 2}),  # noqa: PIE804
        lambda: named(1, 2, colour=4, c=3),
    )


@program
def callables_that_are_computed(x):
    def adder(n):
        return lambda value, *, by=1: value + n * by

    table = {"f": adder(1), "g": adder(2)}
    return table["f"](x)[0], adder(3)(x, by=2), (adder(4) if x.dim() > 1 else adder(5))(x)


# -- bools --


class Truth:
    def __init__(self, answer, log):
        self.answer, self.log = answer, log

    def __bool__(self):
        self.log.append(self.answer)
        return self.answer


class Sized:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class Compared:
    def __init__(self, answer):
        self.answer = answer

    def __lt__(self, other):
        return self.answer

    def __eq__(self, other):
        return self.answer

    __hash__ = None

    def __contains__(self, other):
        return self.answer


@program
def truth_values_are_asked_once(x):
    log = []
    yes, no = Truth(True, log), Truth(False, log)
    actual = [not yes, not no, not not yes]
    actual.append("a" if yes and not no else "b")
    actual += [(yes and no) is no, (yes or no) is yes, (no or yes) is yes]
    while no or not yes:
        break
    if not (no or not yes):
        actual.append("c")
    actual += [bool(Sized(0)), not Sized(2), bool(Compared([]) < 1), 1 in Compared([1])]
    assert yes
    return x * len(log), actual, log


@program
def comparisons_give_what_their_methods_give(x):
    text, nothing = Compared("text"), Compared([])
    actual = [text < 1, nothing < 1, text == 1, not nothing < 1, 0 < 1 < 2 > text]
    actual.append("yes" if text < 1 else "no")
    actual.append("yes" if nothing == 1 else "no")
    actual.append([n for n in (1, 2) if nothing < n])
    return x + len(actual), actual


@program
def truth_values_that_are_errors(x):
    class Wrong:
        def __bool__(self):
            return 1

    class Negative:
        def __len__(self):
            return -1

    class Raises:
        def __bool__(self):
            raise KeyError("no truth")

    return x + 1, texts_of(
        lambda: not Wrong(),
        lambda: 1 if Negative() else 2,
        lambda: [value for value in (1,) if Raises()],
        errors=(TypeError, ValueError, KeyError),
    )


@at_breaks
def the_truth_of_a_tensor(x):
    total = x.sum()
    first = not total > 100
    second = total > 0 and x + 1
    third = total < -100 or x * 2
    fourth = x if not (total - total) else -x
    while total < 3:
        total = total + 2.5
    assert total, "some"
    return first, second, third, fourth, total


# -- with statements --


class Manager:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append((kind and kind.__name__, str(error), trace is not None))
        return self.swallows


@program
def with_statements(x):
    log = []
    with Manager(log) as item, Manager(log, swallows=True), torch.no_grad():
        x = x * 2
        log.append(item.swallows)
        raise ValueError("swallowed")
    for n in range(3):
        with Manager(log):
            if n == 1:
                continue
            x = x + n
    with contextlib.suppress(KeyError), Manager(log):
        {}[x.dim()]
    return x, log


@at_breaks
def with_statements_around_breaks(x):
    log = []

    def leave(value):
        with Manager(log), Manager(broken(log)) as second:
            value = broken(value) + 1
            with contextlib.suppress(ValueError):
                value = value * 2
                raise ValueError(broken("left"))
            return broken(value) * len(second.log)

    with pytest.raises(ZeroDivisionError), Manager(log):
        x = broken(x) + 1
        1 / broken(0)
    return leave(x), log


@program
def what_is_no_context_manager(x):
    class OnlyEnter:
        def __enter__(self):
            return self

    class OnlyExit:
        def __exit__(self, *error):
            return None

    class Asynchronous:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            return None

    class InInstance:
        def __init__(self):
            self.__enter__ = self.__exit__ = lambda *_: None

    def enter(item):
        with item:
            pass

    ones = (1, OnlyEnter(), OnlyExit(), Asynchronous(), InInstance(), None)
    return x + 1, texts_of(*[lambda value=item: enter(value) for item in ones])


# -- constants that instructions name --


@program
def constants_that_instructions_name(x):
    numbers = [x, x + 1]
    actual = [tuple(n * 2 for n in numbers), all(n.dim() for n in numbers)]
    actual.append(any(n.dim() > 5 for n in numbers))
    return actual


@at_breaks
def generators_in_all_and_any_around_breaks(x):
    rows = [x, x + 1]
    first = all(broken(row.dim()) for row in rows)
    second = any(row.sum() > 100 for row in rows)
    return first, second, tuple(broken(row) for row in rows)


def test_assertions():
    result = module("""
def fn(x):
    assert x.dim() == 2
    try:
        assert x.dim() == 5, "five"
    except AssertionError as error:
        return x + 1, error.args
""")
    same(result.fn, (X,), (Y,), graphs=1)


def test_all_and_tuple_of_another_meaning():
    result = module("""
def all(them):
    return ["all", *them]
def fn(x):
    any = tuple = lambda them: [len(list(them)), "local"]
    return x + 1, all(n for n in (1, 0)), any(n for n in (1, 0)), tuple(n for n in (1, 2))
""")
    same(result.fn, (X,), (Y,), graphs=1)


# -- exception tables --


@program
def exceptions_in_loops_and_handlers(x):
    log = []
    for n in range(6):
        try:
            try:
                if n % 3 == 0:
                    raise ValueError(n)
                if n % 3 == 1:
                    raise KeyError(n)
                x = x + n
            except ValueError as error:
                log.append(str(error))
                if n:
                    raise RuntimeError("again") from error
                continue
            else:
                log.append("else")
            finally:
                x = x * 2
                log.append(n)
        except (KeyError, RuntimeError) as error:
            log.append((type(error).__name__, type(error.__context__).__name__))
    return x, log


@pytest.mark.skipif(sys.version_info < (3, 13), reason="CPython checks it since 3.13")
def test_a_class_that_makes_no_cause():
    class Nothing(BaseException):
        def __new__(cls):
            return None

    def fn(x):
        try:
            raise IndexError(1) from Nothing
        except TypeError as error:
            return x + 1, str(error).partition("should")[1:], repr(error.__context__)

    same(fn, (X,), (Y,))


@at_breaks
def the_text_of_a_group(x):
    members = [ValueError(1), TypeError(2)]
    result = [ExceptionGroup("a", members), ExceptionGroup("b", tuple(members))]
    result += [ExceptionGroup("c", collections.deque(members)), ExceptionGroup("d", members)]
    first = [repr(group) for group in result]
    members.clear()
    result[3].args = ("other",)
    broken(x)
    return x + 1, first, [repr(group) for group in result]


@program
def groups_that_split_in_their_own_way(x):
    class NoTuple(ExceptionGroup):
        def split(self, *kinds):
            return "text"

    class Short(ExceptionGroup):
        def split(self, *kinds):
            return ("text",)

    class Long(ExceptionGroup):
        def split(self, *kinds):
            return *super().split(*kinds), "more"

    def handle(kind):
        try:
            raise kind("group", [OSError("a"), ValueError("b")])
        except* ValueError as group:
            actual.append(repr(group))
        except* OSError as group:
            actual.append(repr(group))

    actual = []
    handle(Long)
    if sys.version_info >= (3, 13):  # before, CPython does not look at what it is given
        actual += texts_of(lambda: handle(NoTuple), lambda: handle(Short))
    return x + 1, actual


@at_breaks
def exceptions_in_loops_and_handlers_around_breaks(x):
    log = []
    for n in range(4):
        try:
            try:
                x = broken(x) + n
                if n % 2:
                    raise ValueError(broken(n))
            except ValueError as error:
                log.append(broken(str(error)))
                if n > 1:
                    raise KeyError(broken(n)) from error
            finally:
                x = broken(x) * 2
                log.append(n)
        except KeyError as error:
            log.append((type(error).__name__, type(broken(error).__context__).__name__))
            x = x - 1
    return x, log


LEAVES = """
def fn(x):
    log = []
    def by_return(value):
        try:
            raise ValueError("lost")
        finally:
            log.append(BREAK("returned"))
            return BREAK(value) + 1
    def by_break(value):
        for n in range(4):
            try:
                value = value + n
                {}[n]
            finally:
                if n == 2:
                    break
                BREAK(n)
                continue
        return value
    def by_another_return(value):
        try:
            return BREAK(value) * 100
        finally:
            if log:
                return value - 1
    def by_another_error(value):
        try:
            raise KeyError("first")
        finally:
            raise IndexError(BREAK("second"))
    try:
        by_another_error(x)
    except IndexError as error:
        log.append(repr(error.__context__))
    return by_return(x), by_break(x), by_another_return(x), log
"""


@pytest.mark.filterwarnings("ignore:.*'finally' block:SyntaxWarning")
@pytest.mark.parametrize("breaks", [False, True])
def test_finally_that_leaves(breaks):
    result = module(LEAVES, BREAK=broken if breaks else lambda value: value)
    expected = {"breaks": None} if breaks else {"graphs": 1}
    same(result.fn, (X,), (Y,), **expected)


# -- comprehensions --


@program
def comprehensions(x):
    n = 7
    rows = [row * n for n, row in enumerate(x)]
    table = {n: [n * m for m in range(n)] for n in range(3) if n}
    kept = [last := n for n in range(3)]
    calls = [f() for f in [lambda: n for n in range(3)]]
    try:
        [n / (2 - n) for n in range(4)]
    except ZeroDivisionError as error:
        table["error"] = str(error)

    class Body:
        n = 9
        inside = [k for k in range(n)]

    return rows, table, kept, last, calls, n, Body.inside, {str(n) for n in (1, 1)}


def test_a_display_unpacks_what_a_break_has_split():
    def fn(x, n):
        return x + 1, (*(broken(m) for m in [n, n * 2]), 1), [*(broken(m) for m in [n]), 2]

    same(fn, (X, 1), (X, 2), (X, 3), (Y, 1), breaks=None)


@at_breaks
def comprehensions_around_breaks(x):
    n = x.mean()
    rows = [broken(row) * n for n, row in enumerate(x)]
    nested = [[broken(a) + b for a in (row, n)] for b, row in enumerate(rows) if broken(b) != 1]
    calls = [f() for f in [lambda: broken(n) for n in range(3)]]
    try:
        [broken(n) / (1 - n) for n in range(3)]
    except ZeroDivisionError:
        return n, rows, nested, calls, {k: broken(v) for k, v in enumerate(rows)}


# -- iterators that have no description of themselves since 3.14 --

ITERATORS = {
    "count": lambda n: itertools.count(n, 2),
    "cycle": lambda n: itertools.cycle([n, 2, 3]),
    "repeat": lambda n: itertools.repeat(n, 5),
    "accumulate": lambda n: itertools.accumulate([n, 2, 3]),
    "chain": lambda n: itertools.chain([n, 2], [3]),
    "compress": lambda n: itertools.compress([n, 2, 3, 4], [1, 0, 1, 1]),
    "dropwhile": lambda n: itertools.dropwhile(lambda v: v < 0, [n, 2, 3]),
    "takewhile": lambda n: itertools.takewhile(lambda v: v < 9, [n, 2, 3]),
    "filterfalse": lambda n: itertools.filterfalse(lambda v: v == 2, [n, 2, 3, 4]),
    "groupby": lambda n: (key for key, _ in itertools.groupby([n, n, 2, 3])),
    "islice": lambda n: itertools.islice([n, 2, 3, 4], 3),
    "pairwise": lambda n: itertools.pairwise([n, 2, 3, 4]),
    "starmap": lambda n: itertools.starmap(max, [(n, 2), (3, 4), (5, 6)]),
    "tee": lambda n: itertools.tee([n, 2, 3])[0],
    "zip_longest": lambda n: itertools.zip_longest([n, 2, 3], [1]),
    "product": lambda n: itertools.product([n, 2], [3, 4]),
    "permutations": lambda n: itertools.permutations([n, 2, 3]),
    "combinations": lambda n: itertools.combinations([n, 2, 3], 2),
    "zip": lambda n: zip([n, 2, 3], [4, 5, 6], strict=True),
    "map": lambda n: map(abs, [n, 2, 3]),
    "reversed": lambda n: reversed([3, 2, n]),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_around_breaks(name):
    make = ITERATORS[name]

    def fn(x, n):
        result, actual = make(n), []
        actual.append(next(result))
        graph_break()
        actual.append(next(result))
        for item, _ in zip(make(n), range(3)):
            actual.append(item)
            graph_break()
        return x + 1, actual, next(result, None)

    same(fn, (X, 1), (X, 7), (Y, 1), breaks=None)


# -- locals --


def test_snapshots_of_locals():
    def fn(x):
        y = x + 1
        seen = locals()
        seen["y"] = seen["z"] = 5
        again = locals()
        inner = [sorted(locals()) for one in (1,)]
        return y, sorted(seen), seen is again, again["y"], inner

    same(fn, (X,), (Y,), breaks=None)


def test_snapshots_of_locals_in_a_loop():
    def fn(x):
        seen = []
        for n in range(2):
            seen.append(locals())
            graph_break()
        return x + n, seen[0] is seen[1], sorted(seen[0])

    same(fn, (X,), (Y,), breaks=None)


def test_locals_after_a_break():
    def fn(x):
        y = broken(x) + 1
        first = dict(locals())
        exec("y = 5; w = 6")
        del first["x"]
        return y, first["y"], sorted(locals())

    same(fn, (X,), (Y,), breaks=None)


def test_the_frame_of_a_function_is_written_to():
    def change():
        sys._getframe(1).f_locals["y"] = 5

    def fn(x):
        y = x + 1
        change()
        frame = sys._getframe()
        return y, type(frame.f_locals).__name__, sorted(frame.f_locals), frame.f_code.co_name

    same(fn, (X,), (Y,), breaks=None)


def test_eval_in_a_class_body_and_a_comprehension():
    def fn(x):
        y = x.dim()

        class Body:
            a = 1
            names = sorted(name for name in vars() if not name.startswith("__"))

        return x * y, Body.names, [eval("y", {"y": n}) for n in range(2)]

    same(fn, (X,), (Y,), breaks=None)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the names of its arguments are of 3.13")
def test_scopes_by_name():
    def fn(x):
        y, given = x.dim(), {}
        exec("z = y + 1", locals=given | {"y": 5})
        exec("z = 1", globals={}, locals=given)
        return x * y, given, eval("y", globals={"y": 3}), eval("y", locals={"y": 4})

    same(fn, (X,), (Y,), breaks=None)


# -- annotations --

ANNOTATIONS = {
    "functions": """
def fn(x):
    def inner(a: int, *b: str, c: "text" = 1, **d: list[int]) -> torch.Tensor:
        e: float = 2.0
        return a
    return inner(x) + 1, sorted(map(str, inner.__annotations__.items()))
""",
    "classes": """
def fn(x):
    class Box:
        a: int
        b: list[int] = [1]
        if len(b):
            c: str = "c"
        else:
            d: str
        def get(self) -> int:
            return x + len(self.b)
    return Box().get(), Box.__annotations__, Box.get.__annotations__
""",
    "dataclasses": """
import dataclasses
def fn(x):
    @dataclasses.dataclass(order=True)
    class Box:
        a: int
        b: list = dataclasses.field(default_factory=list)
        c: dataclasses.KW_ONLY = None
        d: float = 2.0
    one = Box(1, d=3.0)
    return x * one.d, repr(one).split(".")[-1], [f.name for f in dataclasses.fields(Box)]
""",
    "named tuples": """
import typing
def fn(x):
    class Box(typing.NamedTuple):
        a: int
        b: float = 2.0
    class Keys(typing.TypedDict, total=False):
        a: int
    return x * Box(1).b, Box._fields, Box.__annotations__, Keys(a=1), Keys.__optional_keys__
""",
}
LATE_ANNOTATIONS = {
    "names that come later": """
def fn(x):
    def inner(a: Later) -> Box:
        return a
    class Box:
        next: Box
        other: Later
    Later = int
    return inner(x) + 1, inner.__annotations__["a"] is int, Box.__annotations__["other"] is int
""",
    "names that never come": """
def fn(x):
    def inner(a: Nowhere) -> int:
        return a
    try:
        inner.__annotations__
    except NameError as error:
        return inner(x) + 1, str(error)
""",
    "annotationlib": """
import annotationlib
def fn(x):
    def inner(a: Nowhere, b: int) -> "list[int]":
        return a
    class Box:
        a: Nowhere
        b: int
    formats = annotationlib.Format
    found = [annotationlib.get_annotations(one, format=kind)
             for one in (inner, Box) for kind in (formats.STRING, formats.FORWARDREF)]
    return inner(x, 1) + 1, [sorted(one) for one in found], found[0], found[2]
""",
    "functions made before a break": """
import functools
def fn(x):
    def inner(a: Nowhere, b: int = 1) -> x.dim():
        return a
    def read(a: int):
        return a
    @functools.wraps(inner)
    def outer(*args):
        return inner(*args)
    read.__annotations__["b"] = str
    BREAK(x)
    try:
        inner.__annotations__
    except NameError as error:
        told = str(error)
    made = functools.lru_cache(1)(read)
    return outer(x), read.__annotations__, told, outer.__annotate__ is inner.__annotate__, (
        made.__annotations__)
""",
    "names that change": """
kind = int
def fn(x):
    global kind
    def inner(a: kind):
        return a
    found = inner.__annotations__["a"]
    kind = str if kind is int else int
    return inner(x), found, inner.__annotations__["a"]
""",
    "a class that has annotations of its own": """
def fn(x):
    class Box:
        @property
        def __annotations__(self):
            return {"a": x.dim()}
        def __annotate__(self):
            return "method"
    class Named:
        __annotations__ = {"b": int}
        c: str = ""
    first = Box()
    BREAK(x)
    return Box().__annotations__, first.__annotations__, first.__annotate__(), Named.__annotations__
""",
    "names of the class's own": """
import abc, typing
class Before:
    kind = int
    a: kind
def fn(x):
    class Box(abc.ABC):
        kind = int
        a: kind
        b: x.dim()
        @abc.abstractmethod
        def get(self):
            return x
    @typing.runtime_checkable
    class Readable(typing.Protocol):
        a: int
    BREAK(x)
    Box.kind = str
    Before.kind = str if Before.kind is int else int
    return Box.__annotations__, Before.__annotate__(1), isinstance(Before, Readable), x + 1
""",
    "names of what annotates": """
def fn(x):
    def inner(a: int):
        return a
    class Box:
        a: int
        def get(self) -> int:
            return x
    found = [one.__annotate__.__qualname__ for one in (inner, Box, Box.get)]
    BREAK(x)
    return found, [one.__annotate__.__qualname__ for one in (inner, Box, Box.get)]
""",
    "modules": """
import types
def fn(x):
    made = types.ModuleType("made")
    exec("a: int = 1", made.__dict__)
    made.__dict__["b"] = x.dim()
    try:
        made.missing
    except AttributeError:
        return made.__annotations__, made.b, "__annotations__" in vars(made), types.__annotations__
""",
    "functions that annotate": """
def fn(x):
    def inner(a: int, b: x.dim() = 1):
        return a
    def plain(a):
        return a
    value = inner.__annotate__(1)
    inner.__annotate__ = lambda format: {"c": str}
    return inner(x), value, inner.__annotations__, plain.__annotate__
""",
}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations(name):
    same(module(ANNOTATIONS[name]).fn, (X,), (Y,), breaks=None)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are functions since 3.14")
@pytest.mark.parametrize("name", LATE_ANNOTATIONS)
def test_annotations_that_are_evaluated_later(name):
    def make():
        return module(LATE_ANNOTATIONS[name], BREAK=broken).fn

    twin(make, (X,), (Y,), (X,))


# -- template strings --

TEMPLATES = {
    "parts": """
def fn(x):
    name, n = "a", x.dim()
    made = t"begin {name} {n + 1:>{n}} {name!r:x} end"
    return x * n, made.strings, made.values, [
        (one.value, one.expression, one.conversion, one.format_spec) for one in made.interpolations
    ], len(list(made)), t"{name}{n}".strings, t"".strings, t"plain".strings
""",
    "tensors": """
def fn(x):
    made = t"{x + 1} and {x.mean()!s:y}"
    return made.values, made.interpolations[1].format_spec
""",
    "joined": """
def fn(x):
    made = t"a{x.dim()}" t"b" + t"{1}d"
    return x + 1, made.strings, made.values, type(made).__name__
""",
    "rendered": """
from string.templatelib import Interpolation, Template, convert
def fn(x):
    def render(made):
        return "".join(
            format(convert(part.value, part.conversion), part.format_spec)
            if isinstance(part, Interpolation) else part
            for part in made
        )
    match t"{x.dim()}!":
        case Template(strings=strings):
            pass
    return x + 1, render(t"{x.dim():>4}|{'a'!r}|{1.5:.2f}"), strings
""",
    "around breaks": """
def fn(x):
    made = t"{BREAK(x)} {BREAK(x.dim()):{BREAK(3)}}"
    return made.values, BREAK(made).interpolations[1].format_spec
""",
    "made by calls": """
from string.templatelib import Interpolation, Template
def fn(x):
    part = Interpolation(x + 1, "x + 1", "r", ">3")
    made = Template("a", "b", part, Interpolation(x.dim(), "n"), "c")
    BREAK(x)
    errors = []
    for wrong in (lambda: Template(1), lambda: Template(a=1), lambda: Interpolation(1, 2)):
        try:
            wrong()
        except TypeError as error:
            errors.append(str(error))
    again = Template(*BREAK(["d", part]))
    return made.strings, made.values, part.conversion, again.strings, errors
""",
    "errors": """
def fn(x):
    try:
        t"a" + "b"
    except TypeError as error:
        return x + 1, str(error)
""",
}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with Python 3.14")
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_strings(name):
    fn = module(TEMPLATES[name], BREAK=broken).fn
    same(fn, (X,), (Y,), breaks=None if "BREAK" in TEMPLATES[name] else 0)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings came with Python 3.14")
def test_template_strings_that_are_arguments():
    result = module("""
def template(x, n):
    return t"{x} at {n}"
def fn(made, x):
    first, n = made.values
    return first + x, n * 2, made.interpolations[1].value, len(list(made)), (made + t"!").strings
""")
    compiled = tracer_core.compile(result.fn, backend="eager")
    for template in (result.template(X, 1), result.template(Y, 2), result.template(X, 1)):
        compare(result.fn(template, X), compiled(template, X))


NEW_SYNTAX = {
    "3.13": """
def fn(x):
    def first[T = int, *Ts = *tuple[int, str], **P = [int]](a: T, *rest) -> T:
        return a
    class Box[T = int]:
        def __init__(self, v: T):
            self.v = v
    defaults = [p.__default__ for p in first.__type_params__ + Box.__type_params__]
    return first(x, 1) * 2, Box(x).v + 1, defaults[0], len(defaults)
""",
    "3.13, defaults": """
import typing
def fn(x):
    plain = typing.TypeVar("plain")
    made = [typing.TypeVar("T", default=int), typing.ParamSpec("P", default=[int]), plain]
    made.append(typing.TypeVarTuple("Ts", default=typing.Unpack[tuple[int, str]]))
    BREAK(x)
    class Box(typing.Generic[plain, made[0]]):
        pass
    try:
        class Wrong(typing.Generic[made[0], plain]):
            pass
    except TypeError as error:
        return x + 1, [(one.has_default(), str(one.__default__)) for one in made], str(error)
""",
    "3.14": """
def fn(x):
    try:
        {}[x.dim()]
    except ValueError, KeyError:
        x = x + 1
    try:
        raise ExceptionGroup("", [ValueError("a"), TypeError("b")])
    except* ValueError, TypeError:
        x = x * 2
    return x
""",
}


@pytest.mark.parametrize("release", NEW_SYNTAX)
def test_new_syntax(release):
    if sys.version_info < tuple(map(int, release.partition(",")[0].split("."))):
        pytest.skip("syntax of a later Python")
    same(module(NEW_SYNTAX[release], BREAK=broken).fn, (X,), (Y,), breaks=None)


# -- attributes of classes, functions and generators --


@at_breaks
def attributes_of_the_class_of_classes(x):
    def wrapper(*args):
        return args

    texts = texts_of(lambda: functools.update_wrapper(wrapper, type))
    return wrapper(x)[0] + 1, texts, wrapper.__name__, wrapper.__doc__ == type.__doc__


@program
def attributes_that_compilers_write(x):
    class Box:
        """Some
        text."""

        def __init__(self):
            self.a, self.b = x, 1

        def get(self):
            self.c = self.a
            return self.a

    result = {n: v for n, v in vars(Box).items() if n in ("__static_attributes__", "__doc__")}
    line = (
        getattr(Box, "__firstlineno__", 0) - attributes_that_compilers_write.__code__.co_firstlineno
    )
    return Box().get() + 1, sorted(map(str, result.items())), line, list(vars(Box))


@program
def the_state_of_a_generator(x):
    def inner():
        got = yield 1
        yield got

    def counted():
        messages.append((result.gi_running, result.gi_suspended))
        yield x + 1
        yield from inner()
        return 5

    messages = []
    result = counted()
    for sent in (None, None, "sent"):
        messages.append((result.gi_running, result.gi_suspended, result.gi_yieldfrom is None))
        messages.append(result.send(sent))
    messages.append(result.close())
    messages.append((result.gi_running, result.gi_suspended, result.gi_code.co_name))
    return x, messages


@at_breaks
def the_frame_of_a_generator(x):
    result = (row for row in x)
    messages = [inspect.getgeneratorstate(result)]
    first = next(result)
    messages += [inspect.getgeneratorstate(result), result.gi_frame is None, result.close()]
    return first, messages, inspect.getgeneratorstate(result), result.gi_frame


@program
def what_closing_a_generator_returns(x):
    def counted():
        try:
            yield x
        except GeneratorExit:
            return x * 2

    def outer():
        return (yield from counted())

    fresh, begun, nested = counted(), counted(), outer()
    return next(begun), next(nested), fresh.close(), begun.close(), nested.close(), begun.close()


@at_breaks
def generators_around_breaks(x):
    def counted():
        with contextlib.suppress(ValueError):
            yield broken(x) + 1
            yield broken(x) * 2
        try:
            yield 3
        except GeneratorExit:
            return broken(x)

    result = counted()
    first = next(result)
    second = result.throw(ValueError)
    return first, broken(second), result.gi_suspended, broken(result).close()


# -- tools that watch, the garbage collector --

MONITORED = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of 3.12")


@contextlib.contextmanager
def watching(events, heard):
    """Has a tool hear of events in this file's functions."""
    tool = sys.monitoring.DEBUGGER_ID

    def hear(code, *details):
        if code.co_filename == __file__:
            heard.append((code.co_name, *map(str, details)))

    sys.monitoring.use_tool_id(tool, "test")
    try:
        for event in events:
            sys.monitoring.register_callback(tool, event, hear)
        sys.monitoring.set_events(tool, sum(events))
        yield
    finally:
        sys.monitoring.set_events(tool, 0)
        for event in events:
            sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)


def watched_program(x):
    total = x
    for n in range(3):
        total = total + n if n % 2 else total * 2
    return [row for row in total], broken(total)


@MONITORED
@pytest.mark.parametrize("when", ["from the first call on", "from the second call on"])
def test_a_tool_watches_the_calls(when):
    events = sys.monitoring.events
    kinds = [events.PY_START, events.PY_RETURN, events.LINE, events.INSTRUCTION, events.CALL]
    kinds += [events.BRANCH, events.JUMP, events.RAISE]
    compiled = tracer_core.compile(watched_program, backend="eager")
    if when == "from the second call on":
        compiled(X)
    for x in (X, Y, X):
        with watching(kinds, []):
            got = compiled(x)
        torch.testing.assert_close(got, watched_program(x))


@MONITORED
def test_a_program_sets_a_tool():
    def inner(x):
        return x + 1

    def fn(x):
        heard = []
        with watching([sys.monitoring.events.LINE], heard):
            y = inner(x)
        return y, [item for item in heard if item[0] == "inner"]

    same(fn, (X,), (X,), graphs=0, breaks=None)


class Node:
    """Part of a cycle that tells when it ends."""

    def __init__(self, name, log):
        self.name, self.log, self.itself = name, log, self

    def __del__(self):
        self.log.append(self.name)


@pytest.fixture
def without_collections():
    """Cycles end where the program collects them, not when CPython's collector happens to run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_cycles_are_collected_as_in_eager(without_collections):
    def make():
        log, kept = [], []

        def fn(x):
            node = Node("a", log)
            kept.append(weakref.ref(node))
            del node
            y = x + 1
            gc.collect()
            Node("b", log)
            gc.collect()
            return y * 2, list(log), [item() is None for item in kept]

        return fn, log

    twin(make, (X,), (Y,), (X,), breaks=None)


def test_a_full_collection_between_calls(without_collections):
    def make():
        log = []

        def fn(x):
            loop = [x]
            loop.append(loop)
            Node("a", log)
            return x + len(loop)

        return fn, log

    twin(make, (X,), lambda log: gc.collect(), (Y,), lambda log: gc.collect(), (X,), breaks=None)


@program.cases()
def test_program(name):
    program.run(name)
