"""Writes a graph on which a backend failed as a script for a bug report.

The script holds the torch-level graph, a description of each input (shape, strides, dtype, device;
no values of the program), the traceback and the versions. Run by itself it compiles the graph with
the backend again. It lies in the debug folder (``TRACER_DEBUG``), else in ``failures`` of the cache
folder; equal reports share one file.
"""

from __future__ import annotations

import hashlib
import platform
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tracer_core.contract.version import __version__
from tracer_core.debug.graph_script import graph_code, script
from tracer_core.debug.stages import debug_folder
from tracer_core.storage.cache_location import CacheLocationError, private_folder


def write_bug_report(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    name: str,
    backend: str,
    error: BaseException,
) -> str:
    """Writes the report and returns its path, or why it could not be written in brackets.

    inputs: one tensor (real or fake) or number per placeholder.
    """
    text = _text(graph, inputs, name, backend, error)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    try:
        folder = debug_folder(name) or private_folder("failures")[0]
        path = Path(folder) / f"failure_{name}_{digest}.py"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except (OSError, CacheLocationError) as problem:
        return f"(no file for a bug report: {problem})"
    return str(path)


def _text(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    name: str,
    backend: str,
    error: BaseException,
) -> str:
    trace = "".join(traceback.format_exception(error))
    code = graph_code(graph, "forward", inputs)
    comment = [
        f"backend {backend!r} failed on {name}, which then ran in eager mode",
        versions(),
        *(f"  {line}" for line in trace.splitlines()),
    ]
    main = [
        "inputs = forward_inputs()",
        'if __name__ == "__main__":',
        "    import tracer_core",
        "",
        "    print(forward(*inputs))",
        f"    run = tracer_core.compile(forward, backend={backend!r})",
        "    print(run(*inputs))",
    ]
    return script([code], comment, main)


def versions() -> str:
    """Returns the versions of what runs here."""
    return (
        f"tracer_core {__version__}, torch {torch.__version__}, Python"
        f" {platform.python_version()}, {platform.platform()}"
    )
