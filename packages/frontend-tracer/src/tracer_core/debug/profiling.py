"""Names what compiled calls run in the records of torch.profiler: calls and graphs, each
with the user's file and line.

Where no profiler is active, a call costs one lookup in `profiler_state` at each of these places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from tracer_core.torch_private.needed import PROFILING, ProfilerRow, profiler_state


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


def profiled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a function each of whose calls is one row of the profile.

    Args:
        function: What is called.
        name: What the profiler prints.
    """

    def call(*args: Any) -> Any:
        with ProfilerRow(name):
            return function(*args)

    return call
