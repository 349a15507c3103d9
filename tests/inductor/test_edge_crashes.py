"""Programs that are right in eager and once ended in an error of the backend."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tests.support.graphs import kernels_of

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
            slopes = [torch.autograd.grad(value.sum(), (x, y)) for value in (got, want)]
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True, None])
def test_constants_that_raise_do_so_in_the_call(dynamic, backend):
    @tracer_core.compile(backend=backend, dynamic=dynamic)
    def program(x, y):
        return y.scatter_add(1, torch.tril_indices(x.shape[0], 2).long() % y.shape[1], y)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            program(torch.ones(7, 16, 2), torch.ones(3, 0, dtype=torch.int32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_of_what_is_written_to_and_has_gradients(backend):
    def program(x):
        return x.logical_or_(x).unbind(0)[0]

    same_slopes = []
    for function in (program, tracer_core.compile(program, backend=backend)):
        leaf = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
        result = function(leaf * 1)
        assert result.requires_grad
        same_slopes.append((result.detach(), torch.autograd.grad(result, leaf)[0]))
    assert same_slopes[0] == same_slopes[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logsigmoid_of_a_permuted_input(dtype, backend):
    def program(x):
        return torch.nn.functional.logsigmoid(x).to(torch.float16)

    compiled = tracer_core.compile(program, backend=backend)
    for _ in range(2):
        x = torch.rand(3, 7, 1, dtype=dtype).permute(2, 1, 0).requires_grad_()
        want, got = program(x), compiled(x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        slopes = [torch.autograd.grad(value.float().sum(), x)[0] for value in (got, want)]
        torch.testing.assert_close(*slopes)


def put(y, values):
    y.index_put_((torch.tensor([0]),), values, accumulate=True)


def put_by_name(y, values):
    y.index_put_((torch.tensor([0]),), values=values)


def put_rows(y, values):
    y[torch.tensor([[0, 1]]), :] = values


def put_beside(y, values):
    y[:, torch.tensor([0, 1])] = values


def put_first(y, values):
    y[0, torch.tensor([0])] = values


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("writes", [put, put_by_name, put_rows, put_beside, put_first])
def test_values_that_do_not_fit_where_they_are_put(writes, dynamic, backend):
    def program(y, values):
        y = y * 2
        writes(y, values)
        return y

    compiled = tracer_core.compile(program, backend=backend, dynamic=dynamic)
    outcomes = []
    for function in (program, compiled):
        outcomes.append([])
        for shape in ((5, 2), (1, 2), (2,), (1, 1, 2), (2, 2), (1, 2, 2), (3, 1, 2), (5, 1), ()):
            try:
                outcomes[-1].append(function(torch.ones(5, 2), torch.randn(shape).sign().abs()))
            except RuntimeError as error:
                outcomes[-1].append(str(error))
    for want, got in zip(*outcomes, strict=True):
        if isinstance(want, str):
            assert got == want
        else:
            torch.testing.assert_close(got, want)
