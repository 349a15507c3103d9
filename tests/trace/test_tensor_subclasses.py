"""Tensor subclasses: captured without graph breaks, as in eager in classes, values and writes."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

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

BACKENDS = ["eager", "inductor"]
SIZES = (3, 4)


class Named(torch.Tensor):
    """Holds data; keeps its class through operators, and has a method and an attribute."""

    def twice(self):
        return self * 2


class Loud(torch.Tensor):
    """Every sine is ten times as much."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 10 if func is torch.sin else result


class Counted(torch.Tensor):
    """Its handler has an effect outside."""

    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


# -- wrappers: flattened, traced through --

WRAPPERS = {
    "pointwise": (lambda x: torch.sin(x) * 2 + 1, lambda s: (two(s),)),
    "product": (lambda x, y: x @ y.t(), lambda s: (two(s), two(s + 1))),
    "beside a plain tensor": (lambda x, y: y - x, lambda s: (two(s), random_tensor(s))),
    "reduction": (lambda x: (x.sum(), x.mean(0), x.softmax(-1)), lambda s: (two(s),)),
    "linear": (lambda x: nn.functional.linear(x, torch.ones(5, 4)).relu(), lambda s: (two(s),)),
    "layer norm": (lambda x: nn.functional.layer_norm(x, (4,)), lambda s: (two(s),)),
    "views": (lambda x: (x.view(-1)[2:7], x.t(), x[0], x.unsqueeze(1)), lambda s: (two(s),)),
    "split and cat": (lambda x: torch.cat([*x.split(2, 1), x], 1), lambda s: (two(s),)),
    "inner tensors": (lambda x: x.a * 2 + x.b, lambda s: (two(s),)),
    "sizes": (
        lambda x: (x.shape, x.dtype, x.size(0), x.dim(), x * x.shape[1]),
        lambda s: (two(s),),
    ),
    "made inside": (lambda x: TwoTensor(x, x + 1).cos(), lambda s: (random_tensor(s),)),
    "made inside and dropped": (
        lambda x: TwoTensor(x, x + 1).cos().b,
        lambda s: (random_tensor(s),),
    ),
    "the input itself": (lambda x: (x, x * 2), lambda s: (two(s),)),
    "in a list": (lambda xs: [x + 1 for x in xs], lambda s: ([two(s), two(s + 1)],)),
    "type": (lambda x: (type(x).__name__, isinstance(x, TwoTensor), x + 1), lambda s: (two(s),)),
    "factory": (lambda x: torch.zeros_like(x) + x.new_ones(4), lambda s: (two(s),)),
    "through __torch_function__": (
        lambda x, w: nn.functional.linear(x, w),
        lambda s: (random_tensor(s), scaled(s)),
    ),
    "through __torch_dispatch__": (
        lambda x, w: x @ w + w.sum(),
        lambda s: (random_tensor(s), scaled(s)),
    ),
    "a method": (lambda w: w.dequantize() * 2, lambda s: (scaled(s),)),
    "an attribute": (lambda w: (w.kind, w.scale * 2, w.detach()), lambda s: (scaled(s, "double"),)),
}
#: What a backend that lowers makes of it: the others differ from these in Python alone.
LOWERED = ("linear", "views", "made inside", "through __torch_dispatch__")


@pytest.mark.sweep(keep=9)
@pytest.mark.parametrize(
    ("name", "backend"), [*((n, "eager") for n in WRAPPERS), *((n, "inductor") for n in LOWERED)]
)
def test_wrappers(name, backend):
    function, make = WRAPPERS[name]
    check_subclass_program(
        function, *(functools.partial(make, seed) for seed in (1, 5, 9)), backend=backend
    )


def writes(x, y):
    x.add_(y)
    x.a.mul_(2)
    y[0] = 7.0
    return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_wrappers(backend):
    check_subclass_program(
        writes, lambda: (two(1), two(2)), lambda: (two(3), two(4)), backend=backend
    )


def test_a_write_counts_once_a_call():
    x = two(1)
    compiled = tracer_core.compile(lambda x: x.mul_(2), backend="eager")
    for version in (1, 2, 3):
        compiled(x)
        assert x._version == version


