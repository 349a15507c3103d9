"""C++ text to a loaded library, through a disk cache that many processes share.

In: translation units as text. Out: a `Library` of callable functions. Always holds: an entry is one
file ``<key>.so`` whose last bytes are the SHA-256 of the rest (ELF loaders ignore what follows the
image), so it is written by one atomic rename, a damaged one is seen before it is loaded, and the same
bytes can be stored elsewhere and loaded by another process without a compiler. The key covers the
texts, the prelude, compiler version, flags and the processor's features.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inductor_backend.runtime.launch import launcher, maker
from inductor_backend.runtime.toolchain import Toolchain, find_compiler, processor
from tracer_core.plugin_api import BackendError, env

#: Changes when the file format or the calling convention changes.
FORMAT = b"tcso0001"
_FOOTER = len(FORMAT) + 16 + 32  # format, processor digest, SHA-256

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "codegen" / "cpp"

_COMPILE_SECONDS = 600

#: Texts with this need the bodies in kernels.cpp.
_GEMM = re.compile(r'^#include "gemm.h"', re.MULTILINE)
#: The prelude's vector forms of these cost compile time, so only texts that use them get them.
_TRIG = re.compile(r"\btc_(sin|cos|tan)\(")


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared library. name: for messages. key: content digest. path: its file. hit: True if
    no compiler ran. reason: why it was a hit or a miss, for logs. seconds: what building took."""

    name: str
    key: str
    path: Path
    hit: bool
    reason: str
    seconds: float
    handle: ctypes.CDLL = field(repr=False, compare=False)

    def address(self, function: str) -> int:
        """Address of an exported function. Raises BackendError if the library has none of that name."""
        try:
            return ctypes.cast(getattr(self.handle, function), ctypes.c_void_p).value or 0
        except AttributeError:
            raise BackendError(
                "inductor", "load", f"library {self.name!r} ({self.path}) exports no function {function!r}"
            ) from None

    def function(self, name: str, nargs: int) -> Callable[..., None]:
        """A callable for ``TC_EXPORT void name(const int64_t* a)`` taking `nargs` tensors or ints.

        A tensor is passed as its data pointer. The GIL is released during the call. What a kernel reported
        by ``tc_fail`` is raised: IndexError for a bad index, RuntimeError for an integer division by zero.
        """
        return launcher(
            maker(self.handle), self.address(name), nargs, name, self._error_flag(), keep_alive=self
        )

    def _error_flag(self) -> int:
        """Address of the prelude's ``tc_error``; 0 in a library built without the prelude."""
        try:
            return ctypes.addressof(ctypes.c_int.in_dll(self.handle, "tc_error"))
        except ValueError:
            return 0

    def read_binary(self) -> bytes:
        """The entry as bytes, for `load_binary` in another process on the same kind of processor."""
        return self.path.read_bytes()


_loaded: dict[str, Library] = {}
_loaded_lock = threading.Lock()


def build(sources: Sequence[str], *, name: str) -> Library:
    """Compiles, links, caches and loads `sources`, one translation unit each.

    Raises BackendError with stage "toolchain" (no compiler) or "c++ compile" (with the compiler's first
    lines and the path of the kept source).
    """
    try:
        tools = find_compiler()
    except BackendError:
        stored = _built_by_any_compiler(sources, name)
        if stored is None:
            raise
        return stored
    key = _key(sources, tools)
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")
    directory, where = cache_directory()
    path = directory / f"{key}.so"
    with _one_builder(directory, key):
        damage = _check_file(path)
        if damage is None:
            return _load(name, key, path, True, f"found in the cache ({where})", 0.0)
        started = time.perf_counter()
        _write_entry(path, _compile(sources, tools, directory, name))
        _link_for_any_compiler(sources, path)
        seconds = time.perf_counter() - started
    return _load(name, key, path, False, f"compiled in {seconds:.2f} s: {damage} ({where})", seconds)


