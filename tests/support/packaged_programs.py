"""A program that is saved as a package, and its inputs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import tracer_core


@dataclasses.dataclass
class Scores:
    best: torch.Tensor
    size: int
    note: str | None = None


class Mixer(nn.Module):
    """A few layers with tied weights, and an input of each kind."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("offset", torch.tensor(0.5), persistent=False)

    def forward(self, batch, factor=3, mode="plain"):
        x = self.norm(self.embed(batch["ids"])) * self.scale + self.offset
        x = x * batch["weights"].unsqueeze(-1) * factor
        if mode == "relu":
            x = x.relu()
        return Scores(self.head(x), x.shape[0], mode)


def mixer_inputs(n_rows, n_columns=5):
    return {
        "ids": torch.randint(0, 20, (n_rows, n_columns)),
        "weights": torch.rand(n_rows, n_columns),
    }


def eager(fn, *args, **kwargs):
    with torch.no_grad():
        return fn(*args, **kwargs)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """(model, path of its package): rows are dynamic."""
    torch.manual_seed(0)
    model = Mixer().eval()
    path = tmp_path_factory.mktemp("packages") / "mixer.tracer"
    rows = {0: (1, 64)}
    tracer_core.package(
        model,
        (mixer_inputs(4),),
        path,
        kwargs={"mode": "relu"},
        dynamic={"batch['ids']": rows, "batch['weights']": rows},
    )
    return model, path
