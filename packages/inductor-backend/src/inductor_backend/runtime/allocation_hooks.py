"""Where the memory of a generated module's tensors comes from while somebody records its call.

In: a runner. Out: `placed`, which runs it and has `route` say, before each allocation, whether a
result lives in what is allocated next. What always holds: `route.to` is None but for the thread
that records; a module asks it once a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class _Route(threading.local):
    """to: called with True before memory is allocated that a result lives in, with False before
    other memory.
    """

    to: Callable[[bool], None] | None = None


route = _Route()


def placed(
    run: Callable[[list[Any]], Sequence[Any]],
) -> Callable[[list[Any], Callable[[bool], None]], Sequence[Any]]:
    """`run`, with what is told where memory is to come from."""

    def run_placed(inputs: list[Any], to: Callable[[bool], None]) -> Sequence[Any]:
        route.to = to
        try:
            return run(inputs)
        finally:
            route.to = None

    return run_placed
