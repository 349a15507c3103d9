"""The persistent cache on disk, and the store that many machines share.

``info()``, ``clear()`` and ``prune()`` are about the folder TRACER_CACHE_DIR, by default
``~/.cache/tracer``. Beyond TRACER_CACHE_LIMIT, by default 2 GB, the least recently used entries are
removed. ``fleet()`` and ``wait()`` are about the store at the URL TRACER_STORE (redis, or any that
fsspec knows), whose entries TRACER_STORE_KEY authenticates. ``save_artifacts()`` and
``load_artifacts()`` carry the folder's entries to another machine as one value.
"""

from __future__ import annotations

from tracer_core.storage import fleet as _fleet
from tracer_core.storage.fleet import FleetInfo
from tracer_core.storage.store import CacheInfo, clear, info, load_artifacts, prune, save_artifacts

__all__ = ["CacheInfo", "FleetInfo", "clear", "fleet", "info", "load_artifacts", "prune", "save_artifacts", "wait"]  # fmt: skip


def fleet() -> FleetInfo | None:
    """Returns the counters of the fleet's store for this process.

    Returns:
        None without TRACER_STORE.

    Raises:
        OptionError: TRACER_STORE or its key is wrong.
    """
    result = _fleet.fleet()
    return None if result is None else result.info()


def wait(seconds: float = 60.0) -> bool:
    """Waits until the fleet's store has everything that this process wrote, or does not answer.

    An ending process waits by itself, for at most ten seconds.

    Args:
        seconds: The longest wait.

    Returns:
        Whether the store has everything, or does not answer.
    """
    result = _fleet.fleet()
    return result is None or result.wait(seconds)
