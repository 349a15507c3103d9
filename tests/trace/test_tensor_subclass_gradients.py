"""Gradients of tensor subclasses: wrappers that require grad, whose operators are nodes with autograd
above them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import tracer_core
from tests.support.tensor_subclasses import (
    Scaled,
    Special,
    alike,
    check_subclass_program,
    random_tensor,
    scaled,
    two,
)
from tracer_core.testing import CaptureCounter

BACKENDS = ["eager", "inductor"]
SIZES = (3, 4)


# -- wrappers that require grad: their operators are nodes, and autograd is above them --


def doubles(value: torch.Tensor) -> torch.Tensor:
    """The same leaf in float64."""
    if isinstance(value, TwoTensor):
        return TwoTensor(value.a.double(), value.b.double()).requires_grad_(value.requires_grad)
    return value.detach().double().requires_grad_(value.requires_grad)


def stepped(function, args) -> tuple[Any, list[Any]]:
    """Returns what a function returns, and the gradients of its arguments."""
    result = function(*args)
    results = result if isinstance(result, tuple) else (result,)
    tensors = [item for item in results if isinstance(item, torch.Tensor) and item.requires_grad]
    sum(tensor.square().sum() for tensor in tensors).backward()
    flat = [result.detach() if isinstance(result, torch.Tensor) else result for result in results]
    return flat, [arg.grad for arg in args]


def shared_views(x):
    y = torch.sin(x)
    return y.view(-1)[2:7], y.t()


def of_inner(x):
    y = torch.sin(x)
    return y, y.a * 2 + x.b


class Trained(Scaled):
    """A quantized weight that is trained: its gradient is a plain tensor."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            return _Linear.apply(args[0], args[1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.dequantize().t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.dequantize(), grad.t() @ x


def leaf(seed: int, *sizes: int) -> torch.Tensor:
    return random_tensor(seed, *sizes).requires_grad_()


def trained(seed: int) -> Trained:
    result = scaled(seed)
    return Trained(result.data_, result.scale).requires_grad_()


