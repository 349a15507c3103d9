"""What was learned about a compiled function is kept for later processes, without being asked.

The cache entries of a start (a function with one number of arguments, for one kind of object) and of
the code regions behind its graph breaks form one document of the store ``kept``. Its key covers the
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
import types
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch

from tracer_core import limit_table
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.logs import logger, note
from tracer_core.errors import BackendError, StoredError
from tracer_core.execution.call import StartKey
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.store.code_identity import code_hash
from tracer_core.execution.store.describe import Finder, OtherSettings
from tracer_core.execution.store.environment import environment
from tracer_core.execution.store.reader import LoadedEntry, entry_from_json
from tracer_core.execution.tiers.verdicts import StoredVerdict
from tracer_core.guards.own_reference import OwnReference
from tracer_core.limits import MAX_PERSISTED_BYTES, MAX_PERSISTED_ENTRIES
from tracer_core.options import CompileConfig, env
from tracer_core.storage.cache_location import CacheLocationError, cache_folder
from tracer_core.storage.store import Store

FORMAT = 8
#: Seconds without a capture after which what is new is written.
QUIET = 2.0
#: How many captures of a function say why no entry of an earlier process fitted.
MAX_EXPLAINED = 3
#: What `PersistentCache.lookup` returns where the call is to run eagerly.
NATIVE = -1

_STORE = Store("kept")


class Function(Protocol):
    """What is kept of a `CompiledFunction`."""

    function: Any
    config: CompileConfig

    def captured(self) -> Iterable[tuple[Any, Captured]]:
        """Yields the entries captured in this process, with the keys of their code regions."""

    def insert(self, entry: LoadedEntry) -> None:
        """Adds an entry of another process."""

    def apply_verdict(self, key: StartKey, stored: StoredVerdict) -> bool:
        """Goes by what another process found to be faster for a start, if it may; returns whether it
        does."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Document:
    """The entries of one start. Mutable. parts: what its key is made of. name: its second key.
    records: captured here since it was written. outdated: `_identity` of entries whose code has
    changed. is_judged, is_read: the verdict and the entries of earlier processes were looked for.
    verdict: which way is faster, to be written."""

    parts: dict[str, str]
    name: str
    records: list[Captured] = field(default_factory=list)
    outdated: set[str] = field(default_factory=set)
    is_judged: bool = False
    is_read: bool = False
    verdict: StoredVerdict | None = None

    @property
    def key(self) -> str:
        text = json.dumps([FORMAT, self.name, self.parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class PersistentCache:
    """What is kept of one compiled function. Mutable. current: the start that is being called. found,
    seconds: what the last look for entries of earlier processes has found, and how long it took."""

    def __init__(self, owner: Function, function: Any, config: CompileConfig) -> None:
        self._function: weakref.ref[Function] = OwnReference(owner)
        self._documents: dict[str, Document] = {}
        #: Key of a start -> its document that was called last.
        self._of_start: dict[tuple[Any, ...], Document] = {}
        self._own = _parts_of(function, config)
        self.current: Document | None = None
        self.found, self.seconds = "", 0.0
        self._n_explained = 0

    def lookup(self, key: StartKey, state: Iterable[Any]) -> int:
        """Notes which start is called, when a call finds no entry. key: its number of arguments and
        keywords. Returns how many entries another process left for it; 0 from the second time on.
        NATIVE: another process found that eager mode is faster. Its entries are looked for once a
        call asks for them."""
        self.current, function = None, self._function()
        if self._own is None or function is None or not _may_persist():
            return 0
        kind = hashlib.sha256("\n".join(map(_kind_of, state)).encode()).hexdigest()[:16]
        handle = f"{key!r} {kind}"
        self.current = self._of_start[key] = self._documents.get(handle) or self._document(
            handle, key, kind, next(iter(state), None), function
        )
        if self.current.is_read or self.current.key in _WRITER.written:
            return 0  # what this process has written and forgotten is captured anew
        if not self.current.is_judged:
            self.current.is_judged = True
            if self._judged(self.current, key, function):
                return NATIVE
        self.current.is_read = True
        begun = time.perf_counter()
        with collector_paused():
            n_loaded, self.found = _load(self.current, function)
        self.seconds = time.perf_counter() - begun
        note("cache", "%s: %s", self.current.name, self.found)
        return n_loaded

    def _document(
        self, handle: str, key: tuple[Any, ...], kind: str, first: Any, function: Function
    ) -> Document:
        assert self._own is not None
        target = function.function
        owner = f" of {_class_name(first)}" if isinstance(first, torch.nn.Module) else ""
        name = f"{target.__module__}:{target.__qualname__}{owner} {key!r}"
        parts = {**self._own, "kind of object": kind, **environment(function.config.backend)}
        return self._documents.setdefault(handle, Document(parts, name))

    def _judged(self, document: Document, key: StartKey, function: Function) -> bool:
        """Goes by the verdict of an earlier process; returns whether this call runs eagerly."""
        result = _stored_verdict(document)
        if result is None or not result.holds or not function.apply_verdict(key, result):
            return False
        document.verdict = replace(result, uses=result.uses + 1)
        _WRITER.note(self)
        if not result.native or torch.is_grad_enabled() is not result.grad:
            return False
        self.found = f"hit: {result.verdict()}"
        note("cache", "%s: %s", document.name, self.found)
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
        self.found += f"; {record.name} was captured, as no entry fits: not {reason}"

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
        self._documents, self._of_start, self.current, self.found = {}, {}, None, ""
        self._n_explained = 0

    def write(self) -> bool:
        """Writes the documents with entries that were captured here; returns whether some entries
        can only be written later."""
        function = self._function()
        for document in list(self._documents.values()) if function is not None else ():
            assert function is not None
            if document.records:
                _write(document, function)
            if document.verdict is not None:
                _write_verdict(document, document.verdict)
                document.verdict = None
        return any(document.records for document in self._documents.values())


def _parts_of(target: Any, config: CompileConfig) -> dict[str, str] | None:
    """Returns what a key covers of a function and its settings; None where nothing is kept: its
    entries cannot be serialized, or depend on what has no text."""
    backend, options = config.backend, repr(config.options)
    both = backend.serialize is not None and backend.deserialize is not None
    if not both or not isinstance(backend.compile, str):
        return None
    if " at 0x" in options:
        return None
    if type(target) is not types.FunctionType:
        return None
    return {
        "code": code_hash(target.__code__),
        "mode": config.mode,
        "options": options,
        "fullgraph": str(config.fullgraph),
        "dynamic": str(config.dynamic),
        "limits": limit_table.overrides(),
        "recompile limit": str(config.recompile_limit),
    }


def _may_persist() -> bool:
    """Returns whether entries may be looked up and written now: ranks of a process group would
    choose for themselves, and where every stage is checked or dumped every stage has to run."""
    world = torch.distributed.is_available() and torch.distributed.is_initialized()
    return env().keep and env().debug is None and not world


def _kind_of(value: Any) -> str:
    """Describes the kind of an argument: of a module, its parts and the sizes of its parameters."""
    named = _class_name(value)
    if not isinstance(value, torch.nn.Module):
        return named
    entries = vars(value)
    lines = [f"{named} {entries.get('training')}"]
    for table in ("_parameters", "_buffers"):
        for name, tensor in (entries.get(table) or {}).items():
            facts = None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.device)
            lines.append(f"{name} {facts}")
    for name, inner in (entries.get("_modules") or {}).items():
        lines.append(f"{name}: {_kind_of(inner)}")
    return "\n".join(lines)


def _class_name(value: Any) -> str:
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}"


