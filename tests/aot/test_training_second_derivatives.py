"""Second derivatives, several backward passes and gradients of chosen inputs through lowered graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from tests.support.comparison import assert_equal

pytestmark = pytest.mark.usefixtures("strict")
X = torch.linspace(-2, 2, 20).reshape(5, 4)


def pair(function, *leaves):
    compiled = tracer_core.compile(function, backend="aten_eager")
    return [(function, [x.detach().clone().requires_grad_() for x in leaves]),
            (compiled, [x.detach().clone().requires_grad_() for x in leaves])]  # fmt: skip


def test_retain_graph_and_a_second_backward_without_it():
    for function, (x, w) in pair(lambda x, w: (x * w).sin().sum(), X, X + 1):
        loss = function(x, w)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        torch.testing.assert_close(x.grad, 2 * w * (x * w).cos(), rtol=1e-5, atol=1e-6)


def test_an_input_changed_before_its_backward_is_an_error_as_in_eager():
    for function, (x, w) in pair(lambda x, w: (x * w).sum(), X, X + 1):
        loss = function(x, w)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_statistic_changed_before_the_backward_is_none():
    model = tracer_core.compile(nn.BatchNorm1d(4), backend="aten_eager").train()
    loss = model(X).sum()
    model(X + 1)
    loss.backward()
    assert model.weight.grad is not None


def test_gradients_of_chosen_inputs_only():
    results = [
        torch.autograd.grad(function(x, w), [w], retain_graph=True)
        + torch.autograd.grad(function(x, w), [x])
        for function, (x, w) in pair(lambda x, w: (x * w).exp().sum(), X, X + 1)
    ]
    assert_equal(list(results[0]), list(results[1]))


def test_a_penalty_on_the_gradient():
    results = []
    for function, (x, w) in pair(lambda x, w: (x * w).sin() * w, X, X + 1):
        loss = function(x, w).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + gradient.square().sum()).backward()
        results.append([x.grad, w.grad])
    for result, other in zip(*results, strict=True):
        torch.testing.assert_close(result, other, rtol=1e-6, atol=1e-6)


def test_a_penalty_on_the_gradient_through_batch_norm_and_dropout():
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.4), nn.Linear(4, 1)
    )
    reference = copy.deepcopy(model)
    compiled = tracer_core.compile(reference, backend="aten_eager")
    for function in (model, compiled):
        torch.manual_seed(4)
        x = X.clone().requires_grad_()
        out = function(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        (out + gradient.square().sum()).backward()
    for (name, item), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(
            item.grad,
            other.grad,
            rtol=1e-4,
            atol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert_equal(list(model.buffers()), list(reference.buffers()))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(F.dropout(self.first(x).tanh(), 0.4))


def row_by_row(outputs, inputs):
    """The Jacobian of each input, a backward a row."""
    flat = outputs.sum(0)
    rows = [torch.autograd.grad(leaf, inputs, retain_graph=True) for leaf in flat]
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def as_a_batch(outputs, inputs):
    """The same by one backward under torch.autograd's vmap."""
    flat = outputs.sum(0)
    eye = torch.eye(len(flat), dtype=flat.dtype)
    return torch.autograd.grad(flat, inputs, eye, is_grads_batched=True)


def as_a_transform(outputs, inputs):
    """The same under torch.func's vmap."""
    flat = outputs.sum(0)
    eye = torch.eye(len(flat), dtype=flat.dtype)
    return torch.func.vmap(lambda row: torch.autograd.grad(flat, inputs, row, retain_graph=True))(
        eye
    )


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("jacobian", [as_a_batch, as_a_transform])
def test_a_batch_of_gradients(backend, jacobian):
    """vmap's tangents have no memory that a kernel could read; the random numbers of the forward
    are those of its own call, and the generator goes on as if nothing was drawn again."""
    torch.manual_seed(0)
    net = Noisy()
    eager = copy.deepcopy(net).double()
    fast = tracer_core.compile(net, backend=backend)
    for x in (torch.randn(3, 4), torch.randn(5, 4)):
        ours, exact = [
            (x.to(dtype).requires_grad_(), [*module.parameters()])
            for dtype, module in ((torch.float32, net), (torch.float64, eager))
        ]
        torch.manual_seed(3)
        out = fast(ours[0])
        state = torch.get_rng_state()
        actual = jacobian(out, [ours[0], *ours[1]])
        assert torch.equal(state, torch.get_rng_state())
        torch.manual_seed(3)
        kept = F.dropout(torch.ones(len(x), 6), 0.4).double()
        hidden = eager.first(exact[0]).tanh() * kept
        wanted = row_by_row(eager.second(hidden), [exact[0], *exact[1]])
        for item, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(item, other.float())


def test_a_gradient_of_a_gradient_after_an_input_changed_is_an_error():
    def function(x, w):
        return (x + w).sin().sum()

    compiled = tracer_core.compile(function, backend="aten_eager")
    x, w = X.clone().requires_grad_(), (X + 1).requires_grad_()
    loss = compiled(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x, create_graph=True)
