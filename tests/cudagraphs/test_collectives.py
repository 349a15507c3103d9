"""CUDA graphs of graphs that communicate through NCCL: one rank; tests/distributed has two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import tracer_core, cudagraphs_backend

torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=0, world_size=1)
group = dist.group.WORLD

def layers(x, weights):
    for weight in weights:
        x = x + functional.all_reduce(torch.nn.functional.gelu(x @ weight), "sum", group)
        parts = functional.all_gather_tensor(x.sin(), 0, group)
        y = x.cos() * 2
        x = parts.tanh() + y
    return x

weights = [torch.randn(64, 64, device="cuda").div_(16).requires_grad_() for _ in range(4)]
for backend, mode in (("cudagraphs", None), ("inductor", "reduce-overhead"), ("inductor", None)):
    fast = tracer_core.compile(layers, backend=backend, **({} if mode is None else {"mode": mode}))
    given = [torch.randn(16, 64, device="cuda") for _ in range(4)]
    with torch.no_grad():
        results = [fast(given[number % 4], weights) for number in range(12)]
        wanted = [layers(x, weights) for x in given]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, wanted[number % 4], rtol=1e-4, atol=1e-4)
    row = cudagraphs_backend.report()[0]
    print(backend, mode, row.replays, row.reason)
    if (backend, mode) != ("inductor", None):
        assert row.replays >= 5 and not row.reason
    torch.cuda.synchronize()
    tracer_core.reset()
    cudagraphs_backend.reset()
dist.destroy_process_group()
print("ended")
"""


LIGHT = """
import sys, torch
from cudagraphs_backend.collectives import CollectivesBetween

with CollectivesBetween(print):
    torch.ones(2) + 1
assert "torch._dynamo" not in sys.modules
"""


def test_the_mode_imports_no_other_compiler():
    subprocess.run([sys.executable, "-c", LIGHT], cwd=ROOT, check=True, timeout=100)


@pytest.mark.gpu
def test_parts_between_collectives(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("ended")
