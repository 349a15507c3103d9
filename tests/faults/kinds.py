"""The faults: each kind is a function that makes one trial, and the number of trials of a whole run.

A trial raises AssertionError where a process crashed, hung, gave a wrong answer or ran planted code.
"""

from __future__ import annotations

import base64
import contextlib
import json
import marshal
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import hostile, programs
from tests.faults.children import Child, child

NOBODY = 65534

#: Bytes at the end of an entry that authenticate it.
FOOTER = 56

#: A library and a Python text that say so when they run.
PLANTED_C = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) {{ close(open("{marker}", O_CREAT | O_WRONLY, 0666)); }}
"""
PLANTED_PYTHON = "open({marker!r}, 'w').close()\n"


@dataclass(slots=True)
class Bench:
    """Where trials run. Mutable. root: a folder of the run's own. rng: of this trial. turn: its
    number. seconds: what a program takes that compiles, and one that finds all it needs."""

    root: Path
    rng: random.Random = field(default_factory=random.Random)
    turn: int = 0
    seconds: tuple[float, float] = (1.0, 0.2)

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def marker(self) -> Path:
        return self.root / "planted-code-ran"

    def start(
        self, number: int, before: Callable[[], None] | None = None, cache: Path | None = None
    ) -> Child:
        """Starts program `number` on the store."""
        folder = self.root / "programs"
        folder.mkdir(exist_ok=True, mode=0o755)
        return child(
            self.root / "logs", lambda: programs.run(folder, number), before,
            TRACER_CACHE_DIR=str(cache or self.cache),
        )  # fmt: skip

    def entries(self) -> list[Path]:
        """Returns the files of the store, but locks and those that were damaged to be huge."""
        return sorted(
            path
            for path in self.cache.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name != "lock"
            and ".build-" not in str(path) and path.stat().st_size < 1 << 30
        )  # fmt: skip

    def left_over(self) -> list[Path]:
        """Returns what is under construction, or was when its process was killed."""
        return [*self.cache.glob("*/.build-*"), *self.cache.glob("*/.new-*")]

    def planted(self) -> list[bytes]:
        """Returns a library and a text whose code leaves the marker."""
        result = self.root / "planted.so"
        if not result.exists():
            source = self.root / "planted.c"
            source.write_text(PLANTED_C.format(marker=self.marker))
            subprocess.run(["cc", "-shared", "-fPIC", "-o", result, source], check=True)
        return [result.read_bytes(), PLANTED_PYTHON.format(marker=str(self.marker)).encode()]

    def nothing_ran(self) -> None:
        assert not self.marker.exists(), "planted code ran"

    def measure(self) -> None:
        """Fills the store with programs 0 to 3, and notes how long that takes."""
        taken = []
        for _ in range(2):
            begun = time.monotonic()
            for number in range(4):
                self.start(number).ended_well()
            taken.append((time.monotonic() - begun) / 4)
        self.seconds = taken[0], taken[1]


# -- kill -9


def killed(bench: Bench) -> None:
    """Kills a process at a random moment of a compile (three of four), or of a warm start."""
    cold = bench.turn % 4 != 3
    number = 1000 + bench.turn if cold else bench.turn % 4
    victim = bench.start(number)
    time.sleep(bench.rng.random() * bench.seconds[0 if cold else 1] * 1.2)
    victim.kill()
    code = victim.wait()
    assert code in (0, -signal.SIGKILL), f"ended with {code}\n{victim.said()}"
    if bench.turn % 5 == 4:
        bench.start(number).ended_well()  # the same program, on what the killed one has left
        left = set(bench.left_over())
        bench.start(100_000 + bench.turn).ended_well()  # one that writes
        still = left & set(bench.left_over())
        assert not still, f"left by killed processes: {still}"


# -- damage


def damage(bench: Bench, path: Path, how: str) -> None:
    """Damages one file of the store, in a new file: what a process has mapped must not change."""
    data, rng = path.read_bytes(), bench.rng
    path.unlink()
    if how == "cut":
        path.write_bytes(data[: rng.randrange(max(1, len(data)))])
    elif how == "a bit":
        at = rng.randrange(max(1, len(data)))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    elif how == "exchanged":
        path.write_bytes(rng.choice(bench.entries()).read_bytes())
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "noise":
        path.write_bytes(rng.randbytes(rng.randrange(20_000)))
    elif how == "longer":
        path.write_bytes(data + rng.randbytes(rng.randrange(1, 200)))
    elif how == "folder":
        path.mkdir()
        (path / "file").write_text("in the way")
    elif how == "link":
        path.symlink_to(rng.choice(bench.entries()))
    elif how == "link to nothing":
        path.symlink_to("/nonexistent")
    elif how == "hard link":
        os.link(rng.choice(bench.entries()), path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif how == "sparse with its footer":
        with path.open("wb") as file:
            file.truncate(1 << 40)
            file.seek(0, os.SEEK_END)
            file.write(data[-64:])
    elif how == "planted":
        path.write_bytes(rng.choice(bench.planted()))
    elif how == "planted with its footer":
        path.write_bytes(rng.choice(bench.planted()) + data[-FOOTER:])
    elif how == "writable":
        path.write_bytes(rng.choice(bench.planted()))
        path.chmod(0o777)
    elif how == "unreadable":
        path.write_bytes(data)
        path.chmod(0)
    elif how == "another owner's":
        path.write_bytes(rng.choice(bench.planted()))
        os.chown(path, NOBODY, NOBODY)


DAMAGES = (
    "cut", "a bit", "exchanged", "empty", "noise", "longer", "folder", "link", "link to nothing",
    "hard link", "pipe", "sparse", "sparse with its footer", "planted", "planted with its footer",
    "writable", "unreadable", "another owner's",
)  # fmt: skip
#: Files that one trial damages.
TOGETHER = 5


def damaged(bench: Bench) -> None:
    """Damages five files, each in another way; the processes that need them make them again, and
    later ones find them."""
    if len(bench.entries()) < 2 * TOGETHER:
        for number in range(4):
            bench.start(number).ended_well()
    begin = bench.turn * TOGETHER
    for number in range(begin, begin + TOGETHER):
        actual = bench.entries()
        if bench.turn % 8:  # else any file, the secret too
            actual = [path for path in actual if path.name != "secret"]
        damage(bench, bench.rng.choice(actual), DAMAGES[number % len(DAMAGES)])
    number = bench.turn % 4
    first = bench.start(number)
    first.ended_well()
    bench.nothing_ran()
    if bench.turn % 4 == 3:
        for _ in range(2):  # the first may have found no use for what the second needs
            again = bench.start(number)
            again.ended_well()
        assert "made again" not in again.said() and "cache folder" not in again.said(), again.said()


# -- several processes


def eight_at_once(bench: Bench) -> None:
    """Eight processes fill one empty store."""
    cache = bench.root / f"of-eight-{bench.turn}"
    running = [bench.start(5000 + bench.turn, cache=cache) for _ in range(8)]
    for process in running:
        process.ended_well()
    left = [path.name for path in cache.glob("*/.[!.]*")]
    assert not left, left
    shutil.rmtree(cache)


def suspended(bench: Bench) -> None:
    """A process is stopped at a random moment of a compile, with what locks it holds."""
    from tracer_core.storage import file_lock

    patience = 2.0

    def impatient() -> None:
        file_lock.MAX_LOCK_SECONDS = patience

    number = 7000 + bench.turn
    holder = bench.start(number)
    time.sleep(bench.rng.random() * bench.seconds[0])
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        bench.start(number, impatient).ended_well()
        taken = time.monotonic() - begun
        assert taken < 60 + 20 * bench.seconds[0], f"waited for {taken:.0f} s"
        os.kill(holder.pid, signal.SIGCONT)
        holder.ended_well()  # what it wrote late is an entry like any other
    finally:
        holder.kill()
    bench.start(number).ended_well()


def vanished(bench: Bench) -> None:
    """The folder is removed at a random moment."""
    cache = bench.root / "vanishing"
    process = bench.start(8000 + bench.turn, cache=cache)
    time.sleep(bench.rng.random() * bench.seconds[0])
    shutil.rmtree(cache, ignore_errors=True)
    process.ended_well()
    bench.start(8000 + bench.turn, cache=cache).ended_well()


# -- disks


@contextlib.contextmanager
def disk(bench: Bench, options: str) -> Iterator[Path]:
    """Mounts a file system in memory."""
    folder = Path(tempfile.mkdtemp(dir=bench.root))
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def full_disk(bench: Bench) -> None:
    """A disk of up to 600 KB: full at any moment of a compile. With room again it is used."""
    size = bench.rng.choice((4, 8, 16, 32)) if bench.turn % 3 == 0 else bench.rng.randrange(600)
    with disk(bench, f"size={max(size, 4)}k,mode=700") as folder:
        bench.start(9000, cache=folder).ended_well()
        if bench.turn % 5 == 0:
            subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
            for _ in range(2):
                last = bench.start(9000, cache=folder)
                last.ended_well()
            assert "cache folder" not in last.said(), last.said()


def small_files(bench: Bench) -> None:
    """No file may be longer than a limit: of the store, of temporary folders, of the compiler."""
    limit = (
        bench.rng.choice((0, 100, 1000, 4000)) if bench.turn % 2 else bench.rng.randrange(200_000)
    )

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    cache = bench.root / "of-small-files"
    bench.start(9100, limited, cache=cache).ended_well()
    bench.start(9100, cache=cache).ended_well()
    shutil.rmtree(cache)


def _remounted(bench: Bench, how: str, first: int) -> None:
    """A file system that is mounted otherwise, empty or with a filled store."""
    with disk(bench, "size=64m,mode=700") as folder:
        if bench.turn % 2:
            bench.start(first, cache=folder).ended_well()
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)
        bench.start(first, cache=folder).ended_well()


def read_only(bench: Bench) -> None:
    """A file system that cannot be written to."""
    _remounted(bench, "ro", 9200)


def not_executable(bench: Bench) -> None:
    """A file system from which nothing is executed."""
    _remounted(bench, "noexec", 9300)


# -- users


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.environ["HOME"] = "/nonexistent"


def owners(bench: Bench) -> None:
    """Root on a store of nobody's, nobody on one of root's, each with planted files."""
    cache = bench.root / f"owned-{bench.turn}"
    of_nobody = bench.turn % 2 == 0
    copied(bench, cache)
    plant_everywhere(bench, cache)
    how = bench.rng.choice(("all", "root folder", "kinds", "files"))
    owner = NOBODY if of_nobody else 0
    for path in (cache, *cache.rglob("*")):
        depth = len(path.relative_to(cache).parts)
        own = how == "all" or depth == {"root folder": 0, "kinds": 1, "files": 2}[how]
        os.chown(path, owner if own else NOBODY - owner, -1, follow_symlinks=False)
        if bench.rng.random() < 0.3 and not path.is_symlink():
            path.chmod(0o777)
    number = bench.turn % 4
    bench.start(number, None if of_nobody else become_nobody, cache=cache).ended_well()
    bench.nothing_ran()
    shutil.rmtree(cache)


def copied(bench: Bench, cache: Path) -> None:
    """Copies the entries, locks and secret of the store."""
    for path in (*bench.entries(), *bench.cache.glob("*/lock")):
        place = path.relative_to(bench.cache)
        for folder in reversed(place.parents):
            (cache / folder).mkdir(mode=0o700, exist_ok=True)
        shutil.copy(path, cache / place)


def plant_everywhere(bench: Bench, cache: Path) -> None:
    """Puts planted code into the place of each entry: a library, a text, or an entry of the right
    layout, whose code is another."""
    for path in [*cache.rglob("*")]:
        if path.is_file() and path.name not in ("secret", "lock"):
            mode, data = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
            library, text = bench.planted()
            path.unlink()
            if path.parent.name == "persistent_cache":
                path.write_bytes(with_code(data, text.decode()))
            else:
                path.write_bytes(library + data[-FOOTER:] if bench.turn % 2 else library)
            path.chmod(mode)


def with_code(data: bytes, text: str) -> bytes:
    """Returns a stored document whose entries run other code, with its old footer."""
    try:
        document = json.loads(data[:-FOOTER])
    except ValueError:  # damaged before
        return data
    code = base64.b64encode(marshal.dumps(compile(text, "planted", "exec"))).decode()
    changed = 0
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if "compiled" in item:
                item["compiled"], changed = code, changed + 1
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    names_alone = isinstance(document, dict)
    assert changed or names_alone, "the layout of stored entries is another"
    return json.dumps(document).encode() + data[-FOOTER:]


def umask_of_zero(bench: Bench) -> None:
    """With a umask of 0 nobody else can write to anything of the store, nor read its secret."""
    cache = bench.root / "of-umask-zero"
    bench.start(9400 + bench.turn % 3, lambda: os.umask(0) and None, cache=cache).ended_well()
    for path in (cache, *cache.rglob("*")):
        mode = path.lstat().st_mode
        assert not mode & 0o022, f"{path} has mode {mode:o}"
        assert path.name != "secret" or not mode & 0o077, f"{path} has mode {mode:o}"
    shutil.rmtree(cache)


def planted(bench: Bench) -> None:
    """A store in which every entry is planted code, in a folder that others could write to before."""
    cache = bench.root / f"planted-{bench.turn}"
    copied(bench, cache)
    plant_everywhere(bench, cache)
    how = bench.turn % 4
    if how == 1:
        (cache / "secret").unlink()  # a new secret makes nothing of theirs an entry
    if how == 2:
        cache.chmod(0o777)
    if how == 3:
        for path in cache.iterdir():
            if path.is_dir():
                path.chmod(0o777)
    bench.start(bench.turn % 4, cache=cache).ended_well()
    bench.nothing_ran()
    shutil.rmtree(cache)


def links(bench: Bench) -> None:
    """Links in the place of the folder, of its kinds, of the secret, of locks and entries, to files
    and folders with planted code of this user's and another's."""
    there = bench.root / f"there-{bench.turn}"
    cache = bench.root / f"links-{bench.turn}"
    copied(bench, there)
    plant_everywhere(bench, there)
    if bench.turn % 2:
        for path in (there, *there.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    what = ("folder", "kinds", "secret", "lock", "entries")[bench.turn % 5]
    if what == "folder":
        cache.symlink_to(there)
    else:
        copied(bench, cache)
        for path in sorted(cache.rglob("*")):
            depth, name = len(path.relative_to(cache).parts), path.name
            if {
                "kinds": depth == 1 and path.is_dir(),
                "secret": name == "secret",
                "lock": name == "lock",
                "entries": depth == 2 and name != "lock",
            }[what]:
                remove(path)
                path.symlink_to(there / path.relative_to(cache))
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    bench.start(bench.turn % 4, cache=cache).ended_well()
    bench.nothing_ran()
    own = what == "folder" and not bench.turn % 2
    changed = [
        str(path)
        for path, data in before.items()
        if not path.is_file() or path.read_bytes() != data
    ]
    assert own or not changed, f"written through a link: {changed}"
    remove(cache)
    remove(there)


def remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


# -- names

#: Names of one trial.
NAMES = 10


def hostile_names(bench: Bench) -> None:
    """Ten generated names of files, functions, parameters, keys, modules, buffers and globals."""
    chosen = hostile.names(20, NAMES * (bench.turn + 1))[-NAMES:]
    debug = bench.root / f"debug-{bench.turn}"

    def work() -> None:
        for number, name in enumerate(chosen):
            hostile.check(name, ("eager", "aten_eager", "inductor")[(bench.turn + number) % 3])
        for path in debug.rglob("*.py"):
            compile(path.read_text(encoding="utf-8"), str(path), "exec")

    child(
        bench.root / "logs", work, TRACER_CACHE_DIR=str(bench.cache), TRACER_DEBUG=str(debug),
    ).ended_well()  # fmt: skip
    shutil.rmtree(debug, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """trials: of a whole run. sample: those that CI makes. root: needs the rights of root. each: what
    one trial counts for."""

    trial: Callable[[Bench], None]
    trials: int
    sample: int
    root: bool = False
    each: int = 1

    @property
    def name(self) -> str:
        return self.trial.__name__


KINDS = (
    Kind(killed, 500, 2),
    Kind(damaged, 200, 3, root=True, each=TOGETHER),
    Kind(eight_at_once, 12, 1),
    Kind(suspended, 20, 1),
    Kind(vanished, 40, 1),
    Kind(full_disk, 40, 1, root=True),
    Kind(small_files, 20, 1),
    Kind(read_only, 6, 1, root=True),
    Kind(not_executable, 6, 1, root=True),
    Kind(owners, 30, 2, root=True),
    Kind(umask_of_zero, 6, 1),
    Kind(planted, 24, 2),
    Kind(links, 30, 3, root=True),
    Kind(hostile_names, 50, 1, each=NAMES),
)
