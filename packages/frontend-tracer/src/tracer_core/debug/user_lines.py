"""Which line of a program the user wrote, of the lines that run: not one of a library."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tracer_core.errors import Location

_OWN = (str(Path(__file__).parents[1]) + os.sep, "<tracer_core ")
_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_LIBRARIES = (*_OWN, *_INSTALLED, torch.__path__[0] + os.sep, "<frozen ")


def is_own(path: str) -> bool:
    """Returns whether a file is one of this package, or code that it generated."""
    return path.startswith(_OWN)


def is_of_library(path: str) -> bool:
    """Returns whether a file belongs to Python, to torch or to another installed distribution."""
    return path.startswith(_LIBRARIES) or "/site-packages/" in path or "/dist-packages/" in path


def shorten(error: BaseException) -> None:
    """Drops entries of this package from the traceback of an exception that leaves a compiled call.

    The first entry of each run of them between two of the program's stays. A traceback that ends in
    this package is left as it is from there on, because the error is internal.
    """
    last = error.__traceback__
    while last is not None:
        entry = last.tb_next
        while entry is not None and _is_entry(last) and _is_entry(entry):
            entry = entry.tb_next
        if entry is None:
            return
        last.tb_next = last = entry


def _is_entry(entry: types.TracebackType) -> bool:
    """Returns whether an entry is of this package."""
    return is_own(entry.tb_frame.f_code.co_filename)


def _callers() -> Iterator[Location]:
    """Yields the lines that this thread is at, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        yield Location.of(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back


def users_line(lines: Sequence[Location]) -> Location:
    """Returns the innermost line that the user wrote, with the line of a library that it leads to as
    `Location.library`.

    lines: those of a trace, the innermost first. Where all are a library's, the user's line is the
    one that called the compiled function.
    """
    inner = next((line for line in lines if not is_own(line.path)), lines[0])
    for line in (*lines, *_callers()):
        if not is_of_library(line.path):
            if line is not inner:
                line.library = inner
            return line
    return inner
