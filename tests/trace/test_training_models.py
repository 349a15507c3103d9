"""Small whole models, a step of each in one graph; mixed precision and gradient scaling."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.eager_training import Side, X, Y, mlp, trained

CALLS = ((X, Y),) * 4


def _seeded(make: Any) -> Any:
    torch.manual_seed(3)
    return make()


# -- gradient scaling and autocast --


def _scaled(
    scaler_options: dict[str, Any],
    optimizer: Any = torch.optim.SGD,
    unscale: bool = False,
    **options: Any,
) -> Any:
    def make() -> Side:
        model = mlp()
        used = optimizer(model.parameters(), **{"lr": 0.1, **options})
        scaler = torch.amp.GradScaler("cpu", **scaler_options)

        def step(x: Any, y: Any) -> Any:
            used.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(used)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(used)
            scaler.update()
            return loss

        return Side(step, [model, used, scaler])

    return make


def test_scaler_off() -> None:
    trained(_scaled({"enabled": False}), *CALLS, graphs=2)


def test_scaler_off_and_clipping() -> None:
    trained(_scaled({"enabled": False}, torch.optim.AdamW, unscale=True), *CALLS, graphs=2)


def test_scaler_on() -> None:
    """Whether a step is made depends on whether gradients are finite: a break."""
    trained(_scaled({"init_scale": 8.0, "growth_interval": 2}), *CALLS, breaks=None)


def test_scaler_on_and_clipping() -> None:
    trained(_scaled({"init_scale": 8.0}, torch.optim.Adam, unscale=True), *CALLS, breaks=None)


def test_scaler_on_with_a_fused_optimizer() -> None:
    trained(
        _scaled({"init_scale": 8.0, "growth_interval": 2}, torch.optim.Adam, fused=True),
        *CALLS,
        breaks=None,
    )


def test_scaler_meets_infinity() -> None:
    big = (X * 1e30, Y)
    trained(_scaled({"init_scale": 2.0**120}), (X, Y), big, (X, Y), big, (X, Y), breaks=None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [model, optimizer])

    trained(make, *CALLS, graphs=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_of_another_dtype(dtype: torch.dtype) -> None:
    def make() -> Side:
        model = mlp().to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(dtype)).float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [model, optimizer])

    trained(make, *CALLS, graphs=2)


def test_master_weights_in_float32() -> None:
    """Half-precision parameters, updated through float32 copies."""

    def make() -> Side:
        model = mlp().to(torch.bfloat16)
        masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            model.zero_grad()
            loss = F.cross_entropy(model(x.to(torch.bfloat16)).float(), y)
            loss.backward()
            for master, p in zip(masters, model.parameters(), strict=True):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters(), strict=True):
                    p.copy_(master)
            return loss

        return Side(step, [model, masters, optimizer])

    trained(make, *CALLS, graphs=2)


# -- models --


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, bias=False),
            nn.GroupNorm(2, 6), nn.SiLU(), nn.AdaptiveAvgPool2d(1))  # fmt: skip
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(self.features(x).flatten(1)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Any) -> Any:
        hidden = self.norm(self.layer(self.embed(tokens) + self.position))
        return hidden @ self.embed.weight.T  # tied


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embed, self.cell, self.head = (
            nn.Embedding(11, 6),
            kind(6, 8, batch_first=True),
            nn.Linear(8, 11),
        )

    def forward(self, tokens: Any) -> Any:
        return self.head(self.cell(self.embed(tokens))[0])


class Mixture(nn.Module):
    """Experts of which some get no gradient, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.experts[0](self.frozen(x)) + self.experts[1](x).detach()


class Parametrised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
        self.head = nn.utils.parametrizations.orthogonal(nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.layer(x)))


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
TOKENS = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1, 2, 0])


def _next_token(logits: Any, tokens: Any) -> Any:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


MODELS: dict[str, tuple[Any, Any, tuple[Any, Any]]] = {
    "convnet": (ConvNet, F.cross_entropy, (IMAGES, LABELS)),
    "convnet_channels_last": (lambda: ConvNet().to(memory_format=torch.channels_last),
    F.cross_entropy,
                              (IMAGES.to(memory_format=torch.channels_last), LABELS)),
    "transformer_tied": (Attention, _next_token, (TOKENS, TOKENS)),
    "lstm": (lambda: Recurrent(nn.LSTM), _next_token, (TOKENS, TOKENS)),
    "gru": (lambda: Recurrent(nn.GRU), _next_token, (TOKENS, TOKENS)),
    "rnn": (lambda: Recurrent(nn.RNN), _next_token, (TOKENS, TOKENS)),
    "frozen_and_unused": (Mixture, F.cross_entropy, (X, Y)),
    "mse": (mlp, lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()), (X, Y)),
    "nll": (mlp, lambda out, y: F.nll_loss(out.log_softmax(-1), y, reduction="sum"), (X, Y)),
    "bce_with_logits": (mlp, lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y,
    3).float()), (X, Y)),
    "smooth_l1_and_penalty": (mlp, lambda out, y: F.smooth_l1_loss(out,
    out.detach() + 1) + out.abs().mean(), (X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, optimizer: Any) -> None:
    build, loss_of, call = MODELS[name]

    def make() -> Side:
        model = _seeded(build)
        used = optimizer(model.parameters(), lr=0.02)

        def step(x: Any, y: Any) -> Any:
            used.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            used.step()
            return loss

        return Side(step, [model, used])

    trained(make, *(copy.deepcopy(call),) * 4, graphs=2)


def test_parametrised_model() -> None:
    def make() -> Side:
        model = _seeded(Parametrised)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [model, optimizer])

    trained(make, *CALLS, breaks=None)


def test_sparse_embedding() -> None:
    """Its gradient is a sparse tensor: backward() is not captured."""

    def make() -> Side:
        embedding = _seeded(lambda: nn.Embedding(11, 4, sparse=True))
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)

        def step(tokens: Any) -> Any:
            optimizer.zero_grad()
            loss = embedding(tokens).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [embedding, optimizer])

    trained(make, *((TOKENS,),) * 3, breaks=None)


def test_class_that_trains() -> None:
    """A trainer object with counters, a metric and a method that is compiled."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.seen, self.history = mlp(), 0, []
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

        def step(self, x: Any, y: Any) -> dict[str, Any]:
            self.model.train()
            self.optimizer.zero_grad(set_to_none=True)
            out = self.model(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.1)
            loss.backward()
            self.optimizer.step()
            self.seen += len(x)
            return {"loss": loss.detach(), "accuracy": (out.argmax(-1) == y).float().mean()}

    def make() -> Side:
        trainer = Trainer()
        return Side(trainer.step, [trainer.model, trainer.optimizer, vars(trainer)["history"]])

    trained(make, *CALLS)


def test_scheduler_inside_the_step() -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        return Side(step, [model, optimizer, schedule])

    trained(make, *CALLS, breaks=None)


def test_evaluation_between_steps() -> None:
    def make() -> Side:
        model = _seeded(ConvNet)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, y: Any, training: bool) -> Any:
            model.train(training)
            if not training:
                with torch.no_grad():
                    return model(x).argmax(-1)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [model, optimizer])

    trained(
        make,
        *((IMAGES, LABELS, training) for training in (True, False, True, True, False)),
        graphs=3,
    )
