"""Losses and functions of torch.nn.functional, and training steps that use them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.eager_reference import compare_with_eager, same
from tests.support.gradients import same_gradients
from tests.support.seeded_modules import seeded

X, Y = torch.randn(3, 4), torch.randn(3, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
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
    compare_with_eager(training(optimizer, **options), (X,), (Y,), (X,), breaks=0, graphs=2)


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
