"""Operators of other libraries whose fake kernels say something else than their kernels.

What a fake kernel says is built into a graph: sizes that the program computes with, casts that it
does not need. So the first call of a graph that has such operators runs the captured graph in eager
mode and compares each of their results with its fake: dtype, sizes, strides, device. Where one
differs, the graph raises `FakeDiffers`, the program runs in eager mode in its place, and the operator,
for operands of such dtypes and dimensions, breaks graphs from then on: what stands before and after
it is captured again, with what the kernel has given.

Not checked: operators inside of functions that are nodes themselves (``torch.func``, conditions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tracer_core import limits, torch_private
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.debug.logs import logger
from tracer_core.fx_capture.data_errors import DataDiffers
from tracer_core.fx_capture.may_raise import communicates
from tracer_core.ops.calls import RESHAPE_IN_PLACE, name_of, uses_rng
from tracer_core.torch_private.memory_layout import same_steps
from tracer_core.torch_private.needed import OpOverload, pytree

#: Namespaces of operators whose fake kernels torch and torchvision test.
_TESTED = frozenset(
    ["aten", "prim", "prims", "quantized", "quantized_decomposed", "prepacked", "mkldnn",
     "mkldnn_prepacked", "onednn", "mkl", "sparse", "c10d", "c10d_functional", "_c10d_functional",
     "_c10d_functional_autograd", "_dtensor", "symm_mem", "profiler", "inductor", "higher_order",
     "torchvision"]
)  # fmt: skip
#: (operator, dtype, device type and dimensions of each tensor that it is given) -> what differs.
_wrong: dict[Any, str] = {}


class FakeDiffers(DataDiffers):
    """The result of an operator is not what its fake kernel says. reason: what differs."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def forget() -> None:
    """Trusts all fake kernels again."""
    _wrong.clear()


def difference_of(func: Any, args: Any, kwargs: Any) -> str | None:
    """Returns why an operator with such operands cannot be captured, or None."""
    return _wrong.get(_key(func, args, kwargs)) if _wrong and is_foreign(func) else None


def checks_first_call(captured: CapturedGraph) -> Callable[[RunFunction], RunFunction] | None:
    """Returns what wraps the runner of a graph that has operators of other libraries; None where it
    has none, or where its first call cannot be undone. Call it before the graph is compiled."""
    graph = captured.gm.graph
    if not any(is_foreign(node.target) for node in graph.nodes):
        return None
    if any(name_of(node.target) in RESHAPE_IN_PLACE for node in graph.nodes):
        return None  # a fake has only its last sizes
    if communicates(graph) or _bytes_written(captured) > limits.MAX_SNAPSHOT_BYTES:
        return None
    gm = captured.copied().gm
    effects = _bytes_written(captured) > 0 or any(map(uses_rng, graph.nodes))

    def wrapped(run: RunFunction) -> RunFunction:
        checked: torch.fx.GraphModule | None = gm

        def call(inputs: list[Any]) -> Sequence[Any]:
            nonlocal checked
            if checked is None:
                return run(inputs)
            first, checked = checked, None
            try:
                outputs: Sequence[Any] = _Checking(first).run(*inputs)
            except Exception as error:
                if effects or not torch_private.is_out_of_memory(error):
                    raise
                return run(inputs)  # whose backend may have memory to give back
            return outputs

        return call

    return wrapped


class _Checking(torch.fx.Interpreter):
    """Runs a graph in eager mode. Raises `FakeDiffers` at the first operator of another library whose
    result is not as its fake."""

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if is_foreign(n.target):
            reason = _difference(result, n.meta.get("val"))
            if reason is not None:
                self._distrust(n, f"its kernel returns {reason}")
        return result

    def _distrust(self, node: torch.fx.Node, reason: str) -> None:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda leaf: leaf.meta.get("val"))
        _wrong[_key(node.target, args, kwargs)] = reason
        text = "%s breaks graphs: %s (mend what is registered with register_fake)"
        logger().warning(text, node.target, reason)
        raise FakeDiffers(f"{node.target}: {reason}")


def is_foreign(target: Any) -> bool:
    """Returns whether a target is an operator of another library."""
    return isinstance(target, OpOverload) and target.namespace not in _TESTED


def _key(func: Any, args: Any, kwargs: Any) -> Any:
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return func, tuple((tensor.dtype, tensor.device.type, tensor.dim()) for tensor in tensors)


def _bytes_written(captured: CapturedGraph) -> int:
    """Returns the bytes of the inputs that a graph may write to."""
    written = {item for node in captured.gm.graph.nodes for item in node.meta.get("writes", ())}
    values = zip(captured.gm.graph.find_nodes(op="placeholder"), captured.real_inputs, strict=True)
    return sum(
        real.nbytes
        for node, real in values
        if isinstance(real, torch.Tensor)
        and real.layout is torch.strided
        and torch_private.storage_id(node.meta["val"]) in written
    )


def _difference(result: Any, fake: Any) -> str | None:
    """Returns what a result has, and its fake has not."""
    items, expected = list(_tensors(result)), list(_tensors(fake))
    if len(items) != len(expected):
        return f"{len(items)} tensors, its fake kernel {len(expected)}"
    differences = map(_difference_of_tensor, items, expected)
    return next((difference for difference in differences if difference is not None), None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _difference_of_tensor(value: torch.Tensor, fake: torch.Tensor) -> str | None:
    if value.dtype != fake.dtype:
        return f"{value.dtype}, its fake kernel {fake.dtype}"
    if value.device.type != fake.device.type:
        return f"a tensor on {value.device}, its fake kernel one on {fake.device}"
    if value.layout is not torch.strided or fake.layout is not torch.strided:
        same = value.layout is fake.layout
        return None if same else f"a {value.layout} tensor, its fake kernel a {fake.layout} one"
    if value.dim() != fake.dim():
        return f"{value.dim()} dimensions, its fake kernel {fake.dim()}"
    expected = [_known(size, own) for size, own in zip(fake.shape, value.shape, strict=True)]
    if list(value.shape) != expected:
        return f"sizes {tuple(value.shape)}, its fake kernel {tuple(fake.shape)}"
    steps = [_known(step, own) for step, own in zip(fake.stride(), value.stride(), strict=True)]
    if not same_steps(value.shape, value.stride(), steps):
        return f"strides {value.stride()}, its fake kernel {tuple(fake.stride())}"
    return None


def _known(size: Any, actual: int) -> int:
    """Returns what a size or stride of a fake is in the captured call; the actual one where that
    depends on data."""
    if isinstance(size, torch.SymInt) and size.node.hint is None:
        return actual
    return int(torch_private.hint_or_guess(size) if isinstance(size, torch.SymInt) else size)
