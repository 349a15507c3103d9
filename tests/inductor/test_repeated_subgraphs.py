"""Equal layers are lowered once: the program is the one that lowering all of them gives, and
results are eager's.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.comparison import assert_same
from tracer_core.debug.stages import observe

LAYERS = 10


@pytest.fixture(autouse=True)
def checked(monkeypatch):
    """Each repeated program is compared with the one of the whole graph."""
    monkeypatch.setenv("TRACER_CHECK", "1")


@pytest.fixture
def messages():
    """What the compiler says of each graph's regions."""
    texts = []
    undo = observe(
        lambda record: texts.append(record.text) if record.name == "inductor_replicate" else None
    )
    yield texts
    undo()


class Layer(torch.nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x)))), k, v


class Deep(torch.nn.Module):
    def __init__(self, layers=LAYERS, caches=False):
        super().__init__()
        self.words = torch.nn.Embedding(50, 32)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head, self.caches = torch.nn.LayerNorm(32), torch.nn.Linear(32, 50), caches

    def forward(self, tokens):
        x, kept = self.words(tokens), []
        mask = torch.ones(tokens.shape[1], tokens.shape[1]).tril().log()
        for layer in self.layers:
            x, k, v = layer(x, mask)
            kept += [k, v]
        y = self.head(self.norm(x))
        return (y, *kept) if self.caches else y


def tokens(length=7):
    return torch.randint(0, 50, (2, length))


@pytest.mark.parametrize("caches", [False, True])
def test_the_layers_of_a_transformer(messages, caches):
    net = Deep(caches=caches).eval()
    fast = tracer_core.compile(net)
    with torch.no_grad():
        for _ in range(3):
            x = tokens()
            assert_same(fast(x), net(x))
    (text,) = messages
    assert text.endswith("times: four are lowered")


class Masked(Deep):
    """Each layer turns one mask of booleans into numbers."""

    def mask(self, number, keep):
        return torch.where(keep, 0.0, -torch.inf)

    def forward(self, tokens, keep):
        x, masks = self.words(tokens), []
        for number, layer in enumerate(self.layers):
            masks.append(self.mask(number, keep))
            x, *_ = layer(x, masks[-1])
        return (x, masks[0], masks[3]) if self.caches else x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_what_all_layers_compute_is_computed_once(messages, dynamic, returned):
    lowered = []
    undo = observe(
        lambda record: lowered.append(record.text) if record.name == "inductor_lower" else None
    )
    net = Masked(caches=returned).eval()
    fast = tracer_core.compile(net, dynamic=dynamic)
    with torch.no_grad():
        for length in (7, 9) if dynamic else (7, 7):
            keep = torch.ones(length, length).tril().bool()
            actual, wanted = fast(tokens(length), keep), net(tokens(length), keep)
            assert_same(fast(x := tokens(length), keep), net(x, keep))
            if returned:  # two results of one value are two tensors
                actual[1].zero_()
                assert_same(actual[2], wanted[2])
    undo()
    assert messages and all(text.endswith("four are lowered") for text in messages)
    assert lowered[0].count(" where ") <= (3 if returned else 1), lowered[0]


def test_masks_that_differ_stay_apart():
    class Windows(Masked):
        def mask(self, number, keep):
            return torch.where(keep, -0.0 if number % 2 else 0.0, -float(number % 3))

    net = Windows().eval()
    fast = tracer_core.compile(net)
    keep = torch.ones(7, 7).tril().bool()
    with torch.no_grad():
        x = tokens()
        assert_same(fast(x, keep), net(x, keep))


def test_a_mask_that_is_written_between_the_layers():
    class Written(Masked):
        def mask(self, number, keep):
            keep[0, -1] = ~keep[0, -1]
            return super().mask(number, keep)

    net = Written().eval()
    fast = tracer_core.compile(net)
    with torch.no_grad():
        for _ in range(2):
            x, mine = tokens(), torch.ones(7, 7).tril().bool()
            theirs = mine.clone()
            assert_same(fast(x, mine), net(x, theirs))
            assert_same(mine, theirs)


def test_every_layer_has_its_own_weights():
    net = Deep().eval()
    fast = tracer_core.compile(net)
    x = tokens()
    with torch.no_grad():
        fast(x)
        for layer in net.layers:
            layer.down.bias.add_(torch.randn(32))
            assert_same(fast(x), net(x))


