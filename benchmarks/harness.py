"""What every benchmark shares: fresh processes with empty caches, rows on disk, grids of rows.

What always holds: a child's caches (ours, torch's, Triton's) are empty folders that go away with
it, unless a folder is given; no setting of this process that changes what a compiler does reaches
it; it is ended after its time limit together with what it started. Results are one file per topic
and machine; a row says its commit and versions, and is measured again at another commit or with
other versions. The file is replaced after each row, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import datetime
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

from benchmarks import child
from benchmarks.timing import table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"


@contextlib.contextmanager
def noted_fallbacks() -> Iterator[list[str]]:
    """Yields the list of reasons why graphs inside the block run without their backend, which are
    noted there and not logged."""
    from tracer_core.dispatch import compile_graph

    texts: list[str] = []

    def note(fallback: Any) -> None:
        texts.append(f"{fallback.kind}: {fallback.reason}")

    with mock.patch.object(compile_graph, "report", note):
        yield texts


# Child processes ----------------------------------------------------------------------------------

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

#: A function of a module, or its name as ``module:function``.
Target = Callable[..., Any] | str


class Failed(Exception):
    """A child that gave no answer. The text is the end of what it printed."""


def fresh(
    target: Target,
    *arguments: Any,
    limit: float,
    caches: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Calls the target in a process of its own and returns its result. Arguments and result are
    JSON values.

    limit: seconds. caches: a folder for the compilers' caches; empty ones by default. environment:
    further variables. Raises Failed.
    """
    _stop_at_sigterm()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        result = Path(folder) / "result.json"
        process = subprocess.Popen(
            _command(target, arguments),
            cwd=ROOT,
            env=_environment(caches or folder)
            | {child.RESULT: str(result)}
            | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=limit)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"no answer after {limit:.0f} s") from None
            raise
        if process.returncode != 0 or not result.exists():
            raise Failed(
                _end_of(printed) or f"ended with status {process.returncode}, without an answer"
            )
        return json.loads(result.read_text(encoding="utf-8"))


class Worker:
    """A child that answers one question after another."""

    def __init__(
        self, process: subprocess.Popen[Any], to: RawIOBase, back: TextIO, printed: TextIO
    ) -> None:
        self._process, self._to, self._back, self._printed = process, to, back, printed

    def ask(self, question: Any, *, limit: float) -> Any:
        """The child's answer. limit: seconds. Raises Failed, after which the child is gone."""
        try:
            self._to.write(json.dumps(question).encode() + b"\n")
            ready, _, _ = select.select([self._back], [], [], limit)
            line = self._back.readline() if ready else ""
        except OSError:
            ready, line = [True], ""
        if line:
            return json.loads(line)
        _kill(self._process)
        self._printed.seek(0)
        last = _end_of(self._printed.read())
        raise Failed(
            (last or "ended without an answer") if ready else f"no answer after {limit:.0f} s"
        )

    def row(self, question: Any, *, limit: float) -> dict[str, Any]:
        """The child's answer, or a row that says ``failed`` and why."""
        try:
            answer: dict[str, Any] = self.ask(question, limit=limit)
        except Failed as error:
            return {"failed": str(error)[-600:]}
        return answer


@contextlib.contextmanager
def worker(
    target: Target,
    *arguments: Any,
    caches: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """A process in which the target returns what answers questions; it lives as long as the
    block."""
    _stop_at_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        open(f"{folder}/printed", "w+", encoding="utf-8", errors="replace") as printed,
    ):
        hear, to = os.pipe()
        back, say = os.pipe()
        with os.fdopen(to, "wb", buffering=0) as asked, os.fdopen(back, encoding="utf-8") as lines:
            process = subprocess.Popen(
                _command(target, arguments),
                cwd=ROOT,
                env=_environment(caches or folder)
                | {child.QUESTIONS: f"{hear} {say}"}
                | dict(environment or {}),
                stdout=printed,
                stderr=subprocess.STDOUT,
                pass_fds=(hear, say),
                start_new_session=True,
            )
            os.close(hear)
            os.close(say)
            try:
                yield Worker(process, asked, lines, printed)
            finally:
                _kill(process)


def _command(target: Target, arguments: Sequence[Any]) -> list[str]:
    name = target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
    return [sys.executable, "-m", "benchmarks.child", name, json.dumps(arguments)]


