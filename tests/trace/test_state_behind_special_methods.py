"""Special methods, classes and keys of objects that existed before the call, whose state changes
between the calls.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools

import pytest
import torch

from tests.support.eager_reference import compare_with_eager
from tests.support.named_programs import X, Y

WORLDS: dict[str, tuple] = {}


def world(*changes, **expected):
    """Registers a function that makes (program, object); changes are applied to the object between
    calls.
    """
    expected.setdefault("breaks", 0)

    def register(make):
        WORLDS[make.__name__] = make, changes, expected
        return make

    return register


def put(name, value):
    return lambda obj: setattr(obj, name, value)


class Item:
    def __init__(self, n, tag="t"):
        self.n, self.tag = n, tag

    def __lt__(self, other):
        return self.n < other.n

    def __eq__(self, other):
        return isinstance(other, Item) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __repr__(self):
        return f"Item({self.n}, {self.tag})"

    def __len__(self):
        return self.n

    def __contains__(self, value):
        return value < self.n

    def __iter__(self):
        return iter(range(self.n))

    def __index__(self):
        return self.n

    def __float__(self):
        return self.n / 2

    def __call__(self, x):
        return x * self.n

    def __getitem__(self, key):
        return key * self.n

    def __add__(self, other):
        return self.n + other

    __radd__ = __add__

    def __enter__(self):
        self.n += 1
        return self.n

    def __exit__(self, *_):
        self.n += 10
        return self.tag == "swallow"

    def __bool__(self):
        return self.n > 2

    def __format__(self, spec):
        return f"{self.n}{spec}"

    def __round__(self, digits=None):
        return self.n * 100

    def __abs__(self):
        return -self.n

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return f"{name} {self.n}"


@world(put("n", 3), put("n", 5))
def each_special_method_reads_state():
    item = Item(2)

    def f(x):
        texts = f"{item:!}", repr(item), str(item), item.other, hasattr(item, "nothing")
        numbers = (
            float(item),
            item + 1,
            1 + item,
            bool(item),
            round(item),
            abs(item),
            hash(item),
            item[4],
        )
        ordered = item == Item(3), item < Item(3), min(item, Item(4)).tag, max([item, Item(1)]).n
        rows = [10, 20, 30, 40, 50, 60][item], x[:item].shape, 2 in item, list(item)
        return x * len(item), item(x), texts, numbers, ordered, rows

    return f, item


@world(put("tag", "swallow"), put("tag", "t"))
def context_manager_changes_its_state():
    item = Item(2)

    def f(x):
        caught = None
        try:
            with item as n:
                x = x * n
                raise ValueError("inside")
        except ValueError as error:
            caught = str(error)
        return x, caught

    return f, item


@world(
    lambda items: items.sort(key=lambda i: -i.n),
    lambda items: items.append(Item(0)),
    lambda items: put("n", 9)(items[0]),
)
def sorting_objects():
    items = [Item(3), Item(1), Item(2)]
    return lambda x: [x * i.n for i in sorted(items)], items


@world(lambda d: put("n", 2)(d["item"]), lambda d: d.update(other=5))
def lookup_by_an_object_whose_state_changes():
    table = {Item(1): "one", Item(2): "two"}
    box = {"item": Item(1), "other": 4}
    return lambda x: (x * box["other"], table.get(box["item"]), box["item"] in table), box


@world(lambda d: d.update({Item(1): 7}), lambda d: d.update({Item(9): 9}), lambda d: d.pop(Item(1)))
def table_with_object_keys_changes():
    table = {Item(1): 3, "k": 1}
    return lambda x: x * table.get(Item(1), 0) + len(table), table


class Shape(enum.Enum):
    SQUARE = 1
    CIRCLE = 2


@world(lambda d: d.update({Shape.SQUARE: 5}), lambda d: d.pop(Shape.CIRCLE))
def table_with_enum_keys_changes():
    table = {Shape.SQUARE: 2, Shape.CIRCLE: 3}
    return lambda x: x * table[Shape.SQUARE] + len(table) + table.get(Shape.CIRCLE, 10), table


@world(lambda d: d.update({(Shape.SQUARE, 1): 5}), lambda d: d.update({(int, "a"): 7}))
def table_with_tuple_keys_changes():
    table = {(Shape.SQUARE, 1): 2, (int, "a"): 3}
    return lambda x: x * table[Shape.SQUARE, 1] + table[int, "a"], table


def _class_world(change):
    """A class and its instance; `change` acts on the class."""

    def make():
        class Meta(type):
            scale = 2

            @property
            def doubled(cls):
                return cls.k * 2

            def __len__(cls):
                return cls.k

        class Base:
            k = 3

            def get(self):
                return self.k

            @property
            def p(self):
                return self.k + 1

            @classmethod
            def c(cls):
                return cls.k + 2

            @staticmethod
            def s():
                return 1

            def __len__(self):
                return 4

        class Sub(Base, metaclass=Meta):
            def get(self):
                return super().get() * 10

        obj = Sub()

        def f(x):
            return (
                x * obj.get() + obj.p,
                Sub.c(),
                obj.s(),
                Sub.doubled,
                len(Sub),
                Sub.scale,
                len(obj),
                bool(obj),
                super(Sub, obj).p,
            )

        return f, [Sub, Base, Meta, obj]

    return make, change


CLASS_CHANGES = {
    "attribute_of_base": lambda w: setattr(w[1], "k", 7),
    "attribute_of_class": lambda w: setattr(w[0], "k", 8),
    "attribute_of_object": lambda w: setattr(w[3], "k", 9),
    "method_of_base": lambda w: setattr(w[1], "get", lambda self: 100),
    "method_of_class": lambda w: setattr(w[0], "get", lambda self: 200),
    "property": lambda w: setattr(w[1], "p", property(lambda self: 300)),
    "property_becomes_a_value": lambda w: setattr(w[1], "p", 400),
    "classmethod": lambda w: setattr(w[1], "c", classmethod(lambda cls: 500)),
    "staticmethod": lambda w: setattr(w[1], "s", staticmethod(lambda: 600)),
    "special_method": lambda w: setattr(w[1], "__len__", lambda self: 0),
    "special_method_added": lambda w: setattr(w[0], "__bool__", lambda self: False),
    "getattribute_added": lambda w: setattr(
        w[0], "__getattribute__", lambda self, name: object.__getattribute__(self, name)
    ),
    "metaclass_attribute": lambda w: setattr(w[2], "scale", 700),
    "metaclass_property": lambda w: setattr(w[2], "doubled", property(lambda cls: 800)),
    "metaclass_special_method": lambda w: setattr(w[2], "__len__", lambda cls: 900),
    "class_of_the_object": lambda w: setattr(w[3], "__class__", type("Other", (w[0],), {"k": 11})),
    "bases": lambda w: setattr(w[0], "__bases__", (type("Middle", (w[1],), {"k": 12}),)),
}


@pytest.mark.parametrize("change", CLASS_CHANGES)
def test_class_changes_between_calls(change):
    make, apply = _class_world(CLASS_CHANGES[change])
    fn, parts = make()
    other_fn, other_parts = make()
    import tracer_core
    from tracer_core.testing import CaptureCounter, compare

    compiled = tracer_core.compile(other_fn, backend="eager")
    with CaptureCounter() as counter:
        for step in range(3):
            if step:
                apply(parts)
                apply(other_parts)
            compare(fn(X), compiled(X), path=f"step {step}")
    assert not counter.breaks


@world(put("limit", 1), put("limit", 50))
def descriptor_with_state():
    class Clip:
        limit = 10

        def __get__(self, obj, owner=None):
            return min(obj.raw, self.limit)

        def __set__(self, obj, value):
            obj.raw = value * self.limit

    clip = Clip()
    Box = type("Box", (), {"v": clip, "raw": 20})
    box = Box()

    def f(x):
        first = box.v
        box.v = 1
        return x * first, box.raw, box.v

    return f, clip


class Doubler(Item):
    def double(self, x):
        return x * self.n * 2


@world(
    lambda box: setattr(box, "method", box.items[1].double), lambda box: put("n", 7)(box.items[1])
)
def bound_methods_kept_on_an_object():
    class Box:
        pass

    box = Box()
    box.items = [Doubler(1), Doubler(2)]
    box.method = box.items[0].double
    return lambda x: box.method(x), box


@world(lambda result: result.clear(), lambda result: None)
def classes_made_by_one_call_are_used_by_the_next():
    result: list = []

    def f(x):
        if not result:

            class Keeper:
                k = 4

                def get(self, x):
                    return x * self.k

            result.append(Keeper)
        return result[0]().get(x), len(result)

    return f, result


@world(lambda state: state.update(a=5), lambda state: state.update(b=1))
def dataclass_of_the_world():
    @dataclasses.dataclass(order=True)
    class Config:
        a: int = 1
        b: int = 2
        extra: dict = dataclasses.field(default_factory=dict)

    config = Config()
    state = config.__dict__

    def f(x):
        other = dataclasses.replace(config, b=9)
        return (
            x * config.a + config.b,
            other.b,
            config == other,
            config < other,
            dataclasses.asdict(config),
            repr(other)[-30:],
        )

    return f, state


@world(put("n", 4), put("n", 0))
def singledispatch_and_partial_over_objects():
    item = Item(2)

    class Tool:
        @functools.singledispatchmethod
        def kind(self, value):
            return "object"

        @kind.register
        def _(self, value: int):
            return f"int {value + item.n}"

    scaled = functools.partial(lambda k, x: x * k.n, item)
    return lambda x: (scaled(x), sum(item), max(item, default=-1)), item


@world(lambda c: c.update("abc"), lambda c: c.subtract("a"))
def counters():
    counter = collections.Counter("aab")
    return lambda x: x * counter["a"] + counter["zz"], counter


@world(put("alpha", 3), lambda obj: delattr(obj, "alpha"))
def setattr_and_delattr_of_user_classes():
    class Loud:
        def __init__(self):
            self.__dict__["log"] = []

        def __setattr__(self, name, value):
            self.log.append(("set", name))
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            self.log.append(("del", name))
            object.__delattr__(self, name)

    loud = Loud()

    def f(x):
        loud.beta = 1
        if hasattr(loud, "alpha"):
            x = x * loud.alpha
        del loud.beta
        return x, len(loud.log)

    return f, loud


@pytest.mark.parametrize("name", list(WORLDS))
def test_world(name):
    make, changes, expected = WORLDS[name]
    steps = [(X,)]
    for change in changes:
        steps += [change, (Y,), (X,)]
    compare_with_eager(make, *steps, **expected)


def test_an_error_in_a_special_method_leaves_the_world_as_eager_does():
    def make():
        log: list = []

        class Fragile:
            def __init__(self, fail):
                self.fail = fail

            def __eq__(self, other):
                log.append("eq")
                if self.fail:
                    raise ValueError("cannot compare")
                return True

            __hash__ = None

        def f(x, fail):
            log.append("start")
            if Fragile(fail) == 3:
                log.append("equal")
            return x * len(log)

        return f, log

    compare_with_eager(make, (X, False), (X, True), (X, False), (X, True), breaks=None)


def test_tensors_in_objects_with_operators():
    class Complex:
        def __init__(self, re, im):
            self.re, self.im = re, im

        def __add__(self, other):
            return Complex(self.re + other.re, self.im + other.im)

        def __mul__(self, other):
            if isinstance(other, Complex):
                return Complex(
                    self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
                )
            return Complex(self.re * other, self.im * other)

        __rmul__ = __mul__

        def __abs__(self):
            return torch.sqrt(self.re**2 + self.im**2)

        def __iter__(self):
            yield self.re
            yield self.im

    def make():
        unit = Complex(torch.ones(3, 4), torch.zeros(3, 4))

        def f(x):
            z = Complex(x, x + 1) * unit + 2 * unit
            re, im = z
            return abs(z), re, sum([z * 1, z], unit).im + im

        return f, unit

    compare_with_eager(
        make,
        (X,),
        lambda u: setattr(u, "im", torch.ones(3, 4)),
        (Y,),
        lambda u: u.re.mul_(3),
        (X,),
        breaks=0,
    )


def test_sizes_that_change_are_returned_as_numbers():
    """torch.Size of symbolic sizes, alone, inside containers, sliced, and in what the program
    keeps.
    """

    def make():
        seen = []

        def f(x, n):
            seen.append(x[:n].shape)
            return (
                x.shape,
                [x.size()],
                x[:n].shape,
                tuple((x + 1).shape),
                x.shape[1:],
                {"s": x[:, :n].shape},
                x.shape.numel(),
            )

        return f, seen

    wide = torch.arange(48.0).reshape(6, 8)
    compare_with_eager(make, (X, 2), (wide, 3), (wide[:5], 4), (wide, 5), (X, 2), breaks=0)
