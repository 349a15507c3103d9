"""The store under faults: killed processes, damaged files, many processes, hostile umask.

Each process compiles the same functions and compares with eager mode; whatever was done to the store
before, it must end well, with right answers and without the code that was planted.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
import torch, tracer_core

def norm(x, w):
    return torch.nn.functional.layer_norm(x, x.shape[-1:]) * w

def soft(x, w):
    return torch.softmax(x @ w.diag(), -1).cumsum(-1)

for function in (norm, soft):
    x, w = torch.randn(8, 16), torch.randn(16, requires_grad=True)
    expected = function(x, w)
    found = tracer_core.compile(function)(x, w)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), w), torch.autograd.grad(expected.sum(), w), atol=1e-4, rtol=1e-3
    )
print("right")
"""


def started(cache: Path, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TRACER_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **more}
    environment.pop("TRACER_STRICT", None)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended_well(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and out == "right\n", err


def entries(cache: Path) -> list[Path]:
    return sorted(path for kind in ("guards", "inductor-cpp") for path in cache.glob(f"{kind}/*.*"))


def test_eight_processes_on_one_store(tmp_path):
    running = [started(tmp_path / "cache") for _ in range(8)]
    for process in running:
        ended_well(process)
    assert not list((tmp_path / "cache").glob("*/.[!.]*"))


def test_killed_at_random_moments(tmp_path):
    cache, rng = tmp_path / "cache", random.Random(7)
    begun = time.monotonic()
    ended_well(started(tmp_path / "other"))
    seconds = time.monotonic() - begun
    for number in range(30):
        process = started(cache)
        time.sleep(rng.random() * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if number % 5 == 4:
            ended_well(started(cache))


def test_damaged_files(tmp_path):
    """Some 100 files: cut, changed, exchanged, of random bytes, empty, pipes, links, writable."""
    cache, rng = tmp_path / "cache", random.Random(19)
    ended_well(started(cache))
    outside = tmp_path / "outside"
    outside.write_bytes(entries(cache)[0].read_bytes())
    damaged = 0
    for _ in range(10):
        found = entries(cache)
        contents = [path.read_bytes() for path in found]
        for path, data in zip(found, contents, strict=True):
            how = rng.randrange(9)
            path.unlink()
            if how == 0:
                path.write_bytes(data[: rng.randrange(len(data) + 1)])
            elif how == 1:
                at = rng.randrange(len(data))
                path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            elif how == 2:
                path.write_bytes(rng.choice(contents))
            elif how == 3:
                path.write_bytes(rng.randbytes(rng.randrange(9000)))
            elif how == 4:
                path.write_bytes(b"")
            elif how == 5:
                os.mkfifo(path)
            elif how == 6:
                path.symlink_to(outside)
            elif how == 7:
                path.write_bytes(data)
                path.chmod(0o777)
            damaged += 1
        if rng.random() < 0.2:
            (cache / "secret").write_bytes(rng.randbytes(rng.choice([0, 31, 32])))
        ended_well(started(cache))
    assert damaged >= 50
