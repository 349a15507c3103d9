"""Tensor subclasses: captured without graph breaks, as in eager in classes, values and writes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import tracer_core
from tracer_core.testing import CaptureCounter

BACKENDS = ["eager", "inductor"]
SIZES = (3, 4)


class Scaled(torch.Tensor):
    """A number and a tensor of integers, quantized as torchao does."""

    @staticmethod
    def __new__(cls, data, scale, kind="plain"):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale, kind="plain"):
        self.data_, self.scale, self.kind = data, scale, kind

    def __tensor_flatten__(self):
        return ["data_", "scale"], {"kind": self.kind}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"], context["kind"])

    def dequantize(self):
        factor = 2 if self.kind == "double" else 1
        return self.data_.to(torch.float32) * self.scale * factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight, bias = (*args, None)[:3]
            result = x @ weight.dequantize().t()
            return result if bias is None else result + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            arg = args[0]
            result = cls(func(arg.data_), func(arg.scale), arg.kind)
            return return_and_correct_aliasing(func, args, kwargs or {}, result)
        args, kwargs = pytree.tree_map_only(cls, cls.dequantize, (args, kwargs or {}))
        return func(*args, **kwargs)


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


class Special(nn.Parameter):
    pass


def two(seed: int, *sizes: int, grad: bool = False) -> TwoTensor:
    draws = torch.Generator().manual_seed(seed)
    parts = (torch.randn(sizes or SIZES, generator=draws) for _ in range(2))
    tensor = TwoTensor(*parts)
    return tensor.requires_grad_() if grad else tensor


def scaled(seed: int, kind: str = "plain") -> Scaled:
    draws = torch.Generator().manual_seed(seed)
    return Scaled(
        torch.randint(-8, 8, (4, 4), generator=draws, dtype=torch.int8),
        torch.rand((), generator=draws),
        kind,
    )


def plain(seed: int, *sizes: int) -> torch.Tensor:
    return torch.randn(sizes or SIZES, generator=torch.Generator().manual_seed(seed))


def described(value: Any) -> list[Any]:
    """What two results must agree in: classes, metadata, and the inner tensors' values."""
    if isinstance(value, TwoTensor):
        return [type(value), described(value.a), described(value.b), *facts(value)]
    if isinstance(value, Scaled):
        return [type(value), value.kind, described(value.data_), described(value.scale)]
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            attributes = sorted(vars(value).items()) if type(value) is not torch.Tensor else []
            data = value.detach().as_subclass(torch.Tensor)
            return [type(value), data.tolist(), str(data.dtype), *facts(value), attributes]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(described, value)]
    return [type(value), value]


def facts(value: torch.Tensor) -> list[Any]:
    return [tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad]


def alike(want: Any, got: Any, rel: float = 1e-4, least: float = 1e-6) -> None:
    want, got = described(want), described(got)
    flat, other = pytree.tree_leaves(want), pytree.tree_leaves(got)
    assert len(flat) == len(other), (want, got)
    for leaf, two_ in zip(flat, other, strict=True):
        if isinstance(leaf, float):
            assert leaf == pytest.approx(two_, rel=rel, abs=least), (want, got)
        else:
            assert leaf == two_, (want, got)


def same(function, *calls, backend="eager", graphs=1, kinds=(), grad=False):
    """calls: functions that make the arguments of one call each. Results, arguments after the call
    and what was captured."""
    compiled = tracer_core.compile(function, backend=backend)
    with CaptureCounter() as counter, torch.set_grad_enabled(grad):
        for make in calls:
            args, others = make(), make()
            want, got = function(*args), compiled(*others)
            alike(want, got)
            alike(args, others)
    assert {kind for kind, _, _ in counter.breaks} == set(kinds)
    assert len(counter.graphs) == graphs, counter.recompiles
    return counter


# -- wrappers: flattened, traced through --

