"""flex_attention: ten masks and scores, lengths up to 32k, forward and backward, beside
torch.compile.

Each case has a process of its own. On a GPU all compile at once, and are measured one after the other
afterwards. The share of the peak counts the
multiplications of the positions that are not masked (twice that number for each of the two products;
2.5 times as many in a backward) and the device's dense rate for the dtype (H100 SXM: 989 Tflop/s in
16 bits). The result is compared with torch.compile's (on the CPU also
with eager mode; `sdpa` is scaled_dot_product_attention where it computes the same).

    python -m benchmarks flex_attention --device cuda --out flex.json
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Names of `_functions`.
CASES = (
    "full", "causal", "sliding_window", "document", "prefix", "softcap", "alibi", "relative_bias",
    "shared_heads", "decoding",
)  # fmt: skip
#: Positions of a block of a BlockMask in each dimension.
BLOCK = 128
#: For a row's measurement, at least.
SECONDS = 0.3
#: What a process says when it has compiled.
READY = "ready"
#: Dense 16-bit Tflop/s of devices whose name contains this text.
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}


def _functions(name: str, length: int, heads: int, device: str) -> tuple[Any, Any]:
    """Returns (score_mod, mask_mod)."""
    import torch

    documents = torch.arange(length, device=device) // max(1, length // 8)
    slopes = torch.exp2(-torch.arange(1, heads + 1, device=device) * (8.0 / heads))
    bias = torch.randn(heads, 2 * length, device=device) * 0.1

    def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q >= kv

    def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv <= 1024)

    def document(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (documents[q] == documents[kv])

    def prefix(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) | (kv < 512)

    def softcap(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return 30.0 * torch.tanh(s / 30.0)

    def alibi(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + slopes[h] * (kv - q)

    def relative(s: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return s + bias[h, q - kv + length]

    def reached(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv <= q + length - 1

    return {
        "full": (None, None),
        "causal": (None, causal),
        "sliding_window": (None, window),
        "document": (None, document),
        "prefix": (None, prefix),
        "softcap": (softcap, causal),
        "alibi": (alibi, causal),
        "relative_bias": (relative, None),
        "shared_heads": (None, causal),
        "decoding": (None, reached),
    }[name]


def _block_mask(mask_mod: Any, rows: int, length: int, device: str) -> tuple[Any, float]:
    """Returns (BlockMask, positions that are not masked); looks at some rows at a time."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    if mask_mod is None:
        return None, float(rows * length)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    kv = torch.arange(length, device=device)
    step = max(1, 2**24 // length // BLOCK) * BLOCK
    parts = []
    for at in range(0, rows, step):
        q = torch.arange(at, at + min(step, -(-rows // BLOCK) * BLOCK), device=device)[:, None]
        allowed = (mask_mod(zero, zero, q.clamp(max=rows - 1), kv) & (q < rows)).expand(-1, length)
        parts.append(allowed.view(-1, BLOCK, length // BLOCK, BLOCK).sum((1, 3)))
    counts = torch.cat(parts)[None, None]
    full = counts == BLOCK * BLOCK

    def listed(blocks: Any) -> tuple[Any, Any]:
        order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
        return blocks.sum(-1).int(), order.int()

    mask = BlockMask.from_kv_blocks(
        *listed((counts > 0) & ~full), *listed(full), BLOCK, mask_mod, (rows, length)
    )
    return mask, float(counts.sum())


class _Row:
    """One row of the table. `prepare` compiles and compares, `measure` takes the times."""

    def __init__(self, case: str, length: int, backward: bool, options: argparse.Namespace) -> None:
        self.row: dict[str, Any] = {
            "case": case, "length": length, "dtype": options.dtype, "backward": backward
        }  # fmt: skip
        self.options, self.backward = options, backward
        self.work: dict[str, Callable[[], Any]] = {}
        self.flops = 0.0

    def prepare(self) -> None:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        import tracer_core

        case, length, options = self.row["case"], self.row["length"], self.options
        device, heads, width = options.device, options.heads, options.width
        score_mod, mask_mod = _functions(case, length, heads, device)
        rows = 1 if case == "decoding" else length
        shared = heads // 4 if case == "shared_heads" else heads
        torch.manual_seed(0)
        torch.compiler.reset()  # each row is a first call
        dtype = getattr(torch, options.dtype)
        query = torch.randn(options.batch, heads, rows, width, device=device, dtype=dtype)
        key, value = (
            torch.randn(options.batch, shared, length, width, device=device, dtype=dtype)
            for _ in range(2)
        )
        inputs = [item.requires_grad_(self.backward) for item in (query, key, value)]
        mask, positions = _block_mask(mask_mod, rows, length, device)
        passes = 2.5 if self.backward else 1.0
        self.flops = 4 * options.batch * heads * positions * width * passes
        kernel_options = json.loads(options.kernel_options)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return flex_attention(
                q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=shared != heads,
                kernel_options=kernel_options or None,
            )  # fmt: skip

        def dense(q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case != "full", enable_gqa=shared != heads
            )

        compilers: dict[str, Callable[[Any], Any]] = {
            "ours": lambda fn: tracer_core.compile(fn, backend="inductor", fullgraph=True),
            "torch": lambda fn: torch.compile(fn, fullgraph=True),
            "eager": lambda fn: fn,
            "sdpa": lambda fn: dense,
        }
        if self.backward and device == "cpu":
            del compilers["torch"]  # it has no gradients on the CPU
        if self.backward or device == "cuda":
            del compilers["eager"]  # all scores do not fit, or it has no gradients
        if case not in ("full", "causal", "shared_heads"):
            del compilers["sdpa"]  # other values
        results = {}
        for name in [compiler for compiler in compilers if compiler in options.compilers]:
            began = time.perf_counter()
            call = compilers[name](attend)
            out = call(*inputs)
            if self.backward:
                torch.manual_seed(1)
                gradient = torch.randn(out.shape, device=device).to(dtype)
                self.work[name] = lambda out=out, gradient=gradient: torch.autograd.grad(
                    out, inputs, gradient, retain_graph=True
                )
            else:
                self.work[name] = lambda call=call: call(*inputs)
            results[name] = self.work[name]()
            _wait(device)
            self.row[f"{name}_first_s"] = round(time.perf_counter() - began, 2)
        other = next((value for value in ("torch", "eager", "sdpa") if value in results), None)
        if "ours" in results and other is not None:
            pairs = zip(_several(results["ours"]), _several(results[other]), strict=True)
            self.row["difference"] = max(
                float((a.float() - b.float()).abs().max()) for a, b in pairs
            )

    def measure(self) -> dict[str, Any]:
        row, device = self.row, self.options.device
        for name, milliseconds in _milliseconds(self.work, device).items():
            row[f"{name}_ms"] = round(milliseconds, 4)
            row[f"{name}_tflops"] = round(self.flops / milliseconds / 1e9, 2)
            peak = _peak(device)
            if peak is not None and self.options.dtype != "float32":
                row[f"{name}_share"] = round(row[f"{name}_tflops"] / peak, 3)
        for name in ("torch", "eager", "sdpa"):
            if f"{name}_ms" in row and "ours_ms" in row:
                key = "ratio" if name == "torch" else f"ratio_to_{name}"
                row[key] = round(row[f"{name}_ms"] / row["ours_ms"], 3)
        self.work.clear()
        return row


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _peak(device: str) -> float | None:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return next((peak for text, peak in PEAKS.items() if text in name), None)


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _milliseconds(work: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Returns the median over calls, by the device's clock on a GPU; the compilers take turns."""
    import torch

    result: dict[str, list[float]] = {name: [] for name in work}
    began = time.perf_counter()
    while len(next(iter(result.values()))) < 5 or time.perf_counter() - began < SECONDS:
        for name, call in work.items():
            if device == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                result[name].append(start.elapsed_time(end))
            else:
                at = time.perf_counter()
                call()
                result[name].append((time.perf_counter() - at) * 1e3)
    return {name: sorted(times)[len(times) // 2] for name, times in result.items()}


def main(arguments: Sequence[str]) -> int:
    """Prints a line a row; 1 if a row fails or differs from torch.compile's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks flex_attention")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--lengths", nargs="*", type=int)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--passes", nargs="*", choices=("forward", "backward"))
    parser.add_argument("--compilers", nargs="*", default=["ours", "torch", "eager", "sdpa"])
    parser.add_argument("--kernel-options", default="{}", help="JSON, for calls of flex_attention")
    parser.add_argument("--limit", type=float, default=200, help="seconds for all compilations")
    parser.add_argument("--workers", type=int, help="processes that compile at once")
    parser.add_argument("--out", help="JSON of all rows")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    gpu = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if gpu else "float32")
    options.lengths = options.lengths or ([1024, 4096, 16384, 32768] if gpu else [512, 1024])
    options.passes = options.passes or ["forward", "backward"]
    if options.case:
        return _of_case(options.case, options)
    rows = []
    for row in _in_processes(arguments, options):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)
    wrong = [row for row in rows if "error" in row or not row.get("difference", 0) < 0.1]
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(rows)} rows, {len(wrong)} wrong; {mean:.3f} times torch.compile's speed")
    return int(bool(wrong))


def _of_case(case: str, options: argparse.Namespace) -> int:
    """Compiles the rows of a case, says so, and measures once a line was read: a line each."""
    rows = []
    for pass_ in options.passes:
        for length in options.lengths:
            if case == "decoding" and pass_ == "backward":
                continue
            row = _Row(case, length, pass_ == "backward", options)
            try:
                row.prepare()
            except Exception as error:
                row.row["error"] = f"{type(error).__name__}: {error}"[:300]
                row.work.clear()
            rows.append(row)
    print(READY, flush=True)
    sys.stdin.readline()
    for row in rows:
        print(json.dumps(row.measure() if row.work else row.row), flush=True)
    return 0


def _in_processes(arguments: Sequence[str], options: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows. Cases are compiled at once, as many as there are workers, and measured one
    after the other while nothing else runs."""
    gpu = options.device == "cuda"
    workers = options.workers or (max(1, (os.cpu_count() or 2) // 2) if gpu else 1)
    waiting, end = list(options.cases), time.monotonic() + options.limit
    while waiting:
        # on a GPU every case is compiled before the first is measured
        batch, waiting = (waiting, []) if gpu else (waiting[:workers], waiting[workers:])
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            started = list(pool.map(lambda case: _compiled(case, arguments, end), batch))
        for case, process, error in started:
            if process is None:
                yield {"case": case, "error": error}
                continue
            said, _ = process.communicate("\n")
            for line in said.splitlines():
                if line.startswith("{"):
                    yield json.loads(line)
            if process.returncode:
                yield {"case": case, "error": f"exit status {process.returncode}"}


def _compiled(
    case: str, arguments: Sequence[str], end: float
) -> tuple[str, subprocess.Popen[str] | None, str]:
    """Returns a process that has compiled a case's rows and waits; None and the reason if it failed,
    or was not ready at the end of the time."""
    command = [sys.executable, "-m", "benchmarks", "flex_attention", *arguments, "--case", case]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        timer = threading.Timer(max(1.0, end - time.monotonic()), process.kill)
        timer.start()
        ready = any(line.strip() == READY for line in iter(process.stdout.readline, ""))
        timer.cancel()
        if ready:
            return case, process, ""
        process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["not compiled in time"])[-1]
        return case, None, last[:300]
