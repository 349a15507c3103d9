"""Machine code in the cache: whose it is and whether it is whole is checked before it is loaded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import torch_server

pytestmark = pytest.mark.sweep(keep=6)

NOBODY = 65534

#: A program whose guards use every C helper of the core, and whose graph is compiled C++.
PROGRAM = """
import torch, tracer_core

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.scale = 3.0

    def forward(self, x):
        return torch.relu(self.inner(x)) * self.scale

model, x = Scaled().eval(), torch.randn(2, 4)
with torch.no_grad():
    fast = tracer_core.compile(model, backend="inductor", fullgraph=True)
    for _ in range(3):
        assert torch.allclose(fast(x), model(x), atol=1e-6)
from tracer_core.guards.native_helper import library
loaded = [library(name) for name in ("compare_fields", "learned_tensors", "constant_check")]
assert None not in loaded
print(*sorted({str(one._name).rpartition("/")[0] for one in loaded}))
"""

PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { printf("PLANTED CODE RAN\\n"); }
"""


def ran(cache: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACER_CACHE_DIR": str(cache), **more}
    environment.pop("TRACER_STRICT", None)  # as users run it
    return torch_server.run(["-c", PROGRAM], env=environment, timeout=300)


def libraries(cache: Path) -> list[Path]:
    actual = sorted([*cache.glob("guards/*.so"), *cache.glob("inductor-cpp/*.so")])
    assert {path.parent.name for path in actual} == {"guards", "inductor-cpp"}
    return actual


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that a first process has filled."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    first = ran(cache)
    assert first.returncode == 0 and first.stdout.strip() == str(cache / "guards"), first.stderr
    assert first.stderr == ""
    return cache


@pytest.fixture
def planted(tmp_path: Path) -> bytes:
    """A library that says so when it is loaded."""
    (tmp_path / "planted.c").write_text(PLANTED)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", "planted.so", "planted.c"], cwd=tmp_path, check=True
    )
    return (tmp_path / "planted.so").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "half", "empty", "other"])
def test_damaged_libraries_are_built_again(filled: Path, planted: bytes, damage: str) -> None:
    for path in libraries(filled):
        data = path.read_bytes()
        path.write_bytes(
            {"cut": data[:-100], "half": data[: len(data) // 2], "empty": b"", "other": planted}[
                damage
            ]
        )
    second = ran(filled)
    assert second.returncode == 0 and second.stdout.strip() == str(filled / "guards"), second.stderr
    assert second.stderr == ""
    written = {path: path.stat().st_mtime_ns for path in libraries(filled)}
    assert ran(filled).stdout == second.stdout
    assert {
        path: path.stat().st_mtime_ns for path in libraries(filled)
    } == written  # the third process found them


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("whose", ["another user's", "writable by others"])
def test_libraries_that_others_may_have_written_are_not_loaded(
    filled: Path, planted: bytes, whose: str
) -> None:
    paths = libraries(filled)
    for path in paths:
        path.unlink()
        path.write_bytes(planted)
        if whose == "another user's":
            os.chown(path, NOBODY, NOBODY)
        else:
            path.chmod(0o777)
    done = ran(filled)
    assert done.returncode == 0 and "PLANTED" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip() == str(filled / "guards")
    said = (
        "belongs to user id 65534" if whose == "another user's" else "other users may write to it"
    )
    loaded = [path for path in paths if str(path) in done.stderr]
    assert done.stderr.count(said) == len(loaded) >= 4, done.stderr
    assert all(
        path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o022 for path in loaded
    )
    assert ran(filled).stderr.count(said) == 0  # made again, in their place


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
@pytest.mark.parametrize(
    ("part", "whose"),
    [("", "another user's"), ("guards", "writable by others"), ("inductor-cpp", "another user's"),
     ("inductor-cpp", "writable by others")],
)  # fmt: skip
def test_folders_that_others_may_write_to_are_not_used(
    filled: Path, planted: bytes, part: str, whose: str
) -> None:
    for path in libraries(filled):
        path.write_bytes(planted)
    folder = filled / part
    if whose == "another user's":
        os.chown(folder, NOBODY, NOBODY)
    else:
        folder.chmod(0o777)
    before = sorted(folder.iterdir())
    try:
        done = ran(filled)
    finally:
        os.chown(folder, os.geteuid(), os.getegid())
        folder.chmod(0o700)
    assert done.returncode == 0 and "PLANTED" not in done.stdout, done.stdout + done.stderr
    said = f"cache folder {folder}: " + (
        f"belongs to user id {NOBODY}, not to 0"
        if whose == "another user's"
        else "other users may write to it (chmod go-w it)"
    )
    assert (
        done.stderr.count(said) == 1
        and done.stderr.count("Set TRACER_CACHE_DIR to a folder of your own") == 1
    )
    if part != "inductor-cpp":  # the helpers were built all the same, in a folder that is gone now
        used = Path(done.stdout.strip())
        assert filled not in used.parents and not used.exists()
    assert sorted(folder.iterdir()) == before


def test_a_folder_below_one_that_everybody_may_use(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # as /tmp is: nobody can replace what is ours in it
    done = ran(tmp_path)
    assert done.stdout.strip() == str(tmp_path / "guards") and done.stderr == ""


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for two pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_said_once_and_everything_is_compiled(tiny_disk: Path) -> None:
    done = ran(tiny_disk)
    assert done.returncode == 0 and str(tiny_disk) not in done.stdout, done.stderr
    for part in ("guards", "inductor-cpp"):
        assert done.stderr.count(f"cache folder {tiny_disk / part}: No space left on device") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_that_is_only_read(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    done = ran(tiny_disk)
    assert done.returncode == 0 and str(tiny_disk) not in done.stdout, done.stderr
    assert done.stderr.count("Read-only file system") == 2, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_from_which_nothing_may_be_executed(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,noexec,size=64m", str(tiny_disk)], check=True)
    done = ran(tiny_disk)
    assert done.returncode == 0 and str(tiny_disk) not in done.stdout, done.stderr


def test_no_home_and_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = ran(
        "",
        HOME=str(tmp_path / "file"),
        TRACER_CACHE_DIR="",
        XDG_CACHE_HOME="",
        TMPDIR=str(tmp_path / "file"),
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("Set TRACER_CACHE_DIR to a folder of your own") == 2
    )  # once a folder: of helpers, of graphs
