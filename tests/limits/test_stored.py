"""Limits of the persistent cache: two processes, with a limit lowered by TRACER_LIMITS. Beyond it a
function is captured by each process, and the log of the cache says why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import torch_server

PROGRAM = """
import json
import torch, tracer_core
from tracer_core.execution import capture_lock

def run(x, word):
    table = torch.tensor([0.5] * {size})
    return x * table.sum() + len(word)

if __name__ == "__main__":
    fast = tracer_core.compile(run, backend="inductor")
    x = torch.ones(3)
    with torch.no_grad():
        for word in {words!r}:
            torch.testing.assert_close(fast(x, word), run(x, word))
    print(json.dumps(capture_lock.captures_so_far() // 2))
"""

#: Limit -> (its value in the test, what of the program goes beyond it, what the log says).
LIMITS: dict[str, tuple[int, dict[str, Any], str]] = {
    "MAX_PERSISTED_BYTES": (1000, {}, "not stored: "),
    "MAX_PERSISTED_TENSOR_BYTES": (40, {"size": 11}, "its graph holds constant tensors"),
    "MAX_PERSISTED_ENTRIES": (1, {"words": ["a", "bb"]}, ""),
}
UNDER = {"size": 2, "words": ["a"]}


def captures(folder: Path, facts: dict[str, Any], limits: str) -> tuple[int, str]:
    """Returns how much one process captures, and its log."""
    (folder / "program.py").write_text(PROGRAM.format(**(UNDER | facts)))
    done = torch_server.run(
        [str(folder / "program.py")],
        timeout=120,
        env=os.environ
        | {
            "TRACER_KEEP": "1",
            "TRACER_CHECK": "0",
            "TRACER_LIMITS": limits,
            "TRACER_LOGS": "cache",
            "TRACER_CACHE_DIR": str(folder / "cache"),
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_under_the_limits(tmp_path):
    text = ",".join(f"{name}={100 * value}" for name, (value, _, _) in LIMITS.items())
    assert captures(tmp_path, {}, text)[0] == 1
    assert captures(tmp_path, {}, text)[0] == 0


@pytest.mark.parametrize("name", LIMITS)
def test_beyond_the_limit(name, tmp_path):
    value, facts, says = LIMITS[name]
    first, log = captures(tmp_path, facts, f"{name}={value}")
    assert first == len((UNDER | facts)["words"])
    again, more = captures(tmp_path, facts, f"{name}={value}")
    assert again == 1  # what was left out, and nothing else
    assert says in log + more, log + more
