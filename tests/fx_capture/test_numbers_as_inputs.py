"""Numbers that change from call to call, wherever the program reads them: inputs of one graph."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.contract.specs import Role
from tracer_core.plugin_api import Backend
from tracer_core.testing import CaptureCounter, compare

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Box:
    size: int


# -- numbers of the program, wherever they are read
# ----------------------------------------------------

X = torch.randn(3, 4)
NUMBERS = (5, 6, 9, 7, 17, 33, 6)
FLOATS = (0.5, 0.25, 1.5, 2.25, 0.125)


@dataclasses.dataclass
class Config:
    size: float = 0
    inner: object = None


class Slotted:
    __slots__ = ("size", "__dict__")


#: name -> (program(x, held), held made of a number).
HELD = {
    "attribute": (lambda x, c: x * c.size, Config),
    "attribute_of_an_attribute": (lambda x, c: x * c.inner.size, lambda n: Config(1, Config(n))),
    "slot": (lambda x, c: x * c.size, lambda n: _with(Slotted(), size=n)),
    "simple_namespace": (lambda x, c: x * c.size, lambda n: types.SimpleNamespace(size=n)),
    "getattr": (lambda x, c: x * getattr(c, "size"), Config),
    "vars": (lambda x, c: x * vars(c)["size"], Config),
    "item_of_a_list": (lambda x, items: x * items[1], lambda n: [2, n]),
    "last_item_of_a_list": (lambda x, items: x * items[-1], lambda n: [2, n]),
    "item_of_a_tuple": (lambda x, items: x * items[1], lambda n: (2, n)),
    "item_of_a_nested_tuple": (lambda x, items: x * items[1][0], lambda n: ("a", (n, 2), None)),
    "item_of_a_tuple_with_a_tensor": (lambda x, items: items[0] * x * items[1],
    lambda n: (torch.ones(4), n)),
    "item_of_a_deque": (lambda x, items: x * items[1], lambda n: collections.deque([2, n])),
    "item_of_a_dict": (lambda x, held: x * held["n"], lambda n: {"n": n}),
    "item_of_a_dict_in_a_list": (lambda x, held: x * held[0]["n"][1], lambda n: [{"n": (2, n)}]),
    "get": (lambda x, held: x * held.get("n", 3) + held.get("m", 3), lambda n: {"n": n}),
    "setdefault": (lambda x, held: x * held.setdefault("n", 3), lambda n: {"n": n}),
    "field_of_a_named_tuple": (lambda x, pair: x * pair.a + pair.b, lambda n: Pair(n, 2)),
    "unpacked_list": (lambda x, items: _unpacked(x, items), lambda n: [n, 2]),
    "unpacked_tuple": (lambda x, items: _unpacked(x, items), lambda n: (n, 2.5)),
    "unpacked_named_tuple": (lambda x, items: _unpacked(x, items), lambda n: Pair(2, n)),
    "starred": (lambda x, items: _starred(x, items), lambda n: [n, 2, n + 1, 4]),
    "arguments": (lambda x, items: _unpacked_arguments(x, *items), lambda n: [n, 2]),
    "keywords": (lambda x, held: _unpacked_arguments(x, **held), lambda n: {"a": n, "b": 2}),
    "sum": (lambda x, items: x * sum(items), lambda n: [n, 2]),
    "largest": (lambda x, items: x * max(items), lambda n: [n, n - 1]),
    "loop": (lambda x, items: _looped(x, items), lambda n: [n, 2, n + 1]),
    "loop_over_a_tuple": (lambda x, items: _looped(x, items), lambda n: (n, 2, n + 1)),
    "comprehension": (lambda x, items: torch.stack([x * item for item in items]), lambda n: [n, 2,
    n + 1]),
    "generator": (lambda x, items: sum(x * item for item in items), lambda n: [n, 2, n + 1]),
    "partial": (lambda x, f: f(x), lambda n: functools.partial(_unpacked_arguments, a=n, b=2)),
    "partial_of_a_position": (lambda x, f: f(x), lambda n: functools.partial(torch.mul, n)),
    "given_to_a_partial": (lambda x, n: _HALF(x, a=n) + _TIMES(n), lambda n: n),
    "given_to_a_context_manager": (lambda x, n: _scaled(x, n), lambda n: n),
    "put_into_a_named_tuple": (lambda x, n: (Pair(n, 2)._replace(b=n), x * Pair(n, 2).a),
    lambda n: n),
    "put_into_containers": (lambda x, n: _contained(x, n), lambda n: n),
    "size_of_a_tensor": (lambda x, size: (x.sum() + torch.zeros(size), size, size[0], size is size),
    lambda n: torch.Size([int(n) + 2, 3])),
    "replaced_in_a_dataclass": (lambda x, n: (dataclasses.replace(Box(1), size=n), x * n),
    lambda n: n),
}  # fmt: skip


@contextlib.contextmanager
def _factor(n):
    yield n * 2


def _scaled(x, n):
    with _factor(n) as factor, contextlib.nullcontext(n) as summand:
        return x * factor + summand


def _contained(x, n):
    recent, ordered = collections.deque([n], maxlen=2), collections.OrderedDict(n=n)
    recent.append(ordered.setdefault("m", n))
    groups = collections.defaultdict(list)
    groups["n"].insert(0, n)
    return x * functools.reduce(operator.add, recent), recent, ordered, dict(groups)


def _with(obj, **fields):
    for name, value in fields.items():
        setattr(obj, name, value)
    return obj


def _unpacked(x, items):
    a, b = items
    return x * a + b


def _starred(x, items):
    a, *others, b = items
    return x * a + others[0] * x + b, [*items][2] * x


def _unpacked_arguments(x, a, b):
    return x * a + b


_HALF = functools.partial(_unpacked_arguments, b=0.5)
_TIMES = functools.partial(torch.mul, torch.ones(4))


def _looped(x, items):
    for item in items:
        x = x * item
    return x


@pytest.mark.parametrize("numbers", [NUMBERS, FLOATS], ids=["int", "float"])
@pytest.mark.sweep(keep=30)
@pytest.mark.parametrize("name", HELD)
def test_a_number_read_from_what_is_passed_is_an_input_from_its_first_change(name, numbers):
    program, make = HELD[name]
    same(program, *[(X, make(n)) for n in numbers], graphs=2)


@pytest.mark.parametrize("name", ["attribute", "item_of_a_nested_tuple", "loop", "keywords"])
def test_numbers_are_inputs_for_backends_that_take_them(name):
    program, make = HELD[name]
    for backend in ("aten_eager", "inductor"):
        same(
            program, *[(X, make(n)) for n in (*NUMBERS[:4], *FLOATS[:2])], graphs=3, backend=backend
        )


def test_numbers_are_constants_for_backends_that_take_none():
    def compile_graph(graph, spec):
        assert all(value.role is not Role.NUMBER for value in spec.inputs)
        return lambda inputs: graph.forward(*inputs)

    program, make = HELD["attribute"]
    backend = Backend(name="tensors_alone", compile=compile_graph)
    same(program, *[(X, make(n)) for n in NUMBERS[:4]], graphs=4, backend=backend)


def test_numbers_are_tensors_for_callables():
    def tensors_alone(gm, inputs):
        assert all(isinstance(value, torch.Tensor) for value in inputs)
        return gm.forward

    program, make = HELD["attribute"]
    same(program, *[(X, make(n)) for n in NUMBERS[:4]], graphs=2, backend=tensors_alone)


def _class_program(read):
    def make():
        class Base:
            size = 0

        class Derived(Base):
            def inherited(self):
                return super().size

        item = Derived()
        return lambda x: x * read(Base, Derived, item), types.SimpleNamespace(Base=Base, one=item)

    return make


#: name -> how a number of a class is read.
OF_CLASSES = {
    "the_class": lambda base, derived, value: base.size,
    "a_subclass": lambda base, derived, value: derived.size,
    "an_instance": lambda base, derived, value: value.size,
    "type": lambda base, derived, value: type(value).size,
    "super": lambda base, derived, value: value.inherited(),
    "getattr": lambda base, derived, value: getattr(value, "size", 1),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_number_of_a_class_is_an_input_from_its_first_change(name):
    steps = [step for n in (*NUMBERS, *NUMBERS) for step in (_sets_size(n), (X,))]
    compare_with_eager(_class_program(OF_CLASSES[name]), *steps, graphs=2, breaks=0)


def _sets_size(n):
    return lambda world: setattr(world.Base, "size", n)


def test_a_number_of_a_class_that_an_instance_then_has_itself():
    def own(n):
        return lambda world: setattr(world.one, "size", n)

    def gone(world):
        del world.one.size

    changes = [_sets_size(5), _sets_size(6), own(7), own(8), _sets_size(9), gone]
    steps = [step for change in changes for step in (change, (X,))]
    compare_with_eager(_class_program(OF_CLASSES["an_instance"]), *steps, breaks=0)


def test_a_number_of_a_class_that_becomes_a_descriptor():
    def make():
        class C:
            size = 1

        c = C()
        return lambda x: x * c.size, C

    def describe(cls):
        cls.size = property(lambda self: 20)

    def sets(n):
        return lambda cls: setattr(cls, "size", n)

    compare_with_eager(make, sets(5), (X,), sets(6), (X,), describe, (X,), breaks=0)


def test_a_counter_of_a_class_counts_in_one_graph():
    def make():
        class Layer(torch.nn.Module):
            calls = 0

            def forward(self, x):
                Layer.calls += 1
                type(self).calls += 1
                return x * self.calls

        return Layer(), types.SimpleNamespace(cls=Layer)

    compare_with_eager(make, *[(X,)] * 12, graphs=2, breaks=0)


def test_defaults_globals_cells_and_modules():
    def make():
        settings = types.ModuleType("settings")
        settings.size = cell = 1

        def program(x, a=1, *, b=2):
            return x * a + b + settings.size * x + cell

        def change(n):
            nonlocal cell
            program.__defaults__, program.__kwdefaults__ = (n,), {"b": n + 1}
            settings.size = cell = n + 2

        return program, change

    steps = [step for n in NUMBERS for step in (lambda change, n=n: change(n), (X,))]
    compare_with_eager(make, *steps, graphs=2, breaks=0)


def test_a_module_s_numbers():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.size, self.sizes, self.by = 1, [1, 2], {"a": (1, 2)}

        def forward(self, x):
            return self.linear(x) * self.size + self.sizes[1] * x + self.by["a"][0]

    def make():
        torch.manual_seed(0)
        module = Scale()
        return module, module

    def change(n):
        def step(module):
            module.size, module.sizes[1], module.by["a"] = n, n + 1, (n + 2, 2)

        return step

    steps = [step for n in NUMBERS for step in (change(n), (X,))]
    compare_with_eager(make, *steps, graphs=2, breaks=0)


def test_a_type_that_changes_is_another_specialization():
    class Whole(int):
        pass

    class Level(enum.IntEnum):
        HIGH = 7

    values = [
        5,
        6,
        7,
        0.5,
        1.5,
        2.5,
        True,
        False,
        Whole(9),
        Whole(10),
        Level.HIGH,
        8,
        4.5,
        True,
        11,
    ]
    for make in (Config, lambda n: [n], lambda n: (n, 2)):
        read = (
            (lambda x, c: (x * c.size, c.size))
            if make is Config
            else (lambda x, c: (x * c[0], c[0]))
        )
        compiled = tracer_core.compile(read, backend="eager")
        for value in values:
            want, got = read(X, make(value)), compiled(X, make(value))
            compare(want, got)
            assert type(want[1]) is type(got[1])


def test_a_number_decides_a_branch_or_a_size():
    def branches(x, c):
        return x + c.size if c.size > 8 else x - c.size

    def sizes(x, c):
        return x.new_ones(c.sizes[0], c.sizes[1]) + x.sum()

    same(branches, *[(X, Config(n)) for n in NUMBERS], graphs=3)
    same(sizes, *[(X, types.SimpleNamespace(sizes=(n, n + 3))) for n in NUMBERS], graphs=2)


def test_a_tuple_of_numbers_is_the_program_s_own():
    def program(x, pair):
        return x * pair[0], pair, (pair, pair[1]), {"pair": pair}

    compiled = tracer_core.compile(program, backend="eager")
    compiled(X, (1, 2))  # a constant
    for n in NUMBERS:
        pair = (n, n + 1)
        _, item, (two, _), held = compiled(X, pair)
        assert item is two is held["pair"] is pair


def test_identity_of_small_integers_that_change():
    """CPython has one object of each integer from -5 to 256."""

    def program(x, n, items):
        return x * n, n is len(items), len(items) is not n, operator.is_(x.shape[0], n), n is True

    fast = tracer_core.compile(program, backend="eager")
    calls = [(torch.ones(r, 2), n, [0] * k) for n, k, r in itertools.product(range(2, 6), repeat=3)]
    calls += [(torch.ones(3, 2), 1, [0]), (torch.ones(1, 2), 1, [0, 0])]
    for args in calls:
        compare(program(*args), fast(*args))


def test_identity_of_large_and_floating_point_numbers_that_change():
    """Equal ones are one object or two."""

    def program(x, a, b):
        return x * a, a is b, operator.is_not(a, b)

    fast = tracer_core.compile(program, backend="eager")
    for n in (5000, 6000, 7000, 0.5, 1.5, 2.5, 3.5):
        other = (n * 2 - 1) - (n - 1)
        for b in (n, other, n + 1):
            compare(program(X, n, b), fast(X, n, b))


def test_identity_of_equal_strings_and_constants():
    def program(x, a, b):
        return x * 2, a is b, a is not b, a is a

    fast = tracer_core.compile(program, backend="eager")
    for reduction in ("mean of all", "sum of all"):
        copy = "".join(list(reduction))
        for b in (reduction, copy, reduction, "max"):
            compare(program(X, reduction, b), fast(X, reduction, b))
    nan = float("nan")
    for a, b in ((nan, nan), (nan, float("nan")), (b"one", b"one"), (1j, 1j), (True, True)):
        compare(program(X, a, b), fast(X, a, b))


def test_whether_two_tuples_are_one_object():
    compiled = tracer_core.compile(
        lambda x, a, b: (x * a[0], a is b, a is not None, a == b), backend="eager"
    )
    for n in NUMBERS:
        pair = (n, 2)
        compare(compiled(X, pair, pair)[1:], (True, True, True))


#: name -> program that shows the whole tuple, or uses it as a value.
OF_TUPLES = {
    "text": lambda x, pair: (str(pair), x + 1),
    "key": lambda x, pair: ({(5, 6): "a", (6, 7): "b"}.get(pair, "c"), x + pair[0]),
    "hash": lambda x, pair: (hash(pair), x + 1),
    "equality": lambda x, pair: x + pair[0] if pair == (6, 7) else x - pair[1],
    "membership": lambda x, pair: x + pair[0] if 7 in pair else x - pair[1],
    "concatenation": lambda x, pair: (pair + (1,), (0, *pair), pair * 2, x + 1),
    "slice": lambda x, pair: (pair[1:], pair[::-1], x * pair[0]),
    "length": lambda x, pair: x * len(pair),
    "sorted": lambda x, pair: (sorted(pair), x),
    "a_torch_function": lambda x, pair: torch.nn.functional.pad(x, pair),
    "sizes": lambda x, pair: x.new_ones(pair) + x.sum(),
    "sizes_as_arguments": lambda x, pair: x.new_ones(*pair) + x.sum(),
    "zip": lambda x, pair: [x * a + b for a, b in zip(pair, (1, 2), strict=True)],
    "enumerate": lambda x, pair: [x * a + i for i, a in enumerate(pair)],
    "named": lambda x, pair: (Pair(*pair), Pair(*pair)._replace(a=1), x + 1),
    "dataclass": lambda x, pair: (Box(pair[0]), x + Box(pair[0]).size),
    "set": lambda x, pair: ({*pair, 3}, frozenset(pair), x + 1),
}


@pytest.mark.parametrize("name", OF_TUPLES)
def test_a_tuple_whose_numbers_change(name):
    same(OF_TUPLES[name], *[(X, (n, n + 1)) for n in NUMBERS])


#: name -> program that changes the list that it loops over, or of which it has read a number.
OF_LISTS = {
    "sets_items_that_were_read": lambda x, items: _sets(x, items, 0),
    "sets_items_to_come": lambda x, items: _sets(x, items, 2),
    "appends": lambda x, items: _appends(x, items),
    "removes": lambda x, items: _removes(x, items),
    "sorts": lambda x, items: (x * items[0], items.sort(reverse=True), x * items[0]),
    "counts_up": lambda x, items: _counts_up(x, items),
    "text": lambda x, items: (x * items[0], str(items)),
    "loops_twice": lambda x, items: _looped(_looped(x, items), items),
    "breaks_in_the_loop": lambda x, items: _loop_with_break(x, items),
    "leaves_the_loop": lambda x, items: _leaves(x, items),
    "loops_in_a_loop": lambda x, items: sum(x * a * b for a in items for b in items),
    "yields": lambda x, items: _from_generator(x, items),
}


def _sets(x, items, at):
    for i, item in enumerate(list(items)):
        x = x * item + i
    for item in items:
        x = x * item
        items[at] = 3
    return x


def _appends(x, items):
    for item in items:
        x = x * item
        if len(items) < 5:
            items.append(2)
    return x


def _removes(x, items):
    for item in items:
        x = x * item
        if len(items) > 2:
            items.pop()
    return x


def _counts_up(x, items):
    items[0] += 1
    items[1] = items[0] * 2
    return x * items[0]


def _loop_with_break(x, items):
    for item in items:
        x = x * item
        print(end="", flush=[])
    return x


def _leaves(x, items):
    for item in items:
        if item > 8:
            break
        x = x * item
    else:
        x = x + 100
    return x


def _from_generator(x, items):
    def doubled():
        for item in items:
            yield item * 2

    return [x * item for item in doubled()]


@pytest.mark.parametrize("name", OF_LISTS)
def test_a_list_whose_numbers_change(name):
    same(OF_LISTS[name], *[(X, [n, n + 1, 2]) for n in NUMBERS], breaks=None)


def test_two_numbers_that_were_one_list_s():
    def program(x, a, b):
        a[0] += 1
        return x * a[0] + b[0]

    item = [5]
    same(program, (X, [5], [5]), (X, [6], [7]), (X, [8], [9]), (X, item, item))


def test_an_object_with_a_number_in_its_hash():
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return hash(self.n)

        def __eq__(self, other):
            return self.n == other.n

    same(lambda x, n: (x + 1, {Key(n): 2, Key(6): 3}[Key(6)]), *[(X, n) for n in NUMBERS])


def test_betas_that_a_scheduler_cycles_are_inputs():
    def train(compile_it):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile_it(step)
        for n in range(12):
            run(torch.full((5, 4), n / 7))
            scheduler.step()
        return list(model.parameters())

    with CaptureCounter() as counter:
        got = train(lambda step: tracer_core.compile(step, backend="eager"))
    assert len(counter.graphs) == 2  # the first makes gradients and the optimizer's state
    for item, other in zip(train(lambda step: step), got, strict=True):
        assert torch.equal(item, other)


def test_a_tuple_that_changes_in_its_text_too_is_compiled_for_each_text():
    pairs = [(5, "a"), (6, "a"), (7, "a"), (7, "b"), (8, "b"), (9, "a")]
    same(lambda x, pair: (x * pair[0], pair[1] * 2), *[(X, pair) for pair in pairs], graphs=3)
