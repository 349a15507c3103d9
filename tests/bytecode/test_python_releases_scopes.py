"""Locals of frames and annotations, whose meaning changed between CPython 3.11 and 3.14."""

from __future__ import annotations

import sys

import pytest

from tests.support.eager_reference import compare_with_eager, module, same
from tests.support.graph_breaks import broken
from tests.support.named_programs import X, Y
from tracer_core import graph_break


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

    compare_with_eager(make, (X,), (Y,), (X,))
