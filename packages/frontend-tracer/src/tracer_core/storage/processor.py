"""The name of the processor, for keys of what is measured or made for one."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Returns the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.machine()
