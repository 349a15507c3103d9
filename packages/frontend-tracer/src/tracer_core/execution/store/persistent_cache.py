"""Persistent cache: stores captured entries and tiering verdicts across processes, automatically.

The cache entries of a start (a function with one number of arguments, for one kind of object) and of
the code regions behind its graph breaks form one document of the store ``persistent_cache``. Its key covers the
function's code, what `compile` was asked for, the kind of object and the environment; each entry
covers the rest itself (`reader`). The first call that finds no entry reads the document, once;
what it holds is then looked up like entries of this process: guards decide. Documents are written
off the calls: by a thread, once nothing was captured for some time, or when the process ends.

A second document under the function's name alone tells what the key was last made of, so that a miss
can say what has changed.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.logs import logger, note
from tracer_core.errors import BackendError, StoredError
from tracer_core.execution.call import StartKey
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.store.cache_key import class_name, key_parts, kind_of
from tracer_core.execution.store.cache_key_environment import environment
from tracer_core.execution.store.describe import Finder, NotPortable, OtherSettings
from tracer_core.execution.store.reader import LoadedEntry, entry_from_json
from tracer_core.execution.tiers.profitability import StoredVerdict
from tracer_core.guards.own_reference import OwnReference
from tracer_core.limits import MAX_PERSISTED_BYTES, MAX_PERSISTED_ENTRIES
from tracer_core.options import CompileConfig, env
from tracer_core.storage.cache_location import CacheLocationError, cache_folder
from tracer_core.storage.store import Store

if TYPE_CHECKING:
    from tracer_core.execution.compiled_function import CompiledFunction

FORMAT = 12
#: Seconds without a capture after which what is new is written.
QUIET = 2.0
#: How many captures of a function say why no entry of an earlier process fitted.
MAX_EXPLAINED = 3
#: What `PersistentCache.lookup` returns where the call is to run eagerly.
NATIVE = -1

_STORE = Store("persistent_cache")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Document:
    """The entries of one start. Mutable."""

    #: What its key is made of.
    parts: dict[str, str]
    #: Its second key.
    name: str
    #: Captured here since it was written.
    records: list[Captured] = field(default_factory=list)
    #: `_identity` of entries whose code has changed.
    outdated: set[str] = field(default_factory=set)
    #: The verdict of earlier processes was looked for.
    has_read_verdict: bool = False
    #: Their entries were looked for.
    has_read_entries: bool = False
    #: Which way is faster, to be written.
    verdict: StoredVerdict | None = None

    @property
    def key(self) -> str:
        text = json.dumps([FORMAT, self.name, self.parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def key_of_name(self) -> str:
        """Key of what `key` was last made of."""
        return f"n{hashlib.sha256(self.name.encode('utf-8', 'backslashreplace')).hexdigest()}"

    @property
    def key_of_verdict(self) -> str:
        return f"v{self.key}"


class PersistentCache:
    """The persistent entries of one compiled function. Mutable."""

    def __init__(self, owner: CompiledFunction, function: Any, config: CompileConfig) -> None:
        self._function: weakref.ref[CompiledFunction] = OwnReference(owner)
        self._documents: dict[str, Document] = {}
        #: Key of a start -> its document that was called last.
        self._of_start: dict[tuple[Any, ...], Document] = {}
        self._own = key_parts(function, config)
        #: Of the start that is being called.
        self.current: Document | None = None
        #: What the last lookup has given, in words, and how long it took.
        self.outcome, self.seconds = "", 0.0
        self._n_explained = 0

    def lookup(self, key: StartKey, state: Iterable[Any]) -> int:
        """Notes which start is called, when a call finds no entry. key: its number of arguments and
        keywords. Returns how many entries another process left for it; 0 from the second time on.
        NATIVE: another process found that eager mode is faster. Its entries are looked for once a
        call asks for them."""
        self.current, function = None, self._function()
        if self._own is None or function is None or not _may_persist():
            return 0
        kind = hashlib.sha256("\n".join(map(kind_of, state)).encode()).hexdigest()[:16]
        handle = f"{key!r} {kind}"
        self.current = self._of_start[key] = self._documents.get(handle) or self._document(
            handle, key, kind, next(iter(state), None), function
        )
        if self.current.has_read_entries or self.current.key in _WRITER.written:
            return 0  # what this process has written and forgotten is captured anew
        if not self.current.has_read_verdict:
            self.current.has_read_verdict = True
            if self._apply_verdict(self.current, key, function):
                return NATIVE
        self.current.has_read_entries = True
        begun = time.perf_counter()
        with collector_paused():
            n_loaded, self.outcome = _load(self.current, function)
        self.seconds = time.perf_counter() - begun
        note("cache", "%s: %s", self.current.name, self.outcome)
        return n_loaded

    def _document(
        self, handle: str, key: tuple[Any, ...], kind: str, first: Any, function: CompiledFunction
    ) -> Document:
        assert self._own is not None
        target = function.function
        owner = f" of {class_name(first)}" if isinstance(first, torch.nn.Module) else ""
        name = f"{target.__module__}:{target.__qualname__}{owner} {key!r}"
        parts = {**self._own, "kind of object": kind, **environment(function.config.backend)}
        return self._documents.setdefault(handle, Document(parts, name))

    def _apply_verdict(self, document: Document, key: StartKey, function: CompiledFunction) -> bool:
        """Goes by the verdict of an earlier process; returns whether this call runs eagerly."""
        try:
            stored = _read(document.key_of_verdict)
        except CacheLocationError:
            return False
        result = None if stored is None else StoredVerdict(**stored)
        if result is None or not result.holds or not function.apply_verdict(key, result):
            return False
        document.verdict = replace(result, uses=result.uses + 1)
        _WRITER.note(self)
        if not result.native or torch.is_grad_enabled() is not result.grad:
            return False
        self.outcome = f"hit: {result.verdict()}"
        note("cache", "%s: %s", document.name, self.outcome)
        return True

    def explain(self, loaded: Collection[LoadedEntry], record: Captured) -> None:
        """Says why an entry was captured though there are some of earlier processes: the first
        condition of the one most alike that the new one does not share."""
        if self._n_explained >= MAX_EXPLAINED or not loaded:
            return
        self._n_explained += 1
        here = set(record.check_first.conditions())
        others = [[item for item in entry.conditions() if item not in here] for entry in loaded]
        differing = min(others, key=len)
        reason = differing[0] if differing else "it depends on more"
        self.outcome += f"; {record.name} was captured, as no entry fits: not {reason}"

    def record_verdict(self, key: StartKey, verdict: StoredVerdict) -> None:
        """Keeps which way is faster for a start."""
        document = self._of_start.get(key)
        if document is not None:
            document.verdict = verdict
            _WRITER.note(self)

    def add(self, record: Captured, document: Document | None = None) -> None:
        """Notes an entry that was captured for the current start, or for another one's document. It
        is written anew when another backward of its graph has been compiled."""
        document = document or self.current
        if document is None:
            return
        self._note(document, record)
        parts = None if record.runner is None else record.runner.artifacts
        if parts is not None and parts.training is not None:
            this, its_document, entry = (
                weakref.ref(self),
                weakref.ref(document),
                weakref.ref(record),
            )

            def again() -> None:
                cache, place, changed = this(), its_document(), entry()
                if cache is not None and place is not None and changed is not None:
                    cache._note(place, changed)

            parts.training.listeners.append(again)

    def _note(self, document: Document, record: Captured) -> None:
        if not any(item is record for item in document.records):
            document.records.append(record)
        _WRITER.note(self)

    def forget(self) -> None:
        """Drops what was not written yet."""
        self._documents, self._of_start, self.current, self.outcome = {}, {}, None, ""
        self._n_explained = 0

    def write(self) -> bool:
        """Writes the documents with entries that were captured here; returns whether some entries
        can only be written later."""
        function = self._function()
        for document in list(self._documents.values()) if function is not None else ():
            assert function is not None
            verdict, document.verdict = document.verdict, None
            try:
                if document.records:
                    _write_entries(document, function)
                if verdict is not None:
                    _write(document.key_of_verdict, asdict(verdict))
            except CacheLocationError as error:
                note("cache", "%s: not stored: %s", document.name, error)
        return any(document.records for document in self._documents.values())


def _may_persist() -> bool:
    """Returns whether entries may be looked up and written now: ranks of a process group would
    choose for themselves, and where every stage is checked or dumped every stage has to run."""
    world = torch.distributed.is_available() and torch.distributed.is_initialized()
    return env().keep and env().debug is None and not world


# -- reading


def _read(key: str) -> Any:
    """Returns what is stored under a key; None if nothing is."""
    data = _STORE.read(key)
    return None if data is None else json.loads(data)


def _load(document: Document, function: CompiledFunction) -> tuple[int, str]:
    """Gives a function the entries that fit this process; returns their number, and in words what
    they are."""
    try:
        cache_folder(_STORE.kind)  # a temporary folder in its place would hold nothing
        entries = _read(document.key)
    except CacheLocationError as error:
        return 0, f"nothing is stored: {error.reason}"
    if entries is None:
        return 0, f"miss: {_why_missing(document)}"
    finder, refused, n_loaded = Finder("persistent cache", function.function), [], 0
    for entry in entries:
        try:
            function.insert(entry_from_json(entry, function.config, finder))
            n_loaded += 1
        except (StoredError, BackendError) as error:
            refused.append(str(error))
            if isinstance(error, StoredError) and not isinstance(error, OtherSettings):
                document.outdated.add(_identity(entry))
        except Exception as error:
            document.outdated.add(_identity(entry))
            refused.append(_internal(error, f"{document.name}: {entry['name']} is not used"))
    said = f"hit: {n_loaded} entries of an earlier process"
    reasons = "; ".join(dict.fromkeys(refused))
    if not n_loaded:
        return 0, f"miss: {reasons}"
    return n_loaded, said + (f"; {len(refused)} do not fit: {reasons}" if refused else "")


def _internal(error: Exception, what: str) -> str:
    """Logs an error of our own, which costs no more than what was stored; raises it under
    TRACER_STRICT."""
    if env().strict:
        raise error
    logger().warning("internal error: %s: %r", what, error, exc_info=error)
    return f"internal error: {error!r}"


#: Entry beside the parts of a key: why nothing was stored.
_NOT_PERSISTED = "not stored"
#: Parts of a key that are digests alone -> what a difference means.
_DIGESTED = {
    "code": "the code of the function has changed",
    "kind of object": "the classes or sizes of an argument are others",
}


def _why_missing(document: Document) -> str:
    """Says what has changed since something was stored of a function with this name."""
    last: Mapping[str, str] | None = _read(document.key_of_name)
    if last is None:
        return "nothing was stored of this function"
    changed = [
        _DIGESTED.get(part) or f"{part} was {last.get(part)} and is {value}"
        for part, value in document.parts.items()
        if last.get(part) != value
    ]
    return "; ".join(changed) or last.get(_NOT_PERSISTED) or "what was stored is gone"


# -- writing


def _write(key: str, value: Any) -> None:
    _STORE.write(key, json.dumps(value).encode())


def _write_entries(document: Document, function: CompiledFunction) -> None:
    """Writes a document with the entries of this process first. Raises CacheLocationError; of other
    failures the log tells, and the next process captures again."""
    from tracer_core.execution.store.writer import NotYet, entry_to_json  # heavy: the tracer

    wanted = {id(record) for record in document.records}
    document.records.clear()
    result: list[dict[str, Any]] = []
    reasons: list[str] = []
    for key, record in function.captured():
        if id(record) not in wanted:
            continue
        try:
            result.append(entry_to_json(key, record, function.function, function.config))
        except NotPortable as error:
            note("cache", "%s: %s is not stored: %s", document.name, record.name, error)
            reasons.append(f"{record.name} was not stored: {error}")
            if isinstance(error, NotYet):
                document.records.append(record)
        except Exception as error:
            _internal(error, f"{document.name}: {record.name} is not stored")
    if not result:
        if reasons and _read(document.key) is None:
            explained = {**document.parts, _NOT_PERSISTED: "; ".join(dict.fromkeys(reasons))}
            _write(document.key_of_name, explained)
        return
    key, dropped = document.key, document.outdated | set(map(_identity, result))
    _WRITER.written.add(key)
    cache_folder(_STORE.kind)
    before = _read(key) or []  # other processes may have written meanwhile
    for item, other in itertools.product(list(result), before):
        if _identity(item) == _identity(other):
            _add_backwards(item, other)
    result += [item for item in before if _identity(item) not in dropped]
    if len(result) > MAX_PERSISTED_ENTRIES:
        left = len(result) - MAX_PERSISTED_ENTRIES
        note("cache", "%s: not stored: the oldest %d entries", document.name, left)
    data = json.dumps(result[:MAX_PERSISTED_ENTRIES]).encode()
    if len(data) > MAX_PERSISTED_BYTES:
        note("cache", "%s: not stored: %d bytes", document.name, len(data))
        return
    _STORE.write(key, data)
    _write(document.key_of_name, document.parts)


def _identity(entry: dict[str, Any]) -> str:
    """Returns a digest of all of an entry that another one may not share."""
    parts = [
        entry[part] for part in ("key", "text", "constants", "code", "settings", "distributions")
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _add_backwards(entry: dict[str, Any], other: dict[str, Any]) -> None:
    """Adds to an entry the backwards that another process compiled for the same graphs."""
    ours, theirs = ((value["graph"] or {}).get("training") for value in (entry, other))
    if ours is None or theirs is None:
        return
    alone = [
        {**value["graph"], "training": {**value["graph"]["training"], "backwards": None}}
        for value in (entry, other)
    ]
    if json.dumps(alone[0]) == json.dumps(alone[1]):
        known = [list(tangents) for tangents, *_ in ours["backwards"]]
        ours["backwards"] += [item for item in theirs["backwards"] if item[0] not in known]


class _Writer:
    """Writes what is new off the calls. Mutable."""

    def __init__(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._changed: weakref.WeakSet[PersistentCache] = weakref.WeakSet()
        self._noted = 0.0
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()
        #: Keys of documents that this process has written.
        self.written: set[str] = set()

    def note(self, cache: PersistentCache) -> None:
        with self._lock:
            self._changed.add(cache)
            self._noted = time.monotonic()
            if self._thread is None and not self._ends.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="tracer_core persistent cache", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                left = self._noted + QUIET - time.monotonic()
                if left <= 0:
                    self._thread = None
                    break
            if self._ends.wait(left):
                return
        self.flush()

    def flush(self) -> None:
        """Writes what is new, after what another thread is writing."""
        with self._writing:
            with self._lock:
                changed = list(self._changed)
                self._changed.clear()
            left = [cache for cache in changed if cache.write()]
            with self._lock:
                self._changed.update(left)

    def finish(self) -> None:
        """Writes what is left; nothing is written by itself from then on."""
        self._ends.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self.flush()


_WRITER = _Writer()


def flush() -> None:
    """Writes what was captured so far at once."""
    _WRITER.flush()


def _after_fork() -> None:
    """What the parent has captured is the parent's to write."""
    global _WRITER
    _WRITER = _Writer()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _WRITER.finish())
