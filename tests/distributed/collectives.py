"""What the ranks run for test_collectives.py: communication inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

import tracer_core
from tests.distributed.training import EXACT, counts_of
from tracer_core.testing import CaptureCounter, compare


def of_objects(x: torch.Tensor) -> torch.Tensor:
    actual: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(actual, {"rank": dist.get_rank()})
    return x * sum(item["rank"] for item in actual)


def barrier(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    dist.barrier()
    return y * 2


def escaping(x: torch.Tensor) -> torch.Tensor:
    """The handle lives on where the graph ends."""
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    HANDLES.append(work)
    return x.cos()


def awaited_later(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    tracer_core.graph_break()
    work.wait()
    return y.cos()


def strided(x: torch.Tensor) -> torch.Tensor:
    """What the process group does to memory with gaps is its own affair."""
    y = x * 2
    dist.all_reduce(y[:, 0])
    return y + 1


def of_ranks(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", [0, 1]) + 1


def in_place_with_gradient(x: torch.Tensor) -> torch.Tensor:
    """Eager warns, and gives the gradient that there would be without the collective."""
    y = x * 2
    dist.all_reduce(y)
    return y.sin()


def with_gradients(x: torch.Tensor) -> torch.Tensor:
    return differentiable.all_reduce(x * x).sin()


#: What `escaping` has put away; waited for by `called`.
HANDLES: list[Any] = []
GRADIENTS = ("with_gradients", "in_place_with_gradient")
PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    value.__name__: value
    for value in (
        of_objects, barrier, escaping, awaited_later, strided, of_ranks, in_place_with_gradient,
        with_gradients,
    )
}  # fmt: skip


def called(name: str, backend: str = "eager") -> dict[str, Any]:
    """Three calls, and their gradients where there are any."""
    function = PROGRAMS[name]
    with CaptureCounter() as counter:
        fast = tracer_core.compile(function, backend=backend)
        for number in range(3):
            results = []
            for value in (function, fast):
                x = torch.arange(8.0).reshape(4, 2) / 8 + dist.get_rank() + number
                x.requires_grad_(name in GRADIENTS)
                result = value(x)
                while HANDLES:
                    HANDLES.pop().wait()
                if result.requires_grad:
                    result.sum().backward()
                results.append([result + 0, x.detach(), x.grad])
            compare(*results, EXACT)
    return counts_of(counter)
