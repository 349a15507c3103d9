"""torch.nn as programs use it: layers, containers, hooks, parametrizations, losses, training steps.
Forward and gradients are eager's; what a graph cannot hold is one explained break."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import (
    skip_init,
    stateless,
)
from torch.nn.utils.rnn import (
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

import tracer_core
from tests.support.eager_reference import Kw, compare_with_eager, same
from tests.support.gradients import same_gradients
from tests.support.seeded_modules import seeded
from tracer_core import torch_private
from tracer_core.testing import compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)
S, T = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
# -- layers, with gradients --

LAYERS = {
    **{
        f"{kind} {sorted(options)}": (
            lambda kind=kind, options=options: getattr(nn, kind)(4, 4, **options),
            S,
            T,
        )
        for kind in ("RNN", "LSTM", "GRU")
        for options in (
            {},
            {"bidirectional": True, "num_layers": 2, "batch_first": True},
            {"dropout": 0.3, "num_layers": 2},
        )
    },
    **{
        f"{kind}Cell": (lambda kind=kind: getattr(nn, f"{kind}Cell")(4, 4), X, Y)
        for kind in ("RNN", "LSTM", "GRU")
    },
    "LSTM with projection": (lambda: nn.LSTM(4, 4, proj_size=2), S, T),
    "RNN relu": (lambda: nn.RNN(4, 4, nonlinearity="relu", bias=False), S, T),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        S,
        T,
    ),
    "encoder, norm first": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, norm_first=True, activation=F.gelu),
        S,
        T,
    ),
    "bilinear": (lambda: _Call(nn.Bilinear(4, 4, 2), lambda m, x: m(x, x * 2)), X, Y),
    "attention": (lambda: _Call(nn.MultiheadAttention(4, 2), lambda m, x: m(x, x, x)), S, T),
    "attention, key padding": (
        lambda: _Call(
            nn.MultiheadAttention(4, 2, batch_first=True),
            lambda m, x: m(x, x, x, key_padding_mask=torch.tensor([[False, False, True]] * 5)),
        ),
        S,
        T,
    ),
    "attention, other dimensions": (
        lambda: _Call(
            nn.MultiheadAttention(4, 2, kdim=4, vdim=4, bias=False, add_zero_attn=True),
            lambda m, x: m(x, x, x, need_weights=False),
        ),
        S,
        T,
    ),
    "batch norm": (lambda: nn.BatchNorm1d(4), X, Y),
    "batch norm without affine": (
        lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        X,
        Y,
    ),
    "group, layer, instance norm": (
        lambda: nn.Sequential(
            nn.GroupNorm(2, 4),
            nn.LayerNorm(4),
            nn.Unflatten(1, (2, 2)),
            nn.InstanceNorm1d(2, affine=True),
        ),
        X,
        Y,
    ),
    "RMS norm": (lambda: nn.RMSNorm(4), X, Y),
    "dropouts": (
        lambda: nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.1)),
        X,
        Y,
    ),
    "activations": (
        lambda: nn.Sequential(
            nn.PReLU(), nn.GELU("tanh"), nn.Hardswish(), nn.Softplus(), nn.LogSoftmax(-1)
        ),
        X,
        Y,
    ),
    "convolutions": (
        lambda: _Call(
            nn.Sequential(nn.Conv1d(3, 4, 3, padding="same"), nn.ConvTranspose1d(4, 2, 2)),
            lambda m, x: m(x),
        ),
        X[None],
        Y[None],
    ),
    "pooling": (
        lambda: nn.Sequential(nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        X[None],
        Y[None],
    ),
    "embedding": (
        lambda: _Call(
            nn.Embedding(10, 4, padding_idx=0), lambda m, x: m(torch.tensor([0, 1, 2])) * x
        ),
        X,
        Y,
    ),
    "embedding bag": (
        lambda: _Call(
            nn.EmbeddingBag(10, 4, mode="mean"),
            lambda m, x: m(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 3])) * x,
        ),
        X,
        Y,
    ),
}


class _Call(nn.Module):
    """Calls a layer in its own way."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, a, b = LAYERS[name]
    leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    same_gradients(seeded(make), *((leaf,) for leaf in leaves), graphs=1)


