"""Small, realistic programs in which something changes with every call, by name.

Each is a `Restless`: ``program(n)`` is call number n. They try to make a compiler compile at each call;
after a few captures the rest must run in a cached form or in eager mode.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn


@dataclasses.dataclass
class Restless:
    """function: what is compiled. arguments: of call number n; they may change the program's world.
    call: how it is called; None: function(*arguments(n))."""

    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    call: Callable[[Callable[..., Any], int], Any] | None = None

    def __call__(self, n: int) -> Any:
        if self.call is not None:
            return self.call(self.function, n)
        return self.function(*self.arguments(n))


PROGRAMS: dict[str, Callable[[], Restless]] = {}
SIZE = 256


def program(make: Callable[[], Restless]) -> Callable[[], Restless]:
    """Registers a program by the name of the function that makes it."""
    PROGRAMS[make.__name__] = make
    return make


def _x(n: int = 0) -> torch.Tensor:
    return torch.linspace(-1, 1, SIZE * SIZE).reshape(SIZE, SIZE) + n / 1000


def work(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """A call of realistic weight."""
    return (x @ x * scale).softmax(-1) @ x


def _layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(SIZE, SIZE)


@program
def numbers_as_keys() -> Restless:
    def f(x, table):
        for key, value in table.items():
            x = work(x, 1 / (1 + key)) + value
        return x

    return Restless(f, lambda n: (_x(), {n: 0.5, n + 1: n * 0.25}))


@program
def lists_that_grow() -> Restless:
    def f(x, weights):
        total = work(x)
        for weight in weights:
            total = total + weight * x
        return total

    return Restless(f, lambda n: (_x(), [0.1] * (n % 40 + 1)))


@program
def request_ids() -> Restless:
    def f(x, request):
        return work(x), f"done {request}"

    return Restless(f, lambda n: (_x(), f"request-{n}"))


@program
def prompts() -> Restless:
    def f(x, text):
        return work(x) * len(text.split()) + (1 if text.startswith("q") else 0)

    return Restless(f, lambda n: (_x(), "word " * (n % 50) + str(n)))


@program
def closures_made_anew() -> Restless:
    def f(x, loss):
        return loss(work(x))

    def arguments(n):
        margin = n * 0.01

        def loss(y):
            return (y - margin).relu().sum()

        return _x(), loss

    return Restless(f, arguments)


@program
def lambdas_as_arguments() -> Restless:
    def f(x, activation):
        return activation(work(x))

    return Restless(f, lambda n: (_x(), lambda y: y.tanh() * n))


@program
def modules_made_anew() -> Restless:
    def f(x, layer):
        return work(layer(x))

    return Restless(f, lambda n: (_x(), _layer()))


@program
def enum_members() -> Restless:
    task: Any = enum.Enum("Task", [f"T{i}" for i in range(60)])
    members = list(task)

    def f(x, task):
        return work(x) * task.value if task.name != "T3" else x

    return Restless(f, lambda n: (_x(), members[n % 60]))


@program
def dtypes_and_layouts() -> Restless:
    dtypes = (torch.float32, torch.float64, torch.bfloat16)

    def f(x):
        return work(x) + 1

    def arguments(n):
        x = _x().to(dtypes[n % 3])
        return (
            (x.t() if n % 2 else x)
            if n % 5
            else x.contiguous().as_strided((SIZE // 2, SIZE // 2), (SIZE, 2)),
        )

    return Restless(f, arguments)


@program
def attributes_that_change() -> Restless:
    class Scheduled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.temperature, self.stage = _layer(), 1.0, "warmup"

        def forward(self, x):
            y = work(self.layer(x)) / self.temperature
            return y if self.stage.endswith("7") else y + 1

    module = Scheduled()

    def call(function, n):
        module.temperature, module.stage = 1 + n * 0.1, f"stage {n}"
        return function(module, _x())

    return Restless(lambda module, x: module(x), lambda n: (), call)


@program
def global_counters() -> Restless:
    counters: dict[str, Any] = {"calls": 0, "names": {}}

    def f(x, name):
        counters["calls"] += 1
        counters["names"][name] = counters["names"].get(name, 0) + 1
        return work(x) * counters["calls"]

    return Restless(f, lambda n: (_x(), f"user{n % 30}"))


@program
def requires_grad_flags() -> Restless:
    layers = nn.ModuleList(_layer() for _ in range(4))

    def f(x):
        for layer in layers:
            x = layer(x).relu()
        return work(x)

    def call(function, n):
        for i, layer in enumerate(layers):
            layer.requires_grad_(bool(n >> i & 1))
        return function(_x())

    return Restless(f, lambda n: (), call)


@program
def training_flags() -> Restless:
    model = nn.Sequential(*(nn.Sequential(_layer(), nn.Dropout(0.0)) for _ in range(5)))

    def call(function, n):
        for i, part in enumerate(model):
            part.train(bool(n >> i & 1))
        return function(_x())

    return Restless(lambda x: work(model(x)), lambda n: (), call)


@program
def dataclasses_made_anew() -> Restless:
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        step: int
        name: str
        lengths: list[int]

    def f(batch):
        return work(batch.x) * batch.step + len(batch.name) + sum(batch.lengths)

    return Restless(f, lambda n: (Batch(_x(), n, f"batch {n}", [n, n + 1]),))


@program
def caches_that_grow() -> Restless:
    cache: list[torch.Tensor] = []

    def f(x):
        y = work(x)
        cache.append(y[:1])
        return torch.cat(cache[-100:]).sum() + y

    return Restless(f, lambda n: (_x(),))


@program
def generators_of_batches() -> Restless:
    def f(batches):
        return sum(work(x) * weight for x, weight in batches)

    return Restless(f, lambda n: (((_x(), 0.1 * i + n) for i in range(n % 3 + 1)),))


@program
def hooks_that_come_and_go() -> Restless:
    layer = _layer()

    def call(function, n):
        handle = layer.register_forward_hook(lambda module, args, out: out * (n % 7))
        try:
            return function(_x())
        finally:
            handle.remove()

    return Restless(lambda x: work(layer(x)), lambda n: (), call)


@program
def autocast_flags() -> Restless:
    dtypes = (torch.bfloat16, torch.float16)

    def f(x):
        return work(x)

    def call(function, n):
        with (
            torch.autocast("cpu", dtypes[n // 2 % 2], enabled=bool(n & 1)),
            torch.set_grad_enabled(bool(n & 4)),
        ):
            return function(_x())

    return Restless(f, lambda n: (), call)


@program
def arrays_of_all_lengths() -> Restless:
    def f(x, array):
        return work(x) + torch.from_numpy(array).sum() + array.shape[0] * 2

    return Restless(f, lambda n: (_x(), numpy.arange(float(n + 1))))


@program
def random_experts() -> Restless:
    experts = nn.ModuleList(_layer() for _ in range(24))
    rng = random.Random(0)

    def f(x, chosen):
        for i in chosen:
            x = experts[i](x)
        return work(x)

    return Restless(f, lambda n: (_x(), rng.sample(range(24), 2)))


@program
def classes_made_anew() -> Restless:
    def f(x, config):
        return work(x) * config.scale

    return Restless(f, lambda n: (_x(), type(f"Config{n}", (), {"scale": 0.5})()))


@program
def tensor_subclasses_made_anew() -> Restless:
    def call(function, n):
        x = _x().as_subclass(type(f"Kind{n}", (torch.Tensor,), {}))
        return function(x).as_subclass(torch.Tensor)

    return Restless(lambda x: work(x) + 1, lambda n: (), call)


@program
def default_arguments() -> Restless:
    def call(function, n):
        def step(x, scale=n * 0.5, name=f"step{n}"):
            return work(x) * scale + len(name)

        return function(step, _x())

    return Restless(lambda step, x: step(x), lambda n: (), call)


@program
def records_of_all_kinds() -> Restless:
    def f(x, record):
        y = work(x)
        for key in sorted(record):
            y = y + record[key]
        return y

    def arguments(n):
        keys = itertools.islice(itertools.cycle("abcdefghij"), n % 10, n % 10 + 1 + n % 7)
        return _x(), collections.OrderedDict((f"{key}{n % 11}", 0.5) for key in keys)

    return Restless(f, arguments)


@program
def settings_namespaces() -> Restless:
    def f(x, settings):
        return work(x) if settings.mode in ("a", "b") else work(x) + len(settings.mode)

    return Restless(f, lambda n: (_x(), types.SimpleNamespace(mode=f"mode{n}", rate=n / 7)))


@program
def keyword_names() -> Restless:
    def f(x, **metrics):
        y = work(x)
        for value in metrics.values():
            y = y + value
        return y

    return Restless(f, lambda n: (), lambda function, n: function(_x(), **{f"metric{n}": 0.5}))


@program
def more_arguments() -> Restless:
    def f(x, *rest):
        y = work(x)
        for item in rest:
            y = y + item
        return y

    return Restless(f, lambda n: (_x(), *[0.5] * n))


@program
def objects_that_stay() -> Restless:
    class Session:
        def __init__(self, name):
            self.name = name

    sessions: list[Any] = []

    def f(session, x):
        return work(x) + len(session.name.split("-"))

    def arguments(n):
        sessions.append(Session(f"user-{n}"))
        return sessions[-1], _x()

    return Restless(f, arguments)


def _generated(n: int) -> Callable[..., Any]:
    """Returns a function of code of its own, as templates and code generators make them."""
    names: dict[str, Any] = {"work": work}
    exec(f"def step(x):\n    print(end='', flush=[])\n    return work(x) + {n}", names)
    made: Callable[..., Any] = names["step"]
    return made


@program
def code_made_anew() -> Restless:
    return Restless(lambda step, x: step(x) * 2, lambda n: (_generated(n), _x()))


@program
def code_behind_a_break() -> Restless:
    def f(step, x):
        x = x + 1
        print(end="", flush=[])
        return step(x) * 2

    return Restless(f, lambda n: (_generated(n), _x()))


@program
def words_behind_a_break() -> Restless:
    class Session:
        def __init__(self, name):
            self.name = name

    sessions: list[Any] = []

    def f(session, x):
        x = x + 1
        print(end="", flush=[])
        return work(x) + len(session.name.split("-"))

    def arguments(n):
        sessions.append(Session(f"user-{n}"))
        return sessions[-1], _x()

    return Restless(f, arguments)
