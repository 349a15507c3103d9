"""Processes that compile Triton kernels: a quarter of a kernel's compile time holds Python's lock,
which threads share.

In: `Kernel`s and their target. Out: their `Binary`s. What always holds: no process is started for
kernels that Triton's cache has, nor for few; where none can be started, or one is lost, the kernel
is compiled in this process; a compiler that dies takes only its own process along; all of them end
with this one. Imports no torch.

Why no `concurrent.futures.ProcessPoolExecutor`: its workers (spawn and forkserver alike) run the
user's main module again, so a program without ``if __name__ == "__main__"`` runs once a worker and
fails there; they hold 148 MiB each where the program imports torch (20 here); one that dies breaks
the whole pool without telling of which kernel; they outlive a killed program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inductor_backend.runtime.cuda.triton_compile import (
    Binary,
    Kernel,
    NotCompiled,
    NotKept,
    binary_of,
    kept,
)

#: Kernels that wait at once for which there is a process: one starts in the time of two kernels.
WAITING = 3

#: Fewer kernels that wait at once are compiled by threads.
MANY = 8

#: Processes, at most, and the memory of the machine or container for each: one takes 40 MiB beside
#: files that all share.
MOST, MEMORY = 16, 512 << 20

#: Seconds after the last kernel until they end; the next kernel starts them again.
REST = 30

#: Seconds for a process to start, and for a kernel, after which the process is given up.
START, ANSWER = 60, 300

#: Seconds after which a process ends that nobody asks, whatever holds its pipe open.
FORGOTTEN = 600

_MAIN = """
import pickle, sys
sys.path[:], *given = pickle.load(sys.stdin.buffer)
from inductor_backend.runtime.cuda.compile_workers import serve
serve(*given)
"""

#: What ends a process from outside; what a compiler dies of is something else.
_FROM_OUTSIDE = {
    0,
    *(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
}


class Lost(Exception):
    """A process that did not start, or did not answer: what it did not do."""


class Died(Lost):
    """Its compiler died of the kernel."""


class Worker:
    """One process; one thread asks at a time. Mutable."""

    def __init__(self) -> None:
        """Does not wait until it is ready. Raises OSError where no process can be started."""
        self._environment = _environment()
        answers, its_end = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN],
                bufsize=0,
                stdin=subprocess.PIPE,
                # what every start of this Python prints, this process has printed
                stdout=subprocess.DEVNULL,
                pass_fds=[its_end],
                env=self._environment,
                process_group=0,  # Ctrl-C is for the process whose it is
            )
        except BaseException:
            self._answers.close()
            raise
        finally:
            os.close(its_end)
        assert self.process.stdin is not None
        self._requests = self.process.stdin
        self._ready = False
        self._ask(
            ([entry for entry in sys.path if isinstance(entry, str)], its_end, _hash_of_triton())
        )

    def build(self, kernel: Kernel, target: Any) -> Binary | None:
        """None where something other than the kernel is in the way, which this process would be
        told too. Raises NotCompiled, Lost."""
        if not self._ready:
            self._answer(START, "did not start", Lost)
            self._ready = True
        now = _environment()
        self._ask((kernel, target, None if now == self._environment else now))
        self._environment = now
        found = self._answer(ANSWER, f"did not compile {kernel.name}", Died)
        if isinstance(found, str):
            raise NotCompiled(found, kernel.text)
        return found  # type: ignore[no-any-return]

    def _ask(self, request: Any) -> None:
        left = memoryview(pickle.dumps(request))
        with contextlib.suppress(
            BrokenPipeError
        ):  # it has ended: told where its answer is waited for
            while left:
                left = left[self._requests.write(left) :]

    def _answer(self, seconds: float, what: str, kind: type[Lost]) -> Any:
        there = select.poll()  # select() takes no number from 1024 on
        there.register(self._answers, select.POLLIN)
        if not there.poll(1000 * seconds):
            self.end()
            raise Lost(f"{what} within {seconds:g} seconds")
        try:
            return pickle.load(self._answers)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = self.end(1)  # its own, if it is about to end
            problem = f"{what} (exit status {status})"
            raise (Lost if status in _FROM_OUTSIDE else kind)(problem) from None

    def end(self, grace: float = 0) -> int:
        """Its exit status. Nothing is left half: files of Triton's cache are put in place when they
        are whole.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self._requests.close()
        self._answers.close()
        return self.process.wait()

    def forget(self) -> None:
        """In a forked child, whose process it is not. A thread that the child has not may hold the
        locks of the files.
        """
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for pipe in (self._requests, self._answers):
            os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
        self.process.returncode = 0
        _forgotten.append(self)