@pytest.mark.parametrize(
    "name", ["LSTM []", "GRUCell", "encoder", "attention", "batch norm", "convolutions"]
)
def test_layer_in_eval_mode(name):
    make, a, b = LAYERS[name]
    with torch.no_grad():
        compare_with_eager(lambda: (seeded(make)().eval(), None), (a,), (b,), graphs=1, breaks=0)


def test_train_and_eval_switched():
    def make():
        m = seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)))()
        return m, m

    compare_with_eager(
        make,
        (X,),
        lambda m: m.eval(),
        (X,),
        (Y,),
        lambda m: m.train(),
        (Y,),
        graphs=2,
        breaks=0,
        recompiles=1,
    )


def test_transformer():
    compare_with_eager(
        lambda: (seeded(lambda: nn.Transformer(4, 2, 1, 1, 8))(), None),
        (S, T),
        (T, S),
        graphs=1,
        breaks=0,
    )


def test_attention_masks():
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    call = (S, S, S, Kw(attn_mask=mask, is_causal=True, average_attn_weights=False))
    compare_with_eager(
        lambda: (seeded(lambda: nn.MultiheadAttention(4, 2))(), None),
        call,
        call,
        graphs=1,
        breaks=0,
    )


def test_packed_sequences_break():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(4, 4)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x * 2, lengths, enforce_sorted=False)
            out, (h, _) = self.rnn(packed)
            return pad_packed_sequence(out)[0] * 2, h

    compare_with_eager(
        lambda: (seeded(Packed)(), None),
        (S, torch.tensor([5, 3, 2])),
        (T, torch.tensor([2, 3, 5])),
        kinds=None,
    )


def test_sequences_packed_and_padded():
    def f(x):
        packed = pack_sequence([x, x[:2]])
        return pad_sequence([x * 2, x[:1]]), pad_packed_sequence(packed)[0]

    same(f, (X,), (Y,), kinds=None)


# -- containers and state --


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.ParameterDict(
            {"a": nn.Parameter(torch.ones(4)), "b": nn.Parameter(torch.ones(4) * 2)}
        )
        self.list = nn.ParameterList([torch.ones(4), torch.ones(4) * 3])
        self.d = nn.ModuleDict({"x": nn.Linear(4, 4), "y": nn.Identity()})
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for _, value in self.p.items():
            x = x * value
        for value in self.list:
            x = x + value
        x = self.d["x"](x) if "x" in self.d else x
        for i, layer in enumerate(self.layers[1:]):
            x = layer(x) * (i + 1)
        return x * len(self.p), list(self.d), len(self.layers)


class Walks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        total = x.sum()
        for name, parameter in self.named_parameters():
            total = total + parameter.sum() * len(name)
        for name, _ in self.named_modules():
            total = total + len(name)
        for child in self.children():
            total = total + sum(1 for _ in child.parameters())
        return total + sum(p.numel() for p in self.parameters()), next(self.parameters()).dtype


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x)) * (2 if self.a.weight is self.b.weight else 1)


class Questions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        y = getattr(self, "a")(x) if hasattr(self, "a") else x
        z = self.get_submodule("a").bias + self.get_parameter("a.weight").sum()
        return (
            y + z,
            getattr(self, "missing", None),
            self.a.__class__.__name__,
            self.training,
            len(self.state_dict()),
        )


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        self.mean = self.mean * 0.9 + x.mean(0).detach() * 0.1
        with torch.no_grad():
            self.fc.bias.mul_(0.9)
        return self.fc(x - self.mean)


