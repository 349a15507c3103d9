"""Functions of torch that take functions: one node in the graph each, with eager's values and
gradients.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, noop_context_fn

import tracer_core
from tests.support.eager_reference import same, twin
from tests.support.gradients import OperatorCount, same_gradients
from tests.support.releases import RELEASE
from tracer_core.fx_capture import fake_cache

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
SCALE = 2.0


# -- autograd.Function --


class Scale(torch.autograd.Function):
    """A backward that no automatic differentiation would give."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k * 10, None


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
        ctx.told = ctx.needs_input_grad
        return x * y if all(ctx.needs_input_grad) else x * y + 1

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return tuple(
            g * other * 3 if needed else None
            for other, needed in zip((y, x), ctx.told, strict=True)
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


# -- checkpoint --


class Blocks(nn.Module):
    def __init__(self, use_reentrant=False, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(drop)) for _ in range(3)]
        )
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = x * 2
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x


def closure(x):
    y = x * 3
    return checkpoint(lambda t: torch.sin(t) * y, x, use_reentrant=False) + y


def structure(x):
    a, b = checkpoint(lambda t, k: (t.sin(), {"b": t * k}), x, 3, use_reentrant=False)
    return a * b["b"]


CHECKPOINTS = {
    "lambda": (lambda x: checkpoint(lambda t: torch.sin(t) * 2, x, use_reentrant=False), (G,),
    (H,)),
    "reentrant": (lambda x: checkpoint(lambda t: torch.sin(t) * 2, x * 1, use_reentrant=True),
    (G,), (H,)),
    "closure over an intermediate": (closure, (G,), (H,)),
    "structured": (structure, (G,), (H,)),
    "identity": (lambda x: checkpoint(lambda t: t, x * 2, use_reentrant=False), (G,), (H,)),
    "keywords": (lambda x: checkpoint(lambda t, k: t.exp() * k, x, use_reentrant=False, k=2), (G,),
    (H,)),
    "nested": (lambda x: checkpoint(lambda t: checkpoint(torch.sin, t.cos(),
    use_reentrant=False) * t, x,
                                    use_reentrant=False), (G,), (H,)),
    "with a Function inside": (lambda x: checkpoint(lambda t: Scale.apply(t.sin(), 2.0), x,
    use_reentrant=False), (G,), (H,)),
    "partial": (lambda x, ck=functools.partial(checkpoint, use_reentrant=False): ck(torch.sin, x),
    (G,), (H,)),
    "preserve_rng_state": (lambda x: checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False,
                                                preserve_rng_state=True), (G,), (H,)),
    "the function as a keyword": (lambda x: checkpoint(function=torch.sin, input=x * 2,
    use_reentrant=False), (G,), (H,)),
    "no contexts": (lambda x: checkpoint(torch.sin, x, use_reentrant=False,
    context_fn=noop_context_fn), (G,), (H,)),
    "no gradients": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), (X,), (Y,)),
    "autocast inside": (lambda x: checkpoint(lambda t: _cast(t), x, use_reentrant=False), (G,),
    (H,)),
}  # fmt: skip


def _cast(t):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return t @ t.T


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(name):
    function, *calls = CHECKPOINTS[name]
    same_gradients(lambda: function, *calls, graphs=1)


def test_checkpoint_without_a_function():
    """Gives a decorator since torch 2.14, and an error before."""

    def f(x):
        try:
            return checkpoint(use_reentrant=False)(torch.sin)(x)
        except TypeError as error:
            return x, str(error)

    same(f, (X,), breaks=0 if RELEASE >= (2, 14) else 1)


@pytest.mark.skipif(RELEASE < (2, 14), reason="checkpoint is no decorator before torch 2.14")
def test_checkpoint_as_a_decorator():
    @checkpoint(use_reentrant=False)
    def outside(t, scale=1):
        return torch.tanh(t * scale) * Y

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(4, 4)

        @checkpoint(use_reentrant=True, preserve_rng_state=False)
        def hidden(self, x):
            return self.fc(x).sin()

        def forward(self, x):
            inside = checkpoint(use_reentrant=False, respect_saved_tensors_hooks=True)(torch.cos)
            return self.hidden(x) + outside(x, scale=2) + inside(x)

    same_gradients(Layer, (G,), (H,), graphs=1)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_checkpointed_blocks(use_reentrant, drop):
    counter = same_gradients(lambda: Blocks(use_reentrant, drop), (G,), (H,), (G,), graphs=1)
    assert not counter.recompiles


