"""The comparisons of `tests.support.comparison` find each kind of difference: a check that cannot fail
checks nothing."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.support.comparison import (
    assert_as_accurate_as_eager,
    assert_equal,
    assert_same,
    assert_same_calls,
    assert_same_sums,
    assert_same_training,
)

X = torch.arange(12.0).reshape(3, 4) + 1

DIFFERENCES = {
    "a value": X + 1e-3,
    "NaN": X * float("nan"),
    "the dtype": X.double(),
    "strides": X.t().contiguous().t(),
    "the shape": X[:1],
    "requires_grad": X.clone().requires_grad_(),
    "nothing": None,
    "a list": [X],
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_found(name):
    for check in (assert_same, assert_equal):
        check([X.clone(), X * float("nan"), None], [X, X * float("nan"), None])
        with pytest.raises(AssertionError):
            check(DIFFERENCES[name], X)
        with pytest.raises(AssertionError):
            check([X, DIFFERENCES[name]], [X, X])


def test_what_may_differ():
    assert_same(DIFFERENCES["strides"], X, strides=False)
    next_to = torch.nextafter(X, X + 1)
    assert_same(next_to, X)
    with pytest.raises(AssertionError):
        assert_equal(next_to, X)


def raises(text):
    def program(x):
        raise ValueError(text)

    return program


@pytest.mark.parametrize(
    "compiled, program",
    [
        (lambda x: x + 1, lambda x: x),
        (lambda x: x.add_(1), lambda x: x + 1),
        (lambda x: x, raises("a")),
        (raises("a"), lambda x: x),
        (raises("a"), raises("b")),
    ],
    ids=["result", "argument", "no error", "error", "text of the error"],
)
def test_calls_that_differ_are_found(compiled, program):
    assert not assert_same_calls(lambda x: x.add_(1), lambda x: x.add_(1), X)
    assert assert_same_calls(raises("a"), raises("a"), X)
    with pytest.raises(AssertionError):
        assert_same_calls(compiled, program, X)


def test_three_times_the_error_of_eager_mode_is_allowed():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        y = model(X)
        assert_as_accurate_as_eager(y, model, X)
        for other in (y * (1 + 1e-5), y.t().contiguous().t(), y.double(), y * float("nan")):
            with pytest.raises(AssertionError):
                assert_as_accurate_as_eager(other, model, X)


def test_sums_are_exact_to_the_place_of_the_largest_element():
    small = X.clone()
    small[0, 0] += 2e-4  # a fifty thousandth of the largest element, a five thousandth of its own
    assert_same_sums([small], [X])
    with pytest.raises(AssertionError):
        assert_same_sums([X + 1e-2], [X])


def test_gradients_and_buffers_are_compared():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    other = copy.deepcopy(model)
    with pytest.raises(AssertionError):
        assert_same_training(model, other)  # neither has a gradient
    for module in (model, other):
        module(X).square().sum().backward()
    assert_same_training(model, other)
    other[0].weight.grad[0, 0] += 1
    with pytest.raises(AssertionError):
        assert_same_training(model, other)
    other[0].weight.grad[0, 0] -= 1
    other[1].running_mean[0] += 1
    with pytest.raises(AssertionError):
        assert_same_training(model, other)
