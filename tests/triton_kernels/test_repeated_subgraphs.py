"""Equal layers are lowered once for GPUs, too; run by Triton's interpreter, on a GPU with ``-m
gpu``.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import split_reductions
from tracer_core.debug.stages import observe

pytestmark = pytest.mark.sweep(keep=1)

WIDTH, LAYERS = 8, 6


@pytest.fixture(
    params=[
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                not interpreting(), reason="Triton compiles for a GPU in this process"
            ),
        ),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request):
    with interpreted() if request.param == "cpu" else contextlib.nullcontext():
        yield request.param


@pytest.fixture
def messages(monkeypatch):
    """What the compiler says of each graph's regions; each repeated program is compared with the
    one of the whole graph.
    """
    monkeypatch.setenv("TRACER_CHECK", "1")
    texts = []
    undo = observe(
        lambda record: texts.append(record.text) if record.name == "inductor_replicate" else None
    )
    yield texts
    undo()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, scale):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) * scale).softmax(-1)
        x = x + self.out(scores @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 50)

    def forward(self, tokens):
        x = self.words(tokens)
        scale = torch.full((), 0.25, device=x.device)
        for layer in self.layers:
            x = layer(x, scale)
        return self.head(x)


def tokens(device, rows=2, length=3):
    return torch.randint(0, 50, (rows, length), device=device)


def test_layers(device, messages):
    net = Deep().to(device).eval()
    fast = tracer_core.compile(net)
    with torch.no_grad():
        for _ in range(2):
            x = tokens(device)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
            net.layers[4].out.bias.add_(0.5)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    (text,) = messages
    assert text.endswith("times: four are lowered")


def test_gradients(device, messages, monkeypatch):
    """Sums over many rows are cut in two: the parts belong to their layers."""
    monkeypatch.setattr(split_reductions, "MIN_COLUMN", 8)
    monkeypatch.setattr(split_reductions, "MIN_COLUMN_PART", 2)
    net = Deep().to(device)
    fast = tracer_core.compile(net)
    x = tokens(device, 4)
    wanted = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
    actual = torch.autograd.grad(fast(x).square().mean(), list(net.parameters()))
    for item, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-3, atol=1e-4)
    assert len(messages) == 2 and all(
        text.endswith("four are lowered") for text in messages
    )  # forward and backward


def test_dropout_in_every_layer(device, messages):
    """No two layers draw the same numbers, so all are lowered."""
    weights = [torch.randn(WIDTH, WIDTH, device=device) / 4 for _ in range(30)]

    def program(x):
        for weight in weights:
            x = torch.nn.functional.dropout((x @ weight).tanh(), 0.5, training=True)
        return x

    fast = tracer_core.compile(program)
    x = torch.randn(5, WIDTH, device=device)
    actual = []
    for _ in range(2):
        torch.manual_seed(3)
        actual.append(fast(x))
    torch.testing.assert_close(actual[0], actual[1])
    assert not torch.equal(fast(x), actual[0])
    assert messages == ["no region of the graph repeats"]


def test_layers_that_write_to_their_states(device, messages):
    def program(x, weights, states):
        for weight, state in zip(weights, states, strict=True):
            x = torch.softmax(x @ weight, -1) + x.sin() + state
            state.copy_(x.cos())
        return x

    x = torch.randn(5, WIDTH, device=device)
    weights = [torch.randn(WIDTH, WIDTH, device=device) for _ in range(20)]
    fast = tracer_core.compile(program)
    mine, theirs = ([torch.zeros(5, WIDTH, device=device) for _ in weights] for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(
            fast(x, weights, mine), program(x, weights, theirs), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


class Modulated(torch.nn.Module):
    """A layer whose norms are scaled and shifted by a product of one condition, as in a diffusion
    transformer: the product of the next layer is there before this one is done."""

    def __init__(self):
        super().__init__()
        self.modulation, self.mix = torch.nn.Linear(WIDTH, 6 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, condition):
        a, b, c, d, e, f = self.modulation(condition)[:, None].chunk(6, -1)
        normalized = torch.nn.functional.layer_norm
        x = x + c * self.mix(normalized(x, (WIDTH,)) * (1 + a) + b)
        hidden = torch.nn.functional.gelu(self.up(normalized(x, (WIDTH,)) * (1 + d) + e))
        return x + f * self.down(hidden)


def test_layers_that_need_a_product_of_the_next_one(device, messages):
    layers = torch.nn.ModuleList(Modulated() for _ in range(8)).to(device)

    def program(x, condition):
        condition = torch.nn.functional.silu(condition)
        for layer in layers:
            x = layer(x, condition)
        return x

    fast = tracer_core.compile(program)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, WIDTH, device=device)
            condition = torch.randn(2, WIDTH, device=device)
            wanted = program(x, condition)
            torch.testing.assert_close(fast(x, condition), wanted, rtol=1e-4, atol=1e-4)
            layers[5].modulation.bias.data.add_(0.5)
    (text,) = messages
    assert text.endswith("times: four are lowered")


def test_copies_of_all_layers(device, messages):
    """Results that are laid out anew: those of several layers would be one kernel."""
    weights = [torch.randn(WIDTH, WIDTH, device=device) / 3 for _ in range(16)]

    def program(x):
        transposed = []
        for weight in weights:
            hidden = x @ weight
            transposed.append(hidden.t().contiguous())
            x = x + hidden.sin().tanh() * 0.5
        return x, transposed

    fast = tracer_core.compile(program)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(5, WIDTH, device=device)
            torch.testing.assert_close(fast(x), program(x), rtol=1e-4, atol=1e-4)
    assert messages and all(text.endswith("four are lowered") for text in messages), messages
