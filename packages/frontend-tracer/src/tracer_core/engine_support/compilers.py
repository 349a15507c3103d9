"""Compilers of C and C++: the command that the user names, one of the system, or one that pip brought.

The wheel ``ziglang`` (the extra ``inductor-backend[cc]``) holds clang with all that it needs, for
machines where no compiler can be installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracer_core.background.gil_yielding import is_background
from tracer_core.background.worker import is_awaited, is_ending
from tracer_core.storage.cache_location import private_folder

#: Where zig keeps what it builds once for a machine, such as its part of libgcc.
_ZIG_CACHE = "zig"


@dataclass(frozen=True, slots=True)
class Command:
    """A compiler."""

    #: Its path and first arguments.
    argv: tuple[str, ...]
    #: The command that links, where it is another one.
    linker: tuple[str, ...]
    #: Environment variables that it needs.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether there is such a program.
    exists: bool = True

    def run(
        self, argv: Sequence[str], *, timeout: float, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the compiler, whatever bytes it prints.

        Background work leaves the processors to the program's calls, and stops when the program
        ends.

        Args:
            argv: The command's arguments.
            timeout: Seconds.
            **environment: Environment variables.

        Returns:
            The completed process.

        Raises:
            OSError: The program cannot be started.
            TimeoutExpired: It took longer than `timeout`.
        """
        settings = {**os.environ, **self.environment, **environment}
        if is_background():
            return _run_behind(argv, settings, timeout)
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=timeout, check=False, env=settings,
        )  # fmt: skip

    def version(self) -> str | None:
        """Returns the first line of ``--version``, or None if the program is no working compiler."""
        if not self.exists:
            return None
        try:
            done = self.run([*self.argv, "--version"], timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        lines = done.stdout.splitlines()
        return lines[0] if done.returncode == 0 and lines else None


#: Put before a command that is to leave the processors to the program where these are busy.
_BEHIND = ("nice", "-n", "5")
#: Seconds between two looks whether the program ends.
_LOOK = 0.2


def _run_behind(
    argv: Sequence[str], environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Does `Command.run`, at a low priority unless a call waits for it.

    Raises:
        OSError: The program ends meanwhile.
    """
    may_wait = not is_awaited() and shutil.which(_BEHIND[0]) is not None
    program = (*_BEHIND, *argv) if may_wait else (*argv,)
    end = time.monotonic() + timeout
    with subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", errors="replace", env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        while True:
            try:
                out, err = process.communicate(timeout=_LOOK)
                return subprocess.CompletedProcess(program, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                if is_ending() or time.monotonic() > end:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
                    process.communicate()
                    if is_ending():
                        raise OSError("the program ends") from None
                    raise


def compilers(named: str, candidates: Sequence[str], language: str) -> Iterator[Command]:
    """Yields the compilers to try, the best first.

    Args:
        named: The program and arguments that the user set (CC, CXX); then nothing else is tried.
        candidates: Names that are looked up in PATH.
        language: ``"cc"`` or ``"c++"``, for ziglang.
    """
    for argv in (shlex.split(named),) if named.strip() else ((name,) for name in candidates):
        # not its real path: what ccache does depends on the name it was called by
        path = shutil.which(argv[0])
        program = (argv[0] if path is None else os.path.abspath(path), *argv[1:])
        yield Command(program, program, exists=path is not None)
    if not named.strip():
        yield from _zig(language)


def _zig(language: str) -> Iterator[Command]:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return
    program = str(Path(spec.origin).with_name("zig"))
    # "c++" would link its own C++ library, which it builds first
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(private_folder(_ZIG_CACHE)[0])}
    yield Command((program, language), (program, "cc"), environment, os.access(program, os.X_OK))
