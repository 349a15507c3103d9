"""The recompile limit: when it is reached, what closes, and the warning.

In: the cache of a code region, and the state of a call that none of its entries fits. Out: whether
one more entry may be captured. The limit is `CompileConfig.recompile_limit`, which is `MAX_RECOMPILES`
(``TRACER_LIMITS`` changes it); it counts the entries of one object (`GuardedCache.count`), and
`MAX_CACHE_ENTRIES` those of all objects.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.debug.crossed_limits import crossed
from tracer_core.debug.logs import logger
from tracer_core.debug.recompiles import note_recompile
from tracer_core.errors import RecompileLimitError, RecompileLimitWarning
from tracer_core.execution.call import StartKey, name_of
from tracer_core.execution.entry.entries import Entries
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.tiers.single_use import SingleUses
from tracer_core.limits import (
    MAX_CACHE_ENTRIES,
    MAX_RECENT_ENTRIES,
    MAX_SILENT_FAILED_CAPTURES,
    MAX_SINGLE_USES,
)
from tracer_core.options import CompileConfig
from tracer_core.registry import events

if TYPE_CHECKING:
    from tracer_core.guards.explanation import Failed

use_own_builtins(globals())

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep


class RecompileLimit:
    """Decides whether calls of one compiled function capture again. Mutable."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: CompileConfig,
        entries: Entries,
        owner: Callable[[], Any],
    ) -> None:
        """owner: returns the compiled function, for which reached limits are noted."""
        self._function, self.config = function, config
        self._entries, self._owner = entries, owner
        self.forget()

    def _name(self) -> str:
        return name_of(self._function, self.config, self._owner())

    def forget(self) -> None:
        """Drops what was counted and logged."""
        self._single_uses = SingleUses()
        self._logged_single_uses = False
        #: Whether a `RecompileLimitWarning` was logged: one is enough, however many objects and
        #: values reach the limit.
        self._warned = False

    def allows(self, cache: GuardedCache, state: Any, n_broken: int) -> bool:
        """Returns whether one more entry may be captured; logs why the present ones do not fit, and
        closes the region at its limit. n_broken: how many calls reached a graph break. Raises
        RecompileLimitError with ``fullgraph=True``."""
        newest = cache.newest(state)
        if newest is None:
            return True
        count, total = cache.count(state), len(cache.entries)
        if count == 0 and total > MAX_RECENT_ENTRIES:
            crossed("MAX_RECENT_ENTRIES", reached=total, owner=self._owner())
        if count < self.config.recompile_limit and total < MAX_CACHE_ENTRIES:
            failed = self._closest(cache, newest, state)
            reason = "a guard failed" if failed is None else failed.text
            note_recompile(self._owner(), total, reason, failed)
            events.recompile(function=self._name(), reason=reason, count=total)
            return True
        if self.config.fullgraph:
            raise RecompileLimitError(**self._facts(cache, newest, state))
        cache.close(state, self.config.recompile_limit)
        limit = "MAX_CACHE_ENTRIES" if total >= MAX_CACHE_ENTRIES else "MAX_RECOMPILES"
        crossed(limit, reached=total, owner=self._owner())
        # A loop of the call that fills a program's tables (of einops' backends) may be run by no
        # later one: this call ends in eager mode, and nothing is logged yet.
        cache.closed_early = cache.made_in == n_broken
        if not cache.closed_early:
            self.warn(cache, state)
        return False

    def _closest(self, cache: GuardedCache, newest: Any, state: Any) -> Failed | None:
        """Returns the guard that a call fails: of the newest entry, or of one captured under the
        call's own settings of torch, since the settings alone would not explain why that one misses."""
        first = self._entries.failed(newest, state)
        if first is None or not first.is_setting:
            return first
        others = (self._entries.failed(entry, state) for entry in reversed(cache.known(state)))
        return next((other for other in others if other and not other.is_setting), first)

    def warn(self, cache: GuardedCache, state: Any) -> None:
        """Logs, once a function, that a region is at the recompile limit. The record has the line
        that called the function, and the facts as `recompile_limit`. (A warning would end a program
        that makes errors of them.)"""
        newest = cache.newest(state)
        if self._warned or newest is None:
            return
        self._warned = True
        warning = RecompileLimitWarning(**self._facts(cache, newest, state))
        level = _levels_to_the_user()
        logger().warning("%s", warning, stacklevel=level, extra={"recompile_limit": warning})

    def _facts(self, cache: GuardedCache, newest: Any, state: Any) -> dict[str, Any]:
        """Returns the contents of a `RecompileLimitWarning`: the value that kept changing and the
        values that it had."""
        total = len(cache.entries)
        count = total if total >= MAX_CACHE_ENTRIES else max(cache.count(state), 1)
        layouts = () if isinstance(cache.key, StartKey) else cache.key
        function = self._name()
        if layouts:
            inner = layouts[-1].code.co_qualname
            function = inner if inner == function else f"{inner} (called by {function})"
        last = self._entries.failed(newest, state)
        if last is None:
            return {"function": function, "count": count, "reason": "a guard failed"}
        known, values = cache.known(state), []
        for entry in self._entries.captured:
            failed = entry.check_first.failed(state) if entry.entry_function in known else None
            if failed is None or failed.source != last.source:
                continue
            if failed.died or failed.seen not in values:
                values.append(failed.seen)
        values.append(last.now)
        return {"function": function, "count": count, "reason": last.text, "source": last.source,
                "values": tuple(values), "hint": last.hint}  # fmt: skip

    # -- captures that are of no use --

    def is_for_one_call(self, cache: GuardedCache, state: Any) -> bool:
        """Returns whether a new object, or region, gets no entry, because no call used those of the
        last ones again; logs the first time."""
        if self.config.fullgraph or cache.is_closed(state) or not cache.is_new(state):
            return False
        if not self._single_uses.skips_capture():
            return False
        if not self._logged_single_uses:
            self._logged_single_uses = True
            crossed("MAX_SINGLE_USES", owner=self._owner())
            logger().warning(
                "%s: the last %d captures were each for one call: nothing that they gave was used again;"
                " calls that nothing fits run in eager mode until some of it is",
                self._name(), MAX_SINGLE_USES,
            )  # fmt: skip
        return True

    def note_first(self, call: object, cache: GuardedCache, state: Any) -> None:
        """Notes the first entry of an object. call: equal for the captures of one call."""
        self._single_uses.note(call, cache.holder(state), cache)

    def note_capture(self, cache: GuardedCache, gave_entry: bool) -> None:
        """Notes the end of a capture; logs the first time that several in a row gave no entry."""
        cache.note_capture(gave_entry)
        if cache.failed_captures == MAX_SILENT_FAILED_CAPTURES:
            crossed("MAX_FAILED_CAPTURES", owner=self._owner())
            logger().warning(
                "%s: %d captures in a row gave nothing to run; most calls for which nothing was"
                " compiled run in eager mode from now on", self._name(), cache.failed_captures,
            )  # fmt: skip


def _levels_to_the_user() -> int:
    """Returns the stacklevel of a caller's line in the log that names the line that called the function."""
    level = 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
