"""oneDNN's matrix product, through the operator that torch carries for its own compiler.

In: float32 CPU tensors. Out: a new tensor. What always holds: the arguments are those of the ATen operator;
the weight is the transpose of a dense [N,K] (nn.Linear's). Here it runs at 190-230 GFLOP/s where MKL, which
aten.addmm calls, reaches 130-165: MKL does not use AVX-512 on every processor that has it.
"""

from __future__ import annotations

from typing import Any

import torch


def available() -> bool:
    """Whether this torch has the operator."""
    mkldnn: Any = torch.backends.mkldnn
    return bool(mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def addmm(bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b + bias``; a [M,K] with dense rows, b [K,N] the transpose of a dense tensor."""
    result: Any = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return result  # type: ignore[no-any-return]


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``: see `addmm`."""
    return addmm(None, a, b)