# -- reading


def _load(document: Document, function: Function) -> tuple[int, str]:
    """Gives a function the entries that fit this process; returns their number, and in words what
    was found."""
    try:
        cache_folder(_STORE.kind)  # a temporary folder in its place would hold nothing
        data = _STORE.read(document.key)
    except CacheLocationError as error:
        return 0, f"nothing is kept: {error.reason}"
    if data is None:
        return 0, f"miss: {_why_missing(document)}"
    finder, refused, n_loaded = Finder("kept", function.function), [], 0
    for entry in json.loads(data):
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
    """Logs an error of our own, which costs no more than what was kept; raises it under
    TRACER_STRICT."""
    if env().strict:
        raise error
    logger().warning("internal error: %s: %r", what, error, exc_info=error)
    return f"internal error: {error!r}"


#: Entry beside the parts of a key: why nothing was kept.
_NOT_PERSISTED = "not kept"
#: Parts of a key that are digests alone -> what a difference means.
_DIGESTED = {
    "code": "the code of the function has changed",
    "kind of object": "the classes or sizes of an argument are others",
}


def _why_missing(document: Document) -> str:
    """Says what has changed since something was kept of a function with this name."""
    data = _STORE.read(_key_of_name(document))
    if data is None:
        return "nothing was kept of this function"
    last: Mapping[str, str] = json.loads(data)
    changed = [
        _DIGESTED.get(part) or f"{part} was {last.get(part)} and is {value}"
        for part, value in document.parts.items()
        if last.get(part) != value
    ]
    return "; ".join(changed) or last.get(_NOT_PERSISTED) or "what was kept is gone"