def test_checkpoint_sequential():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])

    def f(x, m=make()):
        return checkpoint_sequential(m, 2, x, use_reentrant=False)

    same_gradients(lambda: f, (G,), (H,), graphs=1)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_recomputes_in_backward(use_reentrant):
    """Each sine runs once forward and once more in backward: memory is traded for time, as
    asked.
    """

    def f(x):
        for _ in range(3):
            x = checkpoint(lambda t: torch.sin(torch.sin(t)), x, use_reentrant=use_reentrant)
        return x.sum()

    counts = []
    for fn in (f, tracer_core.compile(f, backend="eager")):
        fn(G * 1)
        with OperatorCount() as forward:
            pass
        out = fn(G * 1)
        with OperatorCount() as backward:
            out.backward()
        counts.append((forward.counts, backward.counts["sin"]))
        G.grad = None
    assert (
        counts[0] == counts[1] and counts[1][1] == 6
        if use_reentrant
        else counts[0][1] == counts[1][1] > 0
    )


def test_a_checkpointed_function_with_side_effects_breaks():
    seen = []

    def f(x):
        def inner(t):
            seen.append(1)
            return t.sin()

        return checkpoint(inner, x * 2, use_reentrant=False) + 1

    compiled = tracer_core.compile(f, backend="eager")
    for fn in (f, compiled, compiled):
        seen.clear()
        fn(G).sum().backward()
        assert len(seen) == 2


# -- torch.func --


def net(p, x):
    return torch.tanh(x @ p["w"]) + p["b"]


P = {"w": torch.randn(4, 4), "b": torch.randn(4)}
LINEAR = nn.Linear(4, 4)


