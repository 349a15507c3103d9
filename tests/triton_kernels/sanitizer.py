"""A sample of our kernels under compute-sanitizer: ``python -m tests.triton_kernels.sanitizer
--seconds 400``.

For each program of `PROGRAMS` a process under memcheck and one under racecheck compiles it, runs it
twice (aligned inputs, then inputs whose addresses are multiples of 4 bytes alone) and compares it
with eager; several at a time. torch's caching allocator is off, so that each tensor's end is the
end of its memory; its native kernels are part of what is watched. Prints a line for each that is
not clean, with the first error, and the counts last; the logs lie in $OUT. Without the tool or a
GPU it says so and ends with 2.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Where the tool lies if it is not on the path.
PLACES = ("/usr/local/cuda*/bin/compute-sanitizer",
"/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
          "/opt/nvidia/*/compute-sanitizer", "/opt/nvidia/*/*/compute-sanitizer/compute-sanitizer",
          "/opt/*/compute-sanitizer/compute-sanitizer")  # fmt: skip

TOOLS = ("memcheck", "racecheck")

#: Found after a program that is not as eager, whatever the tool says.
DIFFERS = 9


def _programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """name -> (program, inputs on the CPU, arguments of compile)."""
    import torch
    import torch.nn.functional as F

    def r(*size: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(*size).to(dtype)

    def i(low: int, high: int, *size: int) -> Any:
        return torch.randint(low, high, size)

    own = {"mode": "max-autotune-no-cudagraphs"}
    half = torch.bfloat16
    return {
        "pointwise": (lambda x, y: torch.cos(x) + torch.sin(y) * x.sigmoid(), (r(1003), r(1003)),
        {}),
        "pointwise, broadcast": (lambda x, y: F.gelu(x + y),
                                 (r(77, 1, 33), r(5, 33)), {}),
        "views, cat, pad": (lambda x: F.pad(torch.cat([x.t(), x.t() * 2], 1), (1, 2, 0, 3)), (r(31,
        45),), {}),
        "rows": (lambda x, w, b: F.gelu(F.layer_norm(x, (1000,), w, b)).softmax(-1),
                 (r(37, 1000), r(1000), r(1000)), {}),
        "long rows": (lambda x: F.layer_norm(x, (9001,)).softmax(-1), (r(3, 9001),), {}),
        "reductions": (lambda x: (x.sum(0), x.var(0), x.amax(1), x.argmax(1), (x > 3).any()),
        (r(301, 77),), {}),
        "split": (lambda x: (x.sum(), x.var(), x.amax()), (r(2_000_003),), {}),
        "columns split": (lambda x: (x.sum(0), x.var(0)), (r(50_021, 5),), {}),
        "tiles": (lambda x, y: (x.t() + y, x.permute(1, 0).contiguous() * 2), (r(203, 315), r(315,
        203)), {}),
        "tiles, bf16": (lambda x, y: x.t() + y, (r(203, 315, dtype=half), r(315, 203, dtype=half)),
        {}),
        "gather": (lambda x, j: F.embedding(j, x) * 2, (r(57, 33), i(0, 57, 40, 3)), {}),
        "scatter": (lambda x, j: torch.zeros(50, 33, device=x.device).index_add(0, j, x) * 2,
                    (r(301, 33), i(0, 50, 301)), {}),
        "scatter along": (lambda x, j: torch.zeros_like(x).scatter_add(0, j, x.sin()),
                          (r(301, 33), i(0, 301, 301, 33)), {}),
        "pools": (lambda x: F.max_pool2d(F.avg_pool2d(x, 3, 1, 1), 2), (r(2, 5, 19, 21),), {}),
        "scan": (lambda x: (x.cumsum(1) + 1, x.cumsum(0)), (r(33, 501),), {}),
        "long scan": (lambda x: (x.cumsum(1), (x / 64 + 1).cumprod(1)), (r(3, 20_011),), {}),
        "dropout": (lambda x: F.dropout(x * 2, 0.3, True).sum(-1) * 0, (r(33, 501),), {}),
        "product": (lambda x, w, b: F.gelu(F.linear(x, w, b)),
                    (r(197, 264, dtype=half), r(136, 264, dtype=half), r(136, dtype=half)), own),
        "product with terms left over": (lambda x, w: F.linear(x, w).relu(),
                                         (r(101, 75, dtype=half), r(203, 75, dtype=half)), own),
        "convolution": (lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu(),
                        (r(2, 32, 15, 17, dtype=half), r(48, 32, 3, 3, dtype=half)), own),
    }  # fmt: skip


def _unaligned(value: Any) -> Any:
    """The same values one element further in memory."""
    import torch

    room = torch.empty(value.numel() + 1, dtype=value.dtype, device="cuda")
    return room[1:].view(value.shape).copy_(value)


def watched(name: str) -> int:
    """One program in this process. 0: as eager."""
    import torch

    import tracer_core
    from inductor_backend.autotune import matmul

    torch.manual_seed(0)
    program, values, arguments = _programs()[name]
    if arguments:  # our product, whatever the times say: under the tool they say nothing
        # Not the largest blocks: instrumented by memcheck they are too large to be launched.
        matmul.choose = lambda c, choice: list(choice.kernels)[-1]  # type: ignore[assignment]
    fast = tracer_core.compile(program, **arguments)
    for place in (lambda x: x.cuda(), _unaligned):
        inputs = [place(x) for x in values]
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        results = (fast(*inputs), program(*inputs), program(*wide))
        torch.cuda.synchronize()
        for ours, eager, exact in zip(
            *(x if isinstance(x, tuple) else (x,) for x in results), strict=True
        ):
            loose = 5e-2 if eager.dtype == torch.bfloat16 else 2e-3
            # cuBLAS adds parts of bfloat16 products in bfloat16: eager may be further off than
            # that.
            off = (
                (eager.double() - exact.double()).abs().max().item()
                if eager.is_floating_point()
                else 0.0
            )
            try:
                torch.testing.assert_close(
                    ours.double(), exact.double(), atol=max(loose, off), rtol=loose, equal_nan=True
                )
            except AssertionError as error:
                print(f"DIFFERS {error}")
                return DIFFERS
    print("as eager")
    return 0


def tool() -> str | None:
    actual = shutil.which("compute-sanitizer")
    return actual or next((path for place in PLACES for path in sorted(glob(place))), None)


def run(path: str, kind: str, name: str, end: float, out: Path) -> tuple[str, str, str, str]:
    """(tool, program, verdict, first error)."""
    left = end - time.monotonic()
    if left < 20:
        return kind, name, "not run", ""
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "TRACER_CACHE_DIR": str(out / ".cache"),
        "TRACER_STRICT": "1",
    }
    command = [
        path,
        "--tool",
        kind,
        "--print-limit",
        "20",
        sys.executable,
        "-m",
        "tests.triton_kernels.sanitizer",
        "--one",
        name,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return kind, name, "no time", ""
    text = done.stdout + done.stderr
    (out / f"sanitizer_{kind}.txt").open("a").write(
        f"##### {name} (code {done.returncode})\n{text[-6000:]}\n"
    )
    return kind, name, *verdict(text, done.returncode)


def verdict(text: str, code: int) -> tuple[str, str]:
    """What a run's output says: (clean, errors, differs or failed; the first error)."""
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", text)
    first = re.search(r"========= (?:Error|Invalid|Warning|Race).*(?:\n=========.*){0,3}", text)
    if summary is not None and int(summary[1]):
        return f"{summary[1]} errors", " ".join(first[0].split())[:300] if first else ""
    if code == DIFFERS:
        return "differs", text[text.find("DIFFERS") :][:300]
    if code or summary is None or "as eager" not in text:
        return "failed", text[-300:]
    return "clean", ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.triton_kernels.sanitizer")
    parser.add_argument("--one")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tools", nargs="*", default=list(TOOLS))
    parser.add_argument("--programs", nargs="*", default=list(_programs()))
    chosen = parser.parse_args()
    if chosen.one:
        return watched(chosen.one)
    import torch

    path = tool()
    if path is None or not torch.cuda.is_available():
        print("no compute-sanitizer here" if path is None else "no GPU here")
        return 2
    end, out = time.monotonic() + chosen.seconds, Path(os.environ.get("OUT", "."))
    jobs = [(kind, name) for kind in chosen.tools for name in chosen.programs]
    with ThreadPoolExecutor(chosen.workers) as pool:
        rows = list(pool.map(lambda job: run(path, *job, end, out), jobs))
    shutil.rmtree(out / ".cache", ignore_errors=True)
    for kind, name, said, first in rows:
        if said != "clean":
            print(f"{kind} {name}: {said}: {first}")
    for kind in chosen.tools:
        print(f"{kind}: {dict(Counter(said for k, _, said, _ in rows if k == kind))}")
    return 0 if {said for _, _, said, _ in rows} <= {"clean", "not run"} else 1


if __name__ == "__main__":
    sys.exit(main())
