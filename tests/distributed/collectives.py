"""What the ranks run for test_collectives.py: communication inside a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

import tracer_core
from tests.distributed.training import EXACT, told
from tracer_core.testing import CaptureCounter, compare


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def reduced_argument(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.sin()


def waited(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    work = dist.all_reduce(y, async_op=True)
    z = x.cos()
    work.wait()
    return y * z


def gathered(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.exp())
    return torch.cat(parts) * 2


def gathered_into(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.exp())
    return out.sum(0)


def broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x + dist.get_rank()
    dist.broadcast(y, src=1)
    return y * 3


def of_objects(x: torch.Tensor) -> torch.Tensor:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    return x * sum(one["rank"] for one in found)


def barrier(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    dist.barrier()
    return y * 2


def functional_sum(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def functional_gather(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_tensor(x + 1, 0, dist.group.WORLD).relu()


def functional_scatter(x: torch.Tensor) -> torch.Tensor:
    return functional.reduce_scatter_tensor(x + 1, "sum", 0, dist.group.WORLD).relu()


def with_gradients(x: torch.Tensor) -> torch.Tensor:
    return differentiable.all_reduce(x * x).sin()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    one.__name__: one
    for one in (
        reduced, reduced_argument, waited, gathered, gathered_into, broadcast, of_objects, barrier,
        functional_sum,
        functional_gather, functional_scatter, with_gradients,
    )
}  # fmt: skip


def called(name: str, backend: str = "eager") -> dict[str, Any]:
    """Three calls, and their gradients where there are any."""
    function = PROGRAMS[name]
    with CaptureCounter() as counter:
        fast = tracer_core.compile(function, backend=backend)
        for number in range(3):
            results = []
            for one in (function, fast):
                x = torch.arange(8.0).reshape(4, 2) / 8 + dist.get_rank() + number
                x.requires_grad_(name == "with_gradients")
                result = one(x)
                if result.requires_grad:
                    result.sum().backward()
                results.append([result + 0, x.detach(), x.grad])
            compare(*results, EXACT)
    return told(counter)
