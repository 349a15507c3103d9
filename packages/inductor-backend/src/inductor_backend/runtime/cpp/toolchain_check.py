"""What `compile()` checks before the first call: a compiler exists; mode and options are
consistent.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.options import RECORDED_MODES
from inductor_backend.runtime.cpp.toolchain import find_compiler
from tracer_core.plugin_api import OptionError


def check(options: Any, mode: str) -> None:
    """Raises BackendError naming the package to install if no C++ compiler works, OptionError for
    contradictory options."""
    if mode in RECORDED_MODES and not options.recordings:
        raise OptionError(
            f"mode {mode!r} records every graph, and options={{'recordings': False}} wants none:"
            " that goes with mode 'default' or 'max-autotune-no-cudagraphs'"
        )
    find_compiler()
