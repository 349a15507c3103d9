"""Where the tests of cudagraphs run: on the simulated device, and with ``-m gpu`` on a real one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cudagraphs_backend
import tracer_core
from cudagraphs_backend import runner
from cudagraphs_backend.plugin import BACKEND
from cudagraphs_backend.state import states
from tests.cudagraphs.simulated import HAZARDS, SimulatedDevice


@dataclasses.dataclass
class DeviceUnderTest:
    """device: tensors are made there. simulated: the stand-in, or None on a GPU."""

    device: torch.device
    simulated: SimulatedDevice | None

    def compile(self, model: Any, **options: Any) -> Any:
        backend = BACKEND
        if self.simulated is not None:
            backend = dataclasses.replace(BACKEND, available=None, devices=frozenset({"cpu"}))
        return tracer_core.compile(model, backend=backend, options=options or None)

    def randn(self, *sizes: int, **kwargs: Any) -> torch.Tensor:
        return torch.randn(*sizes, device=self.device, **kwargs)

    @property
    def rows(self) -> list[Any]:
        return cudagraphs_backend.report()

    @property
    def replays(self) -> int:
        return sum(row.replays for row in self.rows)

    @property
    def plain(self) -> int:
        return sum(row.plain for row in self.rows)

    @property
    def plans(self) -> list[Any]:
        """How the CUDA graphs that are alive were captured."""
        entries = [entry for item in runner.runners() for entry in item._entries.values()]
        return [item.plan for entry in entries for item in entry.recordings if not item.closed]

    @property
    def recordings(self) -> int:
        return sum(row.recordings for row in self.rows)

    @property
    def reasons(self) -> str:
        return "; ".join(row.reason for row in self.rows if row.reason)


def _make(kind: str) -> tuple[DeviceUnderTest, Callable[[], None]]:
    if kind == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        return DeviceUnderTest(torch.device("cuda"), None), lambda: None
    simulated = SimulatedDevice()
    undo = states.install(torch.device("cpu"), simulated)
    return DeviceUnderTest(torch.device("cpu"), simulated), undo


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def world(request):
    tracer_core.reset()
    cudagraphs_backend.reset()
    result, undo = _make(request.param)
    torch.manual_seed(0)
    HAZARDS.clear()
    yield result
    tracer_core.reset()
    cudagraphs_backend.reset()
    undo()
    assert HAZARDS == []


@pytest.fixture
def simulated():
    tracer_core.reset()
    cudagraphs_backend.reset()
    result, undo = _make("simulated")
    torch.manual_seed(0)
    HAZARDS.clear()
    yield result
    tracer_core.reset()
    cudagraphs_backend.reset()
    undo()
    assert HAZARDS == []
