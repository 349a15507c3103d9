"""Names what compiled calls run in the records of torch.profiler: calls and graphs, each
with the user's file and line.

Where no profiler is active, a call costs one lookup in `profiler_state` at each of these places.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.needed import (
    PROFILING,
    ProfilerRow,
    is_emitting_nvtx,
    profiler_state,
)


def is_profiling() -> bool:
    """Returns whether a profiler is active (torch.profiler, emit_nvtx)."""
    return bool(profiler_state[PROFILING])


def label(name: str, frames: Iterable[str]) -> str:
    """Returns the name of a row: what runs, and the user's lines.

    Args:
        name: What runs.
        frames: The lines, as ``/path/file.py:12 in forward``.
    """
    places = dict.fromkeys(
        os.path.basename(frame.partition(" in ")[0]) for frame in frames if frame
    )
    return f"{name} ({', '.join([*places][:2])}{', ...' * (len(places) > 2)})" if places else name


def break_row(frame: str) -> str:
    """Returns the name of the row of a graph break at a line."""
    return label("graph break", [frame])


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


@contextlib.contextmanager
def _with_range(name: str) -> Iterator[None]:
    with ProfilerRow(name), torch.cuda.nvtx.range(name):
        yield


def row(name: str) -> Any:
    """Returns the context of one row of the profile.

    On a machine with CUDA it is an NVTX range as well, which Nsight Systems shows; under
    ``emit_nvtx`` each row is one already.

    Args:
        name: What the profiler prints.
    """
    return _with_range(name) if _has_cuda() and not is_emitting_nvtx() else ProfilerRow(name)


def profiled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function each of whose calls is one row of the profile.

    Args:
        function: What is called.
        name: What the profiler prints.
    """

    def call(*args: Any) -> Any:
        with row(name):
            return function(*args)

    return call
