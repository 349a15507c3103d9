"""Compiles translation units to object code, each in its own compiler process.

The process runs at most as many compilers at once as there are processors, over all threads. A unit
requested several times at once is compiled once; units with `keep` are compiled once per machine.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from inductor_backend.limits import MAX_COMPILE_SECONDS
from inductor_backend.runtime.cpp.toolchain import Toolchain, processor
from tracer_core.plugin_api import ENTRY_FORMAT, BackendError, Folder, demand_room

INCLUDE_DIR = Path(__file__).resolve().parents[2] / "codegen" / "cpp"


#: Texts that call these see the declarations of their vector forms, and are linked with `TRIG`.
_TRIG = re.compile(r"\btc_(sin|cos|tan)\(")


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit."""

    text: str
    #: Compiler flags after the toolchain's.
    flags: tuple[str, ...] = ()
    #: A folder of headers beside the prelude's.
    headers: Path | None = None
    #: Its object is a cache entry by itself.
    keep: bool = False

    def parts(self) -> tuple[str, ...]:
        """Returns what the object depends on, beside the toolchain and the prelude."""
        return (*self.flags, *([] if self.headers is None else [_digest(self.headers)]), self.text)


#: The bridge from Python, in every library.
LAUNCHER = Unit((INCLUDE_DIR / "launcher.cpp").read_text(), keep=True)
#: The prelude's vector forms of sin, cos and tan, a third of a small kernel's compile time.
TRIG = Unit('#include "prelude.h"\n', ("-DTC_TRIG", "-DTC_TRIG_DEFINITIONS"), keep=True)


def key_of(units: Sequence[Unit], tools: Toolchain | None) -> str:
    """Returns the cache key. tools: None for the key that all compilers share."""
    digest = hashlib.sha256(ENTRY_FORMAT)
    toolchain = processor()[1] if tools is None else tools.fingerprint()
    for part in (
        toolchain,
        _digest(INCLUDE_DIR),
        *(part for unit in units for part in unit.parts()),
    ):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


@functools.cache
def _digest(folder: Path) -> str:
    """Returns the digest of the folder's headers, and of what is linked into every library."""
    files = sorted([*folder.glob("*.h"), *folder.glob("launcher.cpp")])
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


class _Running:
    """Compilers of this process: how many may run, and which results are pending. A forked child
    has a new one."""

    def __init__(self) -> None:
        self.slots = threading.Semaphore(max(1, len(os.sched_getaffinity(0))))
        self.lock = threading.Lock()
        self.pending: dict[str, Future[bytes]] = {}

    def ask(self, key: str) -> tuple[Future[bytes], bool]:
        """Returns the future result, and whether the caller must make it."""
        with self.lock:
            known = self.pending.get(key)
            if known is not None:
                return known, False
            self.pending[key] = Future()
            return self.pending[key], True

    def done(self, key: str) -> None:
        with self.lock:
            self.pending.pop(key, None)


_running = _Running()


def _new_process() -> None:
    global _running
    _running = _Running()  # the parent's compilers belong to the parent


os.register_at_fork(after_in_child=_new_process)


def compiled(units: Sequence[Unit], tools: Toolchain, folder: Folder, name: str) -> list[bytes]:
    """Returns the objects of these units, and of `TRIG` where they call it; starts with the longest
    text.

    Raises BackendError with the compiler's first lines and the path of the kept source."""
    if any(_TRIG.search(unit.text) for unit in units):
        units = [*units, TRIG]
    results: list[Future[bytes] | bytes] = []
    begun: list[tuple[int, threading.Thread]] = []
    for number, unit in enumerate(units):
        key = key_of([unit], tools)
        file_name = f"{key}.o" if unit.keep else None
        stored = None if file_name is None else folder.read(file_name)
        if stored is not None:
            results.append(stored)
            continue
        pending = (  # a build in a folder that turns out to be full is no build here
            f"{folder.path}/{key}"
        )
        result, mine = _running.ask(pending)
        results.append(result)
        if mine:
            label = f"{name}-{number}.cpp"
            work = threading.Thread(
                target=contextvars.copy_context().run,  # what it compiles may have to give way
                args=(_make, _running, pending, result, unit, file_name, tools, folder, label),
                daemon=True,
            )
            begun.append((len(unit.text), work))
    for _, work in sorted(begun, key=lambda begin: -begin[0]):
        work.start()
    return [result if isinstance(result, bytes) else result.result() for result in results]


def _make(
    running: _Running,
    pending: str,
    result: Future[bytes],
    unit: Unit,
    file_name: str | None,
    tools: Toolchain,
    folder: Folder,
    label: str,
) -> None:
    """Compiles one unit, and always completes `result`."""
    try:
        with running.slots:
            data = _object(unit, file_name, tools, folder, label)
    except BaseException as error:
        running.done(pending)
        result.set_exception(error)
    else:
        running.done(pending)
        result.set_result(data)


def _object(
    unit: Unit, file_name: str | None, tools: Toolchain, folder: Folder, label: str
) -> bytes:
    if file_name is None:
        return _compile(unit, tools, folder, label)
    with folder.building(file_name, part=True):
        stored = folder.read(file_name)  # another process may have been the first
        if stored is None:
            stored = _compile(unit, tools, folder, label)
            folder.write(file_name, stored)
        return stored


def _compile(unit: Unit, tools: Toolchain, folder: Folder, label: str) -> bytes:
    with folder.scratch() as scratch:
        source, result = scratch / label, scratch / "unit.o"
        source.write_text(unit.text)
        more = [*unit.flags, *(["-DTC_TRIG"] if _TRIG.search(unit.text) else [])]
        more += [] if unit.headers is None else [f"-I{unit.headers}"]
        command = [
            *tools.command.argv,
            *tools.flags,
            f"-I{INCLUDE_DIR}",
            *more,
            "-c",
            str(source),
            "-o",
            str(result),
        ]
        run_compiler(command, tools, label, scratch, source)
        return result.read_bytes()


def run_compiler(
    command: Sequence[str], tools: Toolchain, name: str, scratch: Path, source: Path | None = None
) -> None:
    """Runs the compiler with the folder `scratch` for its temporary files. Raises BackendError with
    its output, or OSError if the disk is full. source: on an error, kept beside the cache's
    entries."""
    try:
        done = tools.command.run(command, timeout=MAX_COMPILE_SECONDS, TMPDIR=str(scratch))
    except subprocess.TimeoutExpired:
        raise BackendError(
            "inductor", "c++ compile", f"{name}: the compiler took over {MAX_COMPILE_SECONDS} s"
        ) from None
    except OSError as error:
        detail = f"{command[0]} cannot be run: {error}"
        raise BackendError("inductor", "toolchain", detail) from error
    if done.returncode == 0:
        return
    demand_room(scratch)
    where = ""
    if source is not None:
        failed = source.parent.parent / f"failed-{name}"
        shutil.copyfile(source, failed)
        where = f"; source kept in {failed}"
    shown = "\n    ".join(done.stderr.strip().splitlines()[:20])
    detail = f"{name}: the compiler ended with {done.returncode}{where}\n    {shown}"
    raise BackendError("inductor", "c++ compile", detail)