def attribute_set(w):
    w.kind = "double"
    return w.dequantize()


def test_attributes_of_wrappers_are_set():
    check_subclass_program(attribute_set, lambda: (scaled(1),), lambda: (scaled(2),))


def test_guards_on_what_was_read():
    """The class, sizes, an attribute, an inner tensor's dtype: each change is another graph."""

    def function(x):
        return x * 2 if type(x) is torch.Tensor else x.dequantize()

    calls = [
        lambda: (scaled(1),),
        lambda: (scaled(2),),
        lambda: (scaled(2, "double"),),
        lambda: (Scaled(scaled(3).data_.int(), scaled(3).scale),),
        lambda: (random_tensor(1),),
        lambda: (scaled(4),),
    ]
    check_subclass_program(function, *calls, graphs=4)


def test_a_subclass_of_a_subclass():
    class Other(TwoTensor):
        pass

    calls = (
        lambda: (two(1),),
        lambda: (Other(random_tensor(1), random_tensor(2)),),
        lambda: (two(3),),
    )
    check_subclass_program(lambda x: type(x) is TwoTensor, *calls, graphs=0)


def test_sizes_of_wrappers_change():
    check_subclass_program(
        lambda x: x.sin() + 1, *(lambda n=n: (two(n, n, 4),) for n in (2, 3, 4)), graphs=3
    )


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        for i, layer in enumerate((self.first, self.second)):
            layer.weight = nn.Parameter(scaled(i), requires_grad=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters(backend):
    torch.manual_seed(0)
    model = Quantized()
    compiled = tracer_core.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for seed in (1, 2):
            alike(model(random_tensor(seed)), compiled(random_tensor(seed)))
        model.first.weight.data_.add_(1)  # seen: the inner tensor is an input
        alike(model(random_tensor(3)), compiled(random_tensor(3)))
        model.second.weight = nn.Parameter(scaled(7, "double"), requires_grad=False)
        alike(model(random_tensor(4)), compiled(random_tensor(4)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_beside_frozen_wrappers(backend):
    """What is trained are plain tensors: their gradients pass through the class's Python code."""

    def step(model, x):
        model.zero_grad()
        x = x.clone().requires_grad_()
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]

    torch.manual_seed(0)
    model = Quantized()
    wants = [step(model, random_tensor(seed)) for seed in (1, 2)]
    compiled = tracer_core.compile(model, backend=backend, fullgraph=True)
    for seed, want in zip((1, 2), wants, strict=True):
        alike(want, step(compiled, random_tensor(seed)))


def test_a_handler_that_raises():
    compiled = tracer_core.compile(lambda x: TwoTensor(x, x[:1]), backend="eager")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"Expected a\.shape == b\.shape"):
            compiled(random_tensor(1))


# -- classes that hold data --

HOLDERS = {
    "pointwise": (lambda x: x * 2 + 1, lambda s: (random_tensor(s).as_subclass(Named),)),
    "method": (lambda x: x.twice() + 1, lambda s: (random_tensor(s).as_subclass(Named),)),
    "handler": (lambda x: torch.sin(x) + 1, lambda s: (random_tensor(s).as_subclass(Loud),)),
    "beside": (
        lambda x, y: torch.sin(x + y.cos().sum()),
        lambda s: (random_tensor(s).as_subclass(Loud), random_tensor(s + 1)),
    ),
    "view": (lambda x: (x[0], x.t(), x.view(-1)), lambda s: (random_tensor(s).as_subclass(Named),)),
    "several results": (lambda x: x.max(1), lambda s: (random_tensor(s).as_subclass(Named),)),
    "and back": (
        lambda x: x.as_subclass(Named).twice().as_subclass(torch.Tensor) + 1,
        lambda s: (random_tensor(s),),
    ),
    "the input itself": (lambda x: (x, x + 1), lambda s: (random_tensor(s).as_subclass(Named),)),
    "write": (lambda x: x.add_(1), lambda s: (random_tensor(s).as_subclass(Named),)),
    "truth of sizes": (
        lambda x: x * 2 if len(x) == 3 and x.dim() == 2 and x.numel() == 12 else x,
        lambda s: (random_tensor(s).as_subclass(Named),),
    ),
    "iteration": (
        lambda x: [row + 1 for row in x],
        lambda s: (random_tensor(s).as_subclass(Named),),
    ),
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((n, "eager") for n in HOLDERS), ("handler", "inductor"), ("write", "inductor")],
)
def test_holders(name, backend):
    function, make = HOLDERS[name]
    check_subclass_program(
        function, *(functools.partial(make, seed) for seed in (1, 5)), backend=backend
    )


