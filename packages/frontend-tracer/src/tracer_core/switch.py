"""The switch between compiled and eager mode: ``TRACER_DISABLE=1``, `disabled` and `set_stance`.

Where it is off, a compiled object runs what `compile` was given, and nothing is captured. What was
captured before stays, and serves calls again once the switch is on. torch.compile's own switches,
`torch.compiler.set_stance` and ``TORCH_COMPILE_DISABLE=1``, do the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, get_args

from tracer_core.errors import OptionError, did_you_mean
from tracer_core.markers import DISABLE, look_like, put_mark
from tracer_core.options import env
from tracer_core.torch_private import torch_compile

F = TypeVar("F", bound=Callable[..., Any])
Stance = Literal[
    "default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile"
]

#: What switches compiled objects off: the blocks that are open in any thread, and the environment.
#: A call asks `reason_for_eager` if there is any. Mutable; a set, whose changes are atomic.
SWITCHED_OFF: set[object] = set()

#: The blocks that the running thread or asyncio task is in, which are in `SWITCHED_OFF`.
_blocks: ContextVar[tuple[object, ...]] = ContextVar("tracer_disabled_blocks", default=())

#: What `set_stance` has set. Mutable: one item.
_stance: list[Stance] = ["default"]


def reason_for_eager() -> str | None:
    """Returns what makes compiled objects run in eager mode on this thread, or None."""
    if disabled_by_environment():
        names = ("TRACER_DISABLE", *filter(_is_on, torch_compile.OFF_VARIABLES))
        return f"{names[-1]}=1: calls run in eager mode, and nothing is captured"
    if _blocks.get():
        return "tracer_core.disabled(): calls in its block run in eager mode"
    if stance() == "force_eager":
        return "set_stance('force_eager'): calls run in eager mode, and nothing is captured"
    return None


def stance() -> str:
    """Returns what `set_stance` has set, or otherwise `torch.compiler.set_stance`."""
    return _stance[0] if _stance[0] != "default" else torch_compile.stance_of_torch()


def _is_on(variable: str) -> bool:
    return os.environ.get(variable) == "1"


@functools.cache
def disabled_by_environment() -> bool:
    """Returns whether TRACER_DISABLE is set, as it was at the first call, or torch.compile's variable.

    Raises:
        OptionError: The variable is neither 1 nor 0.
    """
    result = env().disable or any(map(_is_on, torch_compile.OFF_VARIABLES))
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


class StanceBlock:
    """What `set_stance` returns: leaving it sets the stance from before."""

    def __init__(self, stance: Stance) -> None:
        self._stance, self._before = stance, _stance[0]
        _set(stance)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        _set(self._before)

    def __call__(self, fn: F) -> F:
        """Returns a form of `fn` whose calls have the stance; now the one from before is set again."""
        _set(self._before)

        def call(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._stance):
                return fn(*args, **kwargs)

        put_mark(look_like(call, fn), DISABLE, "tracer_core.set_stance() is not captured")
        return call  # type: ignore[return-value]


def _set(stance: Stance) -> None:
    _stance[0] = stance
    (SWITCHED_OFF.add if stance == "force_eager" else SWITCHED_OFF.discard)("set_stance")


def set_stance(stance: Stance = "default") -> StanceBlock:
    """Sets what compiled objects do with calls that no cache entry fits, in the whole process.

    A call of this function counts from then on; as a context or decorator, for the block or the
    function. `torch.compiler.set_stance` has the same effect, where this one is ``"default"``.

    Args:
        stance: ``"default"``: captures. ``"force_eager"``: all calls run in eager mode.
            ``"eager_on_recompile"``: a call that no entry fits runs in eager mode.
            ``"fail_on_recompile"``: such a call raises RecompileError. ``"eager_then_compile"``:
            the first call runs in eager mode, and sizes and numbers that differ in the second are
            symbolic at once.

    Returns:
        The context, which is also a decorator.

    Raises:
        OptionError: There is no such stance.

    Examples:
        >>> with tracer_core.set_stance("fail_on_recompile"):
        ...     serve(fast, requests)
    """
    if stance not in (known := get_args(Stance)):
        guess = did_you_mean(str(stance), known)
        raise OptionError(f"there is no stance {stance!r}{guess}; valid: {', '.join(known)}")
    return StanceBlock(stance)


for _function in (disabled, DisabledBlock.__enter__):  # the reasons of graph breaks at a block
    put_mark(_function, DISABLE, "tracer_core.disabled() switches capture off")
put_mark(set_stance, DISABLE, "tracer_core.set_stance() is not captured")
