"""Figures of a GPU beside their limits: ``python -m benchmarks.gpu_limits [--out FILE] [--rows ROW
...]``.

- cos+sin over 2^26 elements beside a copy of as many bytes: at most 1.05 times its time;
- layer_norm, gelu, softmax of 4096x4096: one kernel, at most 1.3 times one read and one write of
  the data;
- a second process with warm caches: the first call takes at most 2 s; imports and CUDA's start-up
  (with eager's first calls) are shown apart. The first processes of all rows, which fill the
  caches, run at the same time.

Prints a line for each with ``holds`` or ``MISSED``. Device times are from events round calls in a
row, over several tensors, so that nothing is read from the last call's cache lines; the ways take
turns and the least of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.results import commit, machine

BEGIN = time.perf_counter()
ROOT = Path(__file__).resolve().parents[1]

ROWS = ("cos+sin 10,000", "resnet18 1x64x64", "BERT-base 1x12", "training resnet18 16x224x224")

COPY, CHAIN, WARM = 1.05, 1.3, 2.0


def device_ms(
    ways: dict[str, Callable[[int], Any]], calls: int = 40, rounds: int = 7
) -> dict[str, float]:
    """Milliseconds of the device, a call; a way is given the number of the call."""
    import torch

    found = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            way(0)
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for number in range(calls):
                way(number)
            last.record()
            torch.cuda.synchronize()
            found[name] = min(found[name], first.elapsed_time(last) / calls)
    return found


def copies(inputs: Sequence[Any]) -> dict[str, Callable[[int], Any]]:
    """The driver's copy and torch's kernel."""
    import torch

    target = torch.empty_like(inputs[0])
    return {
        "copy_": lambda n: target.copy_(inputs[n % len(inputs)]),
        "a kernel that copies": lambda n: torch.add(inputs[n % len(inputs)], 0, out=target),
    }


def bandwidth() -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    import tracer_core
    from inductor_backend.pipeline import compile_graph
    from inductor_backend.plugin import BACKEND

    made: list[Any] = []

    def kept(gm: Any, spec: Any) -> Any:
        made.append(compile_graph(gm, spec))
        return made[-1]

    def compiled(function: Any) -> Any:
        return tracer_core.compile(function, backend=replace(BACKEND, compile=kept))

    def trig(x: Any, y: Any) -> Any:
        return torch.cos(x) + torch.sin(y)

    def chain(x: Any, w: Any, b: Any) -> Any:
        return F.gelu(F.layer_norm(x, (4096,), w, b)).softmax(-1)

    xs = [torch.randn(2**26, device="cuda") for _ in range(3)]
    fast = compiled(trig)
    torch.testing.assert_close(fast(xs[0], xs[1]), trig(xs[0], xs[1]))
    times = device_ms({"trig": lambda n: fast(xs[n % 3], xs[(n + 1) % 3]), **copies(xs)})
    copy = 1.5 * min(
        times["copy_"], times["a kernel that copies"]
    )  # two reads and a write, of three tensors
    found = {
        "cos+sin 2^26": {
            **times,
            "limit_ms": copy,
            "ratio": times["trig"] / copy,
            "kernels": made[-1].artifact.kernels,
        }
    }
    xs.clear()
    squares = [torch.randn(4096, 4096, device="cuda") for _ in range(6)]
    w, b = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    deep = compiled(chain)
    torch.testing.assert_close(deep(squares[0], w, b), chain(squares[0], w, b))
    times = device_ms({"chain": lambda n: deep(squares[n % 6], w, b), **copies(squares)}, calls=120)
    copy = min(times["copy_"], times["a kernel that copies"])
    found["chain 4096x4096"] = {
        **times, "limit_ms": copy, "ratio": times["chain"] / copy,
        "kernels": made[-1].artifact.kernels,
    }  # fmt: skip
    return found


def one_process(row: str) -> dict[str, float]:
    """Seconds from the start of this module on, of a process for one row."""
    marks = {}
    last = BEGIN

    def mark(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        marks[name] = now - last
        last = now

    import torch

    mark("import torch")
    from benchmarks import gpu

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    build, training = gpu.ROWS[row]
    function, inputs = build()
    mark("import and build the model")
    inputs = tuple(x.cuda() for x in inputs)
    parameters: list[Any] = []
    if isinstance(function, torch.nn.Module):
        function = function.cuda().train(training)
        parameters = list(function.parameters())
    for _ in range(3):
        gpu._step(function, inputs, parameters, training)()
    torch.cuda.synchronize()
    mark("CUDA, eager's first calls")
    import tracer_core  # noqa: F401

    mark("import tracer_core")
    gpu._step(gpu._compiled("ours", function), inputs, parameters, training)()
    torch.cuda.synchronize()
    mark("compile and first call")
    return marks


def warm(rows: Sequence[str], seconds: float) -> dict[str, Any]:
    """Each row in a first process and in a second one."""
    found: dict[str, Any] = {row: {} for row in rows}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        environment = {
            **os.environ,
            "TRACER_CACHE_DIR": f"{folder}/tracer",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }

        def begin(row: str) -> Any:
            command = [sys.executable, "-m", "benchmarks.gpu_limits", "--one", row]
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        def end_of(process: Any) -> dict[str, Any]:
            try:
                out, err = process.communicate(timeout=max(end - time.monotonic(), 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return {"problem": "no time left"}
            return (
                json.loads(out.splitlines()[-1])
                if process.returncode == 0
                else {"problem": err[-1000:]}
            )

        started = {row: begin(row) for row in rows}
        for row, process in started.items():
            found[row]["first process, all rows side by side"] = end_of(process)
        for row in rows:
            found[row]["second process"] = end_of(begin(row))
    return found


def lines(found: dict[str, Any]) -> list[str]:
    told = []
    for name, most in (("cos+sin 2^26", COPY), ("chain 4096x4096", CHAIN)):
        row = found[name]
        holds = row["ratio"] <= most and row["kernels"] == 1
        told.append(
            f"{'holds' if holds else 'MISSED'}: {name}: {row['kernels']} kernel, {row['ratio']:.3f}"
            f" of the copy of its bytes ({row['limit_ms']:.4f} ms); at most {most}"
        )
    for name, processes in found.get("warm", {}).items():
        second = processes["second process"]
        if "problem" in second:
            told.append(f"MISSED: warm second process, {name}: {second['problem']}")
            continue
        *before, (_, call) = second.items()
        apart = ", ".join(f"{what} {seconds:.2f}" for what, seconds in before)
        verdict = "holds" if call <= WARM else "MISSED"
        told.append(
            f"{verdict}: warm second process, {name}: first call {call:.2f} s; at most {WARM}"
            f" (apart: {apart})"
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_limits", description=__doc__)
    parser.add_argument("--one")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--out", default="")
    parser.add_argument("--seconds", type=float, default=150)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(one_process(chosen.one)))
        return
    found = {
        "warm": warm(chosen.rows, chosen.seconds - 20)
    }  # before this process has touched the device
    import torch

    with torch.no_grad():
        found |= bandwidth()
    if chosen.out:
        told = {
            "machine": machine(),
            "commit": commit(),
            "device": torch.cuda.get_device_name(0),
            **found,
        }
        Path(chosen.out).write_text(json.dumps(told, indent=1) + "\n")
    print("\n".join(lines(found)))


if __name__ == "__main__":
    main()
