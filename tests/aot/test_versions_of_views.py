"""Views of inputs that get other sizes or strides in place count as writes: ``_version`` of the input
and of its views is eager's after each call."""

from __future__ import annotations

import pytest
import torch

import tracer_core

CHANGES = {
    "t_": lambda view: view.t_(),
    "transpose_": lambda view: view.transpose_(0, 1),
    "swapaxes_": lambda view: view.swapaxes_(0, 1),
    "swapdims_": lambda view: view.swapdims_(0, 1),
    "squeeze_": lambda view: view.squeeze_(),
    "squeeze_ of a dimension": lambda view: view.squeeze_(0),
    "unsqueeze_": lambda view: view.unsqueeze_(0),
    "two of them": lambda view: view.unsqueeze_(0).transpose_(1, 2),
}


def seen(function, grad):
    """The versions and layouts of a call's input and of what it returns, in three calls."""
    actual, x = [], torch.randn(1, 4, requires_grad=grad) * 1
    for _ in range(3):
        result = function(x)
        actual.append(
            (x._version, result._version, result.shape, result.stride(), result._base is x)
        )
    return actual


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("backend", ["inductor", "aten_eager"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_view_is_changed_in_place(change, grad, backend):
    def function(x):
        view = x[:]
        CHANGES[change](view)
        return view

    assert seen(tracer_core.compile(function, backend=backend), grad) == seen(function, grad)


@pytest.mark.parametrize("change", CHANGES)
def test_a_view_is_changed_in_place_and_written_to(change):
    def function(x):
        view = x.view(4, 1)
        CHANGES[change](view)
        view.add_(1)
        return view

    assert seen(tracer_core.compile(function), False) == seen(function, False)


def test_a_backward_sees_the_change():
    """The product saved its operand before the change: eager raises."""

    def change(x):
        view = x[:]
        view.t_()
        return view * 2

    x = torch.randn(3, 4, requires_grad=True) * 1
    product = x * x
    tracer_core.compile(change)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
