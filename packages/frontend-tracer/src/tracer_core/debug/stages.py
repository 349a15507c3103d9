"""Stage records: what each stage of a compilation did, how long it took, and its text.

``with stage("aten", graph="graph_0", suffix=".py") as s: s.text = ...`` around a stage sends a
`StageRecord` to observers and to the current `recording`, logs a line under ``TRACER_LOGS=stages``,
and writes a numbered file ``<TRACER_DEBUG>/graph_0/020_aten.py``.

A stage that raises is recorded too, with the exception as its text. Records of compilations on
different threads never mix. Nothing here runs on a compiled call.
"""

from __future__ import annotations

import functools
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from tracer_core.debug.logs import enabled, logger, note
from tracer_core.debug.notebook import NotebookText, count, screen
from tracer_core.limits import MAX_HISTORY
from tracer_core.options import env


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One finished stage."""

    #: The name of the stage (``"aten"``).
    name: str
    #: Wall time, including nested stages.
    seconds: float
    #: The result of the stage as text, or "".
    text: str
    #: The name of the graph (``"graph_0"``), or "" if the stage belongs to none.
    graph: str = ""
    #: The number of enclosing stages; the seconds of records of depth 0 add up to the total.
    depth: int = 0
    #: The file with the text, or None.
    file: str | None = None
    #: When it began, of `time.perf_counter`.
    begin: float = 0.0
    #: What `tracer_core.report` shows of it: JSON's types, by section. None: nothing.
    data: Mapping[str, Any] | None = None


@dataclass(slots=True)
class OpenStage:
    """A running stage. Mutable: the code inside the ``with`` block sets `text`, and `data`."""

    name: str
    graph: str
    text: str = ""
    data: Mapping[str, Any] | None = None


#: Called with every record, in this order.
_observers: dict[Callable[[StageRecord], None], None] = {}
_depth: ContextVar[int] = ContextVar("tracer_stage_depth", default=0)
_current: ContextVar[list[StageRecord] | None] = ContextVar("tracer_stage_records", default=None)
#: Called with each stage that begins; one that raises ends the compilation.
_checks: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar(
    "tracer_stage_checks", default=()
)
_owner: ContextVar[weakref.ref[Any] | None] = ContextVar("tracer_stage_owner", default=None)
_last: weakref.WeakKeyDictionary[Any, tuple[StageRecord, ...]] = weakref.WeakKeyDictionary()
#: The records of all compilations of an owner.
_history: weakref.WeakKeyDictionary[Any, deque[StageRecord]] = weakref.WeakKeyDictionary()


def observe(function: Callable[[StageRecord], None]) -> Callable[[], None]:
    """Calls a function with every record from now on.

    Args:
        function: Called once per record, however often it is passed.

    Returns:
        A function that undoes this.
    """
    _observers[function] = None
    return functools.partial(unobserve, function)


def unobserve(function: Callable[[StageRecord], None]) -> None:
    """Undoes `observe`."""
    _observers.pop(function, None)


def wants_text() -> bool:
    """Returns whether the text of a stage is read; call this before building a costly one.

    A recording alone does not read it: `last_compile` has texts only if TRACER_DEBUG is set or a
    plug-in listens.
    """
    return bool(_observers) or env().debug is not None


@contextmanager
def stage(name: str, *, graph: str = "", suffix: str = ".txt") -> Iterator[OpenStage]:
    """Context that times its block and records it as a stage.

    Args:
        name: The name of the stage.
        graph: The name of the graph that the stage works on.
        suffix: The suffix of the file that the text is written to.

    Yields:
        The running stage, whose ``text`` the block sets.
    """
    for check in _checks.get():
        check(name)
    open_stage = OpenStage(name, graph)
    depth = _depth.set(_depth.get() + 1)
    start = time.perf_counter()
    try:
        yield open_stage
    except BaseException as error:
        note = f"stopped by {type(error).__name__}: {error}"
        open_stage.text = f"{open_stage.text}\n{note}" if open_stage.text else note
        raise
    finally:
        seconds = time.perf_counter() - start
        _depth.reset(depth)
        _finish(open_stage, start, seconds, suffix)


def _finish(done: OpenStage, start: float, seconds: float, suffix: str) -> None:
    file = _write(done, suffix) if done.text else None
    record = StageRecord(
        done.name, seconds, done.text, done.graph, _depth.get(), file, start, done.data
    )
    records = _current.get()
    if records is not None:
        records.append(record)
    if enabled("stages"):
        note("stages", "%s %s: %.3f s", done.graph or "-", done.name, seconds)
    for observer in list(_observers):
        observer(record)


@contextmanager
def recording(owner: Any) -> Iterator[list[StageRecord]]:
    """Collects the records of one compilation and keeps them as `last_compile(owner)`.

    owner: any object that can be referenced weakly (the compiled function). A nested recording
    keeps its own records and adds them to the outer one.
    """
    records: list[StageRecord] = []
    outer = _current.get()
    token, owner_token = _current.set(records), _owner.set(weakref.ref(owner))
    try:
        yield records
    finally:
        _current.reset(token)
        _owner.reset(owner_token)
        _last[owner] = tuple(records)
        _add_to_history(owner, records)
        if outer is not None:
            outer.extend(records)


def current_owner() -> Any:
    """Returns the owner of the compilation that runs here; None outside of one."""
    reference = _owner.get()
    return None if reference is None else reference()


def continued() -> Callable[[], AbstractContextManager[None]]:
    """Returns a factory of contexts in which another thread continues this compilation.

    Records made inside such a context are added to `last_compile` of the current owner.
    """
    reference = _owner.get()

    @contextmanager
    def adding() -> Iterator[None]:
        records: list[StageRecord] = []
        token, owner_token = _current.set(records), _owner.set(reference)
        try:
            yield
        finally:
            _current.reset(token)
            _owner.reset(owner_token)
            owner = None if reference is None else reference()
            if owner is not None:
                _last[owner] = _last.get(owner, ()) + tuple(records)
                _add_to_history(owner, records)

    return adding


@contextmanager
def interruptible(check: Callable[[str], None]) -> Iterator[None]:
    """Context whose stages first call `check` with their names.

    Args:
        check: Raises where the compilation is to end.
    """
    token = _checks.set((*_checks.get(), check))
    try:
        yield
    finally:
        _checks.reset(token)


class StageRecords(NotebookText, tuple[StageRecord, ...]):
    """The records of a compilation; prints a summary line and at most a screen of rows."""

    #: The number of graph breaks of the compiled object.
    break_count: int = 0

    @property
    def seconds(self) -> float:
        """The seconds of all stages."""
        return sum(record.seconds for record in self if record.depth == 0 and record.begin)

    @property
    def slowest(self) -> list[tuple[str, float]]:
        """The stages without nested ones, by name, with the seconds of all graphs; longest first."""
        result: dict[str, float] = {}
        for before, record in zip((None, *self), self, strict=False):
            if record.begin and (before is None or before.depth <= record.depth):
                result[record.name] = result.get(record.name, 0.0) + record.seconds
        return sorted(result.items(), key=lambda item: -item[1])

    @property
    def summary(self) -> str:
        """One line: graphs, graph breaks, seconds, the slowest stages, where the files are."""
        if not self:
            return (
                "nothing was compiled: no call has come through what compile() returned (a library may"
                " call another method of the model)"
            )
        graphs = {
            record.graph.removesuffix("_backward") for record in self if record.name == "compile"
        }
        longest = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in self.slowest[:3])
        file = next((record.file for record in self if record.file), None)
        return (
            f"{count(len(graphs), 'graph')} compiled in {self.seconds:.2f} s"
            + (f" (slowest: {longest}), " if longest else ", ")
            + f"{count(self.break_count, 'graph break')} so far; "
            + ("TRACER_DEBUG=1 writes each stage to a file" if file is None else f"files: {Path(file).parent.parent}")
        )  # fmt: skip

    def table(self) -> str:
        """Returns one line per record, with the beginning of its text."""
        return "\n".join(map(_shown, self))

    def __repr__(self) -> str:
        if not self:
            return self.summary
        # what ran as a whole, what took long, and what is no stage: why, which limit
        shown = [
            item for item in self
            if item.depth == 0 or not item.begin or item.name == "fallback"
            or item.seconds > self.seconds / 20
        ]  # fmt: skip
        hidden = len(self) - len(shown)
        rest = [f"... {count(hidden, 'shorter stage')}: table() shows all"] if hidden else []
        lines = screen(list(map(_shown, shown)), "table() shows all")
        return "\n".join([self.summary, *lines, *rest])


def _shown(record: StageRecord) -> str:
    first, *more = record.text.strip().splitlines() or [""]
    text = f"{first[:100].rstrip()} ..." if more or len(first) > 100 else first
    name, ms = "  " * record.depth + record.name, record.seconds * 1e3
    return f"{name:<28} {record.graph:<17} {ms:9.1f} ms  {text}".rstrip()


def records_of(owner: Any) -> StageRecords:
    """Returns the records of the owner's last compilation; empty if it was never compiled."""
    return StageRecords(_last.get(owner, ()))


