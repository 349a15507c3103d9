"""Checks what a kernel of linear algebra says of its matrices."""

from __future__ import annotations

import torch

from tracer_core.plugin_api import linalg_checked


def checked(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    """Returns a copy of `result`. info: of the kernel that computed it. Raises LinAlgError, as the
    function `name` does, where `info` speaks of an unfit matrix; of a CUDA graph, after its replay."""
    checked: torch.Tensor = linalg_checked(result, info, name, is_matrix)
    return checked
