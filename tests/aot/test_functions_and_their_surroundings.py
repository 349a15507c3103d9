"""autograd.Functions and hooks that are not alone in the world: they return views, their backwards
count, log, print and read settings that a schedule changes."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import tracer_core

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])


class ReverseGradient(Function):
    """Domain-adversarial training: the identity, with the gradient reversed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class FirstRow(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x[0]

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient.expand(ctx.shape)


def reversed_input(x):
    return ReverseGradient.apply(x)


def view_of_the_reversed(x):
    return ReverseGradient.apply(x.t()).reshape(-1)


def features_and_reversed(x):
    features = x.sin()
    return features, ReverseGradient.apply(features)


def reversed_beside_others(x):
    return x.cos(), FirstRow.apply(x), ReverseGradient.apply(x).t()


def hooked_view_of_an_input(x):
    flat = x.view(-1)
    flat.register_hook(lambda gradient: -gradient)
    return flat


def hooked_view_beside_its_base(x):
    y = x.exp()
    flat = y.view(-1)
    flat.register_hook(lambda gradient: gradient * 5)
    return y.t(), flat, flat[1:]


def hooked_base(x):
    y = x.exp()
    y.register_hook(lambda gradient: gradient * 5)
    return y.view(-1), y


VIEWS = [
    reversed_input,
    view_of_the_reversed,
    features_and_reversed,
    reversed_beside_others,
    hooked_view_of_an_input,
    hooked_view_beside_its_base,
    hooked_base,
]


def gradient_of(function):
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    sum((i + 1) * item.square().sum() for i, item in enumerate(results)).backward()
    shared = [item.data_ptr() == x.data_ptr() for item in results]
    return [shared, [item._is_view() for item in results], x.grad]


@BACKENDS
@pytest.mark.parametrize("function", VIEWS, ids=lambda function: function.__name__)
def test_a_view_keeps_its_own_gradient(function, backend):
    fast = tracer_core.compile(function, backend=backend)
    for _ in range(2):
        wanted, actual = gradient_of(function), gradient_of(fast)
        assert actual[:1] == wanted[:1]
        torch.testing.assert_close(actual[2], wanted[2])


# -- what a backward changes --

norms: list[object] = []
table = {"scale": 1.0}
settings = SimpleNamespace(scale=1.0, calls=0)
SCALE = 1.0


def log(gradient):
    norms.append(tuple(gradient.shape))


class Doubling(Function):
    calls = 0
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * 2


class Logging(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        log(gradient)
        return gradient * 2


class Keeping(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        norms.append(gradient)
        return gradient * 2


class Counting(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        Counting.calls += 1
        settings.calls += 1
        return gradient * Counting.calls


class Printing(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        print("backward of", tuple(gradient.shape))
        return gradient * 2


class Drawing(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 if random.random() < 0.5 else 3)


class Refusing(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("no gradient")


class PrintingForward(Function):
    @staticmethod
    def forward(ctx, x):
        print("forward of", tuple(x.shape))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def closure():
    n = 0

    class Nested(Doubling):
        @staticmethod
        def backward(ctx, gradient):
            nonlocal n
            n += 1
            return gradient * n

    return Nested


EFFECTS = [Logging, Keeping, Counting, Printing, Drawing, Refusing, PrintingForward, closure]


def forward_of(function):
    return lambda x: function.apply(x.sin()).cos()


def step_of(function):
    def step(x):
        function.apply(x.sin()).cos().sum().backward()
        return x.grad

    return step


def gradients_of(function):
    return lambda x: torch.autograd.grad(function.apply(x.sin()).cos().sum(), x)[0]


def outcomes(make, function, compile, capsys):
    function = function() if function is closure else function
    norms.clear()
    random.seed(0)
    Counting.calls = settings.calls = 0
    f, actual = compile(make(function)), []
    for n in (2, 2, 3, 2):
        x = torch.ones(n, requires_grad=True)
        try:
            y = f(x)
            if make is forward_of:
                y.sum().backward()
            actual.append(y.detach())
        except KeyError as error:
            actual.append(repr(error))
        actual += [x.grad, len(norms), Counting.calls, settings.calls, random.getstate()]
        actual += [[type(item) for item in norms], capsys.readouterr().out]
    return actual


def assert_same(actual, wanted):
    for a, b in zip(actual, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


@pytest.mark.sweep(keep=24)
@BACKENDS
@pytest.mark.parametrize(
    "make", [forward_of, step_of, gradients_of], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("function", EFFECTS, ids=lambda function: function.__name__)
def test_what_a_function_does_besides_happens_in_each_call(function, make, backend, capsys):
    wanted = outcomes(make, function, lambda f: f, capsys)
    compile = lambda f: tracer_core.compile(f, backend=backend)
    actual = outcomes(make, function, compile, capsys)
    assert_same(actual, wanted)


def printing_checkpoint(x):
    def block(x):
        print("block")
        return x.sin().exp()

    return checkpoint(block, x.cos(), use_reentrant=False)


def printing_hook(x):
    def hook(gradient):
        print("hook")
        return gradient * 2

    y = x.sin()
    y.register_hook(hook)
    return y.cos()


@pytest.mark.parametrize("function", [printing_checkpoint, printing_hook])
def test_lines_are_printed_when_their_code_runs(function, capsys):
    def lines(f):
        for _ in range(2):
            y = f(torch.ones(2, requires_grad=True))
            print("forward is done")
            y.sum().backward()
        return capsys.readouterr().out

    wanted = lines(function)
    assert lines(tracer_core.compile(function, backend="aten_eager")) == wanted


@torch.library.custom_op("surroundings::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def logged_backward(ctx, gradient):
    log(gradient)
    print("backward of twice")
    return gradient * 2


twice.register_autograd(logged_backward)


class Twice:
    apply = staticmethod(twice)


@pytest.mark.parametrize(
    "make", [forward_of, step_of, gradients_of], ids=lambda make: make.__name__
)
def test_the_backward_of_a_custom_operator_runs_in_each_call(make, capsys):
    wanted = outcomes(make, Twice, lambda f: f, capsys)
    actual = outcomes(make, Twice, lambda f: tracer_core.compile(f, backend="aten_eager"), capsys)
    assert_same(actual, wanted)


def test_a_hook_on_accumulation_may_not_return_a_value():
    w = torch.ones(2, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda tensor: tensor.grad.clamp_(-1, 1))

    def step(x):
        (w * x).sum().backward()

    fast = tracer_core.compile(step, backend="aten_eager")
    for f in (step, fast, fast):
        with pytest.raises(RuntimeError, match="hooks should return None"):
            f(torch.ones(2) * 3)


# -- what a backward reads --


class ReadsGlobal(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * SCALE


class ReadsClass(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * Doubling.scale


class ReadsTable(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * table["scale"] * settings.scale


def scale():
    return SCALE


class ReadsThroughFunction(Doubling):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * scale()


class ReadsModule(Function):
    @staticmethod
    def forward(ctx, x, module=torch.nn.Identity()):
        ctx.module = module
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.module.scale, None


@BACKENDS
@pytest.mark.parametrize(
    "function",
    [ReadsGlobal, ReadsClass, ReadsTable, ReadsThroughFunction, ReadsModule],
    ids=lambda function: function.__name__,
)
def test_a_schedule_of_what_a_backward_reads(function, backend, monkeypatch):
    module = torch.nn.Identity()
    others = (module,) if function is ReadsModule else ()

    def gradients(f):
        actual = []
        for value in (1.0, 1.0, 2.0, 0.5):
            monkeypatch.setitem(globals(), "SCALE", value)
            monkeypatch.setattr(Doubling, "scale", value)
            monkeypatch.setattr(settings, "scale", value)
            monkeypatch.setitem(table, "scale", value)
            module.scale = value
            x = torch.ones(2, requires_grad=True)
            f(x).sum().backward()
            actual.append(x.grad)
        return actual

    def f(x):
        return function.apply(x.sin(), *others).cos()

    fast = tracer_core.compile(f, backend=backend)
    torch.testing.assert_close(gradients(fast), gradients(f))
