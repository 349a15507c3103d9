"""Programs that random generation, made small, found to differ from eager: the texts of errors."""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import heapq
import itertools
import math
import operator

import pytest
import torch

from tests.support.eager_reference import same
from tests.support.guard_facts import Box

X = torch.randn(2, 3)


def test_arguments_that_do_not_fit_a_c_function():
    def fn(x, items):
        actual = []
        for call in (lambda: sorted(), lambda: items.index(), lambda: tuple.count(1, 2),
        lambda: math.floor(1, 2),
                     lambda: "a".join(sep=1)):  # fmt: skip
            try:
                actual.append(call())
            except TypeError as error:
                actual.append(str(error))
        return actual, x + 1

    same(fn, (X, [1]), (X, [2]), breaks=None)


def test_arguments_that_do_not_fit_a_function_written_in_c():
    def f(x, value):
        actual = [x + 1]
        for call in (
            lambda: getattr(value, 3),
            lambda: vars(1, 2),
            lambda: isinstance(1),
            lambda: range(1, 2) ** value,
        ):
            try:
                actual.append(call())
            except Exception as error:
                actual.append((type(error), str(error)))
        return actual

    same(f, (X, [1]), (X, "a"), (X, [1]), breaks=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda value: itertools.chain.from_iterable(value),
        lambda value: itertools.islice(value),
        lambda value: next("ab", value, 3),
        lambda value: dict([value]),
        lambda value: b",".join(value),
        lambda value: bytearray(b",").join(value),
        lambda value: functools.reduce(1, value),
        lambda value: operator.concat(value, [1]),
        lambda value: type.__dict__["__prepare__"](value, 2),
        lambda value: object.__dict__["__init_subclass__"](),
        lambda value: collections.OrderedDict.__dict__["fromkeys"](value, 1),
        lambda value: itertools.chain.__dict__["from_iterable"](value),
        lambda value: builtins.__build_class__(value, 1),
        lambda value: [1, 2].index(1, None, 2),
        lambda value: hasattr(value, 3),
        lambda value: "%d" % value,
    ],
)
def test_what_a_builtin_refuses_is_said_in_its_own_words(call):
    """Seeds 200054, 200544, 200584, 200794, 200839, 201004, 201005, 201089, 201464, 201509, 50159,
    50384, 60309, 60469
    """

    class Other:
        pass

    value = Other()

    def f(x):
        try:
            return x + 1, call(value)
        except (TypeError, ValueError) as error:
            return x + 2, type(error), str(error)

    same(f, (X,), (X,), breaks=None)


def test_a_generator_is_called_by_its_name_in_messages():
    def f(x):
        numbers = (i for i in range(3))
        actual = []
        for call in (
            lambda: object.__setattr__(x, numbers, 1),
            lambda: [1][numbers],
            lambda: numbers + 1,
            lambda: -numbers,
        ):
            try:
                call()
            except TypeError as error:
                actual.append(str(error))
        return x + 1, actual

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda value: heapq.heappush("ab", value),
        lambda value: heapq.heappop(bytearray(b"ab")),
        lambda value: "ab" % collections.deque([1]),  # noqa: F507
        lambda value: collections.deque([1]).remove(7),
        lambda value: operator.iconcat(1, value),
        lambda value: operator.concat("a", 1),
        lambda value: super(),
        lambda value: reversed(bytearray(b"ab")),
        lambda value: __import__(value),
        lambda value: collections.OrderedDict("b"),
        lambda value: collections._count_elements(["x"], ""),
        lambda value: object.__dict__["__init_subclass__"](int, value),
        lambda value: type.__setattr__(int, value, 1),
        lambda value: type.__setattr__(Box, value, 1),
        lambda value: property(abs).__set__(value, 1),
        lambda value: property(abs).__delete__(value),
        lambda value: property().__get__(value),
        lambda value: operator.length_hint([1], value),
        lambda value: itertools.combinations("ab", value),
        lambda value: torch._C._group_tensors_by_device_and_dtype(),
    ],
)
def test_what_a_builtin_refuses_of_an_object_is_said_in_its_own_words(call):
    value = Box()

    def f(x):
        try:
            actual = call(value)
            return x + 1, type(actual), list(actual or [])
        except Exception as error:
            return x + 2, type(error), str(error)

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda value: torch.is_anomaly_enabled(value),
        lambda value: torch.is_autocast_cache_enabled(value),
        lambda value: torch.get_num_threads(value),
        lambda value: copy.deepcopy([1], value, None),
        lambda value: copy.deepcopy([1], 3),
        lambda value: property(abs).__get__(None),
        lambda value: type.__new__(type, "Made", (), value),
        lambda value: torch._C._group_tensors_by_device_and_dtype(value),
        lambda value: torch.autograd.Function.__dict__["apply"].__func__(value),
        lambda value: torch._C._set_onednn_allow_tf32(True),
    ],
)
def test_what_a_function_of_torch_refuses_is_said_in_its_own_words(call):
    value = Box()

    def f(x):
        try:
            return x + 1, call(value)
        except Exception as error:
            return x + 2, type(error), str(error)

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: n(1),
        lambda x, n: [1, 2][n:"a"],  # noqa: RUF016
        lambda x, n: n + [],
        lambda x, n: n < "a",
        lambda x, n: len(n),
        lambda x, n: n.missing,
        lambda x, n: list(zip(*n)),
        lambda x, n: dict(**n),
        lambda x, n: x(1),
        lambda x, n: "a".join([x]),
        lambda x, n: map(abs, [x])[0],
        lambda x, n: map(abs, iter([x].pop, None)) < 3,
        lambda x, n: map(abs, [x]).missing,
    ],
)
def test_no_message_names_what_stands_for_a_value(call):
    def f(x, n):
        try:
            return x + 1, call(x, n)
        except (TypeError, AttributeError) as error:
            return x + 2, type(error), str(error)

    same(f, (X, 3), (X, 4), (X, 5), breaks=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: {"a": x}["b"],
        lambda x: {"a": x}.pop("b"),
        lambda x: [x][3],
        lambda x: iter(x.sum()),
        lambda x: x.missing,
        lambda x: [x].pop(4),
    ],
)
def test_a_message_about_no_type_stays_in_the_graph(call):
    def f(x):
        try:
            return x + 1, call(x)
        except (LookupError, TypeError, AttributeError) as error:
            return x + 2, type(error), str(error)

    same(f, (X,), (X + 1,), breaks=0)
