"""Writes a graph on which a backend failed as a script for a bug report.

The script holds the torch-level graph, a description of each input (shape, strides, dtype, device;
no values of the program), the traceback and the versions. Run by itself it compiles the graph with
the backend again. It lies in the debug folder (``TRACER_DEBUG``), else in ``failures`` of the cache
folder; equal reports share one file.
"""

from __future__ import annotations

import hashlib
import platform
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tracer_core.aot.symbolic_sizes import hint_of
from tracer_core.contract.version import __version__
from tracer_core.debug.stages import debug_folder
from tracer_core.storage.cache_location import CacheLocationError, private_folder

_HELPER = '''
def tensor(size, stride, dtype, device, requires_grad=False):
    """Makes an input of this layout: random numbers, zeros for integers."""
    elements = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0
    memory = torch.zeros(elements, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(elements, device=device).to(dtype)
    return memory.as_strided(size, stride).requires_grad_(requires_grad)

'''


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
    code = graph.graph.python_code("self")
    trace = "".join(traceback.format_exception(error))
    versions = (
        f"tracer_core {__version__}, torch {torch.__version__}, Python"
        f" {platform.python_version()}, {platform.platform()}"
    )
    attributes = [
        f"    {node.target} = {_described(getattr(graph, str(node.target), None))}"
        for node in graph.graph.find_nodes(op="get_attr")
    ]
    placeholders = graph.graph.find_nodes(op="placeholder")
    described = [
        f"    {_described(value)},  # {node.name}"
        for node, value in zip(placeholders, inputs, strict=False)
    ]
    return "\n".join(
        [
            f"# backend {backend!r} failed on {name}, which then ran in eager mode",
            f"# {versions}",
            *(f"#   {line}" for line in trace.splitlines()),
            "import torch",
            *(
                _imported(global_name, value)
                for global_name, value in code.globals.items()
                if re.search(rf"\b{re.escape(global_name)}\b", code.src)
            ),
            _HELPER,
            "class Constants:",
            *(attributes or ["    pass"]),
            "",
            code.src,
            "inputs = [",
            *described,
            "]",
            'if __name__ == "__main__":',
            "    import tracer_core",
            "",
            "    print(forward(Constants, *inputs))",
            "    run = tracer_core.compile(lambda *given: forward(Constants, *given),"
            f" backend={backend!r})",
            "    print(run(*inputs))",
            "",
        ]
    )


def _described(value: Any) -> str:
    """Returns an expression that makes an input like this one."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        size = tuple(map(hint_of, value.shape))
        stride = tuple(map(hint_of, value.stride()))
        grad = ", True" if value.requires_grad and value.is_leaf else ""
        return f"tensor({size}, {stride}, {value.dtype}, {str(value.device)!r}{grad})"
    if isinstance(value, torch.SymInt):
        return repr(hint_of(value))
    if isinstance(value, (bool, int, float, complex, type(None))):
        return repr(value)
    return f"None  # a {type(value).__name__}"


def _imported(name: str, value: Any) -> str:
    """Returns the line that gives a global of the graph's code its value."""
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    module = getattr(value, "__module__", None) or ""
    qualified = getattr(value, "__qualname__", "")
    if isinstance(value, type(torch)):
        return f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
    if module and qualified and "<" not in qualified:
        first, *rest = qualified.split(".")
        if not rest:
            return f"from {module} import {first} as {name}"
        return (
            f"from {module} import {first} as {name}_owner; {name} = {name}_owner.{'.'.join(rest)}"
        )
    return f"# {name}: {value!r}"
