"""What a backend must get right beside operators, through ``compile()``, as users meet it.

In: a `Subject`: a backend with the user's options. Out: `PROGRAMS`: named functions of a subject
that return None, or why the backend does not offer it, and raise where it is not as eager. What
always holds: a program needs no files, no network and a few small graphs.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tracer_core import api
from tracer_core.contract.backend import Backend, resolve
from tracer_core.contract.specs import Training
from tracer_core.errors import OptionError
from tracer_core.testing.compare import Mismatch, Tolerance, compare, compare_aliasing

TOLERANCE = Tolerance(1e-4, 1e-5)


@dataclass(frozen=True, slots=True)
class Subject:
    """backend: that is tried. options: the user's, for every compile."""

    backend: Backend
    options: Any = None

    def compile(self, model: Any, **settings: Any) -> Any:
        """``tracer_core.compile`` with this backend."""
        return api.compile(model, backend=self.backend, **{"options": self.options, **settings})


@dataclass(frozen=True, slots=True)
class Program:
    """area and name: where it stands in the support matrix. run: ``(subject) -> None | why it is
    not offered``.
    """

    area: str
    name: str
    run: Callable[[Subject], str | None]


PROGRAMS: list[Program] = []


Run = Callable[[Subject], str | None]


def program(area: str, name: str) -> Callable[[Run], Run]:
    """Adds a function to `PROGRAMS`."""

    def add(function: Run) -> Run:
        PROGRAMS.append(Program(area, name, function))
        return function

    return add


def _mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))


def _same(expected: Any, actual: Any, what: str = "result") -> None:
    compare(expected, actual, TOLERANCE, what)


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise Mismatch("program", what)


@program("dynamic sizes", "one size changes from call to call")
def changing_size(subject: Subject) -> None:
    """Static first, then symbolic; 0 and 1 are sizes like any other."""
    model = _mlp().eval()
    fast = subject.compile(model)
    with torch.no_grad():
        for batch in (4, 7, 2, 1, 9, 0, 4):
            x = torch.randn(batch, 6)
            _same(model(x), fast(x), f"batch {batch}")


@program("dynamic sizes", "sizes are symbolic from the start, and one graph serves them")
def symbolic_sizes(subject: Subject) -> str | None:
    """``dynamic=True``."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(-1, x.shape[0]).sum(0) + x.shape[1], torch.cat([x, x], 1)[:, : x.shape[1]]

    fast = subject.compile(fn, dynamic=True)
    for shape in ((4, 6), (3, 6), (5, 2)):
        x = torch.randn(shape)
        _same(fn(x), fast(x), str(shape))
    return "each size is compiled by itself" if subject.backend.shapes == "static" else None


@program("training", "gradients of a model")
def gradients(subject: Subject) -> str | None:
    """Of inputs and parameters, accumulated over two steps."""
    model, reference = _mlp(), _mlp()
    fast = subject.compile(model)
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fast(x).square().sum().backward()
        reference(y).square().sum().backward()
        _same(y.grad, x.grad, "gradient of the input")
    for (name, mine), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        _same(other.grad, mine.grad, f"gradient of {name}")
    return _no_training(subject)


@program("training", "a whole step with an optimizer")
def training_step(subject: Subject) -> str | None:
    """Forward, loss, backward, ``optimizer.step()`` inside the compiled function."""
    model, reference = _mlp(), _mlp()

    def stepper(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    fast, simple = subject.compile(stepper(model)), stepper(reference)
    for _ in range(4):
        x = torch.randn(5, 6)
        _same(simple(x), fast(x), "loss")
    _same(list(reference.state_dict().values()), list(model.state_dict().values()), "parameters")
    return _no_training(subject)


def _no_training(subject: Subject) -> str | None:
    if subject.backend.training is not Training.INFERENCE_ONLY:
        return None
    return "it is for inference only: gradients are eager's"


@program("random numbers", "dropout draws eager's stream")
def random_stream(subject: Subject) -> None:
    """The same seed gives the same numbers, and leaves the generator in the same state."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5) + torch.randn(3)

    fast = subject.compile(fn)
    x = torch.ones(4, 3)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected, after = [fn(x) for _ in range(3)], torch.get_rng_state()
        torch.manual_seed(seed)
        _same(expected, [fast(x) for _ in range(3)])
        _demand(torch.equal(after, torch.get_rng_state()), "the generator is in another state")


