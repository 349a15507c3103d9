"""`repro`: one script that compiles the graphs of a call again and compares them with eager mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer_core.api import demand_capture
from tracer_core.errors import OptionError
from tracer_core.markers import compiled


def repro(
    fast: Callable[..., Any],
    /,
    *args: Any,
    path: str | os.PathLike[str] | None = None,
    store_inputs: bool = False,
    seconds: float = 60.0,
    **kwargs: Any,
) -> Path:
    """Writes a script that shows what the graphs of one call do, for a bug report.

    The script needs torch and our packages, nothing of the program. It has each captured graph as
    Python code, makes inputs of the same shapes, dtypes, strides, devices and ranges of values from a
    fixed seed, compiles the graph with the same backend, mode and options, and ends in an error
    where `verify` finds a difference. Where the graphs are wrong here, the script has the smallest
    part found of each wrong one; its inputs are what eager mode computes there. The call is made
    once, with copies of the tensor arguments; what else it changed is restored as by `verify`.

    Args:
        fast: What `compile` returned.
        *args: Arguments of the call.
        path: The script. None: ``repro_<name>.py`` in the current folder. A file that is there is
            replaced.
        store_inputs: Also writes the inputs' values, and the parameters', beside the script
            (``.pt``), which then reads them.
        seconds: How long to look for a small part of each graph that is wrong still. 0: the graphs
            are written as they were captured.
        **kwargs: Other keyword arguments of the call.

    Returns:
        The path of the script.

    Raises:
        OptionError: `fast` is not a compiled object, or no script can name its backend.
        TracerError: Nothing of the call was captured, or a graph names an object that no script can
            make.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> tracer_core.repro(fast, x, path="wrong.py")
    """
    demand_capture("repro")
    behind = compiled(fast)
    if behind is None:
        raise OptionError(f"repro needs what compile() returned, not {fast!r}")
    from tracer_core.verification import graphs  # heavy: the tracer

    return graphs.write_script(
        fast, behind.function.config, args, kwargs, path, store_inputs, seconds
    )
