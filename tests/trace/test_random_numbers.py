"""Random numbers that a program seeds and draws: torch's generators in the graph, Python's beside it.

Every call leaves the state of each generator as eager does.
"""

from __future__ import annotations

import importlib
import random

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.testing import CaptureCounter, compare

INDUCTOR = pytest.param("inductor", marks=pytest.mark.filterwarnings("ignore"))


def state_of(item):
    return item.get_state() if isinstance(item, torch.Generator) else item.getstate()


def described(actual):
    """A result, with the state of a generator in place of it."""
    actual = actual if isinstance(actual, tuple) else (actual,)
    return [state_of(item) if isinstance(item, random.Random | torch.Generator) else item
            for item in actual]  # fmt: skip


def check(program, generator, backend, breaks=0, graphs=None, calls=4, **options):
    """Compares a program of (tensor, generator) with eager over calls, and the states they leave."""

    def run(function, again):
        item = again()
        torch.manual_seed(99)
        random.seed(99)
        outcomes = []
        for number in range(calls):
            x = torch.arange(12.0).reshape(3, 4) / 7 + number
            try:
                cls = described(function(x, item))
            except Exception as error:
                cls = type(error)
            outcomes.append((cls, state_of(item), torch.get_rng_state(), random.getstate()))
        return outcomes

    want = run(program, generator)
    with CaptureCounter() as counter:
        compare(want, run(tracer_core.compile(program, backend=backend, **options), generator))
    assert breaks is None or len(counter.breaks) == breaks, counter.breaks
    assert graphs is None or len(counter.graphs) == graphs


# torch's


def seeded(x, g):
    torch.manual_seed(4)
    return (x + torch.rand(4)).exp() * 2, torch.randn(2)


def made_inside(x, g):
    result = torch.Generator().manual_seed(6)
    return x + torch.rand(4, generator=result), torch.randperm(5, generator=result)


def given(x, g):
    return x.sin() + torch.randn(4, generator=g) * x.cos() - torch.rand(4)


def kept(x, g):
    before, mine = torch.get_rng_state(), g.get_state()
    noise = torch.rand(4) * torch.zeros(4).normal_(generator=g)
    torch.set_rng_state(before)
    g.set_state(mine)
    return x * 2 + noise - torch.rand(4, generator=g), before, torch.initial_seed() >= 0


def forked(x, g):
    with torch.random.fork_rng():
        torch.manual_seed(x.dim())
        noise = torch.rand(4)
    return x + noise * torch.rand(4)


def written(x, g):
    y = x.clone()
    x.uniform_(generator=g)
    return y * 2, x + y


def fails(x, g):
    torch.manual_seed(3)
    y = torch.rand(4, generator=g)
    return y + x[torch.tensor(7)]


OF_TORCH = {value.__name__: value for value in (seeded, made_inside, given, kept, forked, written)}


@pytest.mark.parametrize("backend", ["eager", INDUCTOR])
@pytest.mark.parametrize("name", OF_TORCH)
def test_generators_of_torch(name, backend):
    check(OF_TORCH[name], lambda: torch.Generator().manual_seed(8), backend, graphs=1)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_an_error_after_draws(backend):
    check(fails, lambda: torch.Generator().manual_seed(8), backend, breaks=None)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, g):
        self.calls += 1
        torch.manual_seed(self.calls)
        g.manual_seed(self.calls + 1)
        return nn.functional.dropout(x, 0.5) + torch.rand(8, generator=g)


def test_a_seed_that_changes():
    dropping, compiled = Dropping(), tracer_core.compile(Dropping(), backend="inductor")
    with CaptureCounter() as counter:
        for _ in range(5):
            want = dropping(torch.ones(8), torch.Generator())
            compare(want, compiled(torch.ones(8), torch.Generator()))
    assert len(counter.graphs) == 2 and not counter.breaks


def test_gradients_beside_a_generator():
    weight = torch.ones(4, requires_grad=True)

    def loss(x, g):
        return ((x * weight).exp() * torch.rand(4, generator=g)).sum()

    def step(function):
        weight.grad = None
        function(torch.arange(4.0), torch.Generator().manual_seed(2)).backward()
        return weight.grad.clone()

    compiled = tracer_core.compile(loss, backend="inductor")
    for _ in range(2):
        compare(step(loss), step(compiled))


def test_a_generator_is_never_sampled():
    """auto keeps eager where benchmarks would advance the program's generator."""
    check(given, lambda: torch.Generator().manual_seed(8), "auto")


def test_seeding_after_torch_wraps_it():
    """torch replaces torch.manual_seed once its own compiler is imported."""
    importlib.import_module("torch._dynamo")

    check(seeded, lambda: torch.Generator().manual_seed(8), "eager", graphs=1)