def _built_by_any_compiler(sources: Sequence[str], name: str) -> Library | None:
    """The entry that some compiler made of these texts here before, for machines that have lost theirs."""
    directory, where = cache_directory()
    path = directory / f"{_key(sources, None)}.so"
    if _check_file(path) is not None:
        return None
    return _load(name, path.stem, path, True, f"found in the cache; no compiler here ({where})", 0.0)


def _link_for_any_compiler(sources: Sequence[str], path: Path) -> None:
    """A second name for the entry, without the compiler in its key."""
    other = path.with_name(f"{_key(sources, None)}.so")
    with contextlib.suppress(OSError):  # a file system without hard links: the second name is a convenience
        other.unlink(missing_ok=True)
        os.link(path, other)


def load_binary(data: bytes, *, name: str) -> Library:
    """Loads what `Library.read_binary` gave, here or in another process; no compiler is needed.

    Raises BackendError (stage "load") if the bytes are damaged or were built for another processor.
    """
    damage = _check_bytes(data)
    if damage is not None:
        raise BackendError("inductor", "load", f"stored library {name!r}: {damage}")
    key = "b" + hashlib.sha256(data).hexdigest()[:39]
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")
    directory, where = cache_directory()
    path = directory / f"{key}.so"
    if _check_file(path) is not None:
        _replace(path, data)
    return _load(name, key, path, True, f"loaded from stored bytes ({where})", 0.0)


def forget_loaded() -> None:
    """Drops the in-process table (not the mapped libraries: compiled code may still be running)."""
    with _loaded_lock:
        _loaded.clear()


# ---- keys and files


def _key(sources: Sequence[str], tools: Toolchain | None) -> str:
    """tools: None for the key that every compiler's result shares."""
    digest = hashlib.sha256(FORMAT)
    for part in (processor()[1] if tools is None else tools.fingerprint(), _prelude_digest(), *sources):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


@functools.cache
def _prelude_digest() -> str:
    files = sorted([*INCLUDE_DIR.glob("*.h"), *INCLUDE_DIR.glob("*.cpp")])
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def cache_directory() -> tuple[Path, str]:
    """(folder for entries, how to call it in messages). Private to the user: 0700, owned by us.

    A library that others may write is code that others may run as us, so a folder that is not ours
    is not used: a private temporary one is, which lasts as long as the process.
    """
    wanted = Path(env().cache_dir) / "inductor-cpp"
    problem = _make_private(wanted)
    return (wanted, str(wanted)) if problem is None else (_temporary(), f"no disk cache: {problem}")


@functools.lru_cache(maxsize=64)
def _make_private(folder: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
        if facts.st_uid != os.getuid():
            return f"{folder} belongs to another user"
        if stat.S_IMODE(facts.st_mode) & 0o077:
            folder.chmod(0o700)
        if not os.access(folder, os.W_OK):
            return f"{folder} is not writable"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


@functools.cache
def _temporary() -> Path:
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="tracer-"))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return folder


