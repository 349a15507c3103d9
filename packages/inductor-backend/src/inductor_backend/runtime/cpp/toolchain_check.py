"""What `compile()` checks before the first call: mode and options are consistent; a compiler exists."""

from __future__ import annotations

import functools
from typing import Any

from inductor_backend.runtime.cpp.toolchain import find_compiler
from tracer_core.plugin_api import CAPTURING_MODES, CompilerMissingError, OptionError, logger


def check(options: Any, mode: str) -> None:
    """Raises OptionError for contradictory options; says so where there is no C++ compiler: what the
    cache holds is used then, and other graphs on the CPU run in eager mode."""
    if mode in CAPTURING_MODES and not options.recordings:
        raise OptionError(
            f"mode {mode!r} records every graph, and options={{'recordings': False}} wants none:"
            " that goes with mode 'default' or 'max-autotune-no-cudagraphs'"
        )
    try:
        find_compiler()
    except CompilerMissingError as error:
        _log_once(error.detail)


@functools.cache
def _log_once(detail: str) -> None:
    text = "%s Until then what earlier processes have compiled is used, and other graphs run in eager mode."
    logger().warning(text, detail)
