"""The environment variables of all installed packages: one table for ``tracer-core env`` and the
documentation, and the check of what is set.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from tracer_core.debug import logs
from tracer_core.errors import OptionError, did_you_mean
from tracer_core.registry import limits
from tracer_core.variable_table import PREFIX, VARIABLES, Variable


def variables() -> dict[str, Variable[Any]]:
    """Returns the variables of tracer_core, and of the plug-ins whose package has a module
    ``environment``, by name."""
    limits.modules_of_plugins("environment")
    return VARIABLES


def remarks() -> Iterator[str]:
    """Yields a line for each variable that is set and has no effect."""
    for name in sorted(os.environ):
        # plug-ins are imported only where they matter
        if name.startswith(PREFIX) and name not in VARIABLES and name not in variables():
            guess = did_you_mean(name, VARIABLES, 0.8)  # all begin alike
            yield f"{name} is set, and no package reads it{guess}; `tracer-core env` lists all"


@functools.cache
def warn() -> None:
    """Logs the `remarks`, once in a process."""
    for remark in remarks():
        logs.logger().warning("%s", remark)


def mistakes() -> list[str]:
    """Returns a line for each variable whose value is wrong."""
    result: dict[str, None] = {}
    for check in (*(item.read for item in variables().values()), logs.configure, limits.check):
        try:
            check()
        except OptionError as error:
            result[str(error)] = None
    return list(result)


def listing() -> str:
    """Returns the variables with their values, for a terminal."""
    lines = []
    for item in variables().values():
        text = "(not shown)" if item.is_secret and item.text else item.text
        state = f"={text}" if text else ": not set"
        lines.append(f"{item.name}{state}{f' (default {item.default})' if item.default else ''}")
        lines += [f"    {item.effect}", f"    takes: {item.takes}"]
    return "\n".join(lines)
