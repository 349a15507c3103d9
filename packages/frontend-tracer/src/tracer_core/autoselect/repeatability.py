"""Whether a graph can be run again on the same values without visible side effects.

Returns the names of the program's own code that a graph calls at run time: custom operators,
functions marked with `allow_in_graph` and, where gradients are computed, autograd.Functions, whose
backward the tracer did not see. Such code may print, count or send, and benchmarking would repeat
that. Operators of PyTorch and its domain libraries are repeatable; so are the program's own Triton
kernels, which only write to tensors.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket

#: Namespaces of operators that write to nothing but what their schemas say.
PLAIN = frozenset(
    {"aten", "prims", "prim", "torchvision", "torchaudio", "quantized", "quantized_decomposed",
     "mkldnn", "onednn", "rngprims", "profiler", "tracer_triton"}
)  # fmt: skip
#: Modules of functions that graphs call and that are not the program's.
_OURS = frozenset(
    {"torch", "torchvision", "torchaudio", "tracer_core", "builtins", "math", "operator",
     "_operator", "numpy"}
)  # fmt: skip


def own_code(
    gm: torch.fx.GraphModule, differentiates: bool, trusted: Sequence[str] = ()
) -> list[str]:
    """Returns the names of the program's own code in a graph, except what the user trusts.

    Names are ``mine::op`` or ``module.function``; the user trusts such a name, a namespace or a
    module. differentiates: its backward is run, too.
    """
    result = dict.fromkeys(_names(gm.graph, differentiates))
    return [name for name in result if name not in trusted and _owner(name) not in trusted]


def _owner(name: str) -> str:
    return name.partition("::")[0] if "::" in name else name.rpartition(".")[0]


def _names(graph: torch.fx.Graph, differentiates: bool) -> Iterator[str]:
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        parts = getattr(node.target, "__dict__", {})
        names = map(_name, (node.target, *parts.get("inside", ())))
        yield from (name for name in names if name is not None)
        for part in parts.values():  # what a cond or a checkpoint runs
            if isinstance(part, torch.fx.GraphModule):
                yield from _names(part.graph, differentiates)
            elif isinstance(part, type) and issubclass(part, torch.autograd.Function):
                if differentiates and not _is_torch(part.__module__):
                    yield f"{part.__module__}.{part.__qualname__}"


def _is_torch(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _name(target: Any) -> str | None:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        packet = target if isinstance(target, OpOverloadPacket) else target.overloadpacket
        namespace, _, name = packet._qualified_op_name.partition("::")
        return None if namespace in PLAIN else f"{namespace}::{name}"
    if isinstance(target, (types.FunctionType, types.MethodType, torch.library.CustomOpDef)):
        module = getattr(target, "__module__", None) or ""
        return None if _is_torch(module) else f"{module}.{getattr(target, '__qualname__', target)}"
    return None
