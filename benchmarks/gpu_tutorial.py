"""The seeds' tutorial on a GPU, with only the import changed: densenet121, eager beside
``mode="reduce-overhead"``.

In: a CUDA device. Out: medians of ten steps of eval and of ``train`` (zero_grad, forward, loss,
backward, step), the speed-ups, and exit status 1 where one is not above 1, as the tutorial's own
``assert speedup > 1`` says.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

N_ITERS = 10


def timed(function: Callable[[], Any]) -> float:
    """Seconds on the device."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def _data(batch: int) -> tuple[Any, Any]:
    import torch

    return torch.randn(batch, 3, 128, 128).cuda(), torch.randint(1000, (batch,)).cuda()


def _model() -> Any:
    from torchvision.models import densenet121

    return densenet121().cuda()


def evaluate() -> tuple[float, float]:
    """Median seconds, eager and compiled."""
    import torch

    import tracer_core

    model = _model()
    compiled = tracer_core.compile(model, mode="reduce-overhead")
    inputs = [_data(16)[0] for _ in range(N_ITERS)]
    with torch.no_grad():
        model(inputs[0])
        compiled(inputs[0])
        sides = [
            [timed(lambda x=x, f=function: f(x)) for x in inputs] for function in (model, compiled)
        ]
    return statistics.median(sides[0]), statistics.median(sides[1])


def training() -> tuple[float, float]:
    """Median seconds of a step, eager and compiled."""
    import torch

    import tracer_core

    def steps(compile_it: bool) -> list[float]:
        model = _model()
        optimizer = torch.optim.Adam(model.parameters())

        def train(module: Any, data: tuple[Any, Any]) -> None:
            optimizer.zero_grad(True)
            loss = torch.nn.CrossEntropyLoss()(module(data[0]), data[1])
            loss.backward()
            optimizer.step()

        run = tracer_core.compile(train, mode="reduce-overhead") if compile_it else train
        return [
            timed(lambda data=data: run(model, data))
            for data in [_data(16) for _ in range(N_ITERS)]
        ]

    return statistics.median(steps(False)), statistics.median(steps(True))


def main() -> int:
    """1 if a speed-up is not above 1."""
    good = True
    for name, part in (("eval", evaluate), ("train", training)):
        eager, compiled = part()
        print(
            f"({name}) eager median: {eager:.5f} s, compiled median: {compiled:.5f} s, speedup:"
            f" {eager / compiled:.2f}x"
        )
        good &= eager / compiled > 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
