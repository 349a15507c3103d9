"""torch.nn as programs use it: layers, containers, hooks, parametrizations, losses, training steps.
Forward and gradients are eager's; what a graph cannot hold is one explained break."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import (
    parametrizations,
    parametrize,
    remove_weight_norm,
    skip_init,
    spectral_norm,
    stateless,
    weight_norm,
)
from torch.nn.utils.rnn import (
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from tests.support.eager_reference import Kw, same, twin
from tests.support.gradients import same_gradients

X, Y = torch.randn(3, 4), torch.randn(3, 4)
S, T = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)


def seeded(make):
    def made():
        torch.manual_seed(0)
        return make()

    return made


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
        twin(lambda: (seeded(make)().eval(), None), (a,), (b,), graphs=1, breaks=0)


def test_train_and_eval_switched():
    def make():
        m = seeded(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)))()
        return m, m

    twin(
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
    twin(
        lambda: (seeded(lambda: nn.Transformer(4, 2, 1, 1, 8))(), None),
        (S, T),
        (T, S),
        graphs=1,
        breaks=0,
    )


def test_attention_masks():
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    call = (S, S, S, Kw(attn_mask=mask, is_causal=True, average_attn_weights=False))
    twin(
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

    twin(
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

    twin(make, (X,), (Y,), (X,), breaks=0)


def test_containers_changed_between_calls():
    def make():
        m = seeded(Containers)()
        return m, m

    def grow(m):
        m.layers.append(nn.Identity())
        m.d.pop("y")
        m.p["c"] = nn.Parameter(torch.full((4,), 3.0))

    twin(make, (X,), grow, (X,), (Y,), graphs=2, breaks=0, recompiles=1)


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

    twin(make, (X,), (Y,), (X,), (Y,), breaks=0, graphs=3)


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

    twin(make, (X,), (Y,), (X,), breaks=0, graphs=2)


def test_lazy_modules():
    twin(
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


# -- hooks --

HOOKS = {
    "forward": lambda m: m[0].register_forward_hook(lambda m, args, out: out * 2),
    "forward, with keywords": lambda m: m[0].register_forward_hook(lambda m, a, k, o: o * 2,
    with_kwargs=True, always_call=True),
    "forward, prepended": lambda m: (m[0].register_forward_hook(lambda m, a, o: o * 2),
                                     m[0].register_forward_hook(lambda m, a, o: o + 1,
                                     prepend=True)),
    "pre, with keywords": lambda m: m[0].register_forward_pre_hook(lambda m, a, k: ((a[0] * 2,),
    k), with_kwargs=True),
    "pre": lambda m: m[2].register_forward_pre_hook(lambda m, a: a[0] + 1),
    "on the root": lambda m: m.register_forward_hook(lambda m, a, o: o * 2),
    "state": lambda m: m[0].register_forward_hook(lambda m, a, o: setattr(m, "last", o.shape)),
}  # fmt: skip
BACKWARD_HOOKS = {
    "full backward": lambda m: m[0].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)),
    "full backward pre": lambda m: m[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    "both": lambda m: (m[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,)),
                       m[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))),
}  # fmt: skip


def three():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def hooked(hook):
    def make():
        result = seeded(three)()
        hook(result)
        return result

    return make


@pytest.mark.parametrize("name", HOOKS)
def test_hook(name):
    same_gradients(hooked(HOOKS[name]), (G,), (H,), graphs=1)


@pytest.mark.parametrize("name", BACKWARD_HOOKS)
def test_backward_hook(name):
    """The module is called eagerly, and its hooks run in backward; the rest is captured."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = hooked(BACKWARD_HOOKS[name])()

        def forward(self, x):
            x = self.inner[0](x * 2)
            x = self.inner[1](x)
            return self.inner[2](x) * 3

    counter = same_gradients(Around, (G,), (H,), graphs=2, breaks=1)
    assert counter.breaks[0][0] == "autograd_in_graph"


def test_hook_added_and_removed():
    handles = []

    def make():
        m = seeded(three)()
        return m, m

    twin(
        make, (X,), lambda m: handles.append(m[0].register_forward_hook(lambda m, a, o: o * 2)),
        (X,), (Y,),
        lambda m: handles.pop(0).remove(), (X,), graphs=2, breaks=0,
    )  # fmt: skip


def test_global_hook():
    def make():
        return seeded(three)(), None

    handles = []

    def add(_):
        if not handles:
            handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 2))

    def remove(_):
        while handles:
            handles.pop().remove()

    try:
        twin(make, (X,), add, (X,), remove, (Y,), breaks=0)
    finally:
        remove(None)


# -- parametrizations --


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


def symmetric():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer)


PARAMETRIZED = {
    "weight_norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))),
    "weight_norm, old": lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))),
    "spectral_norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4))),
    "spectral_norm, old": lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4))),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))),
    "own": symmetric,
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrization(name):
    same_gradients(seeded(PARAMETRIZED[name]), (G,), (H,), graphs=1)


