"""Compiling, caching and loading C++, as the compiler and a later process use it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inductor_backend.runtime.cpp import build as build_cpp
from inductor_backend.runtime.cpp.build import build, load_binary
from inductor_backend.runtime.cpp.objects import Unit
from inductor_backend.runtime.cpp.toolchain import find_compiler, loaded_openmp_libraries
from tests.support import torch_server
from tests.support.threads import together
from tracer_core.errors import BackendError

ADD = """#include "prelude.h"
TC_EXPORT void run_add(const int64_t* a) {
    const float *x = (const float*)a[0], *y = (const float*)a[1]; float* z = (float*)a[2];
#pragma omp parallel for simd
    for (int64_t i = 0; i < a[3]; i++) z[i] = x[i] + y[i];
}
"""


@pytest.fixture(autouse=True)
def nothing_loaded(fresh_cache: str) -> Iterator[None]:
    build_cpp.forget_loaded()
    yield
    build_cpp.forget_loaded()


def add(library: build_cpp.Library) -> torch.Tensor:
    x, y, z = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    library.function("run_add", 4)(x, y, z, 1000)
    return z - (x + y)


def test_second_build_is_found_on_disk(fresh_cache: str) -> None:
    first = build([ADD], name="add")
    assert not first.hit and "not in the cache" in first.reason
    assert not add(first).any()
    assert build([ADD], name="add").reason == "already loaded in this process"
    build_cpp.forget_loaded()
    second = build([ADD], name="add")
    assert second.hit and fresh_cache in second.reason and second.key == first.key
    assert not add(second).any()


def test_another_text_or_flag_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    key = build([ADD], name="add").key
    assert build([ADD + "// changed\n"], name="add").key != key
    monkeypatch.setattr(build_cpp.Toolchain, "fingerprint", lambda self: "other flags")
    assert build([ADD], name="add").key != key


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_entry_is_seen_and_built_again(damage: str) -> None:
    path = build([ADD], name="add").path
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    new = path.with_suffix(
        ".x"
    )  # another file, as a torn copy is: the mapped one must not change under us
    new.write_bytes({"cut": bytes(data[:-100]), "flipped": bytes(data), "empty": b""}[damage])
    os.replace(new, path)
    build_cpp.forget_loaded()
    again = build([ADD], name="add")
    assert not again.hit and ("damaged" in again.reason or "cut short" in again.reason)
    assert not add(again).any()
    build_cpp.forget_loaded()
    assert build([ADD], name="add").hit


def test_several_units_make_one_library() -> None:
    other = '#include "prelude.h"\nint twice(int x) { return 2 * x; }\n'
    main = '#include "prelude.h"\nint twice(int);\nTC_EXPORT void run(const int64_t* a) { *(int*)a[0] = twice(a[1]); }\n'
    out = torch.zeros(1, dtype=torch.int32)
    build([main, other], name="two").function("run", 2)(out, 21)
    assert out.item() == 42


def test_compile_error_shows_the_compilers_words_and_keeps_the_source() -> None:
    with pytest.raises(BackendError, match="undeclared_thing") as caught:
        build(["TC_EXPORT void f() { undeclared_thing(); }"], name="broken")
    assert caught.value.stage == "c++ compile"
    kept = caught.value.detail.split("source kept in ")[1].split("\n")[0]
    assert "undeclared_thing" in Path(kept).read_text()


def test_no_compiler_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendError, match=r"apt install g\+\+"):
        find_compiler()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(BackendError, match="/no/such/compiler"):
        find_compiler()


def test_cache_folder_is_private(fresh_cache: str) -> None:
    path = build([ADD], name="add").path
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not [file for file in path.parent.iterdir() if file.name.startswith((".new", ".build"))]


def test_an_unusable_cache_folder_is_reported_not_fatal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "file" / "below"))
    library = build([ADD], name="add")
    assert "no disk cache" in library.reason
    assert not add(library).any()


SECOND_PROCESS = """
import sys, torch
from inductor_backend.runtime.cpp.build import load_binary
x, z = torch.arange(8.0), torch.empty(8)
load_binary(open(sys.argv[1], "rb").read(), name="add").function("run_add", 4)(x, x, z, 8)
print(z.sum().item())
"""


def test_stored_bytes_run_in_another_process_without_a_compiler(tmp_path: Path) -> None:
    data = build([ADD], name="add").read_binary()
    (tmp_path / "stored").write_bytes(data)
    environment = {**os.environ, "PATH": str(tmp_path), "TRACER_CACHE_DIR": str(tmp_path / "new")}
    done = torch_server.run(
        ["-c", SECOND_PROCESS, str(tmp_path / "stored")], env=environment, timeout=60
    )
    assert done.stdout.strip() == "56.0", done.stderr
    with pytest.raises(BackendError, match="checksum"):
        load_binary(data[:100] + b"?" + data[101:], name="damaged")


def test_the_cache_serves_where_the_compiler_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build([ADD], name="add")
    build_cpp.forget_loaded()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.delenv("CXX", raising=False)
    library = build([ADD], name="add")
    assert library.hit and "no compiler here" in library.reason
    assert not add(library).any()
    with pytest.raises(BackendError, match=r"apt install g\+\+"):
        build([ADD + "// another\n"], name="add")


BUILDER = """
import sys, torch
from inductor_backend.runtime.cpp.build import build
library = build([sys.stdin.read()], name="add")
x, z = torch.ones(4), torch.empty(4)
library.function("run_add", 4)(x, x, z, 4)
print(int(library.hit), z.sum().item())
"""


def test_two_processes_build_once() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:  # both start before either gets its source
        assert process.stdin is not None
        process.stdin.write(ADD)
        process.stdin.close()
    results = sorted(
        process.stdout.read().strip() for process in running if process.stdout is not None
    )
    for process in running:
        process.wait(timeout=60)
    assert results == ["0 8.0", "1 8.0"]


def test_one_openmp_runtime_in_the_process() -> None:
    x = torch.randn(1_000_000)
    library = build([ADD], name="add")
    library.function("run_add", 4)(x, x, torch.empty_like(x), x.numel())
    (x @ x).item()
    assert len(loaded_openmp_libraries()) == 1, loaded_openmp_libraries()


def test_arguments_are_checked() -> None:
    launch = build([ADD], name="add").function("run_add", 4)
    x = torch.ones(4)
    with pytest.raises(TypeError, match="run_add takes 4 arguments, got 3"):
        launch(x, x, x)
    with pytest.raises(AttributeError, match="data_ptr"):
        launch(x, x, x, 1.5)
    with pytest.raises(OverflowError):
        launch(x, x, x, 1 << 70)
    with pytest.raises(BackendError, match="exports no function 'run_other'"):
        build([ADD], name="add").function("run_other", 1)


def test_the_gil_is_released() -> None:
    wait = build(
        ['#include "prelude.h"\nTC_EXPORT void run_wait(const int64_t* a)'
         " { while (!__atomic_load_n((int*)a[0], __ATOMIC_SEQ_CST)); }\n"], name="wait",
    ).function("run_wait", 1)  # fmt: skip
    flag = torch.zeros(1, dtype=torch.int32)
    thread = threading.Thread(target=wait, args=(flag,), daemon=True)
    thread.start()
    flag.fill_(1)  # reached only if the other thread does not hold the GIL
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_function_keeps_its_library_and_outlives_the_name() -> None:
    launch = build([ADD], name="add").function("run_add", 4)
    build_cpp.forget_loaded()
    x, z = torch.ones(4), torch.empty(4)
    launch(x, x, z, 4)
    assert z.tolist() == [2.0] * 4


def test_a_unit_of_several_libraries_is_compiled_once_and_kept() -> None:
    unit = Unit(ADD, ("-O2",), keep=True)
    other = Unit('#include "prelude.h"\nint unused(int x) { return x; }\n')
    first = build([unit], name="one")  # the library and its only part do not wait for each other
    (kept,) = [file for file in first.path.parent.glob("*.o") if b"run_add" in file.read_bytes()]
    written = kept.stat().st_mtime_ns
    done = together(lambda number: build([unit, other], name=("two", "three")[number]), threads=2)
    assert not add(done[0]).any() and not add(first).any()
    assert kept.stat().st_mtime_ns == written
    assert build([Unit(ADD, ("-O1",), keep=True)], name="one").key != first.key


def test_a_child_forked_during_a_build_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, forked = threading.Event(), threading.Event()
    real = build_cpp.link

    def slow(*arguments):  # in the parent: holds the entry's lock until there is a child
        began.set()
        assert forked.wait(timeout=60)
        return real(*arguments)

    monkeypatch.setattr(build_cpp, "link", slow)
    work = threading.Thread(target=lambda: build([ADD], name="add"))
    work.start()
    assert began.wait(timeout=60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            monkeypatch.setattr(build_cpp, "link", real)
            code = int(bool(build([ADD], name="add").function("run_add", 4) is None))
        finally:
            os._exit(code)
    forked.set()
    work.join(timeout=60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
