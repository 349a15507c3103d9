"""A function in a fork of this process: what was imported is there already, and what it does to the
process goes away with it.

In: a function, its arguments, seconds. Out: its result as JSON, or ``{"failed": why}``. What always
holds: the fork has a process group of its own, which ends with it, so that no compiler that it
started outlives it. Threads of an OpenMP pool do not survive a fork: OMP_NUM_THREADS is to be 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any


def forked(function: Callable[..., Any], *arguments: Any, limit: float) -> Any:
    """Calls the function in a fork."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        _answer(function, arguments, writer)
    os.close(writer)
    start = time.monotonic()
    text = b"".join(_read(reader, start + limit))
    os.close(reader)
    late = time.monotonic() - start >= limit
    with contextlib.suppress(ProcessLookupError):  # the group, unless all of it has ended
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"failed": f"no answer after {limit:.0f} s"}
    return json.loads(text) if text else {"failed": f"ended with status {status}"}


def _read(reader: int, end: float) -> Iterator[bytes]:
    """What the child writes, until it closes the pipe or `end`."""
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], left)
        if ready:
            part = os.read(reader, 1 << 16)
            if not part:
                return
            yield part


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], writer: int) -> None:
    os.set_inheritable(writer, False)
    try:
        text = json.dumps(function(*arguments))
    except BaseException as error:
        if os.environ.get("BENCHMARK_TRACEBACK"):
            traceback.print_exc()
        text = json.dumps({"failed": short(error)})
    with os.fdopen(writer, "w") as file:
        file.write(text)
    os._exit(0)


def short(error: BaseException, length: int = 600) -> str:
    """An exception in one line: type, text and the two innermost places."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:length]} ({where})"