WRAPPERS = {
    "pointwise": (lambda x: torch.sin(x) * 2 + 1, lambda s: (two(s),)),
    "product": (lambda x, y: x @ y.t(), lambda s: (two(s), two(s + 1))),
    "beside a plain tensor": (lambda x, y: y - x, lambda s: (two(s), plain(s))),
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
    "made inside": (lambda x: TwoTensor(x, x + 1).cos(), lambda s: (plain(s),)),
    "made inside and dropped": (lambda x: TwoTensor(x, x + 1).cos().b, lambda s: (plain(s),)),
    "the input itself": (lambda x: (x, x * 2), lambda s: (two(s),)),
    "in a list": (lambda xs: [x + 1 for x in xs], lambda s: ([two(s), two(s + 1)],)),
    "type": (lambda x: (type(x).__name__, isinstance(x, TwoTensor), x + 1), lambda s: (two(s),)),
    "factory": (lambda x: torch.zeros_like(x) + x.new_ones(4), lambda s: (two(s),)),
    "through __torch_function__": (
        lambda x, w: nn.functional.linear(x, w),
        lambda s: (plain(s), scaled(s)),
    ),
    "through __torch_dispatch__": (lambda x, w: x @ w + w.sum(), lambda s: (plain(s), scaled(s))),
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
    same(function, *(functools.partial(make, seed) for seed in (1, 5, 9)), backend=backend)


def writes(x, y):
    x.add_(y)
    x.a.mul_(2)
    y[0] = 7.0
    return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_wrappers(backend):
    same(writes, lambda: (two(1), two(2)), lambda: (two(3), two(4)), backend=backend)


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
    same(attribute_set, lambda: (scaled(1),), lambda: (scaled(2),))


def test_guards_on_what_was_read():
    """The class, sizes, an attribute, an inner tensor's dtype: each change is another graph."""

    def function(x):
        return x * 2 if type(x) is torch.Tensor else x.dequantize()

    calls = [
        lambda: (scaled(1),),
        lambda: (scaled(2),),
        lambda: (scaled(2, "double"),),
        lambda: (Scaled(scaled(3).data_.int(), scaled(3).scale),),
        lambda: (plain(1),),
        lambda: (scaled(4),),
    ]
    same(function, *calls, graphs=4)


def test_a_subclass_of_a_subclass():
    class Other(TwoTensor):
        pass

    calls = (lambda: (two(1),), lambda: (Other(plain(1), plain(2)),), lambda: (two(3),))
    same(lambda x: type(x) is TwoTensor, *calls, graphs=0)


def test_sizes_of_wrappers_change():
    same(lambda x: x.sin() + 1, *(lambda n=n: (two(n, n, 4),) for n in (2, 3, 4)), graphs=3)


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
            alike(model(plain(seed)), compiled(plain(seed)))
        model.first.weight.data_.add_(1)  # seen: the inner tensor is an input
        alike(model(plain(3)), compiled(plain(3)))
        model.second.weight = nn.Parameter(scaled(7, "double"), requires_grad=False)
        alike(model(plain(4)), compiled(plain(4)))


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
    wants = [step(model, plain(seed)) for seed in (1, 2)]
    compiled = tracer_core.compile(model, backend=backend, fullgraph=True)
    for seed, want in zip((1, 2), wants, strict=True):
        alike(want, step(compiled, plain(seed)))


def test_a_handler_that_raises():
    compiled = tracer_core.compile(lambda x: TwoTensor(x, x[:1]), backend="eager")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"Expected a\.shape == b\.shape"):
            compiled(plain(1))


# -- classes that hold data --

HOLDERS = {
    "pointwise": (lambda x: x * 2 + 1, lambda s: (plain(s).as_subclass(Named),)),
    "method": (lambda x: x.twice() + 1, lambda s: (plain(s).as_subclass(Named),)),
    "handler": (lambda x: torch.sin(x) + 1, lambda s: (plain(s).as_subclass(Loud),)),
    "beside": (
        lambda x, y: torch.sin(x + y.cos().sum()),
        lambda s: (plain(s).as_subclass(Loud), plain(s + 1)),
    ),
    "view": (lambda x: (x[0], x.t(), x.view(-1)), lambda s: (plain(s).as_subclass(Named),)),
    "several results": (lambda x: x.max(1), lambda s: (plain(s).as_subclass(Named),)),
    "and back": (
        lambda x: x.as_subclass(Named).twice().as_subclass(torch.Tensor) + 1,
        lambda s: (plain(s),),
    ),
    "the input itself": (lambda x: (x, x + 1), lambda s: (plain(s).as_subclass(Named),)),
    "write": (lambda x: x.add_(1), lambda s: (plain(s).as_subclass(Named),)),
    "truth of sizes": (
        lambda x: x * 2 if len(x) == 3 and x.dim() == 2 and x.numel() == 12 else x,
        lambda s: (plain(s).as_subclass(Named),),
    ),
    "iteration": (lambda x: [row + 1 for row in x], lambda s: (plain(s).as_subclass(Named),)),
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((n, "eager") for n in HOLDERS), ("handler", "inductor"), ("write", "inductor")],
)
def test_holders(name, backend):
    function, make = HOLDERS[name]
    same(function, *(functools.partial(make, seed) for seed in (1, 5)), backend=backend)


