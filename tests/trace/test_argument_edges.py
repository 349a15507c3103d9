"""Arguments that C code checks, truth values that are not asked for, and calls that raise."""

from __future__ import annotations

import collections
import enum
import itertools
import operator
import sys
import types

import pytest
import torch

import tracer_core


class Called:
    def __call__(self, error):
        return True


def outcome(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def sorts(x):
    return [outcome(sorted, [], reverse=value) for value in (2.5, "a", None, [], True, 0, 2**70)]


def pops(x):
    return [
        outcome(dict.pop, held, key, *default)
        for key in (slice(0, 2), [], (1, []), (1, slice(2)), 3)
        for held in ({}, {1: 2})
        for default in ((), (7,))
    ]


def groups(x):
    group = ExceptionGroup("group", [KeyError(1), ValueError(2)])
    conditions = (Called(), len, Called().__call__, lambda error: True, int, 3, (1,), KeyError)
    return [
        str(outcome(method, group, condition))
        for method in (ExceptionGroup.subgroup, ExceptionGroup.split)
        for condition in conditions
    ]


def arrays(x):
    return [outcome(torch.Tensor.__array__, value) for value in (1, "a", [])]


class Level(enum.IntEnum):
    """Its metaclass has ``__getitem__``, ``__iter__`` and ``__len__``, which its members lack."""

    LOW = 1
    HIGH = 3


class Odd(type):
    def keys(cls):
        return []

    def __next__(cls):
        return 1


class Nothing(metaclass=Odd):
    def __iter__(self):
        return self


def metaclasses(x):
    level = Level.HIGH
    return [
        *(
            outcome(operator.mod, value, level)
            for value in (bytearray(b"ab"), b"ab", "ab", "%d", b"%d")
        ),
        outcome(lambda: [*level]),
        outcome(lambda: 1 in level),
        outcome(lambda: {**Nothing()}),
        outcome(lambda: list(Nothing())),
        outcome(bytes, level),
        outcome(operator.length_hint, level, 7),
        outcome(lambda first, second: 1, *[level]),
        outcome(lambda: (lambda *all: all)(*level)),
    ]


@pytest.mark.parametrize("checked", [sorts, pops, groups, arrays, metaclasses])
def test_arguments_are_checked_as_python_checks_them(checked):
    compiled = tracer_core.compile(checked, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2)) == checked(torch.ones(2))


class Undecided:
    """An object that must not be asked for its bool."""

    def __bool__(self):
        raise ValueError("asked")


class Several(tuple):
    def __bool__(self):
        raise ValueError("asked")


def descriptors_of_what_has_no_truth_value(x):
    return staticmethod(x), classmethod(x), property(x), staticmethod(Undecided()), Several((x, 1))


def test_results_are_made_without_asking_for_their_truth_values():
    compiled = tracer_core.compile(descriptors_of_what_has_no_truth_value, backend="eager")
    x = torch.ones(2, 3)
    for _ in range(2):
        static, cls, prop, other, several = compiled(x)
        assert static.__func__ is x and cls.__func__ is x and prop.fget is x
        assert type(other.__func__) is Undecided
        assert type(several) is Several and tuple(several)[0] is x


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_get_of_nothing_is_an_error(kind):
    def program(x):
        actual = []
        for value in ((None, None), (None,), (None, int), (1,), (1, int)):
            try:
                actual.append(type(kind(len).__get__(*value)))
            except TypeError as error:
                actual.append(str(error))
        return actual

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1)) == program(torch.ones(1))


@pytest.mark.parametrize("name", ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_container_that_is_compared_with_an_empty_one_may_grow(kind, name):
    def program(x, other):
        return getattr(kind, name)(kind(), other), getattr(kind, name)(other, kind())

    for values in (((), ("x", "y"), (1,)), ((1,), (), (1, 2))):
        compiled = tracer_core.compile(program, backend="eager")
        for value in values:
            x = torch.ones(1)
            assert compiled(x, kind(value)) == program(x, kind(value))


def test_a_method_of_a_generator_is_made_of_any_function():
    def counted():
        yield 1

    def program(x):
        return types.MethodType(lambda self: 1, counted()), types.MethodType(len, iter([1])), x + 1

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        first, second, _ = compiled(torch.ones(1))
        assert first() == 1 and type(first.__self__) is types.GeneratorType
        assert second.__func__ is len and list(second.__self__) == [1]


def test_arguments_of_the_initialiser_of_classes_are_counted():
    class Plain:
        pass

    def program(x):
        actual = []
        for value in ((), (1,), (1, 1), ("a", (), {}), (1, 2, 3, 4)):
            try:
                actual.append(type.__init__(Plain, *value))
            except TypeError as error:
                actual.append(str(error))
        return actual

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1)) == program(torch.ones(1))


def test_gradients_of_nothing_are_not_clipped():
    def program(x, parameters):
        try:
            return torch.nn.utils.clip_grad_value_(parameters, 2)
        except RuntimeError as error:
            return str(error)

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1), "") == program(torch.ones(1), "")


def test_an_iterator_with_an_exhausted_part_is_dead_at_a_break():
    def begun():
        pairs = itertools.zip_longest("a", "bcd")
        return next(pairs), next(pairs), pairs

    def program(x, pairs):
        item = next(pairs)
        tracer_core.graph_break()
        return x + 1, item

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(1), begun()[-1])[1] == program(torch.ones(1), begun()[-1])[1]


def test_an_ordered_dict_that_was_empty_has_the_memory_of_its_entries():
    def program(x, actual):
        actual.update([(i, x) for i in range(3)])
        return x + 1

    ours, eager = collections.OrderedDict(), collections.OrderedDict()
    tracer_core.compile(program, backend="eager")(torch.ones(1), ours)
    program(torch.ones(1), eager)
    assert sys.getsizeof(ours) == sys.getsizeof(eager)


def test_super_by_another_name_after_a_break_says_what_is_missing():
    eager = super

    def dead(first, x):
        x = x + 1
        tracer_core.graph_break()
        try:
            eager()
        except RuntimeError as error:
            return error.args

    def deleted(first, x):
        x = x + 1
        del first
        tracer_core.graph_break()
        try:
            eager()
        except RuntimeError as error:
            return error.args

    for program in (dead, deleted):
        compiled = tracer_core.compile(program, backend="eager")
        assert compiled(1, torch.ones(1)) == program(1, torch.ones(1))


@pytest.mark.parametrize(
    "lists", [["x", "y"], [["x"]], [[torch.ones(1)], [torch.ones(1)] * 2], [[torch.ones(1)], "a"]]
)
def test_groups_of_what_are_no_tensors_are_torchs_error(lists):
    def program(x):
        actual = []
        for value in ((lists,), (lists, False), (lists, 0)):
            try:
                torch._C._group_tensors_by_device_and_dtype(*value)
            except Exception as error:
                actual.append((type(error), str(error)))
        return actual

    compiled = tracer_core.compile(program, backend="eager")
    assert compiled(torch.ones(1)) == program(torch.ones(1))
