"""Checks what a kernel of linear algebra says of its matrices."""

from __future__ import annotations

import torch


def checked(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    """Returns a copy of `result`. info: of the kernel that computed it. Raises LinAlgError, as the
    function `name` does, where `info` speaks of an unfit matrix."""
    torch.ops.aten._linalg_check_errors.default(info, name, is_matrix=is_matrix)
    return result.clone()
