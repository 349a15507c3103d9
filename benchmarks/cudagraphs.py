"""Recorded graphs on an NVIDIA GPU: latency, launch cost on the host, memory, beside eager and
torch.compile.

In: names of cases and compilers. Out: a table and ``<out>/cudagraphs.json``. What always holds:
each row has a process of its own with empty caches; results are compared with eager's, also those
of earlier calls that are kept. Run on the GPU machine: ``python3 -m benchmarks.cudagraphs --out
FOLDER``.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

COMPILERS = ("eager", "cudagraphs", "reduce-overhead")
MARK = "ROW "


def cos_sin(device: torch.device) -> tuple[Any, list[torch.Tensor], bool]:
    """Two small inputs: the cost of a launch."""
    return (
        lambda x, y: x.cos() + y.sin(),
        [torch.randn(10_000, device=device) for _ in range(2)],
        False,
    )


def cos_sin_large(device: torch.device) -> tuple[Any, list[torch.Tensor], bool]:
    """A result of 256 MiB."""
    return (
        lambda x, y: x.cos() + y.sin(),
        [torch.randn(2**26, device=device) for _ in range(2)],
        False,
    )


def resnet18(
    batch: int, size: int, train: bool
) -> Callable[[torch.device], tuple[Any, list[torch.Tensor], bool]]:
    """torchvision's resnet18."""

    def make(device: torch.device) -> tuple[Any, list[torch.Tensor], bool]:
        import torchvision

        model = torchvision.models.resnet18().to(device).train(train)
        return model, [torch.randn(batch, 3, size, size, device=device)], train

    return make


def bert(
    batch: int, tokens: int, train: bool
) -> Callable[[torch.device], tuple[Any, list[torch.Tensor], bool]]:
    """BERT-base with random weights; its last hidden state."""

    def make(device: torch.device) -> tuple[Any, list[torch.Tensor], bool]:
        from transformers import BertConfig, BertModel

        class Hidden(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bert = BertModel(BertConfig())

            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                return self.bert(tokens).last_hidden_state

        model = Hidden().to(device).train(train)
        return model, [torch.randint(0, 30_000, (batch, tokens), device=device)], train

    return make


CASES: dict[str, Callable[[torch.device], tuple[Any, list[torch.Tensor], bool]]] = {
    "cos+sin 10,000": cos_sin,
    "cos+sin 2^26": cos_sin_large,
    "resnet18 1x64": resnet18(1, 64, False),
    "BERT 1x12": bert(1, 12, False),
    "BERT 16x128": bert(16, 128, False),
    "resnet18 16x224 train": resnet18(16, 224, True),
    "BERT 16x128 train": bert(16, 128, True),
}


def compiled(compiler: str, model: Any) -> Any:
    """The model under a compiler."""
    if compiler == "eager":
        return model
    if compiler == "cudagraphs":
        import tracer_core

        return tracer_core.compile(model, backend="cudagraphs")
    return torch.compile(model, mode=compiler)


def step_of(
    function: Any, model: Any, inputs: list[torch.Tensor], train: bool
) -> Callable[[], Any]:
    """One call, or forward and backward from zeroed gradients."""
    if not train:
        return lambda: function(*inputs)
    parameters = list(model.parameters())

    def step() -> Any:
        for parameter in parameters:
            parameter.grad = None
        loss = function(*inputs).square().mean()
        loss.backward()
        return loss

    return step


def seconds(step: Callable[[], Any], repeats: int, wait: bool) -> float:
    """The median time of a step: waiting for each (latency), or of runs of ten (back to back)."""
    inner = 1 if wait else 10
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(inner):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times)


