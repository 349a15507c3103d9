"""What the ranks run for test_captured.py: CUDA graphs of graphs that communicate, on the simulated
device of tests/cudagraphs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import cudagraphs_backend
import tracer_core
from cudagraphs_backend.plugin import BACKEND
from cudagraphs_backend.state import states
from tests.cudagraphs.simulated import HAZARDS, SimulatedDevice
from tests.distributed import in_graph
from tests.distributed.training import CLOSE, EXACT
from tracer_core.testing import compare

CALLS = 5


@contextlib.contextmanager
def simulated() -> Iterator[Any]:
    """Yields the backend, with CUDA graphs of the CPU."""
    undo = states.install(torch.device("cpu"), SimulatedDevice())
    HAZARDS.clear()
    try:
        yield dataclasses.replace(BACKEND, available=None, devices=frozenset({"cpu"}))
        assert HAZARDS == []
    finally:
        tracer_core.reset()
        cudagraphs_backend.reset()
        undo()


def _told() -> dict[str, Any]:
    rows = cudagraphs_backend.report()
    return {
        "replays": min((row.replays for row in rows), default=0),
        "reasons": sorted({row.reason for row in rows if row.reason}),
    }


def called(names: list[str]) -> dict[str, Any]:
    """Several calls of each program; the arguments are compared, too."""
    if not in_graph.GROUP:
        in_graph.GROUP.append(dist.new_group([0, 1]))
    seen = {}
    for name in names:
        function = in_graph.PROGRAMS[name]
        with simulated() as backend:
            fast = tracer_core.compile(function, backend=backend)
            in_graph.compare_calls(function, fast, CALLS, EXACT)
            seen[name] = _told()
    return seen


def trained(names: list[str]) -> dict[str, Any]:
    """Values and gradients of several calls of each program."""
    seen = {}
    for name in names:
        function = in_graph.DIFFERENTIABLE[name]
        with simulated() as backend:
            fast = tracer_core.compile(function, backend=backend)
            in_graph.compare_gradients(function, fast, CALLS, EXACT)
            seen[name] = _told()
    return seen


def one_records() -> dict[str, Any]:
    """The first rank replays, the other runs eagerly; then both the other way round."""
    seen = {}
    for recording in range(2):
        with simulated() as backend:
            for name in in_graph.MIXED:
                function = in_graph.PROGRAMS[name]
                mine = (
                    tracer_core.compile(function, backend=backend)
                    if dist.get_rank() == recording
                    else function
                )
                for number in range(CALLS):
                    x = torch.arange(8.0).reshape(4, 2) / 8 + dist.get_rank() + number
                    want = function(x.clone())
                    compare(want, mine(x), EXACT)
            if dist.get_rank() == recording:
                seen = _told()
    return seen


def parallel() -> dict[str, Any]:
    """Training steps of a perceptron that parallelize_module split between the ranks."""
    from torch.distributed.tensor import parallel

    from tests.distributed import placed

    def made() -> Any:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        return parallel.parallelize_module(module, placed.mesh(), plan)

    with simulated() as backend:
        eager, module = made(), made()
        fast = tracer_core.compile(module, backend=backend)
        optimizers = [
            torch.optim.SGD(value.parameters(), lr=0.1, foreach=False) for value in (eager, module)
        ]
        torch.manual_seed(1)
        for _ in range(CALLS):
            x = torch.randn(3, 4)
            results = []
            for call, item, optimizer in zip(
                (eager, fast), (eager, module), optimizers, strict=True
            ):
                loss = call(x).square().sum()
                loss.backward()
                results.append(
                    [
                        loss,
                        *(
                            p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
                            for p in item.parameters()
                        ),
                    ]
                )
                optimizer.step()
                optimizer.zero_grad()
            compare(*results, CLOSE)
        return _told()
