"""What CPython's own tests (tests/cpython) have found, as small programs."""

from __future__ import annotations

import abc
import collections
import copy
import enum
import functools
import gc
import io
import itertools
import pprint
import shlex
import sys
import typing
import weakref

import pytest

import tracer_core
from tests.support.eager_reference import same
from tests.support.named_programs import Programs, X, Y

program = Programs()
broken = functools.partial(program, graphs=None, breaks=None)


class HoldsBuiltins:
    make = dict.fromkeys
    key = functools.cmp_to_key


@program(graphs=None, breaks=None)
def builtin_functions_as_class_attributes(x):
    builtins = HoldsBuiltins()
    return x + 1, builtins.make([1, 2]), sorted([3, 1], key=builtins.key(lambda a, b: a - b))


@broken
def attributes_of_generators(x):
    def numbers():
        yield 1

    result = numbers()
    names = result.__name__, result.__qualname__, result.gi_code.co_name
    result.__name__ = "renamed"
    return x + 1, names, result.__name__, result.gi_running, result.gi_frame is None, list(result)


@program
def attributes_that_generators_lack(x):
    def numbers():
        yield 1

    return x + 1, [hasattr(numbers(), name) for name in ("machine", "frame", "started", "born")]


@program
def arguments_of_stop_iteration(x):
    def numbers(result):
        yield 1
        return result

    actual = []
    for result in (None, 0, (1, 2)):
        created = numbers(result)
        next(created)
        try:
            next(created)
        except StopIteration as stop:
            actual.append((stop.args, stop.value))
    return x + 1, actual


@broken
def a_closed_generator_after_a_break(x):
    def numbers():
        yield 1
        yield 2

    result = numbers()
    next(result)
    result.close()
    tracer_core.graph_break()
    return x + 1, result.gi_frame is None, result.gi_suspended, list(result)


@broken
def keys_with_objects_after_a_break(x):
    actual = {(1, object()): 1}
    tracer_core.graph_break()
    key = next(iter(actual))
    actual[key] = 2
    tracer_core.graph_break()
    return x + 1, actual[key], len(actual)


class Colliding:
    def __hash__(self):
        return 3


@broken
def keys_that_hold_keys(x):
    key = Colliding()
    actual = {key: 1, (key, 1): 2}
    tracer_core.graph_break()
    return x + 1, actual[key], list(actual.values()), actual.pop((key, 1)), len(actual)


@broken
def integers_longer_than_decimal_texts(x):
    number = 10**5000
    tracer_core.graph_break()
    return x + 1, number % 7, number == 10**5000


@broken
def slots_in_a_list(x):
    class Point:
        __slots__ = ["x", "y"]

        def __init__(self, x, y):
            self.x, self.y = x, y

    point = Point(1, 2)
    tracer_core.graph_break()
    return x + 1, point.x, Point(3, 4).y, Point.__slots__


class Holder:
    __slots__ = ("slot",)


@broken
def a_slot_of_another_class(x):
    class Borrower:
        __slots__ = ("own",)
        borrowed = Holder.slot

    borrower, actual = Borrower(), []
    borrower.own = 3
    tracer_core.graph_break()
    try:
        actual.append(borrower.borrowed)
    except TypeError as error:
        actual.append(str(error))
    return x + 1, actual, borrower.own


@broken
def abstract_classes_after_a_break(x):
    class Shape(metaclass=abc.ABCMeta):
        @abc.abstractmethod
        def area(self):
            return 0

    tracer_core.graph_break()
    with pytest.raises(TypeError) as caught:
        Shape()
    return x + 1, str(caught.value), Shape.__abstractmethods__


@broken
def names_that_a_metaclass_sets(x):
    class Meta(type):
        @property
        def size(cls):
            return 1

    class Sized(metaclass=Meta):
        size = 2
        __bases__ = property(lambda self: ())

    tracer_core.graph_break()
    return x + 1, Sized.size, Sized().size, Sized().__bases__


@broken
def documents_and_names_of_properties(x):
    class Point:
        a = property(lambda self: 1, doc="the doc")

        @property
        def b(self):
            "b's doc"
            return 2

    tracer_core.graph_break()
    with pytest.raises(AttributeError) as caught:
        Point().a = 3
    return x + 1, Point.a.__doc__, Point.b.__doc__, str(caught.value), Point().b


class HashedClasses(type):
    def __lt__(cls, other):
        return cls.__name__ < other.__name__

    def __eq__(cls, other):
        return cls.__name__ == other.__name__


class First(metaclass=HashedClasses): ...


class Second(metaclass=HashedClasses): ...


@broken
def classes_that_cannot_be_hashed(x):
    class Third(metaclass=HashedClasses): ...

    return x + 1, First < Second, First == Second, Second < Third, type(First()) is First


class Setter:
    def __set__(self, obj, value):
        type.__setattr__(obj, "stored", value)


@broken
def a_setter_of_a_metaclass(x):
    class Meta(type):
        d = Setter()

    class Made(metaclass=Meta): ...

    Made.d = 3
    tracer_core.graph_break()
    return x + 1, Made.stored, Made.d is Meta.__dict__["d"]


@broken
def classmethods_of_other_descriptors(x):
    class Base:
        @classmethod
        @classmethod
        def name(cls):
            return cls.__name__

    tracer_core.graph_break()
    try:
        return x + 1, Base.name()
    except TypeError as error:  # since Python 3.13
        return x + 1, str(error)


@broken
def subclasses_of_super(x):
    class Super(super):
        pass

    class A:
        def name(self):
            return "A"

    class B(A):
        def name(self):
            return "B" + Super(B, self).name()

    parts = super(B, B())
    return x + 1, B().name(), parts.__thisclass__ is B, parts.__self_class__ is B


