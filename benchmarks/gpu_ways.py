"""Own products on a GPU, way by way: built, run, compared with float64 and timed, each in a process
of its own.

    python -m benchmarks.gpu_ways [--seconds 25]

A way that hangs ends itself with the stacks of its threads; the others are not touched.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

#: name -> what `Blocks` is given beside rows, columns, terms, warps and stages
WAYS: dict[str, dict[str, int]] = {
    "plain": {},
    "walking": {"programs": 132},
    "bulk": {"bulk": 1},
    "bulk, walking": {"bulk": 1, "programs": 132},
}
TYPES = {"bfloat16": (torch.bfloat16, 64), "float32": (torch.float32, 32)}


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w))


def one(way: str, dtype: str, seconds: float) -> None:
    """In a process of its own."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    import tracer_core
    from inductor_backend.autotune import matmul
    from inductor_backend.codegen.triton.matmul import Blocks

    torch.set_float32_matmul_precision("high")
    kind, terms = TYPES[dtype]
    kinds = {
        name: value if name == "programs" else bool(value) for name, value in WAYS[way].items()
    }
    blocks = Blocks(128, 128, terms, 4, 3, **kinds)  # type: ignore[arg-type]
    matmul.candidates = lambda work, device: [blocks]
    matmul.choose = lambda c, choice: next(iter(choice.kernels))
    x, w = (torch.randn(*n, device="cuda").to(kind) / 16 for n in ((2048, 2048), (5632, 2048)))
    truth = program(x.double(), w.double())
    start = time.perf_counter()
    fast = tracer_core.compile(program, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        mine, eager = fast(x, w), program(x, w)
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        errors = [((y.double() - truth).norm() / truth.norm()).item() for y in (mine, eager)]
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(50):
            fast(x, w)
        last.record()
        torch.cuda.synchronize()
    print(
        f"{took:.1f} s, {first.elapsed_time(last) * 20:.1f} us a call, error {errors[0]:.1e} (eager"
        f" {errors[1]:.1e})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--seconds", type=float, default=25)
    chosen = parser.parse_args()
    if chosen.one:
        one(*chosen.one, chosen.seconds)
        return
    for dtype in TYPES:
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.gpu_ways",
                    "--seconds",
                    str(chosen.seconds),
                    "--one",
                    way,
                    dtype,
                ]
                done = subprocess.run(
                    command,
                    env={
                        **os.environ,
                        "TRACER_CACHE_DIR": f"{folder}/tracer",
                        "TRITON_CACHE_DIR": f"{folder}/triton",
                    },
                    capture_output=True,
                    text=True,
                )
            told = (
                done.stdout.strip()
                if done.returncode == 0
                else f"failed ({done.returncode})\n{done.stderr[-1500:]}"
            )
            print(f"{dtype:9} {way:28} {told}", flush=True)


if __name__ == "__main__":
    main()
