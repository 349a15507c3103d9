"""The store on disk: whose its entries are, and what is told of them, before anything is loaded."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tracer_core
from tracer_core.errors import OptionError, StoredError
from tracer_core.storage import file_lock, store
from tracer_core.storage.cache_location import CacheLocationError
from tracer_core.storage.store import Store, packed, unpacked

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
NOBODY = 65534
MACHINE = "one of sixteen.."


@pytest.fixture
def cache_store(fresh_cache) -> Store:
    return Store("things", MACHINE)


def damaged(full: bytes, rng: random.Random) -> bytes:
    """Cut, changed in a bit, with a piece more or less, or something else."""
    data = bytearray(full)
    match rng.randrange(5):
        case 0:
            del data[rng.randrange(len(data)) :]
        case 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            data += rng.randbytes(rng.randrange(1, 99))
        case 3:
            start = rng.randrange(len(data))
            del data[start : start + rng.randrange(1, 9)]
        case 4:
            data = bytearray(rng.randbytes(rng.randrange(2000)))
    return bytes(data)


def file_of(cache_store: Store, key: str) -> Path:
    return cache_store.inside(lambda folder: folder.path / key)


def test_what_was_written_is_read(cache_store):
    cache_store.write("tanh", b"code of tanh")
    cache_store.write("empty", b"")
    assert cache_store.read("tanh") == b"code of tanh" and cache_store.read("empty") == b""
    assert cache_store.read("sigmoid") is None
    cache_store.write("tanh", b"another")
    assert cache_store.read("tanh") == b"another"
    path, problem = cache_store.inside(lambda folder: folder.find("tanh"))
    assert problem is None and path.read_bytes().startswith(b"another")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "a" * 300, "a\nb", "a\x00b"])
def test_keys_are_names_of_files(cache_store, key):
    with pytest.raises(ValueError, match="key="):
        cache_store.write(key, b"")


def test_an_entry_counts_under_its_own_key_kind_and_machine(cache_store):
    cache_store.write("tanh", b"code of tanh")
    cache_store.write("sigmoid", b"code of sigmoid")
    file, other = file_of(cache_store, "tanh"), file_of(cache_store, "sigmoid")
    data = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(data)
    assert cache_store.read("tanh") is None and cache_store.read("sigmoid") is None
    elsewhere = Store("others", MACHINE)
    elsewhere.write("tanh", b"")
    file_of(elsewhere, "tanh").write_bytes(data)
    assert elsewhere.read("tanh") is None
    file.write_bytes(data)
    assert cache_store.read("tanh") == b"code of tanh"
    assert Store("things", "another machine.").read("tanh") is None


def test_damage_of_every_kind_is_noticed(cache_store):
    cache_store.write("entry", bytes(range(256)) * 4)
    path = file_of(cache_store, "entry")
    data = path.read_bytes()
    rng = random.Random(5)
    for _ in range(500):
        path.write_bytes(damaged(data, rng))
        assert cache_store.read("entry") is None
    path.write_bytes(data)
    assert cache_store.read("entry") is not None


def test_another_secret_makes_entries_worthless(cache_store, fresh_cache):
    cache_store.write("entry", b"data")
    secret = Path(fresh_cache) / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    data = secret.read_bytes()
    for spoil in (
        lambda: secret.write_bytes(bytes(32)),
        lambda: secret.write_bytes(b"short"),
        lambda: secret.chmod(0o644),  # others have read it
        secret.unlink,
        lambda: (secret.unlink(), secret.symlink_to("/dev/zero")),
    ):
        spoil()
        assert cache_store.read("entry") is None
        cache_store.write("entry", b"data")
        assert cache_store.read("entry") == b"data" and stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert secret.is_file() and not secret.is_symlink()
    assert secret.read_bytes() != data


def test_links_and_pipes_are_not_followed(cache_store, tmp_path):
    cache_store.write("entry", b"data")
    path = file_of(cache_store, "entry")
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert cache_store.read("entry") is None
    path.unlink()
    os.mkfifo(path)
    assert cache_store.read("entry") is None  # and does not wait for a writer
    path.unlink()
    path.mkdir()
    assert cache_store.read("entry") is None


@AS_ROOT
def test_entries_of_others_are_not_read(cache_store, caplog):
    cache_store.write("entry", b"data")
    path = file_of(cache_store, "entry")
    os.chown(path, NOBODY, NOBODY)
    assert cache_store.read("entry") is None and "belongs to user id 65534" in caplog.text
    cache_store.write("entry", b"data")
    assert cache_store.read("entry") == b"data"
    file_of(cache_store, "entry").chmod(0o722)
    assert cache_store.read("entry") is None


@AS_ROOT
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_folder_that_another_user_can_exchange_is_not_used(
    cache_store, tmp_path, monkeypatch, mode
):
    """Renaming is up to the owner of the folder above."""
    above = tmp_path / "above"
    above.mkdir(mode=0o755)
    monkeypatch.setenv("TRACER_CACHE_DIR", str(above / "below" / "cache"))
    cache_store.write("entry", b"data")
    assert cache_store.read("entry") == b"data" and tracer_core.cache.info().problem is None
    above.chmod(mode)
    os.chown(above, NOBODY if mode == 0o700 else 0, 0)
    cache_store.write("entry", b"elsewhere")
    assert "above, where it lies, " in tracer_core.cache.info().problem
    with pytest.raises(CacheLocationError, match="TRACER_CACHE_DIR"):
        tracer_core.cache.clear()
    os.chown(above, 0, 0)
    above.chmod(0o755)
    assert cache_store.read("entry") == b"data"


@AS_ROOT
def test_a_link_of_another_user_is_not_followed(cache_store, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    monkeypatch.setenv("TRACER_CACHE_DIR", str(link))
    cache_store.write("entry", b"data")  # one's own link is
    assert (tmp_path / "real" / "things" / "entry").exists()
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert "belongs to user id 65534" in tracer_core.cache.info().problem


def test_a_umask_of_zero(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "a" / "b" / "cache"))
    before = os.umask(0)
    try:
        Store("things", MACHINE).write("entry", b"data")
    finally:
        os.umask(before)
    for path in (tmp_path / "a").rglob("*"):
        assert not path.stat().st_mode & 0o077, path


def test_a_folder_that_vanishes_is_made_again(cache_store, fresh_cache):
    cache_store.write("entry", b"data")
    subprocess.run(["rm", "-rf", fresh_cache], check=True)
    assert cache_store.read("entry") is None
    cache_store.write("entry", b"data")
    assert cache_store.read("entry") == b"data"


def test_what_cannot_be_loaded_is_not_kept(cache_store):
    def broken(path):
        assert path.read_bytes().startswith(b"junk")
        raise ValueError("no library")

    with pytest.raises(ValueError, match="no library"):
        cache_store.inside(lambda folder: folder.write("entry", b"junk", broken))
    assert cache_store.read("entry") is None
    assert names_in(file_of(cache_store, "entry").parent) == []


def test_portable_bytes_tell_damage_and_machine():
    data = packed(b"image", MACHINE)
    assert unpacked(data, MACHINE) == (b"image", "")
    assert unpacked(data[1:], MACHINE)[1] == "damaged: its checksum is wrong"
    assert unpacked(data[:-1], MACHINE)[0] is None
    assert unpacked(data, "another machine.")[1] == "built for another processor"


# -- size


def test_what_was_not_used_for_longest_is_removed(cache_store, monkeypatch):
    monkeypatch.setattr(store, "_LOOKS", 0)
    monkeypatch.setattr(store, "_USED", 0.0)
    monkeypatch.setenv("TRACER_CACHE_LIMIT", "10KB")
    for number in range(8):
        cache_store.write(f"e{number}", bytes(1000))
        os.utime(file_of(cache_store, f"e{number}"), (0, 1000 + number))
    assert cache_store.read("e0") is not None  # it was used
    for number in range(8, 12):
        cache_store.write(f"e{number}", bytes(1000))
    info = tracer_core.cache.info()
    assert 8000 < info.size <= info.limit == 10_000 and info.entries["things"][1] == info.size
    assert (
        cache_store.read("e0") is not None
        and cache_store.read("e1") is None
        and cache_store.read("e11") is not None
    )


def test_info_clear_and_prune(cache_store, fresh_cache):
    Store("others").write("one", b"1")
    cache_store.write("a", bytes(100))
    cache_store.write("b", bytes(100))
    info = tracer_core.cache.info()
    assert info.folder == Path(fresh_cache) and info.problem is None and info.limit == 2 * 10**9
    assert {kind: number for kind, (number, _) in info.entries.items()} == {
        "others": 1,
        "things": 2,
    }
    assert tracer_core.cache.prune(10**6) == 0 and tracer_core.cache.info() == info
    assert tracer_core.cache.prune(0) == info.size
    assert cache_store.read("a") is None and tracer_core.cache.info().size == 0
    cache_store.write("a", bytes(100))
    assert tracer_core.cache.clear() > 100 and tracer_core.cache.info().size == 0
    cache_store.write("a", b"again")
    assert cache_store.read("a") == b"again"


@pytest.mark.parametrize("text", ["2 apples", "-1", "GB"])
def test_a_limit_that_is_no_size(monkeypatch, text):
    monkeypatch.setenv("TRACER_CACHE_LIMIT", text)
    with pytest.raises(OptionError, match="TRACER_CACHE_LIMIT"):
        tracer_core.cache.info()


BUILDER = """
import os, sys, time
from tracer_core.storage.store import Store
with Store("things", "one of sixteen..").inside(lambda folder: folder).scratch() as folder:
    (folder / "big.o").write_bytes(bytes(100))
    print(folder.name, flush=True)
    time.sleep(600)
