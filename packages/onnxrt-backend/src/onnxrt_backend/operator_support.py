"""Decides which operators ONNX Runtime can run here, by asking ONNX Runtime itself.

An operator must be in torch.onnx's table and must not use random numbers (ONNX Runtime has its
own generator, so results would not be eager's), and a model of this one node must load and
compute what PyTorch computes (`plugin_api.op_support_check`, which caches the answer for equal
nodes)."""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxrt_backend.attention import unsupported
from onnxrt_backend.clamp import single_bound
from onnxrt_backend.single_op_session import build
from onnxrt_backend.torch_private.onnx_exporter import has_translation
from onnxrt_backend.value_checks import positions_are_read
from tracer_core.plugin_api import is_random, op_support_check

#: dtypes that ONNX lacks, or that ONNX Runtime has few operators for.
REFUSED_DTYPES = {
    torch.bfloat16: "ONNX Runtime's CPU provider computes few operators in bfloat16",
    torch.complex64: "ONNX has no complex numbers",
    torch.complex128: "ONNX has no complex numbers",
}

#: Creating a session with one of these ends the process (onnxruntime 1.31.1).
ENDING = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})

_LOSES = "ONNX Runtime loses NaN in it"
_QUOTIENT = "ONNX has it by way of a rounded quotient"

#: Floating-point operators whose ONNX forms differ at infinities and NaN, for very small or large
#: values, or where quotients are nearly whole: the op support check does not test such values.
SPECIAL = {
    **dict.fromkeys(("atan2", "arctan2"), _LOSES),
    **dict.fromkeys(
        ("sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "msort"), _LOSES
    ),
    **dict.fromkeys(("remainder", "floor_divide"), _QUOTIENT),
    **dict.fromkeys(
        ("log1p", "expm1"), "ONNX has it by way of a sum with 1, which rounds small values away"
    ),
    **dict.fromkeys(
        ("erfc", "special_erfcx"),
        "ONNX has it by way of a sum with 1, which rounds small values away",
    ),
    **dict.fromkeys(
        ("logaddexp", "logaddexp2", "logcumsumexp"),
        "ONNX has it by way of exponentials that overflow",
    ),
    "clamp_min": "ONNX Runtime's Clip with one bound makes infinity the largest number",
    "clamp_max": "ONNX Runtime's Clip with one bound makes infinity the largest number",
    "sign": "ONNX Runtime's Sign gives a number for NaN",
    "sgn": "ONNX Runtime's Sign gives a number for NaN",
    **dict.fromkeys(
        ("heaviside", "xlogy", "special_xlogy"),
        "its ONNX form chooses by comparisons, which NaN fails",
    ),
}

#: Integer operators that ONNX Runtime, or the ONNX form, computes in floating point: integers of
#: more than 53 bits are rounded, and sums that overflow do not wrap around.
ROUNDING = {
    **dict.fromkeys(
        ("sum", "prod"), "ONNX Runtime adds up and multiplies integers in floating point"
    ),
    **dict.fromkeys(("fmod", "div", "divide"), "ONNX has it by way of floating point"),
}

_probe = op_support_check(build, "ONNX Runtime")


def supports(node: torch.fx.Node) -> str | None:
    """Returns None if ONNX Runtime can run `node`, else why not."""
    target: Any = node.target
    if is_random(target) and argument(node, "dropout_p") != 0.0:
        return "draws from its own stream of random numbers"
    for tensor in _probe.operands(node):
        if tensor.dtype in REFUSED_DTYPES:
            return REFUSED_DTYPES[tensor.dtype]
        if any(isinstance(size, int) and size == 0 for size in tensor.shape):
            return "ONNX Runtime's operators are not made for tensors without elements"
    if target.overloadpacket.__name__ in ENDING:
        return "ONNX Runtime ends the process over it"
    if (other := unsupported(node)) is not None:
        return other
    if positions_are_read(node):
        return _LOSES
    if (special := _special(node)) is not None:
        return special
    if not has_translation(target):
        return "torch.onnx has no translation of it"
    answer: str | None = _probe(node)
    return answer


def _special(node: torch.fx.Node) -> str | None:
    """Returns why an operator's values differ from eager's for special inputs, or None."""
    target: Any = node.target
    name = target.overloadpacket.__name__.rstrip("_")
    if not any(tensor.dtype.is_floating_point for tensor in _probe.operands(node)):
        return None if name not in ROUNDING or _is_small(node, name) else ROUNDING[name]
    if name in ("log_softmax", "_log_softmax") and node.meta["val"].dtype is torch.float64:
        return "ONNX Runtime's LogSoftmax of float64 gives numbers for NaN and infinities"
    if name in ("div", "divide") and node.kwargs.get("rounding_mode") is not None:
        return _QUOTIENT
    if name.startswith("clamp") and single_bound(node) is not None:
        return None
    if name == "linalg_vector_norm" and math.isinf(argument(node, "ord")):
        return _LOSES
    if name == "clamp" and (argument(node, "min") is None or argument(node, "max") is None):
        name = "clamp_min"
    return SPECIAL.get(name)


def _is_small(node: torch.fx.Node, name: str) -> bool:
    """Returns whether the exact results of an operator of `ROUNDING` fit into 53 bits."""
    source: Any = node.args[0]
    dtype = source.meta["val"].dtype
    return dtype is torch.bool or (
        name == "sum" and dtype is not torch.int64 and node.meta["val"].dtype is torch.int64
    )


def argument(node: torch.fx.Node, name: str) -> Any:
    """Returns the value of an operator's argument, the default if it is left out, None if the
    operator has no such argument."""
    target: Any = node.target
    for position, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            arg = node.args[position] if position < len(node.args) else declared.default_value
            return node.kwargs.get(name, arg)
    return None


def reset() -> None:
    """Forgets every cached answer."""
    _probe.reset()
