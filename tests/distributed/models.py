"""Small models, the same on every rank and at every call, and data that differ from rank to
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

#: A model's name -> (model, sizes of an input, loss(model, input, generator)).
Loss = Callable[[Any, torch.Tensor, torch.Generator], torch.Tensor]


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """An embedding, `depth` equal layers, a head."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ConvNet(nn.Module):
    """Convolutions with batch norm, whose statistics differ from rank to rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class WithPenalty(Blocks):
    """Returns a second value, which the loss leaves out."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        y = super().forward(x)
        return y, (y * 0).sqrt().sum()


class Branches(nn.Module):
    """Each call uses one of two layers, as its input says; the other gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.head((self.left if self.turn % 2 else self.right)(x).relu())


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def blocks() -> nn.Module:
    torch.manual_seed(0)
    return Blocks()


def penalty() -> nn.Module:
    torch.manual_seed(0)
    return WithPenalty()


def branches() -> nn.Module:
    torch.manual_seed(0)
    return Branches()


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return ConvNet()


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32,
                        max_position_embeddings=32, num_labels=4,
                        attn_implementation="sdpa")  # fmt: skip
    return BertForSequenceClassification(config)


def _regression(model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return mse_loss(model(x), target)


def _first(model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return mse_loss(model(x)[0], target)


def _tokens(model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(input_ids=x).logits, target.argmax(1))


#: name -> (constructor, makes an input of a batch size, loss(model, input, target)).
MODELS: dict[
    str, tuple[Callable[[], nn.Module], Callable[[int, torch.Generator], torch.Tensor], Any]
] = {
    "mlp": (mlp, lambda n, g: torch.randn(n, 8, generator=g), _regression),
    "blocks": (blocks, lambda n, g: torch.randn(n, 8, generator=g), _regression),
    "penalty": (penalty, lambda n, g: torch.randn(n, 8, generator=g), _first),
    "branches": (branches, lambda n, g: torch.randn(n, 8, generator=g), _regression),
    "convnet": (convnet, lambda n, g: torch.randn(n, 3, 8, 8, generator=g), _regression),
    "bert": (bert, lambda n, g: torch.randint(0, 50, (n, 6), generator=g), _tokens),
}


def batches(
    name: str, count: int, size: int = 5, seed: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of this rank."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    make = MODELS[name][1]
    for _ in range(count):
        yield make(size, generator), torch.randn(size, 4, generator=generator)


def loss_of(name: str, model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = MODELS[name][2](model, x, target)
    return loss
