"""Starts compiling our native kernels in threads while a graph is still being lowered.

This is a prediction from the captured, torch-level graph or the ATen graph, and saves only time: a
kernel that is not predicted here is built when the graph is compiled, and failures are raised
there. No guards are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from inductor_backend.ir.graph_meta import before_widening
from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import attention, native, packed_ops, packed_weights, selection
from inductor_backend.kernels.packed_weights import Geometry
from inductor_backend.kernels.quantized import form, quantized_mm
from inductor_backend.kernels.selection import KernelKind, Operand
from inductor_backend.passes.weight_packing import pays
from inductor_backend.runtime.cuda import build
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Names of captured functions and methods that become matmuls.
MATMULS = frozenset({"linear", "matmul", "__matmul__", "mm", "addmm", "bilinear", "lstm", "gru"})

#: Names of those that become Bernoulli random numbers.
DRAWS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "bernoulli", "bernoulli_"})


def start(captured: torch.fx.GraphModule) -> None:
    """Starts building the kernels that a captured graph will probably need."""
    inputs = (node.meta.get("val") for node in captured.graph.find_nodes(op="placeholder"))
    if any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in inputs):
        build.warm_up()
        return
    grad = torch.is_grad_enabled()
    native.prepare(
        name
        for node in captured.graph.nodes
        if node.op in ("call_function", "call_method") and _is_float32(node.meta.get("val"))
        for name in _captured(node, grad)
    )


def start_lowered(nodes: Iterable[torch.fx.Node]) -> None:
    """Starts building the kernels of an ATen graph that is about to be lowered."""
    native.prepare(name for node in nodes if node.op == "call_function" for name in _lowered(node))


# torch-level graphs -------------------------------------------------------------------------------


def _captured(node: torch.fx.Node, grad: bool) -> Iterator[str]:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in MATMULS:
        operands = [
            value for value in map(_value, node.args) if value is not None and value.dim() > 1
        ]
        if len(operands) < 2 or _multiplications(*operands[:2]) >= selection.SMALL_MATMUL:
            rows = math.prod(map(hint, operands[0].shape[:-1])) if operands else 0
            yield "run_blocked" if rows >= selection.BLOCKED_ROWS else "run_linear"
    elif name in DRAWS:
        training = node.kwargs.get(
            "training", node.args[2] if name.startswith("dropout") and len(node.args) > 2 else True
        )
        if training is not False:  # dropout(x, p, training)
            yield "run_bernoulli"
    elif name == "conv2d" and not grad:  # ours in inference only
        g = _geometry_of_call(node)
        sizes = (1, 1, *node.meta["val"].shape)[-4:]  # an image without a batch is one of its own
        if g is not None and packed_weights.is_fast(g) and pays(g, sizes):
            yield from (packed_weights.packer(g), packed_weights.launcher(g))


def _multiplications(a: torch.Tensor, b: torch.Tensor) -> int:
    """Estimates the multiplications of a matmul, whichever dimension of b is summed over."""
    columns = math.prod(map(hint, b.shape)) // max(1, hint(a.shape[-1]))
    return math.prod(map(hint, a.shape)) * max(1, columns)


def _geometry_of_call(node: torch.fx.Node) -> Geometry | None:
    """Returns the geometry of a call conv2d(x, weight, bias, stride, padding, dilation, groups)."""
    weight = _value(node.args[1]) if len(node.args) > 1 else None
    if weight is None or weight.dim() != 4 or node.meta["val"].dim() != 4:
        return None
    names = ("stride", "padding", "dilation", "groups")
    inputs = {**dict(zip(names, node.args[3:], strict=False)), **node.kwargs}
    pairs = [
        _pair(inputs.get(name, usual))
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    groups = inputs.get("groups", 1)
    stride, padding, dilation = pairs
    if stride is None or padding is None or dilation is None or not isinstance(groups, int):
        return None
    count, inside, kh, kw = map(hint, weight.shape)
    g = Geometry(inside * groups, count, (kh, kw), stride, padding, dilation, groups)
    batch, _, height, width = map(hint, node.meta["val"].shape)
    return packed_weights.for_result(g, batch, height, width)


def _pair(value: Any) -> tuple[int, int] | None:
    """Returns a pair of ints; None for what is no int here (a padding of 'same')."""
    first, *rest = value if isinstance(value, (tuple, list)) and value else [value]
    last = rest[0] if rest else first
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


# ATen graphs --------------------------------------------------------------------------------------

#: Operator -> launcher of our kernel, for where the schedule selection chooses ours
_LAUNCHERS = {
    aten.mm.default: "run_linear",
    aten.addmm.default: "run_linear",
    aten.convolution.default: "run_convolution",
}


def _lowered(node: torch.fx.Node) -> Iterator[str]:
    if node.target is packed_ops.pack or node.target is packed_ops.convolution:
        g = packed_ops.geometry(node.args[1 if node.target is packed_ops.pack else 3])  # type: ignore[arg-type]
        yield (
            packed_weights.packer(g)
            if node.target is packed_ops.pack
            else packed_weights.launcher(g)
        )
    elif node.target is quantized_mm:
        x, weight = (node.meta["val"].dtype for node in node.all_input_nodes[:2])
        yield f"run_{form(x, weight, node.args[8])}"  # type: ignore[arg-type]
    elif node.target is packed_ops.lstm:
        yield "run_lstm"
    elif node.target is packed_ops.attention:
        query, key, value = (source.meta["val"] for source in node.args[:3])  # type: ignore[union-attr]
        queries, *sizes = map(hint, (query.shape[2], *key.shape[2:], value.shape[3]))
        stored = before_widening(node.args[1]).meta["val"].dtype
        few = attention.decodes(queries, 1, *sizes)
        yield attention.DECODING[stored] if few else "run_attention"
    elif node.target is packed_ops.linear:
        tiled = "matrix" in node.kwargs
        yield "run_blocked" if tiled else packed_weights.dense_launcher(node.args[3])  # type: ignore[arg-type]
    elif node.target is aten.convolution_backward.default:
        for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
            choice = _choice(node, [*node.args[:-1], mask])
            if choice.kind is KernelKind.NATIVE:
                yield f"run_{choice.form or f'convolution_backward_{name}'}"
    elif node.target is aten.bernoulli.p:
        yield "run_bernoulli"
    elif node.target in _LAUNCHERS and not node.kwargs:
        choice = _choice(node, node.args)
        if choice.kind is KernelKind.NATIVE:
            yield f"run_{choice.form}" if choice.form else _LAUNCHERS[node.target]


def _choice(node: torch.fx.Node, args: Any) -> selection.KernelChoice:
    assert node.target in selection.RULES
    operands = [_operand(arg) for arg in args]
    if not all(isinstance(number, int) for number in _numbers(operands)):
        return selection.aten_choice(node.target, "what is no number yet")
    return selection.best(node.target, operands, hint)


def _operand(arg: Any) -> Any:
    value = _value(arg)
    if value is None:
        return None if isinstance(arg, torch.fx.Node) else arg
    return Operand.of(value)


def _numbers(operands: list[Any]) -> Iterator[Any]:
    """Yields the items of list arguments (strides, paddings, ...), which must be ints."""
    for operand in operands:
        yield from operand if isinstance(operand, (list, tuple)) else ()


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_float32(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not value.is_nested
        and value.device.type == "cpu"
        and value.dtype == torch.float32
    )