@pytest.mark.parametrize(("name", "remove"), [
    ("weight_norm", lambda m: parametrize.remove_parametrizations(m[0], "weight")),
    ("weight_norm, old", lambda m: remove_weight_norm(m[0])),
    ("own", lambda m: parametrize.remove_parametrizations(m[0], "weight",
    leave_parametrized=False)),
])  # fmt: skip
def test_parametrization_removed(name, remove):
    def made():
        m = seeded(PARAMETRIZED[name])()
        return m, m

    twin(made, (X,), remove, (X,), (Y,), graphs=2, breaks=0, recompiles=1)


# -- losses and functions --

LABELS = torch.tensor([0, 1, 2])
LOSSES = {
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "CrossEntropyLoss": lambda x: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2)(x,
    LABELS),
    "NLLLoss": lambda x: nn.NLLLoss(weight=torch.ones(4))(x.log_softmax(-1), LABELS),
    "MSE, L1, Huber": lambda x: nn.MSELoss()(x, x * 2) + nn.L1Loss()(x, x * 2) + nn.HuberLoss()(x,
    x * 3),
    "BCE": lambda x: nn.BCEWithLogitsLoss(pos_weight=torch.ones(4))(x, (x > 0).float()),
    "KL": lambda x: nn.KLDivLoss(reduction="batchmean")(x.log_softmax(-1), x.softmax(-1)),
    "triplet": lambda x: nn.TripletMarginLoss()(x, x + 1, x - 1),
    "cosine": lambda x: nn.CosineEmbeddingLoss()(x, x * 2, torch.ones(3)) + F.cosine_similarity(x,
    x + 1).sum(),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "unfold and fold": lambda x: F.fold(F.unfold(x[None, None], 2), (3, 4), 2),
    "grid_sample": lambda x: F.grid_sample(x[None, None], F.affine_grid(torch.eye(2, 3)[None], (1,
    1, 3, 4), align_corners=False),
                                           align_corners=False),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "pad": lambda x: F.pad(x, (1, 2), mode="reflect") + F.pad(x, (1, 2), value=3.0),
    "normalize": lambda x: F.normalize(x) + F.layer_norm(x, (4,)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None],
    is_causal=True),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 3, 1), 2),
    "multi_margin": lambda x: F.multi_margin_loss(x, LABELS) + F.soft_margin_loss(x,
    x.detach().sign()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_function(name):
    same_gradients(lambda: LOSSES[name], (G,), (H,), graphs=1)


def test_ctc_loss():
    def f(x):
        logits = x[:, None].expand(3, 2, 4).log_softmax(-1)
        return (
            nn.CTCLoss()(
                logits,
                torch.ones(2, 2, dtype=torch.long),
                torch.tensor([3, 3]),
                torch.tensor([2, 2]),
            )
            * 2
        )

    same(f, (X,), (Y,), breaks=0, kinds=None)


# -- training steps inside --


def training(optimizer, **options):
    def make():
        m = seeded(lambda: nn.Linear(4, 4))()
        o = optimizer(m.parameters(), **options)

        def step(x):
            o.zero_grad()
            loss = m(x).pow(2).mean()
            loss.backward()
            o.step()
            return loss.detach()

        return step, m

    return make


@pytest.mark.parametrize(("optimizer", "options"), [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1, "foreach": True}), (torch.optim.RMSprop, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1}),
])  # fmt: skip
def test_training_step(optimizer, options):
    """test_training_*.py have more."""
    twin(training(optimizer, **options), (X,), (Y,), (X,), breaks=0, graphs=2)


def backward(x):
    w = torch.ones(4, requires_grad=True)
    (x * w).sum().backward()
    return w.grad * 2


def differentiated(x):
    x = x.clone()
    x.requires_grad_()
    (g,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    return g * 2


def tensor_hook(x):
    w = torch.ones(4, requires_grad=True)
    y = x * w
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return w.grad


def clipped(x):
    w = nn.Parameter(torch.ones(4))
    (x * w).sum().backward()
    return nn.utils.clip_grad_norm_([w], 1.0), w.grad


def retained(x):
    w = torch.ones(4, requires_grad=True)
    y = x * w
    y.retain_grad()
    y.sum().backward()
    return y.grad


def sgd_by_hand(x):
    w = torch.ones(4, requires_grad=True)
    for _ in range(2):
        (x * w).pow(2).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad = None
    return w.detach()


def saved_tensors(x):
    w = torch.ones(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = (w * x).exp()
    return torch.autograd.grad(y.sum(), w)[0]


def made_inside(x):
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.zeros_(layer.bias)
    return layer(x)


AUTOGRAD = [clipped, retained, saved_tensors, made_inside]


@pytest.mark.parametrize("function", [backward, sgd_by_hand, differentiated, tensor_hook])
def test_backward_inside(function):
    same(function, (X,), (Y,), graphs=1)


@pytest.mark.parametrize("function", AUTOGRAD, ids=lambda f: f.__name__)
def test_autograd_inside(function):
    seen = same(function, (X,), (Y,), kinds=None)
    assert {kind for kind, _, _ in seen.counter.breaks} & {
        "autograd_in_graph",
        "tensor_metadata_mutation",
        "tensor_subclass",
    }
