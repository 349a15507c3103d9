"""The processor that kernels are compiled for: the one here, or the x86-64 level in TRACER_CPU.

Source of the levels: System V ABI, AMD64 supplement, "Micro-Architecture Levels"; the names of the
features are those of Linux (/proc/cpuinfo).
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

from tracer_core.errors import OptionError
from tracer_core.options import env

_V2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"

#: What TRACER_CPU may be -> the features of every processor of the level.
LEVELS: dict[str, frozenset[str]] = {
    "x86-64-v2": frozenset(_V2.split()),
    "x86-64-v3": frozenset(_V3.split()),
    "x86-64-v4": frozenset(_V4.split()),
}

_ARM_NUMBERS = ("CPU implementer", "CPU part", "CPU variant")


def level() -> str | None:
    """Returns the level in TRACER_CPU, None where it is not set. Raises OptionError for an unknown
    one, and for one that the processor here does not have."""
    cpu = env().cpu
    if not cpu:
        return None
    if cpu not in LEVELS:
        raise OptionError(f"TRACER_CPU={cpu!r}: {', '.join(LEVELS)}")
    missing = sorted(LEVELS[cpu] - features())
    if missing:
        raise OptionError(f"TRACER_CPU={cpu!r}: {processor()} lacks {', '.join(missing)}")
    return cpu


def built_for() -> str:
    """Returns what kernels are compiled for, for keys of what others may use."""
    return level() or f"{processor()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def processor() -> str:
    """Returns the processor's name, or the numbers that identify Arm's, to which Linux gives no name."""
    if names := _lines("model name"):
        return names[0]
    numbers = [value for name in _ARM_NUMBERS for value in sorted(set(_lines(name)))]
    return " ".join((platform.processor() or platform.machine(), *numbers))


@cache
def features() -> frozenset[str]:
    """Returns the features that the processor says it has; none where the system does not tell."""
    result = _lines("flags") or _lines("Features")
    return frozenset(result[0].split() if result else ())


def _lines(begin: str) -> list[str]:
    """Returns the values of lines of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux
        return []
    return [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(begin)]
