"""Processes that compile kernels: what they give, what they say, when there are some, how they end.
Without a GPU: code for sm_90."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")

import triton

from inductor_backend import limits
from inductor_backend.runtime.cuda import compile_workers
from inductor_backend.runtime.cuda.compile_workers import MANY, Worker, Workers, as_many_as_here
from inductor_backend.runtime.cuda.triton_compile import (
    Binary,
    Kernel,
    NotCompiled,
    NotPersisted,
    target_of,
)

TEXT = """
@triton.jit
def twice(p0, p1, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p1 + at, relu(tl.load(p0 + at)) * 2)
"""
WRONG = TEXT.replace("relu", "unknown_function")
DEADLY = "import os\nif os.getpid() != {me}: os._exit(7)\n" + TEXT
KILLED = "import os, signal\nif os.getpid() != {me}: os.kill(os.getpid(), signal.SIGKILL)\n" + TEXT


def kernel_of(text: str) -> Kernel:
    return Kernel(
        "twice", text.replace("{me}", str(os.getpid())), ["*fp32", "*fp32"], 0, {"BLOCK": 256}, 4
    )


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="module")
def worker():
    actual = Worker()
    yield actual
    actual.end()


HERE = Binary("twice", b"made here", 4, 0, 0, ())


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The kernels that were asked of this process; under Triton's interpreter, as in these tests,
    it cannot compile.
    """
    asked = []

    def compile_here(kernel, target):
        asked.append(kernel)
        return HERE

    monkeypatch.setattr(compile_workers, "compiled_and_stored", raising(NotPersisted()))
    monkeypatch.setattr(compile_workers, "binary_of", compile_here)
    return asked


def raising(error: Exception):
    def refuse(*unused, **unused_names):
        raise error

    return refuse


def build(workers: Workers, *kernels: Kernel) -> list[object]:
    """Their binaries, or what was said of them, as the threads of `triton_build` ask."""

    def one(kernel):
        try:
            return workers.build(kernel, target_of(90))
        except NotCompiled as error:
            return error

    for _ in kernels:
        workers.announce()
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, kernels))


@pytest.fixture
def messages():
    return []


@pytest.fixture
def workers(messages):
    actual = Workers(2, messages.append)
    yield actual
    processes = [item.process for item in actual._all]
    actual.end()
    assert all(process.returncode is not None for process in processes)


def some(workers: Workers) -> None:
    """Has the processes started."""
    for _ in range(MANY):
        workers.announce()
    assert workers._start_some() and len(workers._all) == 2
    workers._waiting -= MANY


def test_machine_code(worker):
    result = worker.build(kernel_of(TEXT), target_of(90))
    assert result.code.startswith(b"\x7fELF") and b"twice" in result.code
    assert (result.name, result.warps, result.scratch, list(result.copies)) == ("twice", 4, 0, [])


