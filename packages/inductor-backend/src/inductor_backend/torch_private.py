"""Every private name of torch that this package uses. Tried on torch 2.13.0.

In: nothing. Out: functions with public-looking names. What always holds: no other module of the package
imports a private torch module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """torch._decomp's core ATen table: operator -> decomposition."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def cuda_raw_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device, without making a Stream object."""
    import torch

    raw: int = torch._C._cuda_getCurrentRawStream(device)
    return raw
