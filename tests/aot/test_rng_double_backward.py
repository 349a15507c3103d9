"""A captured graph that runs again has the random numbers that its forward has drawn.

`OTHER_RNG` draws other numbers than eager, and `on_accelerator` is told that it runs on a device
where backends do. Eager mode inside `as_its_rng` is the truth.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tracer_core
from tests.support.stored_backend import OTHER_RNG, as_its_rng
from tracer_core.aot import autograd_runtime, rng_saved
from tracer_core.aot.double_backward import recompute_forward
from tracer_core.aot.request import Request, default_specs
from tracer_core.aot.rng_double_backward import RngReplay, RngReplayNode
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.plugin_api import Phase
from tracer_core.registry.eager import ATEN_EAGER

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_accelerator(monkeypatch):
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: True)


@pytest.fixture
def lowerings(monkeypatch):
    """What was made of the graphs that the test compiles."""
    actual = []

    def noted(*value):
        actual.append(SimpleNamespace(again=recompute_forward(*value), split=value[2]))
        return actual[-1].again

    monkeypatch.setattr(autograd_runtime, "recompute_forward", noted)
    return actual


def dropped(x, w):
    y = F.dropout((x * w).sin(), 0.4)
    return y.square() * w, F.dropout(y, 0.3).exp()


def turned(x, w):
    return F.dropout(((x * w).sin() @ x.t()[:, :6]).t(), 0.4).square() * w, w.exp()


def native(x, w):
    y, mask = torch.native_dropout(x * w, 0.4, True)
    return y.square(), (y * mask).sin() * w


def noise(x, w):
    return (x + w * torch.randn_like(x)).square(), (w * torch.rand(6)).sin()


def in_place(x, w):
    gate = torch.empty_like(x).bernoulli_(0.5)
    kept = gate.clone()
    gate.add_(1)  # not to the saved tensor
    return (x * w * kept).square(), (torch.empty(6).normal_() * w).exp() + gate.sum()


def sampled(x, w):
    gate = torch.bernoulli(torch.full_like(x, 0.4))
    return (gate * x * w).square(), (w * torch.randint(3, (6,))).square()


def small(x, w):
    """No backward needs the numbers, which take little beside what is saved."""
    return ((x * w) @ x + torch.rand(1)).sin(), (x + w).exp()


PROGRAMS = [dropped, turned, native, noise, in_place, sampled, small]


def inputs():
    x = torch.linspace(-1, 1, 36).reshape(6, 6).requires_grad_()
    return x, torch.linspace(0.5, 1.5, 6).requires_grad_()


def of_second_order(function):
    """Results, the gradient of a gradient of both, and of each one alone."""
    actual = []
    for wanted in ([0, 1], [0], [1]):
        x, w = inputs()
        torch.manual_seed(3)
        results = function(x, w)
        loss = sum(results[i].sum() for i in wanted)
        first = torch.autograd.grad(loss, [x, w], create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(
            sum(item.square().sum() for item in first), [x, w], materialize_grads=True
        )
        actual += [*results, *first, *second]
    return actual


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_gradient_of_a_gradient(program, lowerings):
    fast = tracer_core.compile(program, backend=OTHER_RNG)
    actual = of_second_order(fast)
    with as_its_rng():
        expected = of_second_order(program)
    torch.testing.assert_close(actual, expected)
    with pytest.raises(AssertionError):  # the numbers are others than eager's
        torch.testing.assert_close(actual, of_second_order(program))
    assert all(item.again.replayed and not item.again.uses_rng for item in lowerings)


def test_what_the_backward_reads_is_not_saved_twice(lowerings, monkeypatch):
    """The mask is what dropout divides: it is saved as bools, and the quotient no more."""
    fast = tracer_core.compile(dropped, backend=OTHER_RNG)
    with_draws = fast(*inputs())
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: False)
    tracer_core.reset()
    without = fast(*inputs())
    assert with_draws[0].requires_grad and without[0].requires_grad
    assert (
        lowerings[0].again.replayed
        and not lowerings[1].again.replayed
        and lowerings[1].again.uses_rng
    )
    assert lowerings[0].split.saved_bytes <= lowerings[1].split.saved_bytes * 17 // 16


def added(x, w):
    return (x * w + torch.rand_like(x).sum()) * 2, w.sin()


def again(x, w):
    y = checkpoint(lambda x: F.dropout(x * w, 0.5).sin(), x, use_reentrant=False)
    return y * 2, w.sin()


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


def noisy(x, w):
    return Noisy.apply(F.dropout(x * w, 0.5)), w.sin()


def decomposed(x, w):
    return F.dropout(x * w, 0.5).sin(), w.sin()


def halved():
    return {aten.bernoulli.p: lambda x, p: (aten.rand.default(x.shape) < p).to(x.dtype)}


@pytest.mark.parametrize(
    ("program", "reason", "changes"),
    [
        (added, "does not save those of rand_like", {}),
        (again, "a checkpoint uses its random numbers again", {}),
        (noisy, "its backward draws random numbers", {}),
        (decomposed, "decomposes aten.bernoulli.p", {"decompositions": halved}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_where_the_numbers_are_not_there(program, reason, changes, lowerings):
    fast = tracer_core.compile(program, backend=replace(OTHER_RNG, **changes))
    x, w = inputs()
    with pytest.raises(
        RuntimeError, match=f"a gradient of a gradient was asked for, but .*{reason}"
    ):
        torch.autograd.grad(sum(item.sum() for item in fast(x, w)), [x, w], create_graph=True)
    assert reason in lowerings[0].again.obstacle


MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("draws", "run", "message"),
    [
        (
            [RngReplayNode("rand", (0,), dtype="float32")],
            lambda: torch.randn(3),
            "randn.* has drawn rand",
        ),
        ([], lambda: torch.rand(3), "has drawn nothing"),
        ([RngReplayNode("rand", (0,), dtype="float32")], lambda: None, "rand .* did not run again"),
        (
            [RngReplayNode("bernoulli", (0,))],
            lambda: torch.ones(4).bernoulli_(0.5),
            r"\[4\], and \[3\]",
        ),
        (
            [RngReplayNode("native_dropout", (None, 0))],
            lambda: torch.native_dropout(torch.ones(3, 3), 0.5, True),
            r"\[3, 3\], and \[3\]",
        ),
    ],
)
def test_a_run_that_does_not_fit_raises(draws, run, message):
    with pytest.raises(RuntimeError, match=message), RngReplay(draws, [MASK]) as mode:
        run()
        mode.finish()


def test_the_saved_tensor_is_not_the_programs():
    saved = torch.rand(3)
    before = saved.clone()
    with RngReplay([RngReplayNode("rand", (0,), dtype="float32")], [saved]):
        torch.rand(3).add_(1)
    assert torch.equal(saved, before)


def test_no_draw_where_nothing_is_dropped():
    ones = torch.ones(2, 3)
    with RngReplay([], []) as mode:
        dropped_, mask = torch.native_dropout(ones, 0.5, False)
        mode.finish()
    assert torch.equal(dropped_, ones) and mask.all()


ATTENTION = {
    "efficient": (aten._scaled_dot_product_efficient_attention.default, (None, True)),
    "flash": (aten._scaled_dot_product_flash_attention.default, ()),
    "cudnn": (aten._scaled_dot_product_cudnn_attention.default, (None, True)),
}


def rng_of_attention(name, p):
    """The draws of a graph of a GPU's attention with this dropout and another one, on fakes."""
    operation, arguments = ATTENTION[name]
    graph = torch.fx.Graph()
    q, k, v, w = (graph.placeholder(item) for item in "qkvw")
    results = graph.call_function(
        operation, (graph.call_function(torch.mul, (q, w)), k, v, *arguments, p)
    )
    seen = graph.call_function(operator.getitem, (results, 0))
    dropped_ = graph.call_function(F.dropout, (seen, 0.2))
    graph.output((graph.call_function(torch.mean, (dropped_,)), seen))
    with Fakes(symbolic=False).mode:
        half = {"dtype": torch.float16}
        inputs = [torch.empty(2, 4, 16, 32, **half).requires_grad_() for _ in range(3)]
        inputs.append(torch.empty(32, **half))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    captured = CapturedGraph(gm, default_specs(gm, inputs), tuple(inputs), True, "graph_0")
    request = Request(ATEN_EAGER, None, "default", "graph_0", Phase.FORWARD)
    graphs = autograd_runtime.lower_training(captured, request)
    result = recompute_forward(captured, graphs.joint, graphs.split)
    assert not result.obstacle and not result.uses_rng
    return result.replayed


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_has_its_results_and_its_seed(name):
    attention, dropout = rng_of_attention(name, 0.1)
    assert attention.name == ATTENTION[name][0]._schema.name.partition("::")[2]
    assert dropout.name == "bernoulli"
    tensors = [at for at in attention.saved if at is not None]
    assert len(set(tensors)) == 4  # the result, its logsumexp, the seed and the offset
    saved = [torch.rand(2, 4, 16, 32), torch.rand(2, 4, 16), torch.tensor(7), torch.tensor(8)]
    at = dict(zip(tensors, range(4), strict=True))
    moved = RngReplayNode(
        attention.name, tuple(at.get(item) for item in attention.saved), attention.no_tensors
    )
    operation, inputs = ATTENTION[name]
    q = torch.rand(2, 4, 16, 32, requires_grad=True)
    with RngReplay([moved], saved) as mode:
        actual = operation(q * 2, q, q, *inputs, 0.1)
        mode.finish()
    assert actual[0].requires_grad and len(actual) == len(operation._schema.returns)
    torch.testing.assert_close([item for item in actual if isinstance(item, torch.Tensor)], saved)
    assert [item for item in actual if type(item) is int] == [16, 16] * (name != "efficient")


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_without_dropout_draws_nothing(name):
    (dropout,) = rng_of_attention(name, 0.0)
    assert dropout.name == "bernoulli"
