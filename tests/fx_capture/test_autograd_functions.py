"""torch.autograd.Function: one node, with eager's values and gradients, whatever forward and backward
read."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

import tracer_core
from tests.support.autograd_functions import Scale
from tests.support.eager_reference import same
from tests.support.gradients import same_gradients

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
SCALE = 2.0


class Product(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        return g * y * 5, g * x + h


class Needs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.needed_gradients = ctx.needs_input_grad
        return x * y if all(ctx.needs_input_grad) else x * y + 1

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return tuple(
            g * other * 3 if needed else None
            for other, needed in zip((y, x), ctx.needed_gradients, strict=True)
        )


class Sorted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(dim=1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx, g, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter_(1, order, g)


class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 7


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.clamp(-1, 1)


class ReadsGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.repeat(1, int(SCALE)) * SCALE

    @staticmethod
    def backward(ctx, g):
        return g.chunk(int(SCALE), 1)[0]


TABLE = torch.arange(4.0)


class ReadsTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * TABLE

    @staticmethod
    def backward(ctx, g):
        return g * TABLE * 2


class ReadsAttribute(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx, *tensors):
        return tuple(t * ReadsAttribute.factor for t in tensors)

    @staticmethod
    def backward(ctx, *grads):
        return grads


class Unmaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return (g if g is not None else 0) + (h * 100 if h is not None else 0)


class Inherited(Scale):
    @staticmethod
    def backward(ctx, g):
        return g * 1000, None


class Counting(torch.autograd.Function):
    calls = []

    @staticmethod
    def forward(ctx, x):
        Counting.calls.append(1)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def twice(x, k):
    return Scale.apply(Scale.apply(x + 1, k), k) * 2


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Product.apply(self.fc(x), self.fc.bias.expand(3, 4))[0]


FUNCTIONS = {
    "one": (lambda x, k: Scale.apply(x + 1, k) * 2, (G, 2.0), (H, 2.0)),
    "twice": (twice, (G, 2.0), (H, 2.0)),
    "inherited": (lambda x: Inherited.apply(x, 3.0), (G,), (H,)),
    "setup_context, several outputs": (
        lambda x, y: Product.apply(x, y * 2)[0] - Product.apply(x, y)[1],
        (G, H),
        (H, G),
    ),
    "an output not used": (lambda x, y: Product.apply(x, y)[0], (G, H), (H, G)),
    "needs_input_grad, both": (lambda x, y: Needs.apply(x, y) * 2, (G, H), (H, G)),
    "needs_input_grad, first": (lambda x, y: Needs.apply(x, y) * 2, (G, Y), (H, X)),
    "needs_input_grad, none": (lambda x, y: Needs.apply(x, y) * 2, (X, Y), (Y, X)),
    "mark_non_differentiable": (lambda x: Sorted.apply(x)[0] * 2, (G,), (H,)),
    "indices returned": (lambda x: Sorted.apply(x), (G,), (H,)),
    "mark_dirty": (lambda x: AddInPlace.apply(x * 2) * 3, (G,), (H,)),
    "once_differentiable": (lambda x: StraightThrough.apply(x) * x, (G,), (H,)),
    "set_materialize_grads": (lambda x: Unmaterialized.apply(x)[1] * 2, (G,), (H,)),
    "without gradients": (lambda x: Scale.apply(x, 2.0), (X,), (Y,)),
    "apply kept": (lambda x, f=Scale.apply: f(x, 2.0), (G,), (H,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autograd_function(name):
    function, *calls = FUNCTIONS[name]
    same_gradients(lambda: function, *calls, graphs=1)


@pytest.mark.parametrize(
    "name", ["one", "mark_dirty", "setup_context, several outputs", "once_differentiable"]
)
def test_autograd_function_with_inductor(name):
    function, *calls = FUNCTIONS[name]
    eager = [
        tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in call) for call in calls
    ]
    same_gradients(lambda: function, *calls, *eager, graphs=2, backend="inductor")


def test_autograd_function_in_a_module():
    same_gradients(WithFunction, (G,), (H,), graphs=1)


def test_autograd_function_in_eval_and_under_no_grad():
    def f(x, train):
        with torch.set_grad_enabled(train):
            return Scale.apply(x, 2.0)

    same_gradients(lambda: f, (G, True), (G, False), (H, True), graphs=2)


def test_a_global_that_forward_reads_is_guarded(monkeypatch):
    def f(x):
        return ReadsGlobal.apply(x) + 1

    def change(value):
        return lambda _: monkeypatch.setitem(globals(), "SCALE", value)

    same_gradients(lambda: f, (G,), (H,), (G,), (H,), steps={2: change(3.0)}, graphs=2)


def test_a_global_tensor_that_forward_reads():
    def change(_):
        TABLE.add_(1)

    same_gradients(
        lambda: lambda x: ReadsTensor.apply(x * 2), (G,), (H,), (G,), graphs=1, steps={2: change}
    )


def test_a_class_attribute_that_forward_reads(monkeypatch):
    def change(_):
        monkeypatch.setattr(ReadsAttribute, "factor", 3.0)

    same_gradients(
        lambda: lambda x, y: ReadsAttribute.apply(x, y)[1],
        (G, H),
        (H, G),
        (G, H),
        graphs=2,
        steps={2: change},
    )


def test_sizes_that_change():
    sizes = [torch.randn(n, 4, requires_grad=True) for n in (3, 5, 7, 2)]
    calls = [(x,) for x in sizes]
    same_gradients(lambda: lambda x: Scale.apply(x, 2.0) + x.shape[0], *calls, graphs=2)
    same_gradients(
        lambda: lambda x: checkpoint(lambda t: t.sin() * t.shape[0], x, use_reentrant=False),
        *calls,
        graphs=2,
    )
    same(lambda x: vmap(lambda t: t.sin() * 2)(x), *((x.detach(),) for x in sizes), graphs=2)


def test_batch_norm_in_a_checkpoint():
    """Its running statistics are updated in the forward pass and once more in backward, as in
    eager.
    """

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return checkpoint(lambda t: self.norm(self.fc(t)), x, use_reentrant=False)

    states = []
    for wrap in (lambda m: m, lambda m: tracer_core.compile(m, backend="eager")):
        module = Normed()
        fn = wrap(module)
        for x in (G, H):
            fn(x).sin().sum().backward()
        states.append({k: v.clone() for k, v in module.state_dict().items()})
    assert (
        states[0].pop("norm.num_batches_tracked") == states[1].pop("norm.num_batches_tracked") == 4
    )
    torch.testing.assert_close(states[0], states[1])


def test_a_forward_with_side_effects_breaks():
    Counting.calls.clear()
    compiled = tracer_core.compile(lambda x: Counting.apply(x + 1) * 2, backend="eager")
    for n in range(1, 4):
        compiled(G)
        assert len(Counting.calls) == n


def test_a_forward_that_reads_values_breaks():
    class Peek(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x.sum().item()

        @staticmethod
        def backward(ctx, g):
            return g

    same_gradients(lambda: lambda x: Peek.apply(x * 2) + 1, (G,), (H,), breaks=1, graphs=2)


def test_double_backward():
    def f(x):
        return Product.apply(x, x)[0].sum()

    compiled = tracer_core.compile(f, backend="eager")
    for fn in (f, compiled):
        (first,) = torch.autograd.grad(fn(G), G, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), G)
        if fn is f:
            want = second
    torch.testing.assert_close(second, want)


class MaskedBackward(torch.autograd.Function):
    """Saves its result; its backward assigns a number, which is a tensor that the graph makes."""

    @classmethod
    def forward(cls, ctx, x, dim=-1):
        out = torch.clamp(x - x.mean(dim, keepdim=True), min=0)
        ctx.dim = dim
        ctx.save_for_backward((out > 0).sum(dim, keepdim=True), out)
        return out

    @classmethod
    def backward(cls, ctx, g):
        size, out = ctx.saved_tensors
        g = g.clone()
        g[out == 0] = 0
        return torch.where(out != 0, g - g.sum(ctx.dim, keepdim=True) / size, g), None


class ConstantsBothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x * torch.tensor([2.0, 3.0, 4.0, 5.0], dtype=x.dtype)
        out[out < 0] = 0.5
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.tensor(2.5, dtype=g.dtype) * (x + torch.tensor([1.0, 2.0]).sum())


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("function", [MaskedBackward, ConstantsBothWays])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("twice", [False, True])
def test_constants_that_a_backward_makes(function, backend, used, twice):
    def f(x):
        return function.apply(x), function.apply(x.sin()) * 2

    compiled = tracer_core.compile(f, backend=backend, fullgraph=not twice)
    for _ in range(3):
        start, actual = torch.randn(3, 4, dtype=torch.float64), []
        for call in (f, compiled):
            x = start.clone().requires_grad_()
            loss = sum(call(x)[k].pow(2).sum() for k in used)
            (grad,) = torch.autograd.grad(loss, x, create_graph=twice)
            if twice:
                (grad,) = torch.autograd.grad(grad.pow(2).sum(), x)
            actual.append((loss.detach(), grad))
        torch.testing.assert_close(actual[1], actual[0])