PROGRAMS = {
    "containers": (Containers, 1),
    "walks": (Walks, 1),
    "tied weights": (Tied, 1),
    "questions": (Questions, 1),
    "stateful": (Stateful, None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_module_program(name):
    make, graphs = PROGRAMS[name]
    same_gradients(seeded(make), (G,), (H,), (G,), graphs=graphs)


def test_module_with_state_is_left_as_eager_leaves_it():
    def make():
        m = seeded(Stateful)()
        return m, m

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0)


def test_containers_changed_between_calls():
    def make():
        m = seeded(Containers)()
        return m, m

    def grow(m):
        m.layers.append(nn.Identity())
        m.d.pop("y")
        m.p["c"] = nn.Parameter(torch.full((4,), 3.0))

    compare_with_eager(make, (X,), grow, (X,), (Y,), graphs=2, breaks=0, recompiles=1)


def test_containers_changed_inside():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4)])

        def forward(self, x):
            if len(self.layers) < 3:
                self.layers.append(nn.ReLU())
            for layer in self.layers:
                x = layer(x)
            return x

    def make():
        m = seeded(Grows)()
        return m, m

    compare_with_eager(make, (X,), (Y,), (X,), (Y,), breaks=0, graphs=3)


def test_registered_inside():
    class Registers(nn.Module):
        def forward(self, x):
            if not hasattr(self, "seen"):
                self.register_buffer("seen", torch.ones(4))
                self.register_parameter("none", None)
            return x * self.seen, self.none

    def make():
        m = Registers()
        return m, m

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0, graphs=2)


def test_lazy_modules():
    compare_with_eager(
        lambda: (seeded(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU()))(), None),
        (X,),
        (Y,),
        (X,),
        kinds=None,
    )


def test_functional_call_of_stateless():
    m = seeded(lambda: nn.Linear(4, 4))()

    def f(x):
        return stateless.functional_call(m, {"weight": torch.ones(4, 4), "bias": x[0]}, (x,))

    same(f, (X,), (Y,))  # it warns that torch.func has it now


def test_skip_init():
    same(lambda x: skip_init(nn.Linear, 4, 4).weight.shape, (X,), (Y,), kinds=None)


def test_results_of_recurrent_layers_in_cudnn_are_laid_out_as_its_kernels_do():
    """Batches first: the kernels write steps first, and turn what they wrote."""
    mode = torch_private.fake_tensor_mode(None)
    with mode:
        x, state = torch.empty(3, 5, 8, device="cuda"), torch.empty(1, 3, 16, device="cuda")
        weights = [torch.empty(64, n, device="cuda") for n in (8, 16)]
    options = (0.0, False, False, [], None)
    args = (x, weights, 2, None, state, state, 2, 16, 0, 1)
    operator = torch.ops.aten._cudnn_rnn.default
    result = torch_private.fake_result(mode, operator, (*args, True, *options), {})
    assert result[0].shape == (3, 5, 16) and result[0].stride() == (16, 48, 1)
    assert torch_private.fake_result(mode, operator, (*args, False, *options), {}) is None


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_the_last_states_of_any_number_of_batches(kind, batch_first):
    """torch 2.11's form of an LSTM for symbolic sizes returns states of four dimensions."""
    torch.manual_seed(0)
    layer, head = kind(8, 16, 2, batch_first=batch_first), torch.nn.Linear(16, 4)

    def model(x):
        _, state = layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return head(last[-1]), last.shape, state

    fast = tracer_core.compile(model, fullgraph=True, dynamic=True)
    for rows in (3, 2, 4):
        x = torch.randn(*((rows, 5) if batch_first else (5, rows)), 8)
        compare(model(x), fast(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_on_a_gpu_with_batches_first(kind):
    torch.manual_seed(0)
    layer, head = kind(8, 16, 2, batch_first=True).cuda(), torch.nn.Linear(16, 4).cuda()

    def model(x):
        hidden, state = layer(x)
        return head(hidden), hidden, state

    fast = tracer_core.compile(model, fullgraph=True, options={"recordings": False})
    with torch.no_grad():
        for rows in (3, 2, 4):
            x = torch.randn(rows, 5, 8, device="cuda")
            compare(model(x), fast(x))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                fast(x)
            # what failed a check of its first call was run again in eager mode
            assert sum(event.name == "aten::_cudnn_rnn" for event in seen.events()) == 1