def test_the_environment_is_this_process_as_it_is_now(worker, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    worker.build(kernel_of(TEXT), target_of(90))
    assert list(tmp_path.rglob("*.cubin"))


def test_prints_go_to_standard_error_and_torch_is_not_imported(capfd):
    loud = (
        "import sys\nprint('with torch' if 'torch' in sys.modules else 'without', flush=True)\n"
        + TEXT
    )
    fresh = Worker()
    fresh.build(kernel_of(loud), target_of(90))
    fresh.end()
    assert capfd.readouterr() == ("", "without\n")


def test_few_kernels_start_nothing(workers, here):
    assert build(workers, *[kernel_of(TEXT)] * (MANY - 1)) == [HERE] * (MANY - 1)
    assert not workers._all and len(here) == MANY - 1


def test_many_start_processes(workers, here):
    result = build(workers, *[kernel_of(TEXT)] * 2 * MANY)
    assert len(workers._all) == 2 and sum(item.code != HERE.code for item in result) > MANY


def test_what_the_cache_has_starts_nothing(workers, here, monkeypatch):
    monkeypatch.setattr(compile_workers, "compiled_and_stored", lambda *kernel_and_target: HERE)
    assert build(workers, *[kernel_of(TEXT)] * 2 * MANY) == [HERE] * 2 * MANY
    assert not workers._all and not here


ALIKE = """
import sys
from inductor_backend.runtime.cuda.triton_compile import *
from inductor_backend.runtime.cuda.compile_workers import Worker
from tests.triton_kernels.test_workers import TEXT, WRONG, kernel_of
right, wrong, target, worker = kernel_of(TEXT), kernel_of(WRONG), target_of(90), Worker()
def said(build):
    try: build(wrong, target)
    except NotCompiled as error: return error.detail
try: compiled_and_stored(right, target)
except NotPersisted: print("not kept")
made = worker.build(right, target)
print(compiled_and_stored(right, target) == made, binary_of(right, target) == made)
print(said(worker.build) == said(binary_of), "unknown_function" in said(binary_of))
"""


def test_this_process_makes_the_same_and_says_the_same(tmp_path):
    """And has what was made there: the names in Triton's cache are the same."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", ALIKE], env=environment, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("not kept\nTrue True\nTrue True\n", "")


def test_a_compiler_that_dies_takes_only_its_process_along(workers, messages, here):
    some(workers)
    died, result = build(workers, kernel_of(DEADLY), kernel_of(TEXT))
    assert (
        died.detail
        == "Triton's compiler died of kernel twice, twice: it did not compile twice (exit status 7)"
    )
    assert [result, *build(workers, kernel_of(TEXT))] == [result, result]
    assert not messages and not here


def test_where_a_process_is_killed_threads_compile(workers, messages):
    some(workers)
    assert build(workers, *[kernel_of(KILLED)] * 4) == [HERE] * 4
    assert set(messages) == {"a process that compiles did not compile twice (exit status -9)"}
    assert build(workers, *[kernel_of(TEXT)] * 2 * MANY) == [HERE] * 2 * MANY


def test_where_a_process_hangs_threads_compile(workers, messages, monkeypatch):
    some(workers)
    monkeypatch.setattr(limits, "MAX_KERNEL_COMPILE_SECONDS", 0.5)
    assert build(workers, kernel_of("import time\ntime.sleep(100)\n" + TEXT)) == [HERE]
    assert messages == ["a process that compiles did not compile twice within 0.5 seconds"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("Popen", "Resource temporarily unavailable"),
        ("executable", "a process that compiles did not start (exit status 1)"),
    ],
)
def test_where_none_starts_threads_compile(workers, messages, fault, said, monkeypatch):
    if fault == "Popen":
        monkeypatch.setattr(subprocess, "Popen", raising(BlockingIOError(said)))
    else:
        monkeypatch.setattr(sys, "executable", "/bin/false")
    assert build(workers, *[kernel_of(TEXT)] * 2 * MANY) == [HERE] * 2 * MANY
    assert set(messages) == {said}


def test_settings_that_other_processes_would_not_see_are_for_threads(workers, monkeypatch):
    monkeypatch.setitem(
        vars(triton.knobs.runtime), "add_stages_inspection_hook", lambda *stages: ("", "")
    )
    assert build(workers, *[kernel_of(TEXT)] * 2 * MANY) == [HERE] * 2 * MANY


def test_they_end_at_rest_and_come_back(workers, monkeypatch):
    monkeypatch.setattr(compile_workers, "REST", 0.01)
    some(workers)
    processes = [item.process for item in workers._all]
    result = build(workers, kernel_of(TEXT))
    end = time.monotonic() + 30
    while time.monotonic() < end and any(process.returncode is None for process in processes):
        time.sleep(0.02)
    assert all(process.returncode is not None for process in processes) and not workers._all
    some(workers)
    assert build(workers, kernel_of(TEXT)) == result != [HERE]


def test_a_program_that_python_is_built_into_is_not_started(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    assert as_many_as_here() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert as_many_as_here() == 2
    monkeypatch.setattr(sys, "executable", "/usr/bin/uwsgi")
    assert as_many_as_here() == 0


PROGRAM = """
import os, sys, threading, time
from inductor_backend.runtime.cuda import compile_workers as triton_workers
from inductor_backend.runtime.cuda.compile_workers import Workers
workers = Workers(2, print)
workers._waiting = 8
workers._start_some()
print(*(one.process.pid for one in workers._all), flush=True)
"""


def test_they_end_with_the_process_whose_they_are():
    """Killed, and with a child left that was forked after they had started."""
    ending = "child = os.fork()\nif child == 0: time.sleep(100)\nprint(child, flush=True)\nos.kill(os.getpid(), 9)"
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + ending], stdout=subprocess.PIPE, text=True
    )
    numbers = [int(word) for word in started.stdout.readline().split()]
    child = int(started.stdout.readline())
    try:
        assert started.wait(60) == -signal.SIGKILL and len(numbers) == 2
        end = time.monotonic() + 60
        while time.monotonic() < end and any(map(lives, numbers)):
            time.sleep(0.05)
        assert lives(child) and not any(map(lives, numbers))
    finally:
        os.kill(child, signal.SIGKILL)
        started.stdout.close()


def lives(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
from inductor_backend.runtime.cuda import build as triton_build
from inductor_backend.runtime.cuda.triton_compile import Kernel, target_of
triton_build.as_many_as_here = lambda: 2
text = "import os, time\\nif os.getpid() != %d: time.sleep(100)\\n" % os.getpid()
text += "@triton.jit\\ndef k(p0):\\n    tl.store(p0, {n})\\n"
kernels = [Kernel("k", text.format(n=n), ["*fp32"], 0, {}, 4) for n in range(40)]
waiting = [triton_build._start(kernel, target_of(90)) for kernel in kernels]
while not any(one._ready for one in triton_build._workers()._all):
    time.sleep(0.05)
print("waiting", flush=True)
for one in waiting:
    one.result()
"""


def test_an_interrupted_program_ends_at_once(tmp_path):
    """What waits is not compiled, and what is being compiled is not waited for."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    started = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout.readline() == "waiting\n"
    started.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, said = started.communicate(timeout=90)
    assert time.monotonic() - begin < 20
    assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt")


def test_a_fork_of_this_process_has_none(workers):
    some(workers)
    child = os.fork()
    if child == 0:
        os._exit(len(workers._all) + workers._waiting)
    assert os.waitpid(child, 0)[1] == 0
    assert build(workers, kernel_of(TEXT)) != [HERE]
