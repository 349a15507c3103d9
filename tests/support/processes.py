"""Programs that a test runs in a Python of their own, because what they need must be set before it
starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def reported_by(*arguments: str, environment: Mapping[str, str], timeout: float) -> Any:
    """The JSON that ``python *arguments``, run in the repository, prints as its last line; fails
    with what it wrote if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def reported_by_triton(module: str, *arguments: str, cache: Path) -> Any:
    """`reported_by` of a module, in a process in which Triton compiles and does not interpret. cache:
    a folder for what it compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    return reported_by("-m", module, *arguments, environment=environment, timeout=300)
