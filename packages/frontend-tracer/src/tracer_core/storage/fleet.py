"""A fleet's store: the entries of the local store, shared by many machines (``TRACER_STORE``).

In: a URL of redis or of any file system that fsspec knows, and a key that the operator sets. Out:
entries for the local store, which asks here for what it does not have and tells here what it wrote.

An entry carries an HMAC with the operator's key over its kind, machine, key and content: what a
server or another client made up is not used. Nothing waits for a server: threads of the fleet's own
talk to it, writes are queued, and reads wait for at most ``TRACER_STORE_TIMEOUT`` seconds in total
until they find something; then the fleet rests until a probe beside the program finds the server
quick again. A server that gave three wrong entries is not asked again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import importlib.util
import os
import platform
import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from tracer_core.debug.logs import logger, note
from tracer_core.errors import OptionError
from tracer_core.limits import (
    MAX_FLEET_EXIT_SECONDS,
    MAX_FLEET_WRITE_SECONDS,
    MAX_WAITING_BYTES,
    MAX_WRONG_ENTRIES,
    MIN_KEY_BYTES,
)
from tracer_core.options import env
from tracer_core.storage.cache_location import not_private

#: Must change with the layout of an entry.
_FORMAT = b"tcfl0001"
_DIGEST = 32
#: The share of the time limit that the first read may wait for a connection.
_CONNECTING = 0.25
#: Seconds before a fleet that rests is probed; a probe's answers must come this fast.
REST, _QUICK = 30.0, 0.05


class Client(Protocol):
    """What reaches a server. Methods raise whatever goes wrong."""

    def get(self, name: str) -> bytes | None:
        """Returns the bytes under a name, or None."""

    def put(self, name: str, data: bytes) -> None:
        """Stores bytes under a name, as a whole."""


class _Redis:
    def __init__(self, url: str, timeout: float) -> None:
        import redis  # optional: the extra tracer-core[redis]
        from redis.backoff import NoBackoff  # optional: the same
        from redis.retry import Retry  # optional: the same

        self._client = redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )

    def get(self, name: str) -> bytes | None:
        result: Any = self._client.get(f"tracer:{name}")
        return result if isinstance(result, bytes) else None

    def put(self, name: str, data: bytes) -> None:
        self._client.set(f"tracer:{name}", data)


class _FileSystem:
    def __init__(self, url: str, timeout: float) -> None:
        import fsspec  # optional: the extra tracer-core[fsspec]

        self._files, self._root = fsspec.core.url_to_fs(url)
        self._renames = "file" in (self._files.protocol, *self._files.protocol)

    def get(self, name: str) -> bytes | None:
        try:
            result: Any = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return bytes(result)

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if not self._renames:  # stores of objects show them whole
            self._files.pipe_file(path, data)
            return
        result = f"{path}.new-{secrets.token_hex(8)}"
        try:
            self._files.pipe_file(result, data)
            os.replace(result, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(result)
            raise


_REDIS_SCHEMES = ("redis", "rediss", "unix")


def _client(url: str, timeout: float) -> Client:
    return (_Redis if urlsplit(url).scheme in _REDIS_SCHEMES else _FileSystem)(url, timeout)


def shown(url: str) -> str:
    """Returns a URL without its user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _Lane:
    """A thread that does one thing after the other for threads that do not wait for its end. A daemon:
    what hangs in it holds nobody up."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def ask(self, job: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._jobs.put((answer, job))
        return answer

    def close(self) -> None:
        self._jobs.put(None)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        while (asked := self._jobs.get()) is not None:
            answer, job = asked
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(job())
            except BaseException as error:
                answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class FleetInfo:
    """What a fleet's store did for this process."""

    #: The URL, without secrets.
    url: str
    #: ``"connecting"``, ``"serving"``, ``"resting"`` (not asked until a probe finds it quick) or
    #: ``"off"``.
    state: str
    #: Why it rests or is off.
    reason: str
    #: Of reads.
    hits: int
    misses: int
    wrong: int
    #: Entries.
    written: int
    waiting: int
    #: That reads have waited for nothing.
    seconds: float


