"""The switch between compiled and eager mode: ``TRACER_DISABLE=1`` and `disabled`.

Where it is off, a compiled object runs what `compile` was given, and nothing is captured. What was
captured before stays, and serves calls again once the switch is on.
"""

from __future__ import annotations

import contextlib
import functools
from contextvars import ContextVar

from tracer_core.markers import DISABLE, put_mark
from tracer_core.options import env

#: What switches compiled objects off: the blocks that are open in any thread, and the environment.
#: A call asks `reason_for_eager` if there is any. Mutable; a set, whose changes are atomic.
SWITCHED_OFF: set[object] = set()

#: The blocks that the running thread or asyncio task is in, which are in `SWITCHED_OFF`.
_blocks: ContextVar[tuple[object, ...]] = ContextVar("tracer_disabled_blocks", default=())


def reason_for_eager() -> str | None:
    """Returns what makes compiled objects run in eager mode on this thread, or None."""
    if disabled_by_environment():
        return "TRACER_DISABLE=1: calls run in eager mode, and nothing is captured"
    if _blocks.get():
        return "tracer_core.disabled(): calls in its block run in eager mode"
    return None


@functools.cache
def disabled_by_environment() -> bool:
    """Returns whether TRACER_DISABLE is set, as it was at the first call.

    Raises:
        OptionError: The variable is neither 1 nor 0.
    """
    result = env().disable
    if result:
        SWITCHED_OFF.add("TRACER_DISABLE")
    return result


class DisabledBlock(contextlib.ContextDecorator):
    """What `disabled` returns. It may be entered again inside its own block."""

    def __enter__(self) -> None:
        block = object()
        SWITCHED_OFF.add(block)
        _blocks.set((*_blocks.get(), block))

    def __exit__(self, *raised: object) -> None:
        *others, last = _blocks.get()
        SWITCHED_OFF.discard(last)
        _blocks.set(tuple(others))


def disabled() -> DisabledBlock:
    """Returns a context in which compiled objects run in eager mode.

    Calls in the block run the original code and capture nothing, also under ``fullgraph=True``;
    calls after it find what was captured before. The block counts for the thread, or the asyncio
    task, that enters it. Inside a compiled function it ends the graph, and the function goes on in
    eager mode up to the end of the block. Usable as a decorator, too. ``TRACER_DISABLE=1`` in the
    environment does this for a whole process.

    Returns:
        The context.

    Examples:
        >>> with tracer_core.disabled():
        ...     expected = fast(x)
    """
    return DisabledBlock()


for _function in (disabled, DisabledBlock.__enter__):  # the reasons of graph breaks at a block
    put_mark(_function, DISABLE, "tracer_core.disabled() switches capture off")