class Chunked(torch.Tensor):
    """Compares the function with others, as bitsandbytes does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in [torch.chunk, torch.sin] else result


def test_a_handler_that_compares_an_operator():
    def function(x):
        return torch.ops.aten.cos.default(x), torch.sin(x)

    make = (
        (lambda: (random_tensor(1).as_subclass(Chunked),)),
        (lambda: (random_tensor(2).as_subclass(Chunked),)),
    )
    check_subclass_program(function, *make)


def named(x):
    y = (x * 2).as_subclass(Named)
    y.label = "doubled"
    return y, y.label


def test_an_attribute_of_a_new_one():
    check_subclass_program(named, lambda: (random_tensor(1),), lambda: (random_tensor(2),))


def test_a_handler_with_an_effect_outside():
    Counted.calls.clear()
    x = random_tensor(1).as_subclass(Counted)
    torch.sin(x) * 2
    want = list(Counted.calls)
    compiled = tracer_core.compile(lambda x: torch.sin(x) * 2, backend="eager")
    for _ in range(2):
        Counted.calls.clear()
        compiled(x)
        assert Counted.calls == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_special_parameter(backend):
    def model():
        torch.manual_seed(0)
        linear = nn.Linear(4, 4)
        linear.weight = Special(linear.weight.detach())
        return linear

    def step(run, module, x):
        module.zero_grad()
        run(x).square().sum().backward()
        return [module.weight.grad.as_subclass(torch.Tensor), module.bias.grad]

    eager, other = model(), model()
    compiled = tracer_core.compile(other, backend=backend, fullgraph=True)
    for seed in (1, 2):
        alike(step(eager, eager, random_tensor(seed)), step(compiled, other, random_tensor(seed)))
        with torch.no_grad():
            for value in (eager, other):
                value.weight.data = value.weight.data * 0.5  # other memory, the same parameter


@pytest.mark.parametrize("kind", [Named, Loud])
def test_dynamic_sizes_of_holders(kind):
    calls = [lambda n=n: (random_tensor(n, n, 4).as_subclass(kind),) for n in (3, 5, 7, 9)]
    check_subclass_program(lambda x: torch.sin(x) * 2, *calls, graphs=2)


# -- dispatch modes entered inside --


class Counting(TorchDispatchMode):
    """Counts operators, and doubles every sine."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


def in_a_mode(x):
    with Counting() as mode:
        y = torch.sin(x) + torch.ones(4)
        z = nn.functional.linear(y, torch.ones(2, 4))
    return z, torch.sin(x), mode.names


def in_two_modes(x):
    with Counting() as outer, Counting() as inner:
        y = torch.sin(x)
    return y, outer.names, inner.names


@pytest.mark.parametrize(
    ("function", "backend"),
    [(in_a_mode, "eager"), (in_a_mode, "inductor"), (in_two_modes, "eager")],
)
def test_dispatch_modes(function, backend):
    check_subclass_program(
        function, lambda: (random_tensor(1),), lambda: (random_tensor(2),), backend=backend
    )


def test_a_wrapper_inside_a_dispatch_mode():
    check_subclass_program(in_two_modes, lambda: (two(1),), lambda: (two(2),))


def test_a_break_inside_a_dispatch_mode():
    def function(x):
        with Counting() as mode:
            y = torch.sin(x)
            tracer_core.graph_break()
            y = y + 1
        return y, mode.names

    check_subclass_program(
        function,
        lambda: (random_tensor(1),),
        lambda: (random_tensor(2),),
        kinds=("torch_mode",),
        graphs=0,
    )
