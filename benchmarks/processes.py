"""Fresh processes with empty caches.

In: a module of this package and its arguments. Out: the JSON value that it passed to `answer`, or a
`Failed`; or a `Worker` that answers several questions. What always holds: the child's caches (ours,
torch's, Triton's) are empty folders that go away with it; no setting of this process that changes
what a compiler does reaches it; it is given up after its time limit together with what it started.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent

_RESULT = "BENCHMARK_RESULT"
_STARTED = "BENCHMARK_STARTED"
_QUESTIONS = "BENCHMARK_QUESTIONS"

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
        environment = _environment(folder) | {_RESULT: str(result)}
        printed = _run([sys.executable, "-m", module, *arguments], environment, limit)
        if not result.exists():
            raise Failed(printed or "ended without an answer")
        return json.loads(result.read_text(encoding="utf-8"))


def _environment(folder: str) -> dict[str, str]:
    """Settings of a child: empty caches in `folder`, nothing that changes what a compiler does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    return environment | {
        "TRACER_CACHE_DIR": f"{folder}/tracer",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "HF_HUB_OFFLINE": "1",
        _STARTED: str(time.perf_counter_ns()),
    }


class Worker:
    """A child that answers one question after another (`answers` is its side)."""

    def __init__(
        self, process: subprocess.Popen[Any], to: TextIO, back: TextIO, printed: TextIO
    ) -> None:
        self._process, self._to, self._back, self._printed = process, to, back, printed

    def ask(self, question: Any, *, limit: float) -> Any:
        """The child's answer. limit: seconds. Raises Failed, after which the child is gone."""
        try:
            self._to.write(json.dumps(question) + "\n")
            self._to.flush()
            ready, _, _ = select.select([self._back], [], [], limit)
            line = self._back.readline() if ready else ""
        except OSError:
            ready, line = [True], ""
        if line:
            return json.loads(line)
        self.end()
        self._printed.seek(0)
        last = "\n".join(self._printed.read().strip().splitlines()[-12:])
        raise Failed(
            (last or "ended without an answer") if ready else f"no answer after {limit:.0f} s"
        )

    def end(self) -> None:
        """Ends the child and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def worker(module: str, arguments: Sequence[str]) -> Iterator[Worker]:
    """A fresh process with empty caches that lives as long as the block."""
    if threading.current_thread() is threading.main_thread():  # no other thread may ask for it
        signal.signal(signal.SIGTERM, _stop)
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        contextlib.ExitStack() as files,
    ):
        hear, to = os.pipe()
        back, say = os.pipe()
        printed = files.enter_context(
            open(f"{folder}/printed", "w+", encoding="utf-8", errors="replace")
        )
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=_environment(folder) | {_QUESTIONS: f"{hear} {say}"},
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(hear, say),
            start_new_session=True,
        )
        os.close(hear)
        os.close(say)
        child = Worker(
            process,
            files.enter_context(os.fdopen(to, "w", encoding="utf-8")),
            files.enter_context(os.fdopen(back, encoding="utf-8")),
            printed,
        )
        try:
            yield child
        finally:
            child.end()


def answers(tell: Callable[[Any], Any]) -> None:
    """The side of a `worker`'s child: passes each question to `tell` and sends back what it
    returns.
    """
    hear, say = map(int, os.environ[_QUESTIONS].split())
    with (
        os.fdopen(hear, encoding="utf-8") as questions,
        os.fdopen(say, "w", encoding="utf-8") as told,
    ):
        for line in questions:
            told.write(json.dumps(tell(json.loads(line))) + "\n")
            told.flush()


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
