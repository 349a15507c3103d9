"""A second backward that raises leaves the gradients of the first."""

from __future__ import annotations

import pytest
import torch

import tracer_core


def _part() -> torch.Tensor:
    return torch.arange(12.0).reshape(2, 6)[:, ::2]


def _rows() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)[1:3]


def _whole() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


def writes_then_twice(x: torch.Tensor, w: torch.Tensor) -> None:
    x[...] = w
    (w * x).sum().backward()
    (w * x).sum().backward()


def product_twice(x: torch.Tensor, w: torch.Tensor) -> None:
    y = x * w * w
    y.sum().backward()
    y.sum().backward()


def sum_twice(x: torch.Tensor, w: torch.Tensor) -> None:
    y = x + w
    y.sum().backward()
    (y * 2).sum().backward()


def grad_then_backward(x: torch.Tensor, w: torch.Tensor) -> None:
    x.copy_(w)
    y = (x * 3).sum()
    w.grad = torch.autograd.grad(y, w)[0]
    (x * 5).sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("order", [(_part, _whole, _rows), (_whole, _rows, _part)])
@pytest.mark.parametrize(
    "function", [writes_then_twice, product_twice, sum_twice, grad_then_backward]
)
def test_a_second_backward_that_raises_leaves_the_gradients_of_the_first(function, order, backend):
    """Whether it raises depends on the input: a write into a view replaces the view's history."""
    compiled = tracer_core.compile(function, backend=backend)
    for make in order:
        seen = []
        for value in (function, compiled):
            w = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()
            try:
                value(make(), w)
                error = ""
            except RuntimeError as caught:
                error = str(caught).split(" (")[0]
            seen.append((error, None if w.grad is None else w.grad.tolist()))
        assert seen[0] == seen[1], make.__name__