def _add_to_history(owner: Any, records: Iterable[StageRecord]) -> None:
    """Notes records without their texts, which may be long, but for those of a line."""
    short = (record if "\n" not in record.text else replace(record, text="") for record in records)
    _history.setdefault(owner, deque(maxlen=MAX_HISTORY)).extend(short)


def history_of(owner: Any) -> tuple[StageRecord, ...]:
    """Returns the last records of all compilations of the owner, without long texts."""
    return tuple(_history.get(owner, ()))


def forget_history(owner: Any) -> None:
    """Drops what `history_of` returns."""
    _history.pop(owner, None)


class DebugFolder:
    """The TRACER_DEBUG folder of this process. Mutable: each graph's folder and its next file.

    A folder that exists already (an earlier run, another process) is never written to; the graph
    gets ``graph_0.1`` instead.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: dict[tuple[str, str], Path] = {}
        self._numbers: dict[Path, int] = {}

    def folder(self, root: str, graph: str) -> Path:
        """Returns the folder of a graph, made on its first use."""
        key = (root, graph)
        with self._lock:
            if key not in self._folders:
                self._folders[key] = self._claim(Path(root).absolute(), graph or "process")
            return self._folders[key]

    def next_file(self, folder: Path, stem: str, suffix: str) -> Path:
        """Returns the next path, ``020_aten.py``.

        Files sort in the order in which their stages finished.
        """
        with self._lock:
            number = self._numbers[folder] = self._numbers.get(folder, 0) + 10
        return folder / f"{number:03d}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', stem)}{suffix}"

    @staticmethod
    def _claim(root: Path, name: str) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        entry = 0
        while True:
            path = root / (name if entry == 0 else f"{name}.{entry}")
            try:
                path.mkdir()
            except FileExistsError:
                entry += 1
            else:
                return path


DEBUG_FOLDER = DebugFolder()


#: Roots of debug folders that could not be written to.
_unusable: set[str] = set()


def debug_folder(graph: str) -> Path | None:
    """Returns the folder for the stages of a graph.

    Args:
        graph: The name of the graph.

    Returns:
        None if TRACER_DEBUG is unset or unusable.
    """
    root = env().debug
    if root is None or root in _unusable:
        return None
    try:
        return DEBUG_FOLDER.folder(root, graph)
    except OSError as error:
        _give_up(root, error)
        return None


def _write(done: OpenStage, suffix: str) -> str | None:
    folder = debug_folder(done.graph)
    if folder is None:
        return None
    path = DEBUG_FOLDER.next_file(folder, done.name, suffix)
    try:
        # A file name of the program may not be encodable.
        path.write_text(done.text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        _give_up(str(env().debug), error)
        return None
    return str(path)


def _give_up(root: str, error: OSError) -> None:
    """Stops writing to a debug folder, and warns once.

    A failed dump must not fail the compilation.
    """
    _unusable.add(root)
    logger().warning("TRACER_DEBUG: %s cannot be written to (%s): stages are not written to files from now on; "
                     "tracer_core.last_compile(f) has their texts", root,
                     error.strerror or error)  # fmt: skip
