"""What the key of a function's entries in the persistent cache covers: its code, what `compile` was
asked for, and the kinds of its arguments. `cache_key_environment` covers process and machine.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from tracer_core import limit_table
from tracer_core.execution.store.code_identity import code_hash
from tracer_core.options import CompileConfig


def key_parts(target: Any, config: CompileConfig) -> dict[str, str] | None:
    """Returns what a key covers of a function and its settings; None where nothing is stored: its
    entries cannot be serialized, or depend on what has no text."""
    backend, options = config.backend, repr(config.options)
    both = backend.serialize is not None and backend.deserialize is not None
    if not both or not isinstance(backend.compile, str):
        return None
    if " at 0x" in options or config.verify is not None:
        return None
    if type(target) is not types.FunctionType:
        return None
    return {
        "code": code_hash(target.__code__),
        "mode": config.mode,
        "options": options,
        "fullgraph": str(config.fullgraph),
        "dynamic": str(config.dynamic),
        "limits": limit_table.overrides(),
        "recompile limit": str(config.recompile_limit),
        "dynamic shapes": repr(config.dynamic_shapes),
    }


def kind_of(value: Any) -> str:
    """Describes the kind of an argument: of a module, its parts and the sizes of its parameters."""
    named = class_name(value)
    if not isinstance(value, torch.nn.Module):
        return named
    entries = vars(value)
    lines = [f"{named} {entries.get('training')}"]
    for table in ("_parameters", "_buffers"):
        for name, tensor in (entries.get(table) or {}).items():
            facts = None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.device)
            lines.append(f"{name} {facts}")
    for name, inner in (entries.get("_modules") or {}).items():
        lines.append(f"{name}: {kind_of(inner)}")
    return "\n".join(lines)


def class_name(value: Any) -> str:
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}"
