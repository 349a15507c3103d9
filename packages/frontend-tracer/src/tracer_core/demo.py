"""``python -m tracer_core.demo``: three models of torch.nn, eager beside compiled.

For a machine where the packages were installed without the repository. Prints a row a model: seconds
of the first call, milliseconds of a later one, and the error, relative to the result's norm. Exit
status 1: an error is above `TOLERANCE`. The models' classes are torch's, because functions of this
package are not traced into.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tracer_core import api

#: Of float32 results, whose sums compiled code adds up in another order; on GPUs convolutions are TF32.
TOLERANCE = {"cpu": 1e-4, "cuda": 5e-3}

#: Calls in a row of which each side's milliseconds are the median, in turns.
CALLS, TURNS = 10, 3

NEXT = """
your own program    fast = tracer_core.compile(model), then call fast
what became of it   tracer_core.explain(fast)(x); tracer_core.report(fast, "report.html")
other backends      python -m tracer_core backends"""


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(4, 64, 256)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    sizes = (3, 32, 64, 128)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU())
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(4, 3, 96, 96)


def _pointwise() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Softplus(), nn.Mish(), nn.LayerNorm(512), nn.GELU(), nn.Softmax(-1))
    return nn.Sequential(*layers), torch.randn(512, 512)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "transformer encoder": _transformer,
    "convolutions": _convolutions,
    "pointwise chain": _pointwise,
}


def _milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(CALLS):
                call()
            _finish()
            times[name].append((time.perf_counter() - started) / CALLS * 1e3)
    return {name: statistics.median(ms) for name, ms in times.items()}


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> int:
    """Prints the rows; 1 if a result differs from eager's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(
        f"{'model':20} {'first call s':>12} {'eager ms':>9} {'compiled ms':>12} {'times':>6} {'error':>8}"
    )
    worst = 0.0
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model, x = make()
        model, x = model.eval().to(device), x.to(device)
        fast = api.compile(model)
        with torch.no_grad():
            started = time.perf_counter()
            result = fast(x)
            _finish()
            first = time.perf_counter() - started
            expected = model(x)
            error = float((result - expected).norm() / expected.norm())
            ms = _milliseconds({"eager": lambda: model(x), "compiled": lambda: fast(x)})  # noqa: B023
        worst = max(worst, error)
        print(
            f"{name:20} {first:12.2f} {ms['eager']:9.3f} {ms['compiled']:12.3f}"
            f" {ms['eager'] / ms['compiled']:6.2f} {error:8.1e}"
        )
    print(NEXT)
    return int(not worst <= TOLERANCE[device])


if __name__ == "__main__":
    sys.exit(main())
