"""Exceptions, classes and look-ups at the language's edges, against CPython."""

from __future__ import annotations

import array
import collections
import decimal
import enum
import fractions
import functools
import itertools
import operator
import reprlib
import sys
import types
import typing
import weakref

import pytest
import torch

import tracer_core
from tests.support.named_programs import Programs, texts_of

program = Programs()


def chain_of(error, depth=5):
    """Names of an exception and of what it was raised in."""
    names = []
    while error is not None and len(names) < depth:
        names.append((type(error).__name__, error.args, error.__suppress_context__))
        error = error.__context__
    return names


@program
def context_that_is_the_error_itself(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as error:
            error.__context__ = error
            raise
    except ValueError as error:
        return x + 1, error.__context__ is error


@program
def context_that_is_a_circle(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as error:
            other = KeyError("b")
            other.__context__ = error
            error.__context__ = other
            raise TypeError("c")
    except TypeError as error:
        return x + 1, chain_of(error, 6)


@program
def context_of_a_raise_again(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as first:
            try:
                raise KeyError("b")
            except KeyError:
                raise first
    except ValueError as error:
        return x + 1, chain_of(error)


@program
def context_when_the_same_error_comes_back(x):
    first = ValueError("a")
    try:
        try:
            raise first
        except ValueError:
            try:
                raise KeyError("b")
            except KeyError as second:
                second.__context__ = None
                raise first
    except ValueError as error:
        return x + 1, chain_of(error), chain_of(first)


@program
def context_of_an_error_in_finally(x):
    notes = []
    try:
        try:
            raise ValueError("a")
        finally:
            try:
                raise KeyError("b")
            except KeyError as error:
                notes.append(chain_of(error))
    except ValueError as error:
        notes.append(chain_of(error))
    try:
        try:
            raise ValueError("c")
        except ValueError:
            raise KeyError("d") from None
    except KeyError as error:
        notes.append(chain_of(error))
        notes.append(error.__cause__)
    return x + 1, notes


@program
def context_across_functions_and_generators(x):
    def inner():
        raise KeyError("inner")

    def generate():
        try:
            yield 1
        except ValueError:
            inner()

    notes = []
    try:
        raise ValueError("outer")
    except ValueError:
        try:
            inner()
        except KeyError as error:
            notes.append(chain_of(error))
    generator = generate()
    next(generator)
    try:
        generator.throw(ValueError("thrown"))
    except KeyError as error:
        notes.append(chain_of(error))
    return x + 1, notes


class Group(ExceptionGroup):
    def derive(self, errors):
        return Group(self.message, errors)


class PlainGroup(ExceptionGroup):
    pass


@program(graphs=None, breaks=None)
def groups_of_own_classes(x):
    notes = []
    for kind in (Group, PlainGroup, ExceptionGroup):
        try:
            try:
                raise kind("g", [ValueError(1), KeyError(2), TypeError(3)])
            except* ValueError as group:
                notes.append((type(group).__name__, group.message, len(group.exceptions)))
            except* KeyError as group:
                notes.append((type(group).__name__, group.exceptions[0].args))
        except ExceptionGroup as rest:
            notes.append((type(rest).__name__, [type(e).__name__ for e in rest.exceptions]))
    return x + 1, notes


@program(graphs=None, breaks=None)
def groups_nested_and_naked(x):
    notes = []
    try:
        raise ValueError("naked")
    except* ValueError as group:
        notes.append((type(group).__name__, group.message, group.exceptions[0].args))
    try:
        try:
            raise Group("outer", [Group("inner", [ValueError(1), OSError(2)]), KeyError(3)])
        except* (ValueError, KeyError) as group:
            notes.append(repr(group))
    except Group as rest:
        notes.append(repr(rest))
    try:
        try:
            raise Group("g", [ValueError(1)])
        except* ValueError:
            raise KeyError("new") from None
    except ExceptionGroup as group:
        notes.append((type(group).__name__, group.message, repr(group.exceptions)))
    except KeyError as error:
        notes.append(repr(error))
    return x + 1, notes


@program(graphs=None, breaks=None)
def interrupts_of_the_program(x):
    notes = []
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, BaseException):
        try:
            raise kind("own")
        except kind as error:
            notes.append((type(error).__name__, error.args))
    try:
        try:
            raise KeyboardInterrupt
        finally:
            notes.append("finally")
    except BaseException as error:
        notes.append(type(error).__name__)
    return x + 1, notes


def interrupting():
    raise KeyboardInterrupt("inner")


@program(graphs=None, breaks=None)
def interrupts_across_functions(x):
    y = x + 1
    try:
        interrupting()
    except KeyboardInterrupt as error:
        return y * 2, str(error)


@program(graphs=None, breaks=None)
def frames_after_a_break(x):
    y = x + 1
    torch._C._log_api_usage_once("a") if y.sum() > 1e9 else None
    frame = sys._getframe()
    return y, frame.f_code.co_name, sorted(frame.f_locals)[:2], frame.f_back is not None


class Base:
    def __init__(self):
        self.n = 1

    @staticmethod
    def plain():
        return super().__init__

    @staticmethod
    def with_argument(value):
        return super().hello(value)

    @classmethod
    def of_class(cls):
        return cls.__name__

    def hello(self, more=0):
        return "base", more


class Derived(Base):
    @staticmethod
    def with_argument(value):
        return super().hello(3)

    @classmethod
    def of_class(cls):
        return "derived " + super().of_class()

    @property
    def shown(self):
        return super().hello()


@program(graphs=None, breaks=None)
def super_without_an_instance(x):
    says = texts_of(
        lambda: Base.plain(),
        lambda: Derived.with_argument(3),
        lambda: super(Base, 3).hello,
        lambda: super(3).hello,
        lambda: super(Derived, Base()).hello(),
        errors=(RuntimeError, TypeError, AttributeError),
    )
    return x + 1, says, Derived.of_class(), Derived().shown, Derived.with_argument(Derived())


class Queue(collections.deque):
    def __iter__(self):
        return iter(["own"])


class Counted(collections.deque):
    def __len__(self):
        return 77

    def __getitem__(self, key):
        return "item", key

    def __contains__(self, item):
        return item == "in"


class Reversing(collections.deque):
    def __reversed__(self):
        return iter("r")


@program(graphs=None, breaks=None)
def deque_subclasses(x):
    queue, counted = Queue([1, 2]), Counted([1, 2])
    first, *others = queue
    return (
        (x + 1, list(queue), [*queue], first, others, tuple(queue), list(reversed(queue)))
        + (len(queue), 1 in queue, queue[0], "own" in queue, queue == collections.deque([1, 2]))
        + (len(counted), counted[5], "in" in counted, 1 in counted, list(counted), bool(counted))
        + (list(reversed(Reversing([1, 2]))), list(map(str, queue)), list(zip(queue, counted)))
    )


class Described:
    def __get__(self, obj, kind):
        return "got", obj is None, kind.__name__


class Writable:
    def __get__(self, obj, kind):
        return "data", getattr(obj, "__name__", None)

    def __set__(self, obj, value):
        obj.noted = value


class Meta(type):
    described = Described()
    writable = Writable()

    @property
    def doubled(cls):
        return cls.__name__ * 2

    def method(cls):
        return "method of " + cls.__name__

    def __getattr__(cls, name):
        if name.startswith("any"):
            return "made " + name
        raise AttributeError(name)

    def __iter__(cls):
        return iter([cls.__name__])

    def __len__(cls):
        return 3

    def __getitem__(cls, key):
        return cls.__name__, key

    def __call__(cls, *args):
        result = super().__call__()
        result.args = args
        return result


class OfMeta(metaclass=Meta):
    described = "own"


class WithOwn(metaclass=Meta):
    writable = "hidden by the metaclass"
    doubled = "too"


@program(graphs=None, breaks=None)
def descriptors_of_metaclasses(x):
    WithOwn.writable = 5
    return (
        (x + 1, OfMeta.described, OfMeta.doubled, OfMeta.method(), OfMeta.anything)
        + (WithOwn.writable, WithOwn.doubled, WithOwn.noted, list(OfMeta), len(OfMeta), OfMeta[1])
        + (OfMeta(1, 2).args, hasattr(OfMeta(), "method"), hasattr(OfMeta, "none"), bool(OfMeta))
    )


@program(graphs=None, breaks=None)
def attributes_of_partials(x):
    bound = functools.partial(torch.add, alpha=2)
    return (
        x + 1,
        bound(x, 1),
        hasattr(bound, "__new__"),
        hasattr(bound, "__call__"),
        hasattr(functools.partial, "__new__"),
        bound.keywords,
        bound.func is torch.add,
        callable(bound),
        hasattr(functools.partial, "nothing"),
    )


@program(graphs=None, breaks=None)
def class_made_inside_across_a_break(x):
    class F:
        def value(self):
            return 3

    f = F()
    y = x + 1
    if y.sum() > 1e9:
        y = y * 2
    return y * f.value(), type(f) is F, isinstance(f, F), F.__name__, f.__class__ is F


@program(graphs=None, breaks=None)
def bound_c_method_of_a_class_made_inside_across_a_break(x):
    class F(float):
        def __init__(self, value):
            self.given = value

    f = F.fromhex("0x1.8p+0")
    return x * f, type(f) is F, f.given


@program(graphs=None, breaks=None)
def fraction_of_whole_numbers_of_a_class_across_a_break(x):
    class Whole(int):
        numerator = property(lambda self: self)
        denominator = property(lambda self: Whole(1))

        def __mul__(self, other):
            return Whole(int(self) * int(other))

        __floordiv__ = __mul__

    fraction = fractions.Fraction(Whole(3), Whole(5))
    print(end="")
    return x + 1, type(fraction.numerator) is Whole, type(fraction.denominator) is Whole


@program(graphs=None, breaks=None)
def a_module_whose_class_hides_its_dictionary(x):
    class Hiding(types.ModuleType):
        __dict__ = 8

    hiding = Hiding("made")
    print(end="")
    return x + 1, texts_of(lambda: dir(hiding))


@program(graphs=None, breaks=None)
def memoryviews_keep_their_buffers_from_being_resized(x):
    buffer, numbers = bytearray(b"abc"), array.array("i", [1, 2])
    views = [memoryview(buffer)]
    _view = memoryview(numbers)  # never read again, and alive until the end
    texts = texts_of(
        lambda: buffer.append(1),
        lambda: numbers.append(3),
        lambda: buffer.pop(),
        errors=BufferError,
    )
    views[0][0] = 120
    return x + 1, texts, bytes(buffer), list(numbers)


@program(graphs=None, breaks=None)
def parameters_of_a_generic_class_with_a_base_from_before_a_break(x):
    item = typing.TypeVar("item")

    class Items(typing.Deque[item]):  # noqa: UP006
        pass

    print(end="")
    return x + 1, Items.__parameters__ == (item,), Items[int].__args__


_ITEM = typing.TypeVar("_ITEM")


@program(graphs=None, breaks=None)
def parameters_of_aliases_across_a_break(x):
    alias = list[_ITEM]
    print(end="")
    parameters = dict[str, alias].__parameters__
    print(end="")
    return x + 1, parameters[0] is _ITEM


class Nested(list):
    @reprlib.recursive_repr("+++")
    def __repr__(self):
        return "<" + ", ".join(map(repr, self)) + ">"


class Unprintable:
    def __repr__(self):
        raise ValueError("no text")


@program(graphs=None, breaks=None)
def recursive_texts(x):
    nested, unprintable = Nested("ab"), Unprintable()
    nested.append(nested)
    text = repr(nested)
    print(end="")
    nested.append("c")
    messages = reprlib.repr(unprintable) == f"<Unprintable instance at {id(unprintable):#x}>"
    return x + 1, text, repr(nested), messages


@program(graphs=None, breaks=None)
def c_types_that_look_up_attributes_in_their_own_way(x):
    class Precise(decimal.Context):
        def __init__(self):
            decimal.Context.__init__(self)
            self.prec, self.extra = 7, 3

    context, precise = decimal.Context(), Precise()
    context.flags = context.traps
    proxy = weakref.proxy(precise)
    proxy.other = 4
    third = precise.divide(decimal.Decimal(1), 3)
    return x + 1, context.flags == context.traps, precise.flags == context.flags, third, (
        precise.other, proxy.extra)  # fmt: skip


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = []
        self.linear = torch.nn.Linear(4, 4)

    def __getattribute__(self, name):
        if name in ("linear", "scale"):
            super().__getattribute__("__dict__")["notes"].append(name)
        return super().__getattribute__(name)

    def forward(self, x):
        return self.linear(x) * getattr(self, "scale", 2)


def test_a_modules_getattribute_sees_the_programs_lookups_only():
    torch.manual_seed(0)
    eager, other = Module(), Module()
    other.load_state_dict(eager.state_dict())
    eager.notes.clear()
    other.notes.clear()
    compiled = tracer_core.compile(other, backend="eager")
    x = torch.randn(2, 4)
    for _ in range(3):
        assert torch.equal(eager(x), compiled(x))
        assert eager.notes == other.notes


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


@program.cases()
def test_edges_equal_cpython(name):
    program.run(name)


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