@program("views, aliasing, writes", "inputs that share memory")
def shared_inputs(subject: Subject) -> None:
    """A write through one is seen through the other."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        return y * 2, x.t()

    fast = subject.compile(fn)
    for _ in range(3):
        base, other = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
        expected, actual = fn(base, base[1:]), fast(other, other[1:])
        _same((base, expected), (other, actual))
        compare_aliasing([base, expected], [other, actual])


@program("views, aliasing, writes", "results are the caller's own")
def own_results(subject: Subject) -> None:
    """Later calls do not write to earlier results, and the caller may write to them."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x @ x, x

    fast = subject.compile(fn)
    calls = []
    for _ in range(4):
        x = torch.randn(5, 5)
        calls.append((x, fast(x), fn(x)))
    for x, mine, expected in calls:
        _same(expected, mine)
        _demand(mine[2] is x, "a result that is an input is another object")
        mine[0].zero_()
    _same([expected[1:] for _, _, expected in calls], [mine[1:] for _, mine, _ in calls])


@program("views, aliasing, writes", "buffers are written")
def written_buffers(subject: Subject) -> None:
    """Batch norm's running statistics, and a counter."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()

    model, reference = make(), make()
    fast = subject.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 2, 6, 6)
            _same(reference(x), fast(x))
    _same(dict(reference.state_dict()), dict(model.state_dict()), "state")


@program("parameters", "new values of parameters are seen")
def new_values(subject: Subject) -> None:
    """Written in place, through ``.data``, loaded, and replaced."""
    model = _mlp().eval()
    fast = subject.compile(model)
    x = torch.randn(4, 6)
    changes: list[Callable[[Any], Any]] = [
        lambda net: net[0].weight.mul_(2),
        lambda net: setattr(net[0].weight, "data", torch.randn(8, 6)),
        lambda net: net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}),
        lambda net: setattr(net[0], "bias", nn.Parameter(torch.randn(8))),
    ]
    with torch.no_grad():
        _same(model(x), fast(x))
        for number, change in enumerate(changes):
            change(model)
            _same(model(x), fast(x), f"after change {number}")


@program("strides", "the layout of an input changes from call to call")
def changing_strides(subject: Subject) -> None:
    """Contiguous, transposed, with steps."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.sum(0), x.t()

    fast = subject.compile(fn)
    transposed, expanded = torch.randn(6, 4).t(), torch.randn(1, 6).expand(4, 6)
    for x in (torch.randn(4, 6), transposed, torch.randn(4, 12)[:, ::2], expanded):
        _same(fn(x), fast(x), str(x.stride()))


@program("modes of torch", "autocast and inference mode")
def torch_modes(subject: Subject) -> None:
    """The casts of autocast are eager's."""
    model = _mlp().eval()
    fast = subject.compile(model)
    x = torch.randn(4, 6)
    with torch.inference_mode():
        _same(model(x), fast(x), "inference mode")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        compare(model(x), fast(x), Tolerance(3e-2, 3e-2), "autocast")


