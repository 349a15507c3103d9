"""``backend="auto"``: candidates that are wrong in a way that is easily overlooked are not
taken.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.callable_backends import eager_graph


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "cache"))


def row_of(program, *candidates):
    """The rows of the candidates, after one call."""

    def judged(*args):
        fast = tracer_core.compile(
            program, backend=list(candidates), options={"wait": True, "remember": False}
        )
        fast(*args)
        (choice,) = fast.choices()
        assert choice.decided
        return [choice.row(candidate.__name__) for candidate in candidates]

    return judged


def by_shape(inputs, *sizes):
    """The inputs of a graph in the order in which a test made them."""
    return [next(value for value in inputs if value.shape == size) for size in sizes]


def test_a_mask_of_ones_is_not_ignored():
    def masked(x, mask):
        return x.masked_fill(mask != 1.0, -5.0).softmax(-1)

    def ignores(gm, example_inputs):
        return lambda *inputs: (by_shape(inputs, (65, 64))[0].softmax(-1),)

    mask = torch.ones(64)
    mask[50:] = 0
    right, wrong = row_of(masked, eager_graph, ignores)(torch.randn(65, 64), mask)
    assert right.status in ("chosen", "slower") and wrong.status == "wrong", (right, wrong)


def test_one_element_of_a_million_counts():
    def program(x):
        return x * 2 + 1

    def careless(gm, example_inputs):
        def run(x):
            (actual,) = gm.forward(x)
            actual.view(-1)[777] = 0.0
            return (actual,)

        return run

    x = torch.randn(2000, 1000)
    x.view(-1)[777] = 0.5
    right, wrong = row_of(program, eager_graph, careless)(x)
    assert right.status in ("chosen", "slower") and wrong.status == "wrong", (right, wrong)
    assert "an element" in wrong.detail


def test_a_step_that_is_small_beside_its_parameter_counts():
    def update(p, g):
        p.sub_(1e-4 * g)
        return g.sum()

    def drops(gm, example_inputs):
        return lambda *inputs: (by_shape(inputs, (300,))[0].sum(),)

    def rounds(gm, example_inputs):
        def run(*inputs):
            p, g = by_shape(inputs, (400, 300), (300,))
            p.copy_((p.double() - 1e-4 * g.double()).float())
            return (g.sum(),)

        return run

    right, close, wrong = row_of(update, eager_graph, rounds, drops)(
        torch.randn(400, 300), torch.rand(300)
    )
    assert {right.status, close.status} <= {"chosen", "slower"}, (right, close)
    assert wrong.status == "wrong" and "change" in wrong.detail, wrong


def test_gradients_behind_a_normalisation_count():
    weight = torch.randn(32, 32, requires_grad=True)

    def model(x):
        return F.layer_norm(x @ weight, (32,))

    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            return model(x)

        @staticmethod
        def backward(ctx, grad):
            return None, torch.zeros_like(weight)

    def forgets(gm, example_inputs):
        return lambda *inputs: (NoGradient.apply(*by_shape(inputs, (8, 32), (32, 32))),)

    right, wrong = row_of(model, eager_graph, forgets)(torch.randn(8, 32))
    assert right.status in ("chosen", "slower") and wrong.status == "wrong", (right, wrong)
    assert "gradient" in wrong.detail


def test_infinities_of_nudged_inputs_excuse_nothing():
    def program(x, limit):
        return 1.0 / (x - limit)

    def careless(gm, example_inputs):
        return lambda *inputs: (gm.forward(*inputs)[0] * 1.5,)

    x = torch.rand(100) * 0.4 + 0.1
    right, wrong = row_of(program, eager_graph, careless)(
        x, x * (1 - torch.finfo(torch.float32).eps)
    )
    assert right.status in ("chosen", "slower") and wrong.status == "wrong", (right, wrong)
