"""Worker processes that compile Triton kernels: a quarter of a kernel's compile time holds the GIL.

No process is started for kernels in Triton's cache, nor for few kernels. Where no process can be
started, or one is lost, this process compiles the kernel. A compiler crash ends only its worker;
all workers end with this process. Imports no torch.

Why no `concurrent.futures.ProcessPoolExecutor`: its workers (spawn and forkserver alike) run the
user's main module again, so a program without ``if __name__ == "__main__"`` runs once per worker
and fails there; they hold 148 MiB each where the program imports torch (20 here); one crash breaks
the whole pool without naming the kernel; they outlive a killed program.
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
    NotPersisted,
    binary_of,
    compiled_and_stored,
)

#: Waiting kernels per process: a process starts in the time of two kernels.
WAITING = 3

#: Threads compile when fewer kernels wait.
MANY = 8

#: The machine's or container's memory per process: one takes 40 MiB beside shared files.
MEMORY = 512 << 20

#: Idle seconds after which workers end; the next kernel restarts them.
REST = 30


#: Seconds without a request after which a worker ends by itself, even if its pipe is open.
FORGOTTEN = 600

_MAIN = """
import pickle, sys
sys.path[:], *arguments = pickle.load(sys.stdin.buffer)
from inductor_backend.runtime.cuda.compile_workers import serve
serve(*arguments)
"""

#: Signals sent from outside; a compiler crash has others.
_FROM_OUTSIDE = {
    0,
    *(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
}


def _limits() -> Any:
    """Returns the table of limits, which imports torch: workers do without."""
    import inductor_backend.limits as limits  # heavy: torch

    return limits


class Lost(Exception):
    """A worker process did not start, or did not answer."""


class Died(Lost):
    """The compiler crashed on the kernel."""


class Worker:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        """Starts the process without waiting until it is ready. Raises OSError where none can be
        started."""
        self._environment = _environment()
        answers, its_end = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN],
                bufsize=0,
                stdin=subprocess.PIPE,
                # this process has already printed what every start of this Python prints
                stdout=subprocess.DEVNULL,
                pass_fds=[its_end],
                env=self._environment,
                process_group=0,  # Ctrl-C must not reach workers
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
        """Returns the binary, None where a problem other than the kernel's would also occur in this
        process. Raises NotCompiled, Lost."""
        if not self._ready:
            self._answer(_limits().MAX_WORKER_START_SECONDS, "did not start", Lost)
            self._ready = True
        now = _environment()
        self._ask((kernel, target, None if now == self._environment else now))
        self._environment = now
        seconds = _limits().MAX_KERNEL_COMPILE_SECONDS
        result = self._answer(seconds, f"did not compile {kernel.name}", Died)
        if isinstance(result, str):
            raise NotCompiled(result, kernel.text)
        return result  # type: ignore[no-any-return]

    def _ask(self, request: Any) -> None:
        left = memoryview(pickle.dumps(request))
        with contextlib.suppress(BrokenPipeError):  # it has ended: reported when its answer is read
            while left:
                left = left[self._requests.write(left) :]

    def _answer(self, seconds: float, what: str, kind: type[Lost]) -> Any:
        there = select.poll()  # select() rejects descriptors from 1024 on
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
        """Ends the process and returns its exit status. Triton's cache stays consistent: its files
        are written to temporary names and renamed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self._requests.close()
        self._answers.close()
        return self.process.wait()

    def forget(self) -> None:
        """Redirects the pipes to /dev/null in a forked child, which does not own the worker. A
        thread that the child lacks may hold the locks of the files."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for pipe in (self._requests, self._answers):
            os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)
        self.process.returncode = 0
        _forgotten.append(self)


class Workers:
    """The workers of this process. Thread-safe."""

    def __init__(self, most: int, tell: Callable[[str], None]) -> None:
        """most: fewer than two means none. tell: called with the reason why there are none."""
        self._most, self._tell = most, tell
        self._begin()
        _made.add(self)

    def _begin(self) -> None:
        """Resets to no workers."""
        self._lock = threading.Lock()
        self._all: list[Worker] = []
        # None: there are none any more
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        self._waiting = 0
        self._rest: threading.Timer | None = None
        self._ended = False

    def announce(self) -> None:
        """Announces one more call of `build`."""
        with self._lock:
            self._waiting += 1
            if self._rest is not None:
                self._rest.cancel()
                self._rest = None

    def build(self, kernel: Kernel, target: Any) -> Binary:
        """Compiles by a worker, or in this thread. Raises NotCompiled."""
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
            with contextlib.suppress(NotPersisted):
                return compiled_and_stored(kernel, target)
        if not self._start_some():
            return binary_of(kernel, target)
        for _ in range(2):
            worker = self._idle.get()
            if worker is None:
                self._idle.put(None)
                break
            try:
                result = worker.build(kernel, target)
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
            if result is not None:
                return result
            break
        else:
            raise NotCompiled(
                f"Triton's compiler died of kernel {kernel.name}, twice: it {died}", kernel.text
            )
        return binary_of(kernel, target)

    def _start_some(self) -> bool:
        """Starts as many workers as the waiting kernels justify. Returns whether there are any."""
        with self._lock:
            if self._all or self._waiting >= MANY:
                while len(self._all) < min(self._most, self._waiting // WAITING):
                    self._add()
            return bool(self._all)

    def _add(self) -> None:
        """Adds a worker. The caller holds the lock."""
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
        """Stops using workers; busy ones finish their kernels. The caller holds the lock."""
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
        """Ends the workers at exit of this process."""
        with self._lock:
            self._ended, self._most = True, 0
            working, self._all = self._all, []
            if self._rest is not None:
                self._rest.cancel()
        for worker in working:
            worker.process.kill()  # the waiting thread notices, and closes its pipes
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
        """Drops the workers in a forked child, which has none of the threads and none of the
        processes."""
        for worker in self._all:
            worker.forget()
        self._begin()


_made: weakref.WeakSet[Workers] = weakref.WeakSet()
_forgotten: list[Worker] = []


def _new_process() -> None:
    for workers in list(_made):
        workers.forget()


os.register_at_fork(after_in_child=_new_process)


def as_many_as_here() -> int:
    """Returns how many workers this machine or container has room for; local ranks share it."""
    if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
        return 0  # an embedding program would start itself again
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    processors = min(len(os.sched_getaffinity(0)), _quota())
    memory = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _memory())
    most: int = _limits().MAX_COMPILE_WORKERS
    return min(
        most,
        int(min(processors, memory // MEMORY)) // max(1, int(ranks) if ranks.isdigit() else 1),
    )


def _quota() -> float:
    """Returns the processors that a container may use at once."""
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
    """Returns whether the program has changed a Triton setting in Python, which other processes
    would not see."""
    from triton import knobs  # heavy: triton

    return any(vars(group) for group in vars(knobs).values() if isinstance(group, knobs.base_knobs))


@functools.cache
def _hash_of_triton() -> str | None:
    """Returns Triton's hash of itself, part of every cache key: it takes 0.8 processor seconds,
    which one process spends for all."""
    from triton.runtime import cache  # heavy: triton

    return cache.triton_key() if hasattr(cache, "triton_key") else None


def serve(answers: int, hash_of_triton: str | None) -> None:
    """Runs the worker's side: requests arrive on standard input."""
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