def host_microseconds(step: Callable[[], Any]) -> float:
    """What a call costs on the host, the device being idle when it starts."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def error(model: Any, function: Any, inputs: list[torch.Tensor], train: bool) -> float:
    """The largest relative difference from eager over five calls whose results are kept (for
    training: of the gradients, dropout being seeded)."""
    torch.set_float32_matmul_precision("highest")  # TF32's noise would hide a wrong result
    torch.backends.cudnn.allow_tf32 = False
    if train:
        twin = copy.deepcopy(model)
        worst = 0.0
        for seed in range(4):
            for one, called in ((model, function), (twin, twin)):
                torch.manual_seed(seed)
                step_of(called, one, inputs, True)()
            pairs = zip(model.parameters(), twin.parameters(), strict=True)
            found = [relative(a.grad, b.grad) for a, b in pairs if b.grad is not None]
            worst = max(worst, statistics.median(found))
        return worst
    kept = []
    for shift in range(5):
        given = [x + shift if x.is_floating_point() else x.roll(shift) for x in inputs]
        ours = function(*given)
        if "torch._dynamo" in sys.modules:
            ours = ours.clone()  # torch.compile's next call writes over it
        kept.append((ours, model(*given)))
    return max(relative(a, b) for a, b in kept)


def relative(ours: torch.Tensor, eager: torch.Tensor) -> float:
    """||ours - eager|| / ||eager||"""
    return float((ours.double() - eager.double()).norm() / eager.double().norm().clamp_min(1e-30))


def measure(case: str, compiler: str) -> dict[str, Any]:
    """One row."""
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    model, inputs, train = CASES[case](torch.device("cuda"))
    function = compiled(compiler, model)
    step = step_of(function, model, inputs, train)
    with torch.set_grad_enabled(train):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        for _ in range(5):
            kept = step()  # held while the next one runs, as in most programs
        row = {
            "case": case,
            "compiler": compiler,
            "first_call_s": first,
            "latency_ms": 1e3 * seconds(step, 60, wait=True),
            "back_to_back_ms": 1e3 * seconds(step, 15, wait=False),
            "host_us": host_microseconds(step),
            "peak_allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
            "peak_reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        }
        del kept
        row["error"] = error(model, function, inputs, train)
    if compiler == "cudagraphs":
        import cudagraphs_backend

        row["graphs"] = [
            {name: getattr(one, name) for name in one.__slots__}
            for one in cudagraphs_backend.report()
        ]
    return row


def versions() -> dict[str, str]:
    """What was measured with."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "device": torch.cuda.get_device_name(),
    }


def in_a_process(case: str, compiler: str) -> dict[str, Any]:
    """A row, or {"failed": ...}."""
    with tempfile.TemporaryDirectory() as cache:
        import os

        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRACER_CACHE_DIR": cache}
        command = [sys.executable, "-m", "benchmarks.cudagraphs", "--row", case, compiler]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            row: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return row
    return {"case": case, "compiler": compiler, "failed": done.stderr[-3000:]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.cudagraphs", description=__doc__)
    parser.add_argument("--row", nargs=2, metavar=("CASE", "COMPILER"))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--compilers", nargs="+", default=list(COMPILERS), choices=list(COMPILERS))
    parser.add_argument("--out", default=".")
    chosen = parser.parse_args(arguments)
    if chosen.row:
        print(MARK + json.dumps(measure(*chosen.row)))
        return 0
    rows = []
    for case in chosen.cases:
        for compiler in chosen.compilers:
            row = in_a_process(case, compiler)
            rows.append(row)
            print(line(row), flush=True)
            Path(chosen.out, "cudagraphs.json").write_text(
                json.dumps({"versions": versions(), "rows": rows}, indent=1)
            )
    return int(any("failed" in row for row in rows))


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    head = f"{row['case']:22} {row['compiler']:16}"
    if "failed" in row:
        return f"{head} FAILED {row['failed'][-600:]}"
    return (
        f"{head} latency {row['latency_ms']:8.3f} ms  back to back {row['back_to_back_ms']:8.3f} ms"
        f"  host {row['host_us']:7.0f} us  first {row['first_call_s']:5.1f} s  peak"
        f" {row['peak_allocated_mib']:7.0f} / {row['peak_reserved_mib']:7.0f} MiB  error"
        f" {row['error']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
