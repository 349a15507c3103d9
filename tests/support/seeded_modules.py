"""Modules whose parameters are the same in each run."""

from __future__ import annotations

import torch


def seeded(make):
    def module():
        torch.manual_seed(0)
        return make()

    return module
