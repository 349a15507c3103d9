"""Programs that the tests report on."""

from __future__ import annotations

import torch

import tracer_core


def helper(x):
    y = x.sin()
    tracer_core.graph_break()
    return y + 1


def broken(x, scale):
    return helper(x * scale).cos()


def broken_program():
    """A function with a graph break inside a call, and recompiles."""
    fast = tracer_core.compile(broken, backend="eager", dynamic=False)
    for size in (3, 4, 5):
        fast(torch.ones(size), 2.0)
    return fast


def training_step():
    """A whole step with inductor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @tracer_core.compile
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(4):
        step(torch.randn(4, 8))
    return step


def bert():
    """BERT's encoder with four layers and random weights, in inference."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=4, vocab_size=1000)).eval()
    fast = tracer_core.compile(model)
    with torch.no_grad():
        fast(torch.randint(0, 1000, (1, 64)))
    return fast
