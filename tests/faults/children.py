"""Processes that run programs: forked from one that has imported everything and run nothing, so that
a trial costs what the store and the compiler cost.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults import programs

#: Seconds after which a child has hung.
HUNG = 300.0


@dataclass(slots=True)
class Child:
    """A process of a trial. Mutable. pid; log: the file of what it says; code: how it ended, once
    it has."""

    pid: int
    log: Path
    code: int | None = None

    def wait(self, seconds: float = HUNG) -> int:
        """Returns the exit code, or minus the signal. Raises AssertionError where it hangs."""
        end = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"hung for {seconds:.0f} s\n{self.said()}")
            else:
                time.sleep(0.005)
        return self.code

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ended_well(self) -> None:
        """Raises AssertionError unless the program ended with the right answers."""
        code = self.wait()
        assert code == 0, f"ended with {code}\n{self.said()[-3000:]}"

    def kill(self) -> None:
        """Kills the process at once. What it has started runs on, as after any kill -9."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)


def child(
    logs: Path,
    work: Callable[[], None],
    before: Callable[[], None] | None = None,
    **environment: str,
) -> Child:
    """Forks a process that calls `before`, then `work`, with more environment variables."""
    descriptor, log = tempfile.mkstemp(dir=logs, suffix=".log")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return Child(pid, Path(log))
    code = 1
    try:
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(environment)
        if before is not None:
            before()
        work()
        code = 0
    except AssertionError:
        traceback.print_exc()
        code = programs.WRONG
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


@functools.cache
def import_everything() -> None:
    """Imports what programs import, without running anything: no thread is started."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.programs", folder],
            env={**os.environ, "TRACER_CACHE_DIR": f"{folder}/cache"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    for name in done.stdout.split():
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(name)
    # the temporary folder of a child must be the child's
    from tracer_core.storage import cache_location

    assert not cache_location._temporary.cache_info().currsize