"""


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != file_lock.NAME)


def test_leftovers_of_killed_processes_are_removed_by_the_next(cache_store):
    cache_store.write("entry", b"data")
    folder = file_of(cache_store, "entry").parent
    (folder / ".new-y").write_bytes(bytes(100))
    with subprocess.Popen([sys.executable, "-c", BUILDER], stdout=subprocess.PIPE) as builder:
        building = builder.stdout.readline().decode().strip()
        tracer_core.cache.prune()
        assert names_in(folder) == [building, "entry"]  # its process is alive
        builder.kill()
    again = "from tracer_core.storage.store import Store; Store('things', 'one of sixteen..').write('b', b'')"
    subprocess.run([sys.executable, "-c", again], check=True)
    assert names_in(folder) == ["b", "entry"] and cache_store.read("entry") == b"data"


def test_leftovers_where_there_are_no_locks(cache_store, monkeypatch):
    cache_store.write("entry", b"data")
    folder = file_of(cache_store, "entry").parent
    monkeypatch.setattr(file_lock, "is_free", lambda path, key, of: None)
    (folder / ".build-x").mkdir()
    (folder / ".build-x" / "big.o").write_bytes(bytes(100))
    (folder / ".new-y").write_bytes(bytes(100))
    tracer_core.cache.prune()
    assert names_in(folder) == [".build-x", ".new-y", "entry"]  # a process may still write them
    for name in (".build-x", ".new-y"):
        os.utime(folder / name, (0, 0))
    tracer_core.cache.prune()
    assert names_in(folder) == ["entry"] and cache_store.read("entry") == b"data"


@pytest.mark.parametrize("where", ["entry", "secret"])
def test_a_folder_in_the_place_of_a_file_is_replaced(cache_store, where):
    cache_store.write("entry", b"data")
    path = file_of(cache_store, "entry")
    path = path if where == "entry" else path.parent.parent / "secret"
    path.unlink()
    path.mkdir()
    (path / "file").write_text("in the way")
    descriptors = len(os.listdir("/proc/self/fd"))
    assert cache_store.read("entry") is None
    cache_store.write("entry", b"again")
    assert cache_store.read("entry") == b"again" and path.is_file()
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize("end", [b"", b"its footer"])
def test_a_huge_file_is_not_read(cache_store, end):
    cache_store.write("entry", b"data")
    path = file_of(cache_store, "entry")
    data = path.read_bytes()
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(data[-56:] if end else b"")
    assert cache_store.read("entry") is None
    cache_store.write("entry", b"again")
    assert cache_store.read("entry") == b"again"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/nowhere", path)],
                         ids=["folder", "pipe", "link"])  # fmt: skip
def test_a_lock_that_cannot_be_opened_costs_nothing(cache_store, make):
    cache_store.write("other", b"data")
    locks = file_of(cache_store, "other").parent / file_lock.NAME
    locks.unlink()
    make(locks)
    with cache_store.inside(lambda folder: folder).building("entry"):
        cache_store.write("entry", b"data")
    assert cache_store.read("entry") == b"data"
    assert file_of(cache_store, "entry").parent == locks.parent


# -- other processes

HOLDER = """
import sys, time
from tracer_core.storage.store import Store
with Store("things", "one of sixteen..").inside(lambda folder: folder).building("entry"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_suspended_process_is_not_waited_for_for_ever(cache_store, monkeypatch):
    monkeypatch.setattr(file_lock, "MAX_LOCK_SECONDS", 0.5)
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with cache_store.inside(lambda folder: folder).building("entry"):
            assert 0.4 < time.monotonic() - begun < 30
        with cache_store.inside(lambda folder: folder).building("another"):
            assert time.monotonic() - begun < 30
        holder.kill()  # the system gives back what it held
    begun = time.monotonic()
    with cache_store.inside(lambda folder: folder).building("entry"):
        assert time.monotonic() - begun < 0.4


WRITER = """
import sys
from tracer_core.storage.store import Store
kept = Store("things", "one of sixteen..")
print("begun", flush=True)
for number in range(10**9):
    kept.write(f"e{number % 7}", bytes([number % 256]) * 100_000)
"""


def test_kill_9_leaves_whole_entries(cache_store):
    rng = random.Random(3)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"begun\n"
            time.sleep(rng.random() * 0.05)
            writer.kill()
        for number in range(7):
            actual = cache_store.read(f"e{number}")
            assert actual is None or actual == actual[:1] * 100_000
            assert actual is not None or not file_of(cache_store, f"e{number}").exists()


# -- saved files


class Scale(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


@pytest.fixture
def saved(fresh_cache, tmp_path) -> Path:
    compiled = tracer_core.compile(Scale(), backend="inductor")
    compiled(torch.ones(3))
    assert tracer_core.save(compiled, tmp_path / "saved").stored
    return tmp_path / "saved"


def loaded(path, **arguments):
    compiled = tracer_core.compile(Scale(), backend="inductor")
    assert tracer_core.load(compiled, path, **arguments) == 1
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))


@AS_ROOT
def test_a_saved_file_of_another_user_is_refused(saved):
    loaded(saved)
    os.chown(saved, NOBODY, NOBODY)
    with pytest.raises(StoredError, match=r"belongs to user id 65534.*trust=True"):
        loaded(saved)
    loaded(saved, trust=True)
    os.chown(saved, 0, 0)
    saved.chmod(0o666)
    with pytest.raises(StoredError, match="other users may write to it"):
        loaded(saved)


def test_damaged_saved_files_are_told_as_such(saved):
    data = saved.read_bytes()
    rng = random.Random(11)
    for _ in range(200):
        saved.write_bytes(damaged(data, rng))
        with pytest.raises(StoredError, match=str(saved)):
            loaded(saved)
    saved.write_bytes(data)
    loaded(saved)