@broken
def proxies_of_objects_that_die(x):
    numbers = {1}
    proxy = weakref.proxy(numbers)
    tracer_core.graph_break()
    actual = [len(proxy), isinstance(proxy, set)]
    numbers = None
    gc.collect()
    try:
        actual.append(len(proxy))
    except ReferenceError:
        actual.append("dead")
    return x + 1, actual


@broken
def iterators_over_the_programs_iterators(x):
    class Countdown:
        def __init__(self):
            self.n = 5

        def __iter__(self):
            return self

        def __next__(self):
            if not self.n:
                raise StopIteration
            self.n -= 1
            return self.n

    pairs = itertools.pairwise(Countdown())
    first = next(pairs)
    tracer_core.graph_break()
    return x + 1, first, list(pairs)


@broken
def native_constructors_that_hold_streams(x):
    return x + 1, list(shlex.shlex("a 'b c'")), pprint.PrettyPrinter().pformat({1: [2]})


@broken
def streams(x):
    stream = io.StringIO("a\nb")
    return x + 1, stream.readline(), stream.read()


@broken
def a_chain_map_as_text(x):
    chain = collections.ChainMap()
    chain["a"] = 1
    return x + 1, repr(chain)


@broken
def attributes_of_ordered_dicts(x):
    entries = collections.OrderedDict(a=1)
    entries.extra = [3]
    shallow, deep = copy.copy(entries), copy.deepcopy(entries)
    tracer_core.graph_break()
    return x + 1, entries.extra, shallow.extra is entries.extra, deep.extra


class Backwards(dict):
    def __iter__(self):
        return reversed(list(super().keys()))

    def keys(self):
        return list(self)


@broken
def a_dict_with_an_iter_of_its_own(x):
    entries = Backwards(a=1, b=2)
    tracer_core.graph_break()
    entries["c"] = 3
    dict.__delitem__(entries, "a")
    return x + 1, list(entries), dict(dict.items(entries))


@broken
def views_of_a_class_namespace(x):
    items, keys = HoldsBuiltins.__dict__.items(), HoldsBuiltins.__dict__.keys()
    tracer_core.graph_break()
    return x + 1, len(items) == len(keys), "make" in keys


class Keys:
    KEY = "a"


@program
def keys_of_mapping_patterns(x):
    actual, log = collections.defaultdict(int, a=0, b=1), []
    match actual:
        case {"c": _}:
            log.append("c")
        case {"b": b, **rest}:
            log.append((b, rest))
    return x + 1, log, dict(actual)


@broken
def a_key_twice_in_a_mapping_pattern(x):
    try:
        match {"a": 0, "b": 1}:
            case {Keys.KEY: _, "a": _}:
                return x
    except ValueError as error:
        return x + 1, str(error)


class Annotated:
    a: int


class Plain(Annotated): ...


@broken
def annotations_of_a_class_without_any(x):
    return x + 1, Plain.__annotations__, list(Annotated.__annotations__)


@broken
def a_memo_for_deepcopy(x):
    memo, inner = {}, [1]
    result = copy.deepcopy([inner], memo)
    return x + 1, id(memo) in memo, memo[id(inner)] is result[0]


PLAIN = """
def makes_classes(x):
    first, second = {}, {}
    exec("class Point:\\n    x: int = 3", first)
    for _ in range(4):
        exec(compile("class Point:\\n    y: int = 3", "made", "exec"), second)
    return x + 1, first["Point"].__annotations__, second["Point"].__annotations__, eval("  1 + 1")
"""


def test_code_that_is_made_has_the_future_imports_of_its_module():
    """This module has some, as the tracer's own have."""
    namespace = {}
    exec(compile(PLAIN, "plain.py", "exec", dont_inherit=True), namespace)
    same(namespace["makes_classes"], (X,), (Y,), graphs=None, breaks=None)


@broken
def modules_of_what_a_call_makes(x):
    actual = []
    for _ in range(5):
        pair = collections.namedtuple("pair", ["a", "b"])
        colour = enum.Enum("colour", "red blue")
        actual += [pair.__module__, typing.TypeVar("T").__module__, colour.__module__]
    return x + 1, set(actual) == {__name__}


@broken
def tracebacks_of_the_parts_of_a_group(x):
    group = ExceptionGroup("g", [ValueError(1), OSError(2)])
    try:
        try:
            raise group
        except* OSError:
            raise TypeError(3)
    except ExceptionGroup as error:
        raised = error
    tracer_core.graph_break()
    part = raised.exceptions[0].__context__
    return x + 1, part.__traceback__ is group.__traceback__, group.__traceback__ is None


@broken
def frames_in_a_traceback(x):
    def divides():
        pass

        1 / 0

    try:
        divides()
    except ZeroDivisionError as error:
        entry = error.__traceback__.tb_next
    frame = entry.tb_frame
    return x + 1, entry.tb_lineno - frame.f_code.co_firstlineno, frame.f_lineno == entry.tb_lineno


@broken
def the_traceback_of_another_exception(x):
    try:
        raise IndexError(4)
    except IndexError:
        entry = sys.exc_info()[2]
    first = ValueError().with_traceback(entry)
    tracer_core.graph_break()
    second = ValueError().with_traceback(entry)
    tracer_core.graph_break()
    return x + 1, first.__traceback__ is entry, second.__traceback__ is entry


class Weighed:
    def __trunc__(self):
        return 42


@pytest.mark.filterwarnings("ignore:The delegation of int")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="int() asks no __trunc__ since 3.14")
def test_int_by_trunc():
    def f(x):
        return x + 1, int(Weighed())

    same(f, (X,), (Y,), graphs=None, breaks=None)


@program.cases()
def test_conformance(name):
    program.run(name)
