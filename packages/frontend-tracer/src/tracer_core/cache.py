"""What is kept on disk between processes: ``tracer_core.cache.info()``, ``clear()``, ``prune()``.

The folder is TRACER_CACHE_DIR, by default ``~/.cache/tracer``. Its size is kept below
TRACER_CACHE_LIMIT, by default 2 GB: what was not used for longest is removed.
"""

from __future__ import annotations

from tracer_core.storage.store import CacheInfo, clear, info, prune

__all__ = ["CacheInfo", "clear", "info", "prune"]