def under_autocast(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ y.t()
    return z.float() * 2


def with_a_detached_part(x):
    return torch.sin(x) * (x * 2).detach(), (x * 3).detach()


def partly_without_gradients(x):
    with torch.no_grad():
        scale = x.abs().sum()
    return x / scale


DIFFERENTIATED = {
    "pointwise": (lambda x: torch.sin(x) * 2 + 1, lambda s: (two(s, grad=True),)),
    "product": (lambda x, y: x @ y.t(), lambda s: (two(s, grad=True), two(s + 1, grad=True))),
    "one of two": (lambda x, y: x * y, lambda s: (two(s, grad=True), two(s + 1))),
    "beside a plain leaf": (lambda x, y: (x * y).cos(), lambda s: (two(s), leaf(s))),
    "both": (lambda x, y: (x * y).cos(), lambda s: (two(s, grad=True), leaf(s))),
    "softmax": (lambda x: (x.softmax(-1), x.sum(0)), lambda s: (two(s, grad=True),)),
    "views": (
        lambda x: (x.view(-1)[2:7] * 2, x.t().cos(), x.split(2, 1)[1].exp()),
        lambda s: (two(s, grad=True),),
    ),
    "shared views": (shared_views, lambda s: (two(s, grad=True),)),
    "layer norm": (
        lambda x, w: nn.functional.layer_norm(x, (4,), w).relu(),
        lambda s: (two(s, grad=True), two(s + 1, 4, grad=True)),
    ),
    "inner tensors": (of_inner, lambda s: (two(s, grad=True),)),
    "made inside": (
        lambda x, y: TwoTensor(y, y + 1) * x,
        lambda s: (two(s, grad=True), random_tensor(s + 1)),
    ),
    "sizes": (lambda x: (x * 2, (x * 2).shape, x.dim()), lambda s: (two(s, grad=True),)),
    "detached": (with_a_detached_part, lambda s: (two(s, grad=True),)),
    "no_grad inside": (partly_without_gradients, lambda s: (two(s, grad=True),)),
    "autocast": (under_autocast, lambda s: (two(s, grad=True), two(s + 1, grad=True))),
    "an autograd.Function": (
        lambda x, w: nn.functional.linear(x, w).cos(),
        lambda s: (leaf(s), trained(s)),
    ),
}
#: Programs that float64 would make others.
ROUNDED = ("autocast", "an autograd.Function")
#: Programs that run as captured, under eager autograd.
AS_CAPTURED = {
    "beside a plain leaf": "the gradient of a plain tensor is a tensor of a subclass",
    "both": "the gradient of a plain tensor is a tensor of a subclass",
    "shared views": "outputs share memory",
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_wrappers(name, backend):
    function, make = DIFFERENTIATED[name]
    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    with CaptureCounter() as counter:
        for seed in (1, 5, 9):
            args, others = make(seed), make(seed)
            want, got = stepped(function, args), stepped(compiled, others)
            alike(list(want), list(got), 1e-4, 1e-5)
            if name not in ROUNDED:
                exact = stepped(function, [doubles(item) for item in make(seed)])[1]
                for value, in_float64 in zip(got[1], exact, strict=True):
                    near(in_float64, value)
    assert len(counter.graphs) == 1
    eagerly = [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]
    expected = [AS_CAPTURED[name]] if backend == "inductor" and name in AS_CAPTURED else []
    assert len(eagerly) == len(expected)
    assert all(reason in text for reason, text in zip(expected, eagerly, strict=True))


def near(in_float64: Any, value: Any) -> None:
    assert type(in_float64) is type(value)
    if isinstance(in_float64, TwoTensor):
        near(in_float64.a, value.a)
        near(in_float64.b, value.b)
    elif in_float64 is not None:
        torch.testing.assert_close(value.double(), in_float64, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_of_wrapped_parameters(backend):
    """Parameters, their gradients and what the optimizer makes of them are wrappers."""

    def model():
        torch.manual_seed(0)
        sequential = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3))
        for layer in sequential.modules():
            for name, parameter in list(layer._parameters.items()):
                wrapped = TwoTensor(parameter.detach().clone(), parameter.detach() * 2)
                setattr(layer, name, nn.Parameter(wrapped))
        return sequential

    def train(run, module, optimizer, seed):
        optimizer.zero_grad()
        loss = run(random_tensor(seed)).square().mean()
        loss.backward()
        optimizer.step()
        return [loss.detach(), *(parameter.grad for parameter in module.parameters())]

    eager, other = model(), model()
    compiled = tracer_core.compile(other, backend=backend, fullgraph=True)
    mine, its = (torch.optim.SGD(value.parameters(), lr=0.1) for value in (eager, other))
    with CaptureCounter() as counter:
        for seed in (1, 2, 3):
            alike(train(eager, eager, mine, seed), train(compiled, other, its, seed))
            alike([*eager.parameters()], [*other.parameters()])
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_a_break(backend):
    def function(x):
        y = torch.sin(x)
        tracer_core.graph_break()
        return y * 2

    compiled = tracer_core.compile(function, backend=backend)
    with CaptureCounter() as counter:
        for seed in (1, 2):
            want = stepped(function, [two(seed, grad=True)])
            alike(list(want), list(stepped(compiled, [two(seed, grad=True)])))
    assert {kind for kind, _, _ in counter.breaks} == {"requested"}


def test_guards_of_differentiated_wrappers():
    """requires_grad, the context of __tensor_flatten__ and inner dtypes: each is another graph."""

    def function(x, w):
        return (x @ w).sum()

    calls = [
        lambda: (leaf(1, 4, 4), scaled(1)),
        lambda: (random_tensor(1, 4, 4), scaled(1)),
        lambda: (leaf(2, 4, 4), scaled(2, "double")),
        lambda: (leaf(3, 4, 4), Scaled(scaled(3).data_.int(), scaled(3).scale)),
        lambda: (leaf(4, 4, 4), scaled(4)),
    ]
    check_subclass_program(function, *calls, graphs=4, grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_named_tuple_of_numbers_for_an_autograd_function(backend):
    def function(x, exponents):
        return _Power.apply(x, exponents)

    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for exponents in (Exponents(2, 3), Exponents(2, 3), Exponents(4, 5)):
        alike(
            list(stepped(lambda x, e=exponents: function(x, e), [leaf(1)])),
            list(stepped(lambda x, e=exponents: compiled(x, e), [leaf(1)])),
        )


class Exponents(NamedTuple):
    forward: int
    backward: int


class _Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, exponents):
        ctx.exponents = exponents
        return x * exponents.forward

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.exponents.backward, None


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_under_autocast(backend):
    """Autocast comes before the handlers, whose own operators it does not cast."""

    def function(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w).float(), (x @ x.t()).float()

    calls = (lambda: (random_tensor(1), scaled(1)), lambda: (random_tensor(2), scaled(2)))
    check_subclass_program(function, *calls, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_below_a_handler(backend):
    """What a wrapper holds may require grad; eager mode follows no gradient inside the handler."""

    def make(seed):
        return random_tensor(seed), Scaled(
            random_tensor(seed).t() @ random_tensor(seed), torch.rand(()).requires_grad_()
        )

    def function(x, w):
        return (x @ w).requires_grad, x @ w

    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for seed in (1, 2):
        torch.manual_seed(seed)
        want = function(*make(seed))
        torch.manual_seed(seed)
        alike(list(want), list(compiled(*make(seed))))
        assert want[0] is False


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_write_between_forward_and_backward_raises(backend, frozen):
    """A handler's writes do not bump the versions of inner tensors."""

    def function(x, y):
        return (x * y).sin()

    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for run in (function, compiled):
        x, y = two(1, grad=True), two(2, grad=not frozen)
        result = run(x, y).sum()
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_outputs_the_same_input_and_hooks(backend):
    def function(x, y):
        return x.sin(), y.cos(), x * y

    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for used in ((0,), (1,), (0, 2), (2, 2)):
        for same_ in (False, True):
            actual = []
            for run in (function, compiled):
                x, y = two(1, grad=True), two(2, grad=True)
                y = x if same_ else y
                x.register_hook(lambda gradient: None if gradient is None else gradient * 2)
                results = run(x * 1, y)
                for _ in range(2):
                    sum(results[i].sum() for i in used).backward(retain_graph=True)
                actual.append([x.grad, y.grad])
            alike(*actual, 1e-4, 1e-5)


def test_a_second_derivative_is_never_wrong():
    """With eager's value, or an error."""

    def twice(run):
        x = two(1, grad=True)
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    def function(x):
        return x.sin() * x

    alike(twice(function), twice(tracer_core.compile(function, backend="eager")))
    with pytest.raises(RuntimeError):
        twice(tracer_core.compile(function, backend="inductor"))


# -- what is not captured says so --


def test_a_write_to_a_wrapper_with_gradients_is_eager():
    def function(x):
        y = torch.sin(x)
        y.mul_(3)
        return y

    compiled = tracer_core.compile(function, backend="eager")
    with CaptureCounter() as counter:
        for seed in (1, 2):
            want = stepped(function, [two(seed, grad=True)])
            alike(list(want), list(stepped(compiled, [two(seed, grad=True)])))
    assert {kind for kind, _, _ in counter.breaks} == {"tensor_subclass"}


def test_a_handler_with_an_effect_is_eager_with_gradients():
    class Noted(TwoTensor):
        names: list[str] = []

        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs):
            cls.names.append(str(func))
            return super().__torch_dispatch__(func, types, args, kwargs)

    def make(seed):
        return [Noted(random_tensor(seed), random_tensor(seed + 1)).requires_grad_()]

    def function(x):
        return torch.sin(x)

    compiled = tracer_core.compile(function, backend="eager")
    for seed in (1, 2):
        Noted.names.clear()
        stepped(function, make(seed))
        want = list(Noted.names)
        Noted.names.clear()
        stepped(compiled, make(seed))
        assert Noted.names == want


def test_a_whole_step_with_a_special_parameter_is_eager():
    def step(module):
        def run(x):
            module.weight.grad = None
            module(x).square().sum().backward()

        run(random_tensor(1))
        compiled = tracer_core.compile(run, backend="eager")
        want = module.weight.grad.clone()
        with CaptureCounter() as counter:
            compiled(random_tensor(1))
        assert torch.equal(want, module.weight.grad)
        return {kind for kind, _, _ in counter.breaks}

    module = nn.Linear(4, 4)
    module.weight = Special(module.weight.detach())
    assert "tensor_subclass" in step(module)


def test_a_whole_step_with_a_wrapper_is_right():
    weight = two(1, 4, 4, grad=True)

    def run(x):
        weight.grad = None
        loss = (x @ weight).square().sum()
        loss.backward()
        return loss.detach()

    compiled = tracer_core.compile(run, backend="eager")
    for seed in (1, 2):
        want = [run(random_tensor(seed)), weight.grad]
        alike(want, [compiled(random_tensor(seed)), weight.grad])
