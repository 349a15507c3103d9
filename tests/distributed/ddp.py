"""What the ranks run for test_ddp.py."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

import tracer_core
from tests.distributed.training import twin_training


def _settings(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {"bucket_cap_mb": 0.001, **settings}  # one kilobyte: every model here has several buckets


def inside(name: str, backend: str = "eager", **settings: Any) -> dict[str, Any]:
    """DistributedDataParallel around the compiled model."""
    return twin_training(
        name,
        lambda model: DistributedDataParallel(model, **_settings(model, settings)),
        lambda model: DistributedDataParallel(
            tracer_core.compile(model, backend=backend), **_settings(model, settings)
        ),
    )


def outside(name: str, backend: str = "eager", **settings: Any) -> dict[str, Any]:
    """The compiled form of DistributedDataParallel around the model."""
    return twin_training(
        name,
        lambda model: DistributedDataParallel(model, **_settings(model, settings)),
        lambda model: tracer_core.compile(
            DistributedDataParallel(model, **_settings(model, settings)), backend=backend
        ),
    )
