"""Linear layers of inputs that are not contiguous, which torch computes as a batch of matmuls, and the
rows from which frozen layers read their weights as they lie."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native, selection
from tests.support.comparison import assert_as_accurate, assert_as_accurate_as_eager


@pytest.fixture(autouse=True)
def threads_as_before():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Mixer(nn.Module):
    def __init__(self, tokens=100, width=64):
        super().__init__()
        self.up, self.down = (
            nn.Linear(tokens, 2 * tokens),
            nn.Linear(2 * tokens, tokens, bias=False),
        )
        self.channels = nn.Linear(width, width)

    def forward(self, x):
        y = self.down(F.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)
        return self.channels(x + y)


def rows_of(call):
    """The operators of a call, as a profile shows them, without their lines."""
    with torch.profiler.profile() as profile:
        call()
    names = {event.key.partition(" (")[0] for event in profile.key_averages()}
    return {name for name in names if name.startswith(("aten.", "packed."))}


@pytest.mark.parametrize("freeze", [False, True], ids=["default", "frozen"])
@pytest.mark.parametrize("batch", [1, 3])
def test_layers_over_tokens(batch, freeze):
    model = Mixer().eval()
    fast = tracer_core.compile(model, options={"freeze": freeze})
    with torch.no_grad():
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            x = torch.randn(batch, 100, 64)
            assert_as_accurate_as_eager(fast(x), model, x)
        batches = [name for name in rows_of(lambda: fast(x)) if "bmm" in name]
    assert bool(batches) == (batch > 1)


def test_rows_that_lie_one_after_the_other_are_one_matmul():
    """A matrix that all images share, and rows with gaps: a part of wider rows."""

    def layer(x, w, b):
        return torch.bmm(x[..., :64], w.expand(3, 64, 96)) + b

    inputs = torch.randn(3, 50, 80), torch.randn(64, 96), torch.randn(96)
    fast = tracer_core.compile(layer)
    with torch.no_grad():
        exact = layer(*(value.double() for value in inputs))
        assert_as_accurate(fast(*inputs), layer(*inputs), exact)
        names = rows_of(lambda: fast(*inputs))
    assert names == {"aten.addmm.default by run_linear"}


def test_gradients_of_layers_over_tokens():
    model, other = Mixer(), Mixer()
    other.load_state_dict(model.state_dict())
    fast = tracer_core.compile(model)
    x = torch.randn(1, 100, 64)
    fast(x).square().mean().backward()
    other.double()(x.double()).square().mean().backward()
    for ours, exact in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, exact.grad.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(native.lanes() != 8, reason="a rule for processors with AVX2")
@pytest.mark.parametrize("more", [0, 1])
def test_frozen_layers_of_many_rows_read_weights_as_they_lie(more):
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).eval()
    fast = tracer_core.compile(model, options={"freeze": True})
    x = torch.randn(selection.PACKED_ROWS + more, 128)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
        names = rows_of(lambda: fast(x))
    assert names == {"aten.addmm.default by run_blocked" if more else "packed.linear by run_packed"}


def covariance_penalty(a, b):
    """VICReg: the backward adds a vector of the batch's size to rows of five columns."""
    centred = a - a.mean(0)
    covariance = centred.T @ centred / (len(a) - 1)
    rest = covariance.flatten()[:-1].view(len(covariance) - 1, len(covariance) + 1)[:, 1:]
    spread = torch.relu(1 - torch.sqrt(a.var(0) + 1e-4)).mean()
    return F.mse_loss(a, b) + spread + rest.pow(2).sum() / len(covariance)


def test_a_vector_of_as_many_numbers_as_the_batch(caplog):
    fast = tracer_core.compile(covariance_penalty)
    for batch in (4, 6, 5, 8):
        a, b = torch.randn(batch, 5, requires_grad=True), torch.randn(batch, 5)
        want, got = covariance_penalty(a, b), fast(a, b)
        torch.testing.assert_close(got, want)
        gradients = (torch.autograd.grad(result, a)[0] for result in (want, got))
        torch.testing.assert_close(*gradients)
    assert "runs in eager mode" not in caplog.text


def test_a_bias_behind_a_view_of_a_symbolic_size(recwarn):
    """A projection of a few columns, whose rows are split into batches before the bias is added."""
    weight, bias = torch.randn(16, 3), torch.randn(3)

    def project(x):
        return (x.flatten(0, 1) @ weight).view(x.shape[0], -1, 3) + bias

    fast = tracer_core.compile(project, dynamic=True, fullgraph=True)
    for batch in (2, 5, 3):
        x = torch.randn(batch, 7, 16)
        torch.testing.assert_close(fast(x), project(x))
    assert not [warning for warning in recwarn if "SymInt" in str(warning.message)]
