"""The content key of a lowered graph: equal keys mean equal compile results.

The key covers operators, arguments, sizes, strides, dtypes, devices, roles, ranges of sizes, the
backend with its version, options, mode, phase and torch's version. Node names and source lines do
not count.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from tracer_core.aot.symbolic_sizes import size_origins, size_specs
from tracer_core.contract.backend import API_VERSION, Backend
from tracer_core.contract.specs import InputSpec, Phase


def canonical_text(graph: torch.fx.Graph) -> str:
    """Returns the graph as text: numbered nodes, one per line, values with their layout."""
    numbers: dict[torch.fx.Node, str] = {}
    names: dict[Any, str] = {}
    lines = []
    for number, node in enumerate(graph.nodes):
        numbers[node] = f"%{number}"
        args = _text(node.args, numbers)
        kwargs = _text(node.kwargs, numbers)
        target = "" if node.op in ("placeholder", "output") else names.get(node.target)
        if target is None:
            target = names[node.target] = str(_target_name(node.target))
        lines.append(
            f"%{number} = {node.op} {target} {args} {kwargs} : {value_source(node.meta.get('val'))}"
        )
    return "\n".join(lines)


def _target_name(target: Any) -> str:
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "")
    name = target if hasattr(target, "_schema") else getattr(target, "__qualname__", target)
    return f"{module}.{name}"


def _text(value: Any, numbers: dict[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return numbers[value]
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_text(item, numbers) for item in value) + "]"
    if isinstance(value, dict):
        items = [f"{key}: {_text(item, numbers)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, slice):
        return f"slice({_text([value.start, value.stop, value.step], numbers)})"
    kind = f"{type(value).__name__} " if isinstance(value, (int, float, complex, str)) else ""
    return f"{kind}{value!r}"


def value_source(value: Any) -> str:
    """Describes a value without its data: dtype, sizes, strides, device."""
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        layout = f"{tuple(value.shape)} {value.stride()}" if strided else str(value.layout)
        return f"{value.dtype} {layout} {value.device}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(value_source(item) for item in value) + "]"
    return f"{type(value).__name__} {value}"


def distribution_version(backend: Backend) -> str:
    """Returns ``name version`` of the distribution that provides a backend's compile function, or
    the function's own name for a backend that is not installed.
    """
    reference = backend.compile
    if isinstance(reference, str):
        module = reference.partition(":")[0]
    else:  # None: a function made by exec, without a module
        module = getattr(reference, "__module__", None) or ""
    own_name = f"{module}.{getattr(reference, '__qualname__', reference)}"
    return _package_version(module.partition(".")[0]) or own_name


@lru_cache
def _package_version(package: str) -> str | None:
    try:  # most distributions are named like their package: that look-up is cheap
        name = package.replace("_", "-")
        return f"{name} {importlib.metadata.version(name)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        names = importlib.metadata.packages_distributions().get(package)
    return f"{names[0]} {importlib.metadata.version(names[0])}" if names else None


def cache_key(
    graph: torch.fx.GraphModule,
    backend: Backend,
    inputs: Sequence[InputSpec],
    options: Any,
    mode: str,
    phase: Phase,
) -> str:
    """Returns the digest for one compilation."""
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    parts = [
        f"api {API_VERSION}",
        f"torch {torch.__version__}",
        f"backend {backend.name} {distribution_version(backend)} {backend.ir}",
        f"options {options!r} mode {mode} phase {phase.value}",
        f"inputs {[(spec.role.value, spec.stable_address) for spec in inputs]}",
        f"sizes {size_specs(size_origins(values))}",
        canonical_text(graph.graph),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