@contextlib.contextmanager
def _one_builder(directory: Path, key: str) -> Iterator[None]:
    """Processes that want the same entry at once wait for the first, then find it.

    Only an optimisation (entries are atomic), so a file system without locks is no error.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    slot = int(key[:8], 16) % (1 << 20)  # one byte of the lock file a key: no file is left behind
    try:
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, slot)
        yield
    finally:
        os.close(descriptor)


def _footer(image: bytes) -> bytes:
    head = FORMAT + processor()[1].encode()
    return head + hashlib.sha256(image + head).digest()


def _check_bytes(data: bytes) -> str | None:
    """None if `data` is a whole entry for this processor, else what is wrong."""
    image, foot = data[:-_FOOTER], data[-_FOOTER:]
    if not foot.startswith(FORMAT):
        return "not a library of this version, or cut short"
    if hashlib.sha256(image + foot[:-32]).digest() != foot[-32:]:
        return "damaged: its checksum is wrong"
    if foot != _footer(image):
        return "built for another processor"
    return None


def _check_file(path: Path) -> str | None:
    try:
        return _check_bytes(path.read_bytes())
    except FileNotFoundError:
        return "not in the cache"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _write_entry(path: Path, image: bytes) -> None:
    _replace(path, image + _footer(image))


def _replace(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


# ---- compiling and loading


def _compile(sources: Sequence[str], tools: Toolchain, directory: Path, name: str) -> bytes:
    """The linked image. All translation units compile at once, at most one a processor."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as folder:
        work = Path(folder)
        base = [tools.path, *tools.flags, f"-I{INCLUDE_DIR}", "-c"]
        jobs: list[tuple[list[str], Path]] = []
        objects = []
        for index, text in enumerate(sources):
            unit = work / f"{index}.cpp"
            unit.write_text(text)
            objects.append(unit.with_suffix(".o"))
            trig = ["-DTC_TRIG"] if _TRIG.search(text) else []
            jobs.append(([*base, *trig, str(unit), "-o", str(objects[-1])], unit))
        new: dict[Path, Path] = {}  # where to keep -> the object in `work`
        for source in _support_sources(sources):
            made, kept = work / f"{source.stem}.o", directory / f"{_key([source.stem], tools)}.o"
            objects.append(made)
            if _check_file(kept) is None:
                made.write_bytes(kept.read_bytes()[:-_FOOTER])
            else:
                new[kept] = made
                jobs.append(([*base, str(source), "-o", str(made)], source))
        jobs.sort(key=lambda job: job[1].stat().st_size, reverse=True)  # the longest first
        _run_all(jobs, directory, name)
        for kept, made in new.items():
            _write_entry(kept, made.read_bytes())
        target = work / "out.so"
        link = [tools.path, *map(str, objects), "-o", str(target), *tools.link_flags]
        _run_all([(link, work / "0.cpp")], directory, name)
        return target.read_bytes()


def _support_sources(sources: Sequence[str]) -> list[Path]:
    """What is compiled once a machine and linked in: the launcher, and the matrix products if used."""
    products = any(_GEMM.search(text) for text in sources)
    return [INCLUDE_DIR / "launcher.cpp", *([INCLUDE_DIR / "kernels.cpp"] if products else [])]


def _run_all(jobs: list[tuple[list[str], Path]], directory: Path, name: str) -> None:
    """Runs (command, source) pairs, as many at once as there are processors. Raises BackendError at the first failure."""
    width = max(1, len(os.sched_getaffinity(0)))
    waiting = list(jobs)
    running: list[tuple[subprocess.Popen[str], Path]] = []
    try:
        while waiting or running:
            while waiting and len(running) < width:
                command, unit = waiting.pop(0)
                running.append((subprocess.Popen(command, stderr=subprocess.PIPE, text=True), unit))
            process, unit = running[0]
            try:
                _, errors = process.communicate(timeout=_COMPILE_SECONDS)
            except subprocess.TimeoutExpired:
                raise BackendError(
                    "inductor", "c++ compile", f"{name}: the compiler took over {_COMPILE_SECONDS} s"
                ) from None
            running.pop(0)
            if process.returncode != 0:
                raise _compile_error(process, errors, unit, directory, name)
    finally:
        for process, _ in running:
            process.kill()
            process.wait()


def _compile_error(
    process: subprocess.Popen[str], errors: str, unit: Path, directory: Path, name: str
) -> BackendError:
    kept = directory / f"failed-{name}-{unit.name}"
    shutil.copyfile(unit, kept)
    lines = errors.strip().splitlines()
    shown = "\n    ".join(lines[:20])
    return BackendError(
        "inductor",
        "c++ compile",
        f"{name}: the compiler ended with {process.returncode}; source kept in {kept}\n    {shown}",
    )


def _load(name: str, key: str, path: Path, hit: bool, reason: str, seconds: float) -> Library:
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError("inductor", "load", f"{name}: {error}") from error
    library = Library(name, key, path, hit, reason, seconds, handle)
    with _loaded_lock:
        _loaded[key] = library
    return library


def _as_hit(library: Library, reason: str) -> Library:
    return Library(library.name, library.key, library.path, True, reason, 0.0, library.handle)
