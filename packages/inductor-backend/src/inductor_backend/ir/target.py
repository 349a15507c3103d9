"""Chooses the machine that a graph is compiled for.

A graph has one device for its loops. `interpreted()` makes graphs on CPU tensors compile as if for
CUDA, with kernels run by Triton's interpreter: tests cover the whole path without a GPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from inductor_backend.torch_private import tf32_allowed


@dataclass(frozen=True, slots=True)
class Target:
    """device: where loops run. triton: their kernels are Triton's (else C++)."""

    device: torch.device
    triton: bool

    @property
    def interpreted(self) -> bool:
        return self.triton and self.device.type == "cpu"


CPU = Target(torch.device("cpu"), False)
INTERPRETER = Target(torch.device("cpu"), True)

_local = threading.local()


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Compiles graphs of this thread for Triton's interpreter (TRITON_INTERPRET=1 must be set)."""
    before = getattr(_local, "interpreted", False)
    _local.interpreted = True
    try:
        yield
    finally:
        _local.interpreted = before


def main_device(graph: torch.fx.Graph) -> torch.device:
    """Returns the CUDA device of any tensor of the graph, else the CPU."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, torch.Tensor) and part.device.type == "cuda":
                return torch.device("cuda", part.device.index or 0)
    return CPU.device


def target_of(graph: torch.fx.Graph) -> Target:
    device = main_device(graph)
    return Target(device, True) if device.type == "cuda" else target_of_cpu()


def target_of_cpu() -> Target:
    """Returns the target of graphs on CPU tensors."""
    return INTERPRETER if getattr(_local, "interpreted", False) else CPU


def reads_float8(target: Target) -> bool:
    """Returns whether kernels for a target convert 8-bit floats."""
    if not target.triton or target.interpreted:
        return True
    return torch.cuda.get_device_capability(target.device) >= (8, 9)


def in_tensor_cores(dtype: torch.dtype, convolution: bool) -> bool:
    """Tells whether the GPU's tensor cores multiply this dtype under torch's current settings."""
    return dtype in (torch.bfloat16, torch.float16) or (
        dtype is torch.float32 and tf32_allowed(convolution)
    )
