"""Traces the warnings that C code gives for what it does, in the words of the Python that runs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


@functools.cache
def _said_by(act: Callable[[], object]) -> tuple[tuple[str, type[Warning]], ...]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        act()
    return tuple((str(item.message), item.category) for item in seen)


def warn_as(tracer: Tracer, act: Callable[[], object]) -> None:
    """Traces the warnings of a function that does the same, as given by the program's frame."""
    for text, category in _said_by(act):
        tracer.calls.call_value(warnings.warn, [text, category], {})
