"""Where the device's time goes in a step of a row of `benchmarks.gpu`: ``python -m
benchmarks.gpu_kernels ROW [HOW ...]``.

HOW: ``ours`` (as it is by default, recorded where that pays), ``plain`` (ours without recordings),
``torch``. A process each, one after the other. Prints latency, the device's time and the number of
kernels, then the forty costliest kernels, milliseconds and launches a step; all of them are
appended to ``--out``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS = 5


def compiled(how: str, function: Any) -> Any:
    import torch

    import tracer_core

    made: dict[str, Callable[[], Any]] = {
        "ours": lambda: tracer_core.compile(function),
        "plain": lambda: tracer_core.compile(function, options={"recordings": False}),
        "torch": lambda: torch.compile(function),
    }
    return made[how]()


def one(row: str, how: str) -> str:
    """The table of one process."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks import gpu

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    build, training = gpu.ROWS[row]
    torch.manual_seed(0)
    function, inputs = build()
    inputs = tuple(x.cuda() for x in inputs)
    parameters: list[Any] = []
    if isinstance(function, torch.nn.Module):
        function = function.cuda().train(training)
        parameters = list(function.parameters())
        for module in function.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    step = gpu._step(compiled(how, function), inputs, parameters, training)
    for _ in range(8):
        step()
    latency, back_to_back = gpu._timed(step, torch)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    events = [e for e in profiled.key_averages() if str(e.device_type).endswith("CUDA")]
    events.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in events) / STEPS / 1e3
    count = sum(e.count for e in events) / STEPS
    lines = [
        f"### {row}, {how}: {latency:.3f} ms, {back_to_back:.3f} in a row; device {total:.3f} ms in"
        f" {count:.0f} kernels"
    ]
    for e in events[:40]:
        lines.append(
            f"{e.self_device_time_total / STEPS / 1e3:9.4f} ms x{e.count / STEPS:6.1f}"
            f" {e.key[:120]}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row")
    parser.add_argument("how", nargs="*", default=["ours", "torch"])
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--seconds", type=float, default=90, help="of each process")
    parser.add_argument("--out", default=None)
    chosen = parser.parse_args()
    if chosen.one:
        print(one(chosen.row, chosen.how[0]))
        return
    for how in chosen.how:
        with tempfile.TemporaryDirectory() as folder:
            caches = ("TRACER_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
            environment = {**os.environ, **{name: f"{folder}/{name}" for name in caches}}
            command = [sys.executable, "-m", "benchmarks.gpu_kernels", "--one", chosen.row, how]
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=chosen.seconds,
                )
                text = done.stdout if done.returncode == 0 else done.stderr[-2000:]
            except subprocess.TimeoutExpired:
                text = f"### {chosen.row}, {how}: more than {chosen.seconds:.0f} s"
        print(text, flush=True)
        if chosen.out:
            with open(chosen.out, "a") as stream:
                stream.write(text + "\n")


if __name__ == "__main__":
    main()