# Python's


def numbers(x, g):
    if g.random() < 0.5:
        x = x * 2
    return x * g.uniform(1, 2) + g.randint(1, 9) + random.random()


def sliced(x, g):
    return x[: g.randint(1, 3)] * random.gauss(0, 1)


def fresh(x, g):
    result, items = random.Random(7), [1, 2, 3, 4]
    result.shuffle(items)
    more = result.sample(range(10), 3), result.choices([1, 2, 3], k=2), result.gauss(0, 1)
    return x * result.random() + items[0] + result.choice([5, 6]), more, result


def the_module(x, g):
    random.seed(3)
    value = random.randint(1, 9)
    return x * random.random() + value, random.sample([1, 2, 3], 2)


def reseeded(x, g):
    first = g.random()
    g.seed(4)
    second, state = g.random(), g.getstate()
    g.random()
    g.setstate(state)
    return x * first + second - g.random()


def from_a_list(x, g):
    result, inputs = random.Random(7), [0.1, 0.2, 0.3, 0.4]
    result.random = inputs.pop
    first = result.uniform(1, 10)
    tracer_core.graph_break()
    return x * first + result.triangular(0, 1, 0.5) + result.paretovariate(5), result


def dealt(x, g):
    """The caller has given the object a method of its own."""
    return x + g.uniform(0, 1) + g.expovariate(1.5)


class Countdown(random.Random):
    def random(self):
        self.left = getattr(self, "left", 0.9) - 0.01
        return self.left


@pytest.mark.parametrize("backend", ["eager", INDUCTOR])
@pytest.mark.parametrize(
    "program", [numbers, sliced, fresh, the_module, reseeded], ids=lambda value: value.__name__
)
def test_numbers_of_python(program, backend):
    check(program, lambda: random.Random(5), backend, calls=6)


def with_own_method():
    actual = random.Random(5)
    actual.random = iter([0.9 - i / 100 for i in range(50)]).__next__
    return actual


@pytest.mark.parametrize(
    ("program", "generator"),
    [(from_a_list, lambda: None), (dealt, with_own_method), (dealt, lambda: Countdown(3))],
)
def test_methods_of_an_object_s_own(program, generator):
    def run(function):
        item = generator()
        return [described(function(torch.arange(3.0), item)) for _ in range(4)]

    compare(run(program), run(tracer_core.compile(program, backend="eager")))


def test_an_object_is_given_a_method_of_its_own():
    def run(function):
        item, actual = random.Random(5), []
        for number in range(4):
            actual.append(function(torch.arange(3.0), item))
            if number == 1:
                item.random = lambda: 0.25
        return actual

    compare(run(dealt), run(tracer_core.compile(dealt, backend="eager")))


def test_the_class_has_another_method(monkeypatch):
    """As unittest.mock.patch puts it there: it is called as often as in eager. A compiler would call
    it too, to name its temporary files."""
    drawn = []

    def counted(self):
        drawn.append(len(drawn))
        return 0.25 + len(drawn) / 100

    def run(function):
        actual, item = [], random.Random(5)
        for number in range(6):
            if number == 2:
                monkeypatch.setattr(random.Random, "random", counted, raising=False)
            if number == 4:
                monkeypatch.undo()
            actual.append((function(torch.arange(3.0), item), function(torch.ones(2), item)))
        calls = len(drawn)
        drawn.clear()
        return actual, calls

    compare(run(varied), run(tracer_core.compile(varied, backend="eager")))


def varied(x, g):
    return x * g.uniform(0, 1) + g.gammavariate(0.5, 1.5)


def chosen(x, g):
    return x + g.choice([1.0, 2.0, 3.0])


def test_numbers_whose_value_is_needed():
    """The graph breaks before the draw: a graph for each number would be no gain."""
    check(chosen, lambda: random.Random(5), "eager", breaks=1, calls=12)


def test_callables_take_numbers_as_tensors():
    check(lambda x, g: x * g.random(), lambda: random.Random(5), lambda gm, _: gm.forward, breaks=0)


@pytest.mark.parametrize("seed", [2.75, "17", int, [1], torch.tensor(5)], ids=str)
@pytest.mark.parametrize("function", [torch.manual_seed, torch.cuda.manual_seed])
def test_seeds_that_are_no_whole_numbers(function, seed):
    def seeded(x):
        try:
            function(seed)
        except Exception as error:
            return x, type(error), str(error)
        return x + torch.rand(3), torch.initial_seed()

    def run(called):
        torch.manual_seed(99)
        return [called(torch.ones(3)) for _ in range(2)]

    compare(run(seeded), run(tracer_core.compile(seeded, backend="eager")))
