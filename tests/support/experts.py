"""Mixtures of experts, and a comparison of a module's training with eager's over batches of other
sizes."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tracer_core
from tracer_core.testing import compare


class Experts(nn.Module):
    """Experts of which each token goes to two."""

    def __init__(self, experts, size):
        super().__init__()
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size))
            for _ in range(experts)
        )

    def routed(self, x):
        """Returns the tokens, their weights, and the mask (expert, place, token) of the chosen."""
        tokens = x.view(-1, x.shape[-1])
        weights, chosen = self.gate(tokens).softmax(-1).topk(2, -1)
        return (
            tokens, weights, nn.functional.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        )  # fmt: skip


def compare_training(eager, backend):
    """Compares results and gradients of a module and its compiled copy, for four numbers of tokens."""
    target = copy.deepcopy(eager)
    compiled = tracer_core.compile(target, backend=backend)
    for seed in range(4):
        x = torch.randn(2, 5 + seed, 8, dtype=torch.double)
        results = []
        for module, run in ((eager, eager), (target, compiled)):
            module.zero_grad()
            leaf = x.clone().requires_grad_()
            y = run(leaf)
            y.square().sum().backward()
            results.append([y, leaf.grad, [parameter.grad for parameter in module.parameters()]])
        compare(*results)
