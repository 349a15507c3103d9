"""Functions of torch that take functions: one node in the graph each, with eager's values and
gradients.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.gradients import same_gradients

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
LINEAR = nn.Linear(4, 4)


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


def test_custom_operator_of_a_program_with_state():
    def make():
        torch.manual_seed(0)
        m = nn.Linear(4, 4)
        return (lambda x: scaled(m(x), 2.0)), m

    compare_with_eager(make, (X,), lambda m: m.weight.data.mul_(2), (X,), graphs=1, breaks=0)


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