def per_sample(p, x):
    def loss(p, t):
        return net(p, t).pow(2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(p, x)


def module_per_sample(x):
    params = dict(LINEAR.named_parameters())

    def loss(p, t):
        return functional_call(LINEAR, p, (t,)).sum().sin()

    return vmap(grad(loss), in_dims=(None, 0))(params, x)


def closed_over(x, y):
    z = y * 2
    return vmap(lambda t: t * z.sum() + y[0])(x)


def nested_vmap(x):
    return vmap(vmap(lambda t: t.sin() * 2))(x), vmap(
        lambda row: vmap(lambda t: t + row.sum())(row)
    )(x)


def ensembled(x):
    models = torch.stack([P["w"], P["w"] * 2])
    return vmap(lambda w: x @ w)(models)


def inner_loop(x):
    w = P["w"]
    for _ in range(3):
        w = w - 0.1 * grad(lambda w: (x @ w).pow(2).mean())(w)
    return x @ w


def has_aux(x):
    return grad(lambda t: (t.pow(2).sum(), {"sum": t.sum(), "twice": t * 2}), has_aux=True)(x)


TRANSFORMS = {
    "vmap of an operator": (lambda x: vmap(torch.sin)(x), (X,), (Y,)),
    "vmap of a lambda": (lambda x: vmap(lambda t: t.sum() * t)(x), (X,), (Y,)),
    "vmap in_dims": (lambda x, y: vmap(lambda a, b: a @ b, in_dims=(0, None))(x, y.T), (X, Y), (Y,
    X)),
    "vmap out_dims": (lambda x: vmap(lambda t: t * 2, in_dims=1, out_dims=1)(x), (X,), (Y,)),
    "vmap of several results": (lambda x: vmap(lambda t: (t.sum(), t.max()))(x), (X,), (Y,)),
    "vmap over a dictionary": (lambda x: vmap(lambda d: d["a"] * d["b"].sum())({"a": x, "b": x}),
    (X,), (Y,)),
    "vmap nested": (nested_vmap, (X,), (Y,)),
    "vmap closed over tensors": (closed_over, (X, Y), (Y, X)),
    "vmap over weights": (ensembled, (X,), (Y,)),
    "grad": (lambda x: grad(lambda t: (t**2).sum())(x), (X,), (Y,)),
    "grad argnums": (lambda x, y: grad(lambda a, b: (a * b.exp()).sum(), argnums=(0, 1))(x, y), (X,
    Y), (Y, X)),
    "grad has_aux": (has_aux, (X,), (Y,)),
    "grad of grad": (lambda x: grad(lambda t: grad(lambda u: (u**3).sum())(t).sum())(x), (X,),
    (Y,)),
    "grad_and_value": (lambda x: grad_and_value(lambda t: t.sin().sum())(x), (X,), (Y,)),
    "gradient descent": (inner_loop, (X,), (Y,)),
    "per-sample gradients": (per_sample, (P, X), (P, Y)),
    "per-sample gradients of a module": (module_per_sample, (X,), (Y,)),
    "jvp": (lambda x, y: jvp(torch.sin, (x,), (y,)), (X, Y), (Y, X)),
    "jacrev": (lambda x: jacrev(torch.sin)(x[0]), (X,), (Y,)),
    "jacfwd": (lambda x: jacfwd(lambda t: t.sin() * t.sum())(x[0]), (X,), (Y,)),
    "hessian": (lambda x: hessian(lambda t: (t**3).sum())(x[0]), (X,), (Y,)),
    "functional_call": (lambda x: functional_call(LINEAR, {"weight": torch.ones(4, 4)}, (x,)),
    (X,), (Y,)),
    "functional_call with new parameters": (
        lambda x: functional_call(LINEAR, {k: v * 2 for k, v in LINEAR.named_parameters()}, x),
        (X,), (Y,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    function, *calls = TRANSFORMS[name]
    same(function, *calls, graphs=1)


@pytest.mark.parametrize("name", ["vmap of a lambda", "vmap closed over tensors", "grad",
"gradient descent", "jvp", "hessian",
                                  "vmap in_dims", "functional_call",
                                  "per-sample gradients of a module"])  # fmt: skip
def test_transform_with_inductor(name):
    function, *calls = TRANSFORMS[name]
    with torch.no_grad():
        same(function, *calls, graphs=1, backend="inductor")


@pytest.mark.parametrize("name", ["vmap of a lambda", "vmap closed over tensors", "vmap nested",
"grad", "gradient descent",
                                  "vmap in_dims", "per-sample gradients of a module",
                                  "jacrev"])  # fmt: skip
def test_gradient_of_a_transform(name):
    function, *calls = TRANSFORMS[name]
    leaves = [tuple(a.clone().requires_grad_() for a in call) for call in calls]
    same_gradients(lambda: function, *leaves, graphs=1)


def test_a_closure_that_changes():
    def f(x, k):
        return vmap(lambda t: t * k)(x)

    same(f, (X, 2), (Y, 2), (X, 3), (X, 2), graphs=2, recompiles=1)


def test_transform_made_outside():
    mapped = vmap(lambda t: t.sin() * 2)
    sloped = grad(lambda t: t.sin().sum())
    same(lambda x: mapped(x) + sloped(x), (X,), (Y,), graphs=1)


def test_transform_returned():
    compiled = tracer_core.compile(lambda x: (jacrev(torch.sin), x * 2)[0], backend="eager")
    torch.testing.assert_close(compiled(X)(X[0]), jacrev(torch.sin)(X[0]))


def test_compiled_under_a_transform():
    """A compiled function that a transform calls runs eagerly: its tensors are the transform's."""
    compiled = tracer_core.compile(lambda t: t.sin() * 2, backend="eager")
    compiled(X[0])
    torch.testing.assert_close(vmap(compiled)(X), X.sin() * 2)
    torch.testing.assert_close(grad(lambda t: compiled(t).sum())(X[0]), X[0].cos() * 2)


@pytest.mark.parametrize("name", ["value inside", "side effect"])
def test_transform_that_breaks(name):
    log: list[int] = []

    programs = {
        "value inside": lambda x: (
            vmap(lambda t: t * SCALE if t.shape[0] > 1 else t.sum().item())(x) + x.sum().item()
        ),
        "side effect": lambda x: (vmap(lambda t: (log.append(1), t * 2)[1])(x), len(log) > 0),
    }
    same(programs[name], (X,), (Y,), kinds=None)


# -- control flow --


def cond_closure(x, y):
    z = y * 2
    return torch.cond(x.sum() > 0, lambda t: t + z, lambda t: t - y, (x,))


def cond_structured(x):
    return torch.cond(x.sum() > 0, lambda t: (t + 1, t.sum()), lambda t: (t - 1, t.mean()), (x,))


def loop(x):
    return torch.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), (torch.tensor(0), x))


def loop_by_value(x):
    return torch.while_loop(lambda t: t.abs().sum() < 100, lambda t: (t * 1.5,), (x,))


CONTROL = {
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)),
        (X.abs(),),
        (-X.abs(),),
    ),
    "cond with closures": (cond_closure, (X.abs(), Y), (-X.abs(), Y)),
    "cond with several results": (cond_structured, (X.abs(),), (-X.abs(),)),
    "cond with modules": (
        lambda x: torch.cond(x.sum() > 0, LINEAR.forward, lambda t: t * 2, (x,)),
        (X.abs(),),
        (-X.abs(),),
    ),
    "while_loop": (loop, (X,), (Y,)),
    "while_loop by value": (loop_by_value, (X,), (Y,)),
}


