"""Programs that are right in eager and once ended in an error of the backend."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.graphs import kernels_of
from tests.tracer.twin import same

BACKENDS = ["eager", "aten_eager", "inductor"]


def called_back(gm, inputs):
    return gm.forward


@pytest.mark.parametrize("backend", [called_back, *BACKENDS])
def test_a_parameter_added_to_an_input_in_place(backend):
    weight = torch.nn.Parameter(torch.randn(3))

    @tracer_core.compile(backend=backend)
    def program(x):
        x += weight * 2
        return x

    for _ in range(3):
        x = torch.ones(3)
        result = program(x)
        assert result is x and x.requires_grad
        (slope,) = torch.autograd.grad((result * 3).sum(), weight)
        torch.testing.assert_close(slope, torch.full((3,), 6.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_behind_a_size_that_depends_on_data(backend):
    def program(x, y):
        return torch.minimum(x[x > 0], y)

    compiled = tracer_core.compile(program, backend=backend)
    for _ in range(3):
        x = torch.randn(8, requires_grad=True)
        for shape in ((), (int((x > 0).sum()),)):
            y = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            want, got = program(x, y), compiled(x, y)
            torch.testing.assert_close(got, want)
            slopes = [torch.autograd.grad(one.sum(), (x, y)) for one in (got, want)]
            torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["dilation", "padding", "stride"])
def test_a_convolution_told_by_a_symbolic_size(name, backend):
    weight = torch.randn(2, 2, 2, 2)

    def program(x, y):
        return torch.nn.functional.conv2d(y, weight, **{name: [x.size(0)]})

    calls = [(torch.ones(n), torch.randn(1, 2, 12, 12)) for n in (2, 3, 4)]
    same(program, *calls, dynamic=True, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unfold_of_a_number(backend):
    def program(x):
        y = x * 2
        return y.unfold(0, 1, 1), x.unfold(0, 0, 1), y.unfold(-1, 1, 2) + 1

    same(program, (torch.tensor(3.0),), (torch.tensor(4.0),), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("softmax", [torch.softmax, torch.log_softmax])
def test_softmax_of_no_whole_numbers(softmax, backend):
    for shape in ((0,), (0, 3), (2, 0)):
        same(lambda x: softmax(x, -1), (torch.zeros(shape, dtype=torch.int64),), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_of_an_empty_strided_tensor(backend):
    def program(x):
        return (x * 2).sum() + x.t().exp().sum()

    x = torch.empty_strided((0, 3), (5, 7), requires_grad=True)
    (slope,) = torch.autograd.grad(tracer_core.compile(program, backend=backend)(x), x)
    assert slope.shape == x.shape


def test_a_long_chain_of_functions_is_several_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))

    def program(x):
        for _ in range(300):
            x = x.sin()
        return x

    compiled = tracer_core.compile(program)
    x = torch.randn(20)
    torch.testing.assert_close(compiled(x), program(x))
    assert kernels_of(compiled).count > 1