def test_gradients(messages):
    net = Deep()
    fast = tracer_core.compile(net)
    for _ in range(2):
        x = tokens()
        wanted = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
        actual = torch.autograd.grad(fast(x).square().sum(), list(net.parameters()))
        for item, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(item, other, rtol=1e-3, atol=1e-3)
    assert len(messages) == 2 and all(
        text.endswith("four are lowered") for text in messages
    )  # forward and backward


def test_frozen_layers(messages):
    net = Deep().eval()
    fast = tracer_core.compile(net, options={"freeze": True})
    with torch.no_grad():
        for _ in range(2):
            x = tokens()
            assert_same(fast(x), net(x))
        net.layers[5].down.weight.mul_(2)
        assert_same(fast(x), net(x))
    assert messages[0].endswith("four are lowered")


def test_sizes_that_change(messages):
    net = Deep(caches=True).eval()
    fast = tracer_core.compile(net, dynamic=True)
    with torch.no_grad():
        for length in (7, 9, 16, 7):
            x = tokens(length)
            assert_same(fast(x), net(x))
    assert messages[0].endswith("four are lowered")


def chain(count, step):
    def program(x, *weights):
        for number in range(count):
            x = step(x, number, weights)
        return x

    return program


PROGRAMS = {
    "one kernel for all": chain(60, lambda x, n, w: (x * 0.5).sin() + 0.1),
    "a square that turns": chain(40, lambda x, n, w: x.t() @ w[0]),
    "turned by views alone": lambda x, *w: chain(41, lambda x, n, w: x.t())(
        chain(40, lambda x, n, w: (x @ w[0]).tanh())(x, *w)
    ),
    "another constant each": chain(40, lambda x, n, w: (x @ w[0]).tanh() * (1 / (n + 1))),
    "two weights in turn": chain(40, lambda x, n, w: (x @ w[n % 2]).tanh()),
    "three weights in no order": chain(40, lambda x, n, w: (x @ w[n * n % 3]).tanh()),
    "each weight in two layers": chain(
        40, lambda x, n, w: (x @ w[n // 2 % 3] + x @ w[(n + 1) // 2 % 3]).tanh() * 0.6
    ),
    "the same weight in all": chain(40, lambda x, n, w: torch.softmax((x @ w[0]).tanh(), -1)),
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_alike_from_afar(name):
    program = PROGRAMS[name]
    fast = tracer_core.compile(program)
    for _ in range(2):
        arguments = torch.linalg.qr(torch.randn(4, 16, 16, dtype=torch.float64))[
            0
        ].unbind()  # nothing grows
        torch.testing.assert_close(fast(*arguments), program(*arguments))


def test_results_of_layers_in_the_middle():
    weights = [torch.randn(16, 16) / 4 for _ in range(40)]

    def program(x, every, last):
        actual = []
        for number, weight in enumerate(weights):
            x = torch.softmax(x @ weight, -1) + x.sin() * 0.1
            if number in every:
                actual.append(x)
        return (sum(actual) if last else actual), x

    for every, last in (
        ((), False),
        (range(40), False),
        ((3, 17, 18), False),
        (range(40), True),
        ((20,), True),
    ):
        fast = tracer_core.compile(lambda x, e=every, a=last: program(x, e, a))
        x = torch.randn(5, 16)
        torch.testing.assert_close(fast(x), program(x, every, last))


def test_inputs_that_layers_write_to():
    def program(x, weights, states):
        for weight, state in zip(weights, states, strict=True):
            x = torch.softmax(x @ weight, -1) + x.sin() + state
            state.copy_(x.cos())
        return x

    x, weights = torch.randn(5, 16), [torch.randn(16, 16) for _ in range(20)]
    fast = tracer_core.compile(program)
    mine, theirs = ([torch.zeros(5, 16) for _ in weights] for _ in range(2))
    for _ in range(3):
        torch.testing.assert_close(fast(x, weights, mine), program(x, weights, theirs))
        torch.testing.assert_close(mine, theirs)


def test_dropout_is_lowered_layer_by_layer():
    def program(x, weights):
        for weight in weights:
            x = torch.nn.functional.dropout(torch.softmax(x @ weight, -1), 0.5) + x
        return x

    x, weights = torch.randn(5, 16), [torch.randn(16, 16) for _ in range(20)]
    fast = tracer_core.compile(program, options={"fallback_random": True})
    torch.manual_seed(1)
    wanted = program(x, weights)
    torch.manual_seed(1)
    torch.testing.assert_close(fast(x, weights), wanted)