@pytest.mark.parametrize("name", CONTROL)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_control_flow(name, backend):
    """Against Python's own statements: eager torch.cond compiles with torch.compile."""
    function, *calls = CONTROL[name]
    eager = {
        "cond": lambda x: x + 1 if x.sum() > 0 else x - 1,
        "cond with closures": lambda x, y: x + y * 2 if x.sum() > 0 else x - y,
        "cond with several results": lambda x: (
            (x + 1, x.sum()) if x.sum() > 0 else (x - 1, x.mean())
        ),
        "cond with modules": lambda x: LINEAR(x) if x.sum() > 0 else x * 2,
        "while_loop": lambda x: (torch.tensor(3), x * 8),
        "while_loop by value": lambda x: _while(x),
    }[name]
    with torch.no_grad():
        compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
        for call in calls:
            got = compiled(*call)
            got = got[0] if name == "while_loop by value" else got
            torch.testing.assert_close(got, eager(*call))


def _while(x):
    while x.abs().sum() < 100:
        x = x * 1.5
    return x


def test_gradient_of_cond():
    function = CONTROL["cond with closures"][0]

    def plain(x, y):
        return x + y * 2 if x.sum() > 0 else x - y

    compiled = tracer_core.compile(function, backend="eager", fullgraph=True)
    for x in (X.abs(), -X.abs()):
        grads = []
        for fn in (plain, compiled):
            a, b = x.clone().requires_grad_(), Y.clone().requires_grad_()
            fn(a, b).sin().sum().backward()
            grads.append((a.grad, b.grad))
        torch.testing.assert_close(grads[0], grads[1])


# -- custom operators --


@torch.library.custom_op("tracer_higher::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


scaled.register_autograd(
    lambda ctx, g: (g * ctx.k * 2, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]),
)


@torch.library.custom_op("tracer_higher::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("tracer_higher::in_place", mutates_args=("x",))
def in_place(x: torch.Tensor) -> None:
    x.add_(1)


@in_place.register_fake
def _(x):
    return None


def increments(x):
    y = x * 2
    in_place(y)
    return y * 3


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["called", "by name", "in place"])
def test_custom_operator(name, backend):
    programs = {
        "called": lambda x: scaled(x, 2.0) + 1,
        "by name": lambda x: (
            torch.ops.tracer_higher.scaled(x, 3.0) * torch.ops.tracer_higher.scaled.default(x, 2.0)
        ),
        "in place": increments,
    }
    same(programs[name], (X,), (Y,), graphs=1, backend=backend)


