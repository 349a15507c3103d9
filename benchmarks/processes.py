"""Fresh processes with empty caches.

In: a module of this package and its arguments. Out: the JSON value that it passed to `answer`, or a
`Failed`. What always holds: the child's caches (ours, torch's, Triton's) are empty folders that go away
with it; no setting of this process that changes what a compiler does reaches it; it is given up after
its time limit together with what it started.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_RESULT = "BENCHMARK_RESULT"
_STARTED = "BENCHMARK_STARTED"

#: Settings that would change what is measured.
_DROPPED = (
    "TRACER_",
    "TORCH_LOGS",
    "TORCH_COMPILE_DEBUG",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "PYTHONDONTWRITEBYTECODE",
)

OURS = ("tracer_core", "inductor_backend", "onnxrt_backend", "cudagraphs_backend", "tvm_backend")


class Failed(Exception):
    """A child that gave no answer. The text is the end of what it printed."""


def fresh(module: str, arguments: Sequence[str], *, limit: float) -> Any:
    """Runs ``python -m module arguments`` with empty caches and returns its answer.

    limit: seconds. Raises Failed.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        result = Path(folder) / "result.json"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
        environment |= {
            "TRACER_CACHE_DIR": f"{folder}/tracer",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "HF_HUB_OFFLINE": "1",
            _RESULT: str(result),
            _STARTED: str(time.perf_counter_ns()),
        }
        printed = _run([sys.executable, "-m", module, *arguments], environment, limit)
        if not result.exists():
            raise Failed(printed or "ended without an answer")
        return json.loads(result.read_text(encoding="utf-8"))


def _run(command: list[str], environment: dict[str, str], limit: float) -> str:
    """Runs to the end; returns the last lines printed. Raises Failed after `limit` seconds."""
    signal.signal(signal.SIGTERM, _stop)  # so that the child does not outlive this process
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # the group is the child's own: start_new_session
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"no answer after {limit:.0f} s") from None
        raise
    lines = printed.strip().splitlines()[-12:]
    if process.returncode != 0:
        raise Failed("\n".join(lines) or f"ended with status {process.returncode}")
    return "\n".join(lines)


def _stop(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def answer(value: Any) -> None:
    """Called by a child: the value that `fresh` returns."""
    Path(os.environ[_RESULT]).write_text(json.dumps(value), encoding="utf-8")


def started() -> int:
    """Called by a child: when its process was started, in `time.perf_counter_ns()`."""
    return int(os.environ[_STARTED])


def warm_up_files() -> None:
    """Byte-compiles our packages, as installing a wheel does, so that no child pays for it."""
    for name in OURS:
        found = importlib.util.find_spec(name)
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            compileall.compile_dir(folder, quiet=2)
