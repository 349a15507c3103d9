"""May a graph be run again on the same values without anybody noticing?

In: a captured graph. Out: the names of what in it is code of the program's own that is called at
run time: custom operators, functions marked with `allow_in_graph`, and, where gradients are
computed, an autograd.Function, whose backward the tracer did not see. Such code may print, count,
or send; a trial would have it do so again and again. What always holds: operators of PyTorch and of
its domain libraries are not among them; neither are the program's own Triton kernels, which write
to tensors and nothing else.
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
    "mkldnn", "onednn",
     "rngprims", "profiler", "tracer_triton"}
)  # fmt: skip
#: Where functions live that are called by graphs and are not the program's.
_OURS = frozenset(
    {
        "torch",
        "torchvision",
        "torchaudio",
        "tracer_core",
        "builtins",
        "math",
        "operator",
        "_operator",
        "numpy",
    }
)


def own_code(
    gm: torch.fx.GraphModule, differentiates: bool, trusted: Sequence[str] = ()
) -> list[str]:
    """Names of the program's own code in a graph, ``mine::op`` or ``module.function``, less what
    the user trusts: a name of that form, or a namespace or module. differentiates: its backward is
    run, too."""
    found = dict.fromkeys(_names(gm.graph, differentiates))
    return [name for name in found if name not in trusted and _owner(name) not in trusted]


def _owner(name: str) -> str:
    return name.partition("::")[0] if "::" in name else name.rpartition(".")[0]


def _names(graph: torch.fx.Graph, differentiates: bool) -> Iterator[str]:
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        parts = getattr(node.target, "__dict__", {})
        for target in (node.target, *parts.get("inside", ())):
            name = _name(target)
            if name is not None:
                yield name
        for part in parts.values():  # what a cond or a checkpoint runs
            if isinstance(part, torch.fx.GraphModule):
                yield from _names(part.graph, differentiates)
            elif (
                differentiates
                and isinstance(part, type)
                and issubclass(part, torch.autograd.Function)
            ):
                if not _is_plain(part.__module__):
                    yield f"{part.__module__}.{part.__qualname__}"


def _is_plain(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def _name(target: Any) -> str | None:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        packet = target if isinstance(target, OpOverloadPacket) else target.overloadpacket
        namespace, _, name = packet._qualified_op_name.partition("::")
        return None if namespace in PLAIN else f"{namespace}::{name}"
    if isinstance(target, (types.FunctionType, types.MethodType, torch.library.CustomOpDef)):
        module = getattr(target, "__module__", None) or ""
        return None if _is_plain(module) else f"{module}.{getattr(target, '__qualname__', target)}"
    return None