def test_gradient_of_a_custom_operator():
    same_gradients(lambda: lambda x: scaled(x * 2, 3.0).sin(), (G,), (H,), graphs=1)


def test_custom_operator_without_fake_breaks():
    same(lambda x: no_fake(x + 1) + 1, (X,), (Y,), graphs=2, breaks=1, kinds=("operator_failed",))


def test_custom_operator_under_twin_worlds():
    def make():
        torch.manual_seed(0)
        m = nn.Linear(4, 4)
        return (lambda x: scaled(m(x), 2.0)), m

    twin(make, (X,), lambda m: m.weight.data.mul_(2), (X,), graphs=1, breaks=0)


# -- associative_scan --


def combined(left, right):
    """A recurrence with coupled leaves, as a state space model has it."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def scanned(a, b, dim, reverse):
    decay, state = associative_scan(
        combined, (torch.sigmoid(a), b), dim, reverse=reverse, combine_mode="generic"
    )
    return decay.cos() + state


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 6, 13])
def test_associative_scan_is_captured(length, reverse):
    """transformers' Mamba takes it where it is compiled."""
    a, b = (torch.randn(2, length, 3, requires_grad=True) for _ in range(2))
    expected = scanned(a.double(), b.double(), -2, reverse)
    fast = tracer_core.compile(scanned, backend="aten_eager", fullgraph=True)
    weights = torch.randn(2, length, 3)
    for _ in range(2):
        result = fast(a, b, -2, reverse)
        torch.testing.assert_close(result, expected.float())
        actual = torch.autograd.grad((result * weights).sum(), (a, b))
        wanted = torch.autograd.grad((expected * weights).sum(), (a, b), retain_graph=True)
        torch.testing.assert_close(actual, wanted)


def test_a_scan_that_torch_refuses():
    def scan(x):
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="neither")

    with pytest.raises(ValueError, match="neither"):
        tracer_core.compile(scan, backend="eager")(torch.randn(3))


def test_a_mamba_layer_trains_as_in_eager():
    """Its scan ran eagerly, after a break: gradients of A_log were lost on GPUs."""
    from tests.support.torchvision_ops import define

    define()
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    eager = MambaModel(
        MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
    )
    same_model = copy.deepcopy(eager)
    fast = tracer_core.compile(same_model, backend="aten_eager", fullgraph=True)
    tokens = torch.randint(0, 50, (2, 7))
    for model in (eager, fast):
        model(tokens).last_hidden_state.square().sum().backward()
    for (name, a), b in zip(eager.named_parameters(), same_model.parameters(), strict=True):
        torch.testing.assert_close(
            b.grad, a.grad, msg=lambda text, name=name: f"{name}: {text}", rtol=1e-4, atol=1e-5
        )


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


OPS = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "dtype", "left", "right"),
    [
        (OPS.mm.default, torch.int32, torch.int8, torch.int8),
        (OPS.mm.default, torch.int32, torch.float32, torch.float32),
        (OPS.mul.Tensor, torch.int32, torch.int8, torch.uint8),
        (OPS.div.Tensor, torch.float64, torch.float32, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_out_dtype(backend, op, dtype, left, right):
    from torch._higher_order_ops.out_dtype import out_dtype

    def function(a, b):
        return out_dtype(op, dtype, a, b) + 1

    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        a, b = (torch.randint(1, 100, (6, 6)).to(value) for value in (left, right))
        actual, wanted = compiled(a, b), function(a, b)
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted)


def test_out_dtype_of_another_operator_raises_as_eager_does():
    from torch._higher_order_ops.out_dtype import out_dtype

    compiled = tracer_core.compile(lambda a: out_dtype(OPS.exp.default, torch.float64, a))
    with pytest.raises(ValueError, match="out_dtype only allows"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("energy", [lambda x: (x * x).sum(), lambda x: (x.sin() * x.roll(1)).sum()])
def test_hessians_under_vmap_when_no_operator_is_known_yet(energy, backend):
    fake_cache._cached.clear()  # as in a process's first capture
    with torch.no_grad():
        same(lambda x: vmap(hessian(energy))(x), (X,), (Y,), graphs=1, backend=backend)
