"""What is kept on disk between processes: ``tracer_core.cache.info()``, ``clear()``, ``prune()``; and
what many machines share: ``fleet()``, ``wait()``.

The folder is TRACER_CACHE_DIR, by default ``~/.cache/tracer``. Its size is kept below
TRACER_CACHE_LIMIT, by default 2 GB: what was not used for longest is removed. TRACER_STORE is the URL
of a fleet's store (redis, or any that fsspec knows), whose entries are authenticated by
TRACER_STORE_KEY.
"""

from __future__ import annotations

from tracer_core.storage import fleet as _fleet
from tracer_core.storage.fleet import FleetInfo
from tracer_core.storage.store import CacheInfo, clear, info, prune

__all__ = ["CacheInfo", "FleetInfo", "clear", "fleet", "info", "prune", "wait"]


def fleet() -> FleetInfo | None:
    """Returns what the fleet's store did for this process; None without TRACER_STORE. Raises
    OptionError if that is set wrongly."""
    found = _fleet.fleet()
    return None if found is None else found.info()


def wait(seconds: float = 60.0) -> bool:
    """Waits until the fleet's store has everything that this process wrote, or does not answer;
    returns False on timeout. (An ending process waits by itself, for at most ten seconds.)"""
    found = _fleet.fleet()
    return found is None or found.wait(seconds)