class Chunked(torch.Tensor):
    """Compares the function with others, as bitsandbytes does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in [torch.chunk, torch.sin] else result


def test_a_handler_that_compares_an_operator():
    def function(x):
        return torch.ops.aten.cos.default(x), torch.sin(x)

    make = (lambda: (plain(1).as_subclass(Chunked),)), (lambda: (plain(2).as_subclass(Chunked),))
    same(function, *make)


def named(x):
    y = (x * 2).as_subclass(Named)
    y.label = "doubled"
    return y, y.label


def test_an_attribute_of_a_new_one():
    same(named, lambda: (plain(1),), lambda: (plain(2),))


def test_a_handler_with_an_effect_outside():
    Counted.calls.clear()
    x = plain(1).as_subclass(Counted)
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
        alike(step(eager, eager, plain(seed)), step(compiled, other, plain(seed)))
        with torch.no_grad():
            for value in (eager, other):
                value.weight.data = value.weight.data * 0.5  # other memory, the same parameter


@pytest.mark.parametrize("kind", [Named, Loud])
def test_dynamic_sizes_of_holders(kind):
    calls = [lambda n=n: (plain(n, n, 4).as_subclass(kind),) for n in (3, 5, 7, 9)]
    same(lambda x: torch.sin(x) * 2, *calls, graphs=2)


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
    return plain(seed, *sizes).requires_grad_()


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
        lambda s: (two(s, grad=True), plain(s + 1)),
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


@pytest.mark.sweep(keep=12)
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
                for value, truth in zip(got[1], exact, strict=True):
                    near(truth, value)
    assert len(counter.graphs) == 1
    eagerly = [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]
    expected = [AS_CAPTURED[name]] if backend == "inductor" and name in AS_CAPTURED else []
    assert len(eagerly) == len(expected)
    assert all(reason in text for reason, text in zip(expected, eagerly, strict=True))


def near(truth: Any, value: Any) -> None:
    assert type(truth) is type(value)
    if isinstance(truth, TwoTensor):
        near(truth.a, value.a)
        near(truth.b, value.b)
    elif truth is not None:
        torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=1e-5)


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
        loss = run(plain(seed)).square().mean()
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
        lambda: (plain(1, 4, 4), scaled(1)),
        lambda: (leaf(2, 4, 4), scaled(2, "double")),
        lambda: (leaf(3, 4, 4), Scaled(scaled(3).data_.int(), scaled(3).scale)),
        lambda: (leaf(4, 4, 4), scaled(4)),
    ]
    same(function, *calls, graphs=4, grad=True)


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

    calls = (lambda: (plain(1), scaled(1)), lambda: (plain(2), scaled(2)))
    same(function, *calls, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_below_a_handler(backend):
    """What a wrapper holds may require grad; eager mode follows no gradient inside the handler."""

    def make(seed):
        return plain(seed), Scaled(plain(seed).t() @ plain(seed), torch.rand(()).requires_grad_())

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
        return [Noted(plain(seed), plain(seed + 1)).requires_grad_()]

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

        run(plain(1))
        compiled = tracer_core.compile(run, backend="eager")
        want = module.weight.grad.clone()
        with CaptureCounter() as counter:
            compiled(plain(1))
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
        want = [run(plain(seed)), weight.grad]
        alike(want, [compiled(plain(seed)), weight.grad])


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
    same(function, lambda: (plain(1),), lambda: (plain(2),), backend=backend)


def test_a_wrapper_inside_a_dispatch_mode():
    same(in_two_modes, lambda: (two(1),), lambda: (two(2),))


def test_a_break_inside_a_dispatch_mode():
    def function(x):
        with Counting() as mode:
            y = torch.sin(x)
            tracer_core.graph_break()
            y = y + 1
        return y, mode.names

    same(function, lambda: (plain(1),), lambda: (plain(2),), kinds=("torch_mode",), graphs=0)