def _environment(caches: str) -> dict[str, str]:
    """Settings of a child: caches in that folder, nothing else that changes what a compiler
    does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    return environment | {
        "TRACER_CACHE_DIR": f"{caches}/tracer",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
        "HF_HUB_OFFLINE": "1",
        child.STARTED: str(time.perf_counter_ns()),
    }


def _end_of(printed: str) -> str:
    return "\n".join(printed.strip().splitlines()[-12:])


def _kill(process: subprocess.Popen[Any]) -> None:
    """Ends the child and what it started: the group is its own, because of start_new_session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stop_at_sigterm() -> None:
    """SIGTERM raises SystemExit, so that no child outlives this process."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():  # no other thread may ask for it
        signal.signal(signal.SIGTERM, stop)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits until no other child of this benchmark is inside such a block: what is timed is timed
    alone, while the others import and compile."""
    path = os.environ.get(ALONE)
    if path is None:
        yield
        return
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: The variable with the file that `alone` locks; `Store.measured` sets it.
ALONE = "BENCHMARKALONE"


def warm_up_files() -> None:
    """Byte-compiles our packages, as installing a wheel does, so that no child pays for it."""
    for name in OURS:
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            compileall.compile_dir(folder, quiet=2)


def require_gpu() -> str:
    """The name of the CUDA device. SystemExit where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch finds none")
    return torch.cuda.get_device_name(0)


# Rows on disk -------------------------------------------------------------------------------------

_DISTRIBUTIONS = ("torch", "transformers", "torchvision", "timm", "numpy", "onnxruntime", "triton")

#: What a measurement depends on.
_MEASURED = ("packages", "benchmarks", "noxfile.py")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def commit() -> str:
    """The commit; with a digest of the changes if the measured folders differ from it; outside git
    BENCHMARK_COMMIT."""
    head = _git("rev-parse", "--short=12", "HEAD").strip()
    if not head:
        return os.environ.get("BENCHMARK_COMMIT", "")
    where = ("--", *_MEASURED, ":!benchmarks/results")
    changes = _git("diff", "HEAD", *where)
    for name in _git("ls-files", "--others", "--exclude-standard", *where).splitlines():
        changes += f"{name}\n{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n"
    if not changes:
        return head
    return f"{head}-changed-{hashlib.sha256(changes.encode()).hexdigest()[:6]}"


def machine() -> dict[str, Any]:
    """Processor, number of usable processors, Python and library versions."""
    versions: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _processor(),
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    result: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        result.setdefault(name.strip(), value.strip())
    flags = result.get("flags", "").split()
    isa = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if flag in flags]
    return f"{result.get('model name', platform.processor())} ({' '.join(isa)})"


def slug(text: str) -> str:
    """Words with hyphens between them: the name of a file."""
    return "-".join(re.findall(r"[a-z0-9_]+", text.lower()))


class Store:
    """The rows of one benchmark on this machine (mutable: rows are added).

    again: measure what is there. keep: False keeps the rows in memory only. device: of a GPU, whose
    name is then the file's. path: another file, which need not be in a checkout of git.
    """

    def __init__(
        self,
        benchmark: str,
        *,
        again: bool = False,
        keep: bool = True,
        device: str = "",
        path: Path | None = None,
    ) -> None:
        here = machine()
        versions = {"Python": here.pop("python"), **here.pop("versions")}
        self.of_a_row = {"commit": commit(), "with": ", ".join(map(" ".join, versions.items()))}
        cpu, _, isa = here["cpu"].rstrip(")").partition(" (")
        name = slug(device or f"{cpu} {isa.split(' ')[-1]} {here['cores']} cores")
        self.path = path or RESULTS / benchmark / f"{name}.json"
        self.again = again
        self._keep = keep and bool(self.of_a_row["commit"] or path)
        self._document = {
            "benchmark": benchmark,
            "machine": here | ({"device": device} if device else {}),
            "rows": {},
        }
        if self._keep and self.path.exists():
            self._document = json.loads(self.path.read_text(encoding="utf-8"))
        self._measured: set[str] = set()

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """All rows by key, those of other commits too."""
        rows: dict[str, dict[str, Any]] = self._document["rows"]
        return rows

    def stored(self, key: str) -> dict[str, Any] | None:
        """The row, if it was measured at this commit with these versions and did not fail."""
        row = self.rows.get(key)
        if row is None or "failed" in row or (self.again and key not in self._measured):
            return None
        return row if self.of_a_row.items() <= row.items() else None

    def row(self, key: str, measure: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The stored row, or what `measure` returns, stored; and whether it was there already.

        A `Failed` becomes a row ``{"failed": text}``, which is measured again the next time.
        """
        row = self.stored(key)
        if row is not None:
            return row, True
        try:
            row = measure()
        except Failed as error:
            row = {"failed": str(error)[-2000:]}
        self.put(key, row)
        return row, False

    def measured(
        self,
        measures: Mapping[str, Callable[[], dict[str, Any]]],
        *,
        workers: int = 1,
        seconds: float | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields each key with its row as `row` returns it, in the order in which they end.

        workers: how many are measured at once; what they time, they time inside `alone`. seconds:
        begin no row after so many.
        """
        end = None if seconds is None else time.monotonic() + seconds
        left = {}
        for key, measure in measures.items():
            row = self.stored(key)
            if row is None:
                left[key] = measure
            else:
                yield key, row

        def outcome(measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
            if end is not None and time.monotonic() > end:
                return None
            try:
                return measure()
            except Failed as error:
                return {"failed": str(error)[-2000:]}

        with (
            tempfile.NamedTemporaryFile(prefix="benchmark-alone-") as lock,
            mock.patch.dict(os.environ, {ALONE: lock.name} if workers > 1 else {}),
            ThreadPoolExecutor(workers) as pool,
        ):
            running = {pool.submit(outcome, measure): key for key, measure in left.items()}
            for done in as_completed(running):
                row = done.result()
                if row is not None:
                    self.put(running[done], row)
                    yield running[done], row

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Stores a row, with the commit, versions, time and the machine's load."""
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row |= self.of_a_row | {"when": when, "load": round(os.getloadavg()[0], 1)}
        self.rows[key] = row
        self._measured.add(key)
        if self._keep:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(f".{os.getpid()}.new")
            new.write_text(
                json.dumps(self._document, indent=1, sort_keys=True) + "\n", encoding="utf-8"
            )
            new.replace(self.path)


# Commands -----------------------------------------------------------------------------------------


def options(
    name: str, doc: str | None, *, limit: float | None = None, again: bool = True
) -> argparse.ArgumentParser:
    """The parser of a benchmark's command, with ``--again`` and, where it is given a default,
    ``--limit``."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=doc, formatter_class=raw
    )
    if again:
        parser.add_argument(
            "--again", action="store_true", help="measure rows that are there already"
        )
    if limit is not None:
        parser.add_argument("--limit", type=float, default=limit, help="seconds an answer may take")
    return parser


def _nothing_wrong(row: dict[str, Any], *names: str) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Grid:
    """A benchmark whose rows are all combinations of a few names, each measured in a process of its
    own.

    name: of the benchmark. doc: for --help. axes: option -> the names it may take. measure: a
    function of a module, called with one combination. head: of the table. line: what it says of a
    row after the names. left_out: names that are measured only when asked for. limit: seconds a row
    may take. wrong: what a row that did not fail got wrong.
    """

    name: str
    doc: str | None
    axes: Mapping[str, Sequence[str]]
    measure: Target
    head: Sequence[str]
    line: Callable[[dict[str, Any]], Sequence[str]]
    left_out: frozenset[str] = frozenset()
    limit: float = 600.0
    wrong: Callable[..., list[str]] = _nothing_wrong

    def main(self, arguments: Sequence[str]) -> int:
        """Measures what is not there yet and prints all; 1 if a row failed or is wrong."""
        parser = options(self.name, self.doc, limit=self.limit)
        for option, names in self.axes.items():
            usual = [name for name in names if name not in self.left_out]
            parser.add_argument(f"--{option}", nargs="+", default=usual, choices=list(names))
        chosen = parser.parse_args(arguments)
        gpu = getattr(chosen, "devices", None) == ["cuda"]
        store = Store(self.name, again=chosen.again, device=require_gpu() if gpu else "")
        lines, bad = [], False
        for names in itertools.product(*(getattr(chosen, option) for option in self.axes)):
            measure = functools.partial(fresh, self.measure, *names, limit=chosen.limit)
            row, _ = store.row(" ".join(names), measure)
            if "failed" in row:
                print(f"{' '.join(names)} failed: {row['failed']}", flush=True)
                bad = True
                continue
            for text in self.wrong(row, *names):
                print(f"{', '.join(names)}: {text}")
                bad = True
            lines.append([*names, *self.line(row)])
        print(table([*(option.removesuffix("s") for option in self.axes), *self.head], lines))
        return int(bad)