@program("threads", "eight threads on one compiled model")
def threads(subject: Subject) -> None:
    """Each gets its own results."""
    model = _mlp().eval()
    fast = subject.compile(model)
    inputs = [torch.randn(5, 6) for _ in range(8)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        fast(inputs[0])
    failures: list[str] = []

    def work(number: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    _same(expected[number], fast(inputs[number]))
        except Exception as error:
            failures.append(f"thread {number}: {error}")

    running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    _demand(not failures, "; ".join(failures))


@program("options", "mistakes are found at compile()")
def wrong_options(subject: Subject) -> str | None:
    """An unknown option, a wrong type, an unknown mode."""
    cls = resolve(subject.backend.options)
    wrong: list[dict[str, Any]] = [
        {"options": {"no_such_option_": 1}},
        {"mode": "no-such-mode"},
        {"options": 3},
    ]
    if cls is not None:
        _demand(dataclasses.is_dataclass(cls), f"options is {cls!r}, not a dataclass")
        generated = str(cls.__doc__).startswith(f"{cls.__name__}(")
        _demand(bool(cls.__doc__) and not generated, "its options have no docstring")
        cls()  # every option has a default
        wrong += [
            {"options": {field.name: object()}}
            for field in dataclasses.fields(cls)
            if field.type not in (Any, "Any")
        ]
    for settings in wrong:
        try:
            subject.compile(lambda x: x + 1, **settings)
        except OptionError:
            continue
        raise Mismatch("program", f"compile({settings}) raised no OptionError")
    return None if cls is not None else "it has no options"


@program("options", "every mode runs")
def every_mode(subject: Subject) -> None:
    """Each of `Backend.modes`."""
    for mode in subject.backend.modes:
        fast = subject.compile(lambda x: (x * 2).sum(), mode=mode)
        for _ in range(2):
            x = torch.randn(4, 4)
            _same((x * 2).sum(), fast(x), mode)


@program("errors", "the program's own error")
def programs_error(subject: Subject) -> None:
    """Raised as eager raises it, with its effects up to there."""

    def fn(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x * 2
        if flag:
            raise ValueError("not this one")
        return y

    fast = subject.compile(fn)
    for flag in (False, True, False, True):
        _same(_outcome(fn, torch.ones(3), flag), _outcome(fast, torch.ones(3), flag))


@program("errors", "an index out of range")
def index_out_of_range(subject: Subject) -> None:
    """Eager raises IndexError; a backend that cannot check must leave such operators to PyTorch."""
    table = torch.randn(5, 3)
    indices = [[0, 4], [5, 1], [2, 2], [1 << 40, 0]]
    _same_outcomes(subject, F.embedding, [(torch.tensor(index), table) for index in indices])


@program("errors", "an integer divided by zero")
def divided_by_zero(subject: Subject) -> None:
    """Eager raises RuntimeError; engines compute something, or end the process."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x // y, x % y

    x = torch.tensor([7, -8, 9])
    divisors = [[2, 3, -4], [1, 0, 2], [5, 5, 5]]
    _same_outcomes(subject, fn, [(x, torch.tensor(divisor)) for divisor in divisors])


def _same_outcomes(
    subject: Subject, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> None:
    """Compares the results of calls, and the types of the exceptions that they raise."""
    fast = subject.compile(fn)
    for args in calls:
        expected, actual = _outcome(fn, *args), _outcome(fast, *args)
        _demand(type(expected) is type(actual), f"{args}: {actual!r}, expected {expected!r}")
        if not isinstance(expected, Exception):
            _same(expected, actual)


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return error


@program("caching", "compiled again after reset()")
def compiled_again(subject: Subject) -> None:
    """From the backend's caches or anew, with the same results; other options give other
    entries.
    """
    model = _mlp().eval()
    x = torch.randn(4, 6)
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            fast = subject.compile(model)
            _same(expected, fast(x))
            reset = resolve(subject.backend.reset)
            if reset is not None:
                reset()
            _same(expected, fast(x), "after the backend's reset")


@program("caching", "inputs and results are not kept alive")
def nothing_stays_alive(subject: Subject) -> None:
    """Their memory is free when the program drops them."""
    fast = subject.compile(lambda x: x * 2 + 1)
    fast(torch.randn(64, 64)), fast(torch.randn(64, 64))
    x = torch.randn(64, 64)
    y = fast(x)
    watched = [weakref.ref(x), weakref.ref(y)]
    del x, y
    fast(torch.randn(64, 64))  # a recording may hold what it read last
    fast(torch.randn(64, 64))
    gc.collect()
    alive = any(item() is not None for item in watched)
    _demand(not alive, "a tensor of an earlier call is still alive")


@program("caching", "written, and read back by another runner")
def serialized(subject: Subject) -> str | None:
    """`Backend.serialize` and `deserialize` go together."""
    both = subject.backend.serialize is not None, subject.backend.deserialize is not None
    _demand(both[0] == both[1], "serialize and deserialize go together")
    return None if all(both) else "it has no serialize"
