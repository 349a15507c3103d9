"""Factorizations, which raise for unfit matrices, inside a compiled graph."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.testing import CaptureCounter

BACKENDS = ("aten_eager", "inductor")


def fit(n=5, batch=()):
    a = torch.randn(*batch, n, n, dtype=torch.float64)
    return a @ a.mT + torch.eye(n, dtype=torch.float64)


def cholesky(a):
    return torch.linalg.cholesky(a * 2).exp() + 1


def upper(a):
    return torch.linalg.cholesky(a, upper=True).sum(-1, keepdim=True) * a


def inverse(a):
    return torch.linalg.inv(a).sin() + a.inverse()


def solve(a):
    return torch.linalg.solve(a, a[..., :2]).cos().mean()


def solve_vector(a):
    return torch.linalg.solve(a, a[..., 0]).sin()


def solve_right(a):
    return torch.linalg.solve(a, a[..., :1, :], left=False).exp()


def factors(a):
    lu, pivots = torch.linalg.lu_factor(a + 1)
    return lu * 2, pivots


def likelihood(a):
    mean = a.new_zeros(a.shape[-1])
    return torch.distributions.MultivariateNormal(mean, a, validate_args=False).log_prob(a[..., 0])


def twice(a):
    return torch.linalg.cholesky(a) @ torch.linalg.cholesky(torch.linalg.inv(a) * 3)


PROGRAMS = [cholesky, upper, inverse, solve, solve_vector, solve_right, factors, likelihood, twice]


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.sweep(keep=9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_equals_eager(fn, backend, caplog):
    torch.manual_seed(0)
    with CaptureCounter() as counter:
        fast = tracer_core.compile(fn, backend=backend, fullgraph=True, dynamic=False)
        for a in (fit(), fit(), fit(batch=(3,)), fit(7)):
            got, want = fast(a), fn(a)
            torch.testing.assert_close(got, want)
            for leaf, other in zip(leaves(got), leaves(want), strict=True):
                assert leaf.stride() == other.stride()
    assert "eagerly" not in caplog.text
    assert not counter.breaks


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("fn", [fn for fn in PROGRAMS if fn is not factors])
def test_gradients(fn):
    torch.manual_seed(0)
    fast = tracer_core.compile(fn)
    for _ in range(2):
        a = fit()
        item, other = a.clone().requires_grad_(), a.clone().requires_grad_()
        got, want = (torch.autograd.grad(f(x).sum(), x)[0] for f, x in ((fast, item), (fn, other)))
        torch.testing.assert_close(got, want)


@pytest.mark.sweep(keep=7)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [*PROGRAMS[:6], likelihood])
def test_an_unfit_matrix_raises_as_in_eager_mode(fn, backend):
    fast = tracer_core.compile(fn, backend=backend)
    bad = torch.zeros(5, 5, dtype=torch.float64)
    for a in (fit(), bad, fit(), torch.stack([fit(), bad])):
        try:
            want = fn(a)
        except RuntimeError as error:
            with pytest.raises(type(error)) as caught:
                fast(a)
            assert str(caught.value) == str(error)
        else:
            torch.testing.assert_close(fast(a), want)


def written_after(a):
    factor = torch.linalg.cholesky(a)
    a.add_(1)
    return factor * 2


def written_before(a):
    a.mul_(2)
    return torch.linalg.cholesky(a - 1)


def unread(a):
    torch.linalg.cholesky(a)
    return a + 1


def caught(a):
    try:
        return torch.linalg.cholesky(a) * 2
    except torch.linalg.LinAlgError:
        return a.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [written_after, written_before, unread, caught])
def test_what_happened_before_the_error(fn, backend, monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")
    torch.manual_seed(0)
    fast = tracer_core.compile(fn, backend=backend)
    for make in (fit, lambda: -torch.eye(5, dtype=torch.float64), fit):
        a = make()
        actual = []
        for function in (fn, fast):
            inputs = a.clone()
            try:
                actual.append((function(inputs), inputs))
            except torch.linalg.LinAlgError as error:
                actual.append((str(error), inputs))
        assert type(actual[0][0]) is type(actual[1][0])
        if isinstance(actual[0][0], torch.Tensor):
            torch.testing.assert_close(actual[1][0], actual[0][0])
        torch.testing.assert_close(actual[1][1], actual[0][1])


def test_it_is_stored(tmp_path):
    path = tmp_path / "cholesky.tracer"
    tracer_core.package(cholesky, (fit(),), path)
    loaded = tracer_core.load_package(path)
    a = fit()
    torch.testing.assert_close(loaded(a), cholesky(a))
    with pytest.raises(torch.linalg.LinAlgError, match="factorization could not be completed"):
        loaded(-a)
