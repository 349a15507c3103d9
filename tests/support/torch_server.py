"""Runs Python programs in processes that have imported torch already: most of what a short program costs.

In: the words of a command line after ``python``. Out: what `subprocess.run` returns. Each program
runs in a fork of a server that has imported torch and nothing of ours, so the environment that
tracer_core reads is the program's own. A hash seed and the addresses of torch's objects are the same
in all forks: tests of what differs between processes start their own.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Variables that Python, torch or OpenMP read while the server starts.
READ_EARLY = (
    "PYTHON",
    "TORCH_",  # and not TORCHINDUCTOR_CACHE_DIR, which torch sets
    "PYTORCH",
    "OMP_",
    "GOMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
    "LD_",
    "CUDA_",
)


class _Server:
    """The server of one process. connection: sends requests, receives process ids and statuses."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.environment = _early(os.environ)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        atexit.register(self.close)

    def close(self) -> None:
        self.connection.close()  # which ends the server
        self.process.wait()

    def run(self, request: Mapping[str, object], streams: Sequence[int], timeout: float) -> int:
        """Returns the exit status, negative for a signal."""
        self.connection.settimeout(300)  # the server may be starting, on an emulated processor
        socket.send_fds(self.connection, [pickle.dumps(request)], streams)
        pid = int(self.connection.recv(16))
        self.connection.settimeout(timeout)
        try:
            return int(self.connection.recv(16))
        except TimeoutError:
            os.kill(pid, 9)
            self.connection.settimeout(60)
            self.connection.recv(16)
            raise


_server = functools.cache(_Server)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}


def run(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Returns what ``python *arguments`` (``-c text``, or a file and its arguments) did; both outputs
    as text. Starts a process of its own where `env` has another setting that is read early."""
    words = [os.fspath(word) for word in arguments]
    environment = dict(os.environ if env is None else env)
    if _early(environment) != _server().environment:
        return subprocess.run(
            [sys.executable, *words], env=environment, cwd=cwd, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    request = {"words": words, "env": environment, "cwd": os.fspath(cwd or os.getcwd())}
    ends, streams = zip(os.pipe(), os.pipe(), strict=True)
    with ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(_all_of, end) for end in ends]
        try:
            status = _server().run(request, streams, timeout)
        finally:
            for stream in streams:
                os.close(stream)
    return subprocess.CompletedProcess(
        [sys.executable, *words], status, *(text.result() for text in texts)
    )


def _all_of(stream: int) -> str:
    with open(stream, encoding="utf-8") as file:
        return file.read()


def _serve(connection: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """Forks for each request. Returns the request in the fork, None when no more will come."""
    while True:
        data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            connection.close()
            return pickle.loads(data), streams
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%-16d" % pid)
        connection.sendall(b"%-16d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(request: dict, streams: list[int]) -> tuple[str, str, dict[str, object]]:
    """Makes this process the program's; returns its text, its name and its ``__main__``."""
    import random
    import types

    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    random.seed()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    first, *more = request["words"]
    if first == "-c":
        name, text, sys.path[0] = "<string>", more.pop(0), ""
    else:
        name, text, sys.path[0] = first, Path(first).read_text(), str(Path(first).parent)
        main.__dict__["__file__"] = first
    sys.argv = [first, *more]
    return text, name, main.__dict__


if __name__ == "__main__":
    import gc

    import torch  # noqa: F401

    gc.collect()
    gc.freeze()  # a fork that looked through all of torch when it ends would copy its memory

    if (_request := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _program = _become(*_request)
        try:
            exec(compile(*_program[:2], "exec", dont_inherit=True), _program[2])
        except Exception as error:
            frames = error.__traceback__ and error.__traceback__.tb_next  # without this file's
            sys.excepthook(type(error), error.with_traceback(frames), frames)
            sys.exit(1)
