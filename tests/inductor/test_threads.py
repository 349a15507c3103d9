"""Results are right and repeat for any number of threads, which may change between calls."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import tracer_core
from inductor_backend.kernels import native, packed_weights
from inductor_backend.kernels.attention import attention, pays

THREADS = (1, 2, 5, 16, 64)


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bias_gradient(grad, x):
    y = functional.gelu(x) * grad
    return y, y.sum((0, 1)), y.amax((0, 1)), (y > 1).any(1).any(0)


def batch_norm(x, weight, bias):
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = x.var((0, 2, 3), keepdim=True, unbiased=False)
    scale = weight[:, None, None] * torch.rsqrt(variance + 1e-5)
    return (x - mean) * scale + bias[:, None, None], mean, variance


def columns(x):
    return x.sum(0), x.prod(0), x.amin(0), (x < 3).all(0), x.var(0)


def few_rows(x, y):
    return (x * y.mT).sum((1, 2)), torch.maximum(x, y.mT).amax((1, 2)), (x - y.mT).var((1, 2))


def images(*sizes):
    return torch.randn(sizes).add_(3).to(memory_format=torch.channels_last)


PROGRAMS = {
    "bias": (bias_gradient, lambda: (torch.randn(8, 197, 192), torch.randn(8, 197, 192))),
    "odd bias": (bias_gradient, lambda: (torch.randn(3, 431, 77), torch.randn(3, 431, 77))),
    "wide bias": (bias_gradient, lambda: (torch.randn(2, 21, 3072), torch.randn(2, 21, 3072))),
    "transposed": (
        bias_gradient,
        lambda: (torch.randn(8, 197, 192), torch.randn(197, 8, 192).transpose(0, 1)),
    ),
    "channels last": (batch_norm, lambda: (images(4, 64, 33, 31), torch.rand(64), torch.randn(64))),
    "three channels": (batch_norm, lambda: (images(4, 3, 65, 63), torch.rand(3), torch.randn(3))),
    "planes": (batch_norm, lambda: (torch.randn(4, 7, 65, 63), torch.rand(7), torch.randn(7))),
    "columns": (columns, lambda: (torch.randn(2999, 70),)),
    "float64": (columns, lambda: (torch.randn(2999, 70, dtype=torch.float64),)),
    "softmax": (lambda x: (x.softmax(0), x * 2), lambda: (torch.randn(4000, 40),)),
    "integers": (
        lambda x: (x.sum(0), x.amax(0), x * 2),
        lambda: (torch.randint(-9, 9, (9000, 24)),),
    ),
    "one": (
        lambda x, y: ((x * y.mT).sum(),),
        lambda: (torch.randn(901, 703), torch.randn(703, 901)),
    ),
    "few rows": (few_rows, lambda: (torch.randn(3, 401, 347), torch.randn(3, 347, 401))),
}


def exact(function, args):
    return function(*(arg.double() if arg.is_floating_point() else arg for arg in args))


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_number_of_threads(name):
    function, make = PROGRAMS[name]
    torch.manual_seed(0)
    compiled = tracer_core.compile(function)
    for threads in THREADS:
        torch.set_num_threads(threads)
        args = make()
        want = exact(function, args)
        results, again = compiled(*args), compiled(*args)
        for result, repeated, expected in zip(results, again, want, strict=True):
            torch.testing.assert_close(
                result, expected.to(result.dtype), rtol=2e-5, atol=2e-5, equal_nan=True
            )
            assert torch.equal(result, repeated)


def test_sizes_that_change():
    compiled = tracer_core.compile(bias_gradient, dynamic=True)
    for threads, (batch, rows, width) in zip(
        (16, 5, 64, 2), ((8, 197, 192), (1, 9, 64), (3, 431, 77), (2, 1000, 8)), strict=True
    ):
        torch.set_num_threads(threads)
        args = torch.randn(batch, rows, width), torch.randn(batch, rows, width)
        for result, expected in zip(compiled(*args), exact(bias_gradient, args), strict=True):
            torch.testing.assert_close(result, expected.to(result.dtype), rtol=2e-5, atol=2e-5)


def test_running_statistics_move_once():
    """The threads that share an image's rows update its running statistics once."""
    model = nn.BatchNorm2d(16).train().to(memory_format=torch.channels_last)
    other = nn.BatchNorm2d(16).train()
    compiled = tracer_core.compile(lambda x: model(x).relu())
    for threads in THREADS:
        torch.set_num_threads(threads)
        x = images(4, 16, 40, 40)
        torch.testing.assert_close(compiled(x), other(x).relu(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.running_mean, other.running_mean)
    torch.testing.assert_close(model.running_var, other.running_var)
    assert model.num_batches_tracked == len(THREADS)


class Layers(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.second(functional.gelu(self.first(x)))


def convolutions(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 2 * channels, 1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Conv2d(2 * channels, channels, 3, padding=1),
        nn.Conv2d(channels, 4 * channels, 3, stride=2, groups=2),
        nn.ReLU6(),
    )


MODELS = {
    "few rows": (lambda: Layers(768, 1024), (1, 5, 768)),
    "64 rows": (lambda: Layers(192, 768), (1, 64, 192)),
    "128 rows": (lambda: Layers(256, 1000), (1, 128, 256)),
    "197 rows": (lambda: Layers(200, 333), (1, 197, 200)),
    "3,000 rows": (lambda: Layers(64, 96), (2, 1501, 64)),
    "small images": (lambda: convolutions(96), (3, 96, 9, 7)),
    "images": (lambda: convolutions(32), (2, 32, 41, 39)),
    "narrow": (lambda: convolutions(20), (2, 20, 15, 15)),
    "few tiles": (lambda: nn.Conv2d(256, 224, 3, padding=1), (1, 256, 7, 7)),
    "some tiles": (lambda: nn.Conv2d(128, 160, 3, padding=1), (5, 128, 13, 11)),
    "many tiles": (lambda: nn.Conv2d(64, 64, 3, padding=1), (2, 64, 57, 55)),
}


@pytest.mark.parametrize("freeze", (False, True), ids=("default", "frozen"))
@pytest.mark.parametrize("name", MODELS)
def test_layers_on_any_number_of_threads(name, freeze):
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    exact_model = copy.deepcopy(model).double()
    with torch.no_grad():
        compiled = tracer_core.compile(model, options={"freeze": freeze})
        for threads in THREADS:
            torch.set_num_threads(threads)
            x = torch.randn(sizes)  # others each time: memory holds the results of the last ones
            result, want = compiled(x), exact_model(x.double()).float()
            torch.testing.assert_close(result, want, rtol=2e-5, atol=2e-5)
            assert torch.equal(result, compiled(x))


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(128, 3072, 768), (768, 1576, 192), (192, 1577, 768), (1576, 192, 100), (65, 5000, 130)],
)
def test_matmuls_and_their_gradients(m, k, n):
    torch.manual_seed(0)
    layer = nn.Linear(k, n)
    compiled, exact_layer = tracer_core.compile(layer), copy.deepcopy(layer).double()

    def run(function, module, x, grad):
        x = x.clone().requires_grad_()
        result = function(x)
        return result.detach(), *torch.autograd.grad(result, (x, *module.parameters()), grad)

    for threads in THREADS:
        torch.set_num_threads(threads)
        x, grad = torch.randn(m, k), torch.randn(m, n)
        results = run(compiled, layer, x, grad)
        want = run(exact_layer, exact_layer, x.double(), grad.double())
        for result, expected in zip(results, want, strict=True):
            error = (result - expected).abs().max() / expected.abs().max()
            assert error < 2e-6
        assert all(map(torch.equal, results, run(compiled, layer, x, grad)))


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "causal"),
    [((1, 6), 150, 1500, False), ((2, 1), 301, 301, True), ((3, 4), 77, 130, False)],
)
def test_attention_of_few_heads(heads, queries, keys, causal):
    torch.manual_seed(0)
    sizes = ((queries, 64), (keys, 64), (keys, 40))
    attend = functools.partial(functional.scaled_dot_product_attention, is_causal=causal)
    with torch.no_grad():
        for threads in THREADS:
            torch.set_num_threads(threads)
            operands = [torch.randn(*heads, *size) for size in sizes]
            want = attend(*(x.double() for x in operands)).float()
            result = attention(*operands, None, causal=causal)
            torch.testing.assert_close(result, want, rtol=1e-5, atol=1e-5)
            assert torch.equal(result, attention(*operands, None, causal=causal))


def test_attention_of_many_keys_is_compiled_for_many_threads(monkeypatch):
    monkeypatch.setattr(native, "lanes", lambda: 16)
    monkeypatch.setattr(native, "cache_bytes", lambda: 2 << 20)
    torch.set_num_threads(16)
    assert pays(64, 1500, 64, 64, heads=6) and not pays(64, 1500, 64, 64, heads=96)
    assert not pays(64, 3000, 64, 64, heads=6)
    torch.set_num_threads(2)
    assert not pays(64, 1500, 64, 64, heads=6) and pays(64, 512, 64, 64, heads=96)


@pytest.mark.parametrize("tiled", (False, True))
@pytest.mark.parametrize(("channels", "count"), [(64, 64), (96, 32), (512, 128)])
def test_packed_weights_are_the_same(channels, count, tiled):
    geometry = packed_weights.Geometry(
        channels, count, (3, 3), (1, 1), (1, 1), (1, 1), 1, tiled=tiled
    )
    for threads in THREADS:
        weight = torch.randn(count, channels, 3, 3)
        torch.set_num_threads(1)
        want = packed_weights.pack(weight, geometry)
        torch.set_num_threads(threads)
        assert torch.equal(packed_weights.pack(weight, geometry), want)