def _key_of_name(document: Document) -> str:
    return f"n{hashlib.sha256(document.name.encode('utf-8', 'backslashreplace')).hexdigest()}"


# -- writing


def _write(document: Document, function: Function) -> None:
    """Writes a document with the entries of this process first; a failure is logged, and the next
    process captures again."""
    from tracer_core.execution.store.describe import NotPortable  # heavy: the same
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
            note("cache", "%s: %s is not kept: %s", document.name, record.name, error)
            reasons.append(f"{record.name} was not kept: {error}")
            if isinstance(error, NotYet):
                document.records.append(record)
        except Exception as error:
            _internal(error, f"{document.name}: {record.name} is not kept")
    if not result:
        if reasons:
            _explain_nothing(document, reasons)
        return
    key, dropped = document.key, document.outdated | set(map(_identity, result))
    _WRITER.written.add(key)
    try:
        cache_folder(_STORE.kind)
        present = _STORE.read(key)  # other processes may have written meanwhile
        before = json.loads(present or "[]")
        for item, other in itertools.product(list(result), before):
            if _identity(item) == _identity(other):
                _add_backwards(item, other)
        result += [item for item in before if _identity(item) not in dropped]
        if len(result) > MAX_PERSISTED_ENTRIES:
            left = len(result) - MAX_PERSISTED_ENTRIES
            note("cache", "%s: not kept: the oldest %d entries", document.name, left)
        data = json.dumps(result[:MAX_PERSISTED_ENTRIES]).encode()
        if len(data) > MAX_PERSISTED_BYTES:
            note("cache", "%s: not kept: %d bytes", document.name, len(data))
            return
        _STORE.write(key, data)
        _STORE.write(_key_of_name(document), json.dumps(document.parts).encode())
    except CacheLocationError as error:
        note("cache", "%s: not kept: %s", document.name, error)


def _key_of_verdict(document: Document) -> str:
    return f"v{document.key}"


def _stored_verdict(document: Document) -> StoredVerdict | None:
    try:
        data = _STORE.read(_key_of_verdict(document))
    except CacheLocationError:
        return None
    return None if data is None else StoredVerdict(**json.loads(data))


def _write_verdict(document: Document, verdict: StoredVerdict) -> None:
    try:
        _STORE.write(_key_of_verdict(document), json.dumps(asdict(verdict)).encode())
    except CacheLocationError as error:
        note("cache", "%s: not kept: %s", document.name, error)


def _identity(entry: dict[str, Any]) -> str:
    """Returns a digest of all of an entry that another one may not share."""
    parts = [
        entry[part] for part in ("key", "text", "constants", "code", "settings", "distributions")
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _explain_nothing(document: Document, reasons: list[str]) -> None:
    """Leaves word why nothing was kept of a start, unless something was."""
    try:
        if _STORE.read(document.key) is None:
            data = {**document.parts, _NOT_PERSISTED: "; ".join(dict.fromkeys(reasons))}
            _STORE.write(_key_of_name(document), json.dumps(data).encode())
    except CacheLocationError as error:
        note("cache", "%s: not kept: %s", document.name, error)


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
                    target=self._run, name="tracer_core kept", daemon=True
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