class Workers:
    """Those of this process. Mutable, for any thread."""

    def __init__(self, most: int, tell: Callable[[str], None]) -> None:
        """most: fewer than two are none. tell: is told why there are none."""
        self._most, self._tell = most, tell
        self._begin()
        _made.add(self)

    def _begin(self) -> None:
        """Without workers."""
        self._lock = threading.Lock()
        self._all: list[Worker] = []
        self._idle: queue.SimpleQueue[Worker | None] = (
            queue.SimpleQueue()
        )  # None: there are none any more
        self._waiting = 0
        self._rest: threading.Timer | None = None
        self._ended = False

    def announce(self) -> None:
        """`build` will be called once more."""
        with self._lock:
            self._waiting += 1
            if self._rest is not None:
                self._rest.cancel()
                self._rest = None

    def build(self, kernel: Kernel, target: Any) -> Binary:
        """By a worker, or in this thread. Raises NotCompiled."""
        try:
            return self._build(kernel, target)
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0 and self._all:
                    self._rest = threading.Timer(REST, self._end_at_rest)
                    self._rest.daemon = True
                    self._rest.start()

    def _build(self, kernel: Kernel, target: Any) -> Binary:
        if self._most < 2 or set_in_python():
            return binary_of(kernel, target)
        if not self._all:
            with contextlib.suppress(NotKept):
                return kept(kernel, target)
        if not self._start_some():
            return binary_of(kernel, target)
        for _ in range(2):
            worker = self._idle.get()
            if worker is None:
                self._idle.put(None)
                break
            try:
                found = worker.build(kernel, target)
            except Lost as error:
                if self._ended:
                    raise NotCompiled("the process ends", kernel.text) from None
                self._replace(worker, error)
                if isinstance(error, Died):
                    died = error
                    continue
                break
            except BaseException:
                self._idle.put(worker)
                raise
            self._idle.put(worker)
            if found is not None:
                return found
            break
        else:
            raise NotCompiled(
                f"Triton's compiler died of kernel {kernel.name}, twice: it {died}", kernel.text
            )
        return binary_of(kernel, target)

    def _start_some(self) -> bool:
        """As many as the kernels that wait are worth. Whether there are any."""
        with self._lock:
            if self._all or self._waiting >= MANY:
                while len(self._all) < min(self._most, self._waiting // WAITING):
                    self._add()
            return bool(self._all)

    def _add(self) -> None:
        """With the lock."""
        try:
            worker = Worker()
        except OSError as error:
            self._give_up(str(error))
            return
        self._all.append(worker)
        self._idle.put(worker)

    def _replace(self, worker: Worker, error: Lost) -> None:
        with self._lock:
            self._all.remove(worker)
            if isinstance(error, Died):
                self._add()
            else:
                self._give_up(f"a process that compiles {error}")

    def _give_up(self, why: str) -> None:
        """With the lock. Those that are at work finish what they have."""
        self._most = 0
        self._idle.put(None)
        self._tell(why)

    def _end_at_rest(self) -> None:
        with self._lock:
            if self._waiting or self._ended:
                return
            gone, self._all, self._idle = self._all, [], queue.SimpleQueue()
        for worker in gone:
            worker.end()

    def end(self) -> None:
        """With this process."""
        with self._lock:
            self._ended, self._most = True, 0
            working, self._all = self._all, []
            if self._rest is not None:
                self._rest.cancel()
        for worker in working:
            worker.process.kill()  # who waits for it is told, and closes its pipes
        with contextlib.suppress(queue.Empty):
            while True:
                idle = self._idle.get_nowait()
                if idle is not None:
                    working.remove(idle)
                    idle.end()
        self._idle.put(None)
        for worker in working:
            worker.process.wait()

    def forget(self) -> None:
        """In a forked child, which has none of the threads and none of the processes."""
        for worker in self._all:
            worker.forget()
        self._begin()


_made: weakref.WeakSet[Workers] = weakref.WeakSet()
_forgotten: list[Worker] = []


def _new_process() -> None:
    for one in list(_made):
        one.forget()


os.register_at_fork(after_in_child=_new_process)


def as_many_as_here() -> int:
    """How many this machine or container has room for; ranks of one machine share it."""
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return 0  # a program that Python is built into would start again
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    processors = min(len(os.sched_getaffinity(0)), _quota())
    memory = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _memory())
    return min(
        MOST, int(min(processors, memory // MEMORY)) // max(1, int(ranks) if ranks.isdigit() else 1)
    )


def _quota() -> float:
    """Processors that a container may use at once."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1.0, float(quota) / float(period))
    except (OSError, ValueError):  # no such file, or "max"
        return float("inf")


def _memory() -> float:
    try:
        return float(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return float("inf")


def _environment() -> dict[str, str]:
    return {**os.environ, "TRITON_INTERPRET": "0"}


def set_in_python() -> bool:
    """Whether the program has changed a setting of Triton's, which other processes would not
    see.
    """
    from triton import knobs  # heavy: triton

    return any(vars(group) for group in vars(knobs).values() if isinstance(group, knobs.base_knobs))


@functools.cache
def _hash_of_triton() -> str | None:
    """A part of the name of everything in its cache: 0.8 processor seconds, which one process
    spends for all.
    """
    from triton.runtime import cache  # heavy: triton

    return cache.triton_key() if hasattr(cache, "triton_key") else None


def serve(answers: int, hash_of_triton: str | None) -> None:
    """The worker's side: requests by standard input."""
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # what compilers print
    from triton.runtime import cache  # heavy: triton

    from inductor_backend.runtime.cuda import device_functions  # heavy: triton  # noqa: F401

    if hash_of_triton is not None:
        cache.triton_key = lambda: hash_of_triton
    requests, answer_to = sys.stdin.buffer, os.fdopen(answers, "wb")
    answer: Any = "ready"
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        while True:
            pickle.dump(answer, answer_to)
            answer_to.flush()
            if not select.select([requests], [], [], FORGOTTEN)[0]:
                break
            try:
                kernel, target, environment = pickle.load(requests)
            except EOFError:
                break
            if environment is not None:
                os.environ.clear()
                os.environ.update(environment)
            answer = _answer_to(kernel, target)
    os._exit(0)


def _answer_to(kernel: Kernel, target: Any) -> Binary | str | None:
    try:
        return binary_of(kernel, target)
    except NotCompiled as error:
        return error.detail
    except Exception:
        return None  # it happens in the process that asks too, and is told there
