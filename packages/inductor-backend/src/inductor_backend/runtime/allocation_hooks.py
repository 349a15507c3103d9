"""Lets a CUDA graph capture choose the memory pool of each allocation in a generated module.

`placed` runs a runner and calls `route.to` before each allocation with whether a result lives in
it. `route.to` is None except on the capturing thread; a module reads it once per call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class _Route(threading.local):
    """to: called with True before memory is allocated that a result lives in, with False before
    other memory."""

    to: Callable[[bool], None] | None = None


route = _Route()


def placed(
    run: Callable[[list[Any]], Sequence[Any]],
) -> Callable[[list[Any], Callable[[bool], None]], Sequence[Any]]:
    """Returns `run` with a second argument: the callback that learns where memory should come from."""

    def run_placed(inputs: list[Any], to: Callable[[bool], None]) -> Sequence[Any]:
        route.to = to
        try:
            return run(inputs)
        finally:
            route.to = None

    return run_placed
