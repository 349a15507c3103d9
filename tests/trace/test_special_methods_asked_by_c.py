"""How C code asks special methods: conversions, formatting, registered classes; each asked as often as
in CPython."""

from __future__ import annotations

import abc
import cmath
import math
import types
from decimal import Decimal
from fractions import Fraction

import pytest

from tests.support.eager_reference import same
from tests.support.named_programs import Programs, X, Y, texts_of

program = Programs()


@program
def named_tuple_with_methods_and_defaults(x):
    from typing import NamedTuple

    class P(NamedTuple):
        a: int
        b: int = 4

        def total(self):
            return self.a + self.b

    p = P(1)
    return x * p.total(), tuple(p._replace(a=2)), P._fields, p._asdict(), p == (1, 4)


def _converting(log, base, answers):
    """A class whose conversions note that they are asked for."""

    def method(name, answer):
        def convert(self):
            log.append(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return convert

    return type("C", (base,), {f"__{name}__": method(name, answers[name]) for name in answers})


_CONVERTED = (
    (object, (), {}),
    (object, (), {"index": 3}),
    (object, (), {"float": 2.5, "complex": 1 + 2j}),
    (object, (), {"int": 4, "bytes": b"ab"}),
    (object, (), {"float": "x", "index": 2.5, "bytes": 3}),
    (object, (), {"float": ZeroDivisionError("z"), "index": TypeError("t")}),
    (float, (1.5,), {"float": 7.5, "index": 9}),
    (int, (4,), {"float": 7.5, "index": 9, "int": 10}),
    (str, ("12",), {"float": 1.25, "int": 3, "bytes": b"abc"}),
    (bytes, (b"12",), {"bytes": b"abc", "index": TypeError("t")}),
)


@pytest.mark.parametrize("number", range(len(_CONVERTED)))
def test_conversions_by_c_code(number):
    base, arguments, answers = _CONVERTED[number]

    def f(x):
        log = []
        cls = _converting(log, base, answers)

        def asked(*functions):
            for function in functions:
                value = cls(*arguments)
                try:
                    result = function(value)
                    log.append((type(result).__name__, result))
                except (TypeError, ValueError, ArithmeticError) as error:
                    log.append(str(error))

        asked(int, float, complex, bytes, bytearray, hex, chr, abs, round)
        asked(math.sqrt, math.floor, math.gcd, math.isqrt, cmath.sqrt)
        asked(
            lambda c: math.atan2("text", c), lambda c: math.copysign(c, "text"),
            lambda c: math.hypot(c, 1), lambda c: math.fsum([c, 1]), lambda c: math.dist([c], [1]),
            lambda c: complex(1, c), lambda c: int("12", c), lambda c: int(c, 16),
            lambda c: bytes([c]), lambda c: divmod(7, c), lambda c: pow(2, c, 3),
            lambda c: bytes(c, "ascii"), lambda c: round(2.567, c),
        )  # fmt: skip
        return x + 1, log

    same(f, (X,), (Y,), breaks=None)


def test_numbers_of_c_types_are_read_again():
    def f(x, d):
        return x + 1, float(d), int(d), abs(d), round(d), math.sqrt(d), math.fsum([d]), divmod(d, 2)

    same(f, (X, Decimal(1)), (X, Decimal(2)), (X, Decimal(9)), breaks=None)


def test_a_registered_class_is_no_subclass_to_operators():
    log = []

    def method(name, answer):
        return lambda self, other: log.append(f"{type(self).__name__}{name}") or answer

    def methods(answer):
        names = "__eq__ __lt__ __gt__ __add__ __radd__ __divmod__ __rdivmod__".split()
        return {name: method(name, answer) for name in names}

    abstract = abc.ABCMeta("Abstract", (), methods(NotImplemented))
    eager = abstract.register(type("Plain", (), methods(4)))

    def f(x):
        log.clear()
        a, b = abstract(), eager()
        return x + 1, a == b, a < b, a + b, divmod(a, b), list(log)

    same(f, (X,), (Y,), breaks=None)


@program(graphs=None, breaks=None)
def percent_of_what_is_no_mapping(x):
    class Letters(str): ...

    texts = []
    for template, value in [
        (b"no format", bytearray(b"1")), (b"no format", b"1"), ("no format", Letters("a")),
        ("no format", bytearray(b"1")), (bytearray(b"no format"), 7),
    ]:  # fmt: skip
        try:
            texts.append(template % value)
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


@program
def percent_of_a_text_formats_whatever_the_right_operand_is(x):
    class Reflected:
        def __rmod__(self, other):
            return "reflected"

        def __repr__(self):
            return "R"

    class Count(int):
        def __rmod__(self, other):
            return "reflected"

    class Text(str):
        def __rmod__(self, other):
            return "reflected"

    class Plain(str):
        pass

    augmented = "augmented %s"
    augmented %= Reflected()
    return x + 1, "%s" % Fraction(1, 2), "%r" % Reflected(), "%d" % Count(3), "%s" % Text(
        "a"), Plain("%s") % Reflected(), augmented  # fmt: skip


@program
def text_of_a_subclass_stays_one(x):
    class Text(str):
        def __str__(self, spec=""):
            return "asked"

        __repr__ = __format__ = __str__

    class A:
        def __str__(self):
            return Text("a")

        def __repr__(self):
            return Text("r")

    texts = (
        str(A()),
        repr(A()),
        ascii(A()),
        format(A()),
        f"{A()}",
        "%s" % A(),
        f"{A()!r}",
        str([A()]),
    )
    return x + 1, [(type(text).__name__, str.__str__(text)) for text in texts], str(errors="strict")


@program(graphs=None, kinds=("unknown_native",))
def special_methods_found_by_descriptors_are_asked_once(x):
    asked = []

    class Found:
        def __init__(self, method):
            self.method = method

        def __get__(self, obj, owner=None):
            asked.append(owner.__name__)
            return self.method.__get__(obj, owner)

    class A:
        __len__ = Found(lambda self: 3)
        __add__ = Found(lambda self, other: ("add", other))
        __getitem__ = Found(lambda self, key: key)
        __contains__ = Found(lambda self, key: True)
        __str__ = Found(lambda self: "text")
        __enter__ = Found(lambda self: 5)
        __exit__ = Found(lambda self, *error: True)

    a = A()
    actual = [len(a), a + 1, a[2], 3 in a, str(a)]
    with a as entered:
        actual.append(entered)
        raise ValueError
    return x + 1, actual, asked


@program
def with_asks_the_class_alone(x):
    class A:
        def __enter__(self):
            return "of the class"

        def __exit__(self, *error):
            return True

    a = A()
    a.__enter__ = a.__exit__ = None
    with a as entered:
        raise ValueError
    return x + 1, entered


class Left(metaclass=abc.ABCMeta):
    def __add__(self, other):
        return "left"

    def __lt__(self, other):
        return "left"


@Left.register
class Right:
    def __radd__(self, other):
        return "right"

    def __gt__(self, other):
        return "right"


@program
def the_right_operand_of_a_virtual_subclass_does_not_come_first(x):
    return x + 1, Left() + Right(), Left() < Right()


class Kept(property):
    def __set__(self, obj, value):
        obj.__dict__["kept"] = value


class Keeps:
    b = Kept(lambda self: self.kept * 2)


@program
def properties_say_their_names(x):
    class A:
        named = property()

    A.unnamed = property()
    a, c = A(), Keeps()
    c.b = 4
    return x * c.b, texts_of(
        lambda: a.named, lambda: setattr(a, "named", 1), lambda: a.unnamed,
        lambda: delattr(a, "unnamed"), errors=AttributeError,
    )  # fmt: skip


@program
def a_namespace_prints_itself(x):
    a, b = types.SimpleNamespace(v=1), types.SimpleNamespace()
    a.own, b.other = a, types.SimpleNamespace(b=b)
    return x + 1, repr(a), repr(b)


@program(graphs=None, breaks=None)
def objects_that_notice_every_question(x):
    asked = []

    class Logs:
        def __getattribute__(self, name):
            asked.append(name)
            return super().__getattribute__(name)

        def __len__(self):
            return 3

    class Raises:
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __len__(self):
            return 4

    class Says:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    logs = Logs()
    logs.v = 2
    texts = texts_of(lambda: isinstance(Says(), bool), errors=RuntimeError)
    return x * logs.v, len(logs), len(Raises()), isinstance(Raises(), Raises), asked, texts


@program.cases()
def test_protocol(name):
    program.run(name)