@dataclass(frozen=True, slots=True)
class Look:
    """Whether a fleet's store works, in words, and what to do."""

    works: bool
    text: str
    advice: str


class Fleet:
    """The connection of this process to a fleet's store. Mutable. limit: seconds that reads may wait
    for nothing, in total."""

    def __init__(
        self, url: str, key: bytes, limit: float, make: Callable[[str, float], Client]
    ) -> None:
        self.url, self.limit = url, limit
        self._key = hashlib.sha256(b"tracer-core fleet\0" + key).digest()
        self._make, self._lock = make, threading.Lock()
        self._state, self._reason = "connecting", ""
        self._hits = self._misses = self._wrong = self._written = self._waiting = 0
        self._bytes_waiting, self._spent, self._lost = 0, 0.0, 0.0
        self._since = 0.0
        self._written_all = threading.Condition(self._lock)
        self._connected = threading.Event()
        self._reader = _Lane("tracer-fleet-reads")
        self._writer: _Lane | None = None
        self._reading: Client | None = None
        self._writing: Client | None = None
        self._reader.ask(self._connect).add_done_callback(self._on_connected)

    def fetch(self, kind: str, machine: str, key: str) -> bytes | None:
        """Returns the content of an entry, or None if the fleet does not have it or does not answer
        in time."""
        if not self._may_read():
            return None
        name, begin = _name(kind, machine, key), time.monotonic()
        asked = self._reader.ask(lambda: self._get(name))
        try:
            data = asked.result(max(self.limit - self._spent, 0.0))
        except Exception as error:  # whatever a client raises, or none in time
            asked.cancel()
            self._rest(_told(error, self.limit), begin)
            return None
        image = None if data is None else self._opened(data, kind, machine, key)
        with self._lock:
            if image is not None:
                self._hits, self._spent = self._hits + 1, 0.0
                return image
            waited = time.monotonic() - begin
            self._misses, self._spent = self._misses + 1, self._spent + waited
            self._lost += waited
            wrong = data is not None
            self._wrong += wrong
            slow, lies = self._spent >= self.limit, self._wrong >= MAX_WRONG_ENTRIES
        if wrong:
            note(
                "cache", "%s: %s is not used: it was not made with this key", shown(self.url), name
            )
        if lies:
            self._rest(
                f"gave {MAX_WRONG_ENTRIES} entries that were not made with this key", begin, "off"
            )
        elif slow:
            self._rest(f"answered for {self.limit:g} s without an entry", begin)
        return None

    def share(self, kind: str, machine: str, key: str, image: bytes) -> None:
        """Has an entry written when the server takes it."""
        with self._lock:
            if self._state in ("resting", "off"):
                return
            if self._bytes_waiting > MAX_WAITING_BYTES:
                note("cache", "fleet: not shared: %d bytes wait to be written", self._bytes_waiting)
                return
            self._waiting, self._bytes_waiting = self._waiting + 1, self._bytes_waiting + len(image)
            if self._writer is None:
                self._writer = _Lane("tracer-fleet-writes")
            writer = self._writer
        writer.ask(lambda: self._put(kind, machine, key, image))

    def wait(self, seconds: float) -> bool:
        """Waits until everything is written, or the server does not answer; returns False on
        timeout."""
        with self._lock:
            return self._written_all.wait_for(
                lambda: not self._waiting or self._state in ("resting", "off"), seconds
            )

    def finish(self, seconds: float) -> None:
        """Waits as `wait` does, as long as each entry is written within the time limit."""
        end, before = time.monotonic() + seconds, -1

        def goes_on() -> bool:
            return self._waiting < before or self._state in ("resting", "off")

        while before != self._waiting and time.monotonic() < end:
            before = self._waiting
            with self._lock:
                self._written_all.wait_for(goes_on, self.limit)
        if self._waiting and time.monotonic() >= end:
            note("cache", "fleet: %d entries are not written at exit", self._waiting)

    def look(self) -> Look:
        """Writes an entry and reads it, for `tracer-core doctor`."""
        lane, image = _Lane("tracer-fleet-looks"), secrets.token_bytes(64)

        def tried() -> float:
            client, begin = self._make(self.url, MAX_FLEET_WRITE_SECONDS), time.monotonic()
            client.put(_name(_PROBE, "", _PROBE), self._sealed(image, _PROBE, "", _PROBE))
            read = time.monotonic()
            result = client.get(_name(_PROBE, "", _PROBE))
            if result is None or self._opened(result, _PROBE, "", _PROBE) is None:
                raise ValueError("what was written cannot be read, or was changed")
            return max(read - begin, time.monotonic() - read)

        try:
            seconds = lane.ask(tried).result(MAX_FLEET_WRITE_SECONDS)
        except Exception as error:
            advice = "programs run without it; is its address right, and does it take connections?"
            return Look(False, _told(error, MAX_FLEET_WRITE_SECONDS), advice)
        finally:
            lane.close()
        text = f"an entry is written and read, each in at most {seconds * 1e3:.1f} ms"
        slow = seconds > self.limit / 4
        advice = (
            f"slow beside TRACER_STORE_TIMEOUT={self.limit:g}: set more seconds" if slow else ""
        )
        return Look(True, text, advice)

    def info(self) -> FleetInfo:
        """Returns what it did so far."""
        with self._lock:
            return FleetInfo(shown(self.url), self._state, self._reason, self._hits, self._misses,
                             self._wrong, self._written, self._waiting, self._lost)  # fmt: skip

    # In the fleet's own threads

    def _connect(self) -> Client:
        client = self._make(self.url, max(self.limit, 0.05))
        begin = time.monotonic()
        client.get(_PROBE)
        if time.monotonic() - begin > max(_QUICK, self.limit / 2):
            raise TimeoutError(f"its first answer took {time.monotonic() - begin:.2f} s")
        return client

    def _on_connected(self, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            self._rest(_told(error, self.limit), None)
        else:
            with self._lock:
                self._reading = done.result()
                if self._state in ("connecting", "resting"):
                    self._state, self._reason = "serving", ""
        self._connected.set()

    def _get(self, name: str) -> bytes | None:
        assert self._reading is not None
        return self._reading.get(name)

    def _put(self, kind: str, machine: str, key: str, image: bytes) -> None:
        error: BaseException | None = None
        try:
            self._connected.wait(MAX_FLEET_WRITE_SECONDS)
            if self._state == "serving":
                if self._writing is None:
                    self._writing = self._make(self.url, MAX_FLEET_WRITE_SECONDS)
                self._writing.put(
                    _name(kind, machine, key), self._sealed(image, kind, machine, key)
                )
        except Exception as raised:
            error, self._writing = raised, None
        finally:
            with self._lock:
                self._written += error is None and self._state == "serving"
                self._waiting, self._bytes_waiting = (
                    self._waiting - 1,
                    self._bytes_waiting - len(image),
                )
                self._written_all.notify_all()
        if error is not None:
            self._rest(_told(error, MAX_FLEET_WRITE_SECONDS), None)

    # When it does not answer

    def _may_read(self) -> bool:
        if self._state == "connecting":
            begin = time.monotonic()
            self._connected.wait(max(_CONNECTING * self.limit - self._spent, 0.0))
            with self._lock:
                waited = time.monotonic() - begin
                self._spent, self._lost = self._spent + waited, self._lost + waited
        if self._state == "resting":
            self._probe()
        return self._state == "serving"

    def _rest(self, reason: str, begin: float | None, state: str = "resting") -> None:
        """Asks the server no more until a probe has found it quick. begin: of a read that waited."""
        with self._lock:
            if begin is not None and state == "resting":
                waited = time.monotonic() - begin
                self._lost += max(0.0, min(waited, self.limit - self._spent))
            if self._state == "off":
                return
            data = self._state != "resting"
            self._state, self._reason, self._since = state, reason, time.monotonic()
            self._reading = None
            self._written_all.notify_all()
        self._reader.close()
        if data:
            logger().warning("TRACER_STORE=%s: %s; it is not used for now", shown(self.url), reason)

    def _probe(self) -> None:
        """Looks beside the program whether the server answers again."""
        with self._lock:
            rested = time.monotonic() - self._since > REST
            if self._state != "resting" or not rested or self._reader.is_alive:
                return
            self._since = time.monotonic()
            self._spent = 0.0
            self._reader = _Lane("tracer-fleet-reads")
            reader = self._reader
        reader.ask(self._connect).add_done_callback(self._on_connected)

    # Entries

    def _sealed(self, image: bytes, kind: str, machine: str, key: str) -> bytes:
        return _FORMAT + self._digest(image, kind, machine, key) + image

    def _opened(self, data: bytes, kind: str, machine: str, key: str) -> bytes | None:
        """Returns the content of an entry that was made with this key under this name."""
        head = len(_FORMAT) + _DIGEST
        image, digest = data[head:], data[len(_FORMAT) : head]
        right = hmac.compare_digest(digest, self._digest(image, kind, machine, key))
        return image if data.startswith(_FORMAT) and right else None

    def _digest(self, image: bytes, kind: str, machine: str, key: str) -> bytes:
        name = f"{_SYSTEM}\0{kind}\0{machine}\0{key}\0{len(image)}\0".encode()
        digest = hmac.new(self._key, _FORMAT + name, hashlib.sha256)
        digest.update(image)
        return digest.digest()


#: Systems whose libraries the others cannot load.
_SYSTEM = " ".join((platform.system(), platform.machine(), *platform.libc_ver()))
_PROBE = "probe"


def _name(kind: str, machine: str, key: str) -> str:
    here = hashlib.sha256(f"{_SYSTEM}\0{machine}".encode()).hexdigest()[:16]
    return f"{_FORMAT.decode()}/{kind}/{here}/{key}"


def _told(error: BaseException, limit: float) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer in {limit:g} s"
    return f"{type(error).__name__}: {error}"


# -- the fleet of this process

_lock = threading.Lock()
#: What was set -> its fleet; the last one set only.
_known: dict[tuple[str, bytes, float], Fleet] = {}


def fleet() -> Fleet | None:
    """Returns the connection to TRACER_STORE, begun if there is none; None if it is not set. Raises
    OptionError if it is set wrongly."""
    settings = env()
    if not settings.store:
        return None
    at = (
        settings.store,
        _operator_key(settings.store_key, settings.store_key_file),
        settings.store_timeout,
    )
    with _lock:
        result = _known.get(at)
        if result is None:
            _demand_client(settings.store)
            _known.clear()
            result = _known[at] = Fleet(*at, _client)
    return result


def _demand_client(url: str) -> None:
    scheme = urlsplit(url).scheme
    if not scheme:
        raise OptionError(
            f"TRACER_STORE={shown(url)!r}: a URL, such as redis://host:6379 or file:///shared"
        )
    module = "redis" if scheme in _REDIS_SCHEMES else "fsspec"
    if importlib.util.find_spec(module) is None:
        raise OptionError(f"TRACER_STORE={shown(url)} needs python -m pip install {module}")


def _operator_key(text: str, path: str) -> bytes:
    """Returns the key that the operator set. Raises OptionError if there is none."""
    how = "a long random text that all machines share, such as of: openssl rand -hex 32"
    if path:
        try:
            file = Path(path).expanduser()
            problem = not_private(file.stat(), root_too=True)
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise OptionError(f"TRACER_STORE_KEY_FILE={path}: {error}") from error
        if problem is not None:
            raise OptionError(f"TRACER_STORE_KEY_FILE={path}: it {problem}")
    key = text.strip().encode()
    if not key:
        raise OptionError(
            "TRACER_STORE is set, but no key by which its entries are authenticated: set "
            f"TRACER_STORE_KEY, or TRACER_STORE_KEY_FILE to a file with it: {how}"
        )
    if len(key) < MIN_KEY_BYTES:
        raise OptionError(
            f"the key of TRACER_STORE has {len(key)} bytes, fewer than {MIN_KEY_BYTES}: {how}"
        )
    return key


def _end() -> None:
    for item in list(_known.values()):
        item.finish(MAX_FLEET_EXIT_SECONDS)


def _after_fork() -> None:
    """Drops the connections in a forked child: their threads are the parent's."""
    global _lock
    _lock = threading.Lock()
    _known.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
