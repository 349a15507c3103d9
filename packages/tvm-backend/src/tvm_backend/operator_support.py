"""Decides which operators TVM can run here, by asking TVM itself.

An operator must have a converter and must not use random numbers (TVM has its own generator),
its dtypes must exist in TVM, and a module of this one node must compile and compute what PyTorch
computes (`plugin_api.op_support_check`, which caches the answer for similar nodes)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.plugin_api import (
    Trait,
    add_value_check,
    is_pointwise,
    is_random,
    op_support_check,
    promote,
    spelled_with,
)
from tvm_backend import tvm_private
from tvm_backend.build import fused
from tvm_backend.converters import CONVERTERS
from tvm_backend.dtypes import DTYPES
from tvm_backend.indexing import fault
from tvm_backend.translate import relax_module

#: Operators that raise for an index out of range in PyTorch; TVM's kernels access memory out of
#: bounds. Those whose indices a value check covers are supported (`indexing.fault`).
UNCHECKED = spelled_with(Trait.CHECKS_INDICES)


#: Divisions: for an integer divisor of 0 PyTorch raises, and TVM's code ends the process.
DIVIDING = spelled_with(Trait.DIVIDES)


#: Floating-point operators in which TVM loses NaN; the op support check does not test NaN.
LOSING_NAN = frozenset({"max.dim", "min.dim", "elu.default"})

#: Supported in float16, as pointwise operators and views are.
MOVES = spelled_with(Trait.MOVES)


def supports(node: torch.fx.Node) -> str | None:
    """Returns None if TVM can run `node`, else why not."""
    target: Any = node.target
    if is_random(target):
        return "draws from its own stream of random numbers"
    for tensor in _probe.operands(node):
        if tensor.dtype not in DTYPES:
            return f"TVM has no {str(tensor.dtype).removeprefix('torch.')} here"
        if any(isinstance(size, int) and size == 0 for size in tensor.shape):
            return "TVM's operators are not made for tensors without elements"
    name = target.overloadpacket.__name__.rstrip("_")
    if name in UNCHECKED and fault(node) is None and not _fixed_index(node):
        return "TVM does not check its indices"
    if target.__name__ in LOSING_NAN and any(
        tensor.dtype.is_floating_point for tensor in _probe.operands(node)
    ):
        return "TVM loses NaN in it"
    if (
        name.startswith("avg_pool")
        and _ceils(node)
        and any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)
    ):
        return "TVM cannot tell others what symbolic size a pooling with ceil_mode gives"
    if name == "any" and node.args[0].meta["val"].dtype is torch.uint8:  # type: ignore[union-attr]
        return "TVM's any of bytes is not 0 or 1"
    if _adds_up(target, name) and any(
        tensor.dtype is torch.float16 for tensor in _probe.operands(node)
    ):
        return "TVM adds up float16 in float16"
    if name in ("eq", "ne") and node.args[0] is node.args[1]:
        return "TVM takes a number to be equal to itself, which NaN is not"
    if (
        name in DIVIDING
        and isinstance(node.args[1], torch.fx.Node)
        and not node.meta["val"].dtype.is_floating_point
    ):
        return "TVM does not check whole-number divisors for zero"
    if target.__name__ not in CONVERTERS and target.__name__ not in tvm_private.converted():
        return "TVM's importer has no converter for it"
    answer: str | None = _probe(node)
    return answer


def _ceils(node: torch.fx.Node) -> bool:
    """Returns ceil_mode of avg_pool*(x, kernel, stride, padding, ceil_mode, ...)."""
    return bool(node.args[4] if len(node.args) > 4 else node.kwargs.get("ceil_mode"))


def _adds_up(target: Any, name: str) -> bool:
    """Returns whether an operator may compute sums. Long float16 sums lose all precision, and
    the op support check tests only the first sizes."""
    views = any(result.alias_info is not None for result in target._schema.returns)
    return not views and name not in MOVES and not is_pointwise(target)


def _fixed_index(node: torch.fx.Node) -> bool:
    """Returns whether no operand, and so no index, is an integer tensor."""
    return not any(
        not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool
        for tensor in _probe.operands(node)
    )


def _build(graph: torch.fx.Graph) -> Callable[[list[Any]], Sequence[torch.Tensor]]:
    import tvm
    from tvm import relax

    n_results = len(graph.output_node().args[0])  # type: ignore[arg-type]
    add_value_check(graph, fault, lambda: None)
    promote(graph)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with target:  # as a whole graph is built: an operator that passes must not fail there
        executable = tvm.compile(fused(relax_module(graph)), target=target)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(inputs: list[Any]) -> list[torch.Tensor]:
        import tvm_ffi

        arguments = [
            value if isinstance(value, torch.Tensor) else tvm_ffi.Shape((int(value),))
            for value in inputs
        ]
        results = list(main(*arguments))[:n_results]
        return [
            value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
            for value in results
        ]

    return run


_probe = op_support_check(_build, "TVM")


def reset() -> None:
    """Forgets every cached answer."""
    _probe.reset()
