"""flex_attention: ten masks and scores, lengths up to 32k, forward and backward, beside
torch.compile.

Each row runs in a process of its own, with a time limit. The share of the peak counts the
multiplications of the positions that are not masked (twice that number for each of the two products;
2.5 times as many in a backward) and the device's dense rate for the dtype (H100 SXM: 989 Tflop/s in
16 bits). The result is compared with torch.compile's.

    python -m benchmarks flex_attention --device cuda --out flex.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

#: Names of `_functions`.
CASES = (
    "full", "causal", "sliding_window", "document", "prefix", "softcap", "alibi", "relative_bias",
    "shared_heads", "decoding",
)  # fmt: skip
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


def _row(case: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures one row in this process."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    import tracer_core

    device, heads, width = options.device, options.heads, options.width
    dtype = getattr(torch, options.dtype)
    score_mod, mask_mod = _functions(case, length, heads, device)
    rows = 1 if case == "decoding" else length
    shared = heads // 4 if case == "shared_heads" else heads
    torch.manual_seed(0)
    query = torch.randn(options.batch, heads, rows, width, device=device, dtype=dtype)
    key, value = (
        torch.randn(options.batch, shared, length, width, device=device, dtype=dtype)
        for _ in range(2)
    )
    given = [one.requires_grad_(options.backward) for one in (query, key, value)]
    make = torch.compile(create_block_mask) if device == "cuda" else create_block_mask
    mask = mask_mod and make(mask_mod, None, None, rows, length, device=device)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=shared != heads
        )

    def positions() -> float:
        if mask_mod is None:
            return float(rows * length)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        kv = torch.arange(length, device=device)
        step = max(1, 2**24 // length)
        parts = (
            mask_mod(zero, zero, torch.arange(at, min(rows, at + step), device=device)[:, None], kv)
            for at in range(0, rows, step)
        )
        return float(sum(int(part.expand(-1, length).sum()) for part in parts))

    flops = 4 * options.batch * heads * positions() * width * (2.5 if options.backward else 1.0)
    results, row = {}, {"case": case, "length": length, "dtype": options.dtype,
                        "backward": options.backward}  # fmt: skip
    compilers: dict[str, Callable[[Any], Any]] = {
        "ours": lambda fn: tracer_core.compile(fn, backend="inductor", fullgraph=True),
        "torch": lambda fn: torch.compile(fn, fullgraph=True),
    }
    if options.backward and device == "cpu":
        del compilers["torch"]  # it has no gradients on the CPU
    for name, compiler in compilers.items():
        began = time.perf_counter()
        call = compiler(attend)
        out = call(*given)
        gradient = torch.randn_like(out)
        if options.backward:
            work = lambda out=out, gradient=gradient: torch.autograd.grad(
                out, given, gradient, retain_graph=True
            )
        else:
            work = lambda call=call: call(*given)
        results[name] = work()
        _wait(device)
        row[f"{name}_first_s"] = round(time.perf_counter() - began, 2)
        row[f"{name}_ms"] = round(_milliseconds(work, device), 4)
        row[f"{name}_tflops"] = round(flops / row[f"{name}_ms"] / 1e9, 2)
        peak = _peak(device)
        if peak is not None and options.dtype != "float32":
            row[f"{name}_share"] = round(row[f"{name}_tflops"] / peak, 3)
    if len(results) == 2:
        pairs = zip(_several(results["ours"]), _several(results["torch"]), strict=True)
        row["difference"] = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
        row["ratio"] = round(row["torch_ms"] / row["ours_ms"], 3)
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


def _milliseconds(work: Callable[[], Any], device: str) -> float:
    """Returns the median over calls, by the device's clock on a GPU."""
    import torch

    for _ in range(3):
        work()
    _wait(device)
    found = []
    for _ in range(30 if device == "cuda" else 5):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            work()
            found.append((time.perf_counter() - began) * 1e3)
    return sorted(found)[len(found) // 2]


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
    parser.add_argument("--limit", type=float, default=180, help="seconds a row")
    parser.add_argument("--out", help="JSON of all rows")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    gpu = options.device == "cuda"
    options.dtype = options.dtype or ("bfloat16" if gpu else "float32")
    if options.row:
        told = json.loads(options.row)
        options.backward = told["backward"]
        print(json.dumps(_row(told["case"], told["length"], options)))
        return 0
    lengths = options.lengths or ([1024, 4096, 8192, 16384, 32768] if gpu else [512, 1024])
    rows: list[dict[str, Any]] = []
    for one in options.passes or ("forward", "backward"):
        for case in options.cases:
            for length in lengths:
                row = {"case": case, "length": length, "backward": one == "backward"}
                if not (case == "decoding" and row["backward"]):
                    rows.append(_in_process(row, arguments, options))
                    print(json.dumps(rows[-1]), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)
    wrong = [row for row in rows if "error" in row or not row.get("difference", 0) < 0.1]
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(rows)} rows, {len(wrong)} wrong; {mean:.3f} times torch.compile's speed")
    return int(bool(wrong))


def _in_process(row: dict[str, Any], arguments: Sequence[str], options: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "flex_attention", *arguments, "--row",
               json.dumps(row)]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.limit, env=dict(os.environ)
        )
    except subprocess.TimeoutExpired:
        return {**row, "error": f"more than {options.limit:.0f} s"}
    if done.returncode:
        return {**row, "error": (done.stderr.strip().splitlines() or ["?"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
