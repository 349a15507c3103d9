"""Measures whether a float32 CUDA convolution rounds its operands to TF32.

Where TF32 is allowed, cuDNN decides by shape and layout which kernels use it: a convolution that
eager computes in full precision on contiguous images may be rounded on channels-last ones, which
loses 40 times more.

One operand is ``±(1 + 2**-12)``, whose last bit TF32 cannot represent, the others are ``±1``.
Answers are stored on disk beside the benchmarked choices of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.runtime.cuda import measurement_store
from inductor_backend.torch_private import tf32_allowed
from tracer_core.plugin_api import logger, operators

aten = operators("aten")

#: Float32 has 23 bits of fraction, TF32 has 10.
_LAST_BIT = 2.0**-12


def loses_precision(node: torch.fx.Node) -> bool:
    """Returns whether cuDNN rounds the node's operands on channels-last layouts but not on eager's:
    the node must then keep eager's layout.

    node: a 2-d convolution or its backward. False for other types than float32 and where TF32 is
    not allowed."""
    values = [arg.meta["val"] for arg in node.args if isinstance(arg, torch.fx.Node)]
    operands = [value for value in values if isinstance(value, torch.Tensor)]
    device = operands[0].device
    if any(x.dtype != torch.float32 for x in operands) or not tf32_allowed(convolution=True):
        return False
    as_eager = torch.fx.map_arg(node.args, lambda leaf: _known(leaf.meta["val"], last=False))
    as_ours = torch.fx.map_arg(node.args, lambda leaf: _known(leaf.meta["val"], last=True))
    return any(rounds(call, device) and not rounds(eager, device)
               for eager, call in zip(_calls(node.target, as_eager), _calls(node.target, as_ours),
               strict=True))  # fmt: skip


def rounds(call: tuple[Any, ...], device: torch.device) -> bool:
    """Returns whether an operator rounds its operands. call: the operator, then its arguments, meta
    tensors in place of tensors. True without a CUDA device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    key = repr(("tf32", torch.backends.cudnn.version(), torch.backends.cudnn.benchmark,
                torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic,
                *((tuple(argument.shape), argument.stride()) if isinstance(argument,
                torch.Tensor) else str(argument) for argument in call)))  # fmt: skip
    result = measurement_store.lookup(key, device)
    if result is None:
        result = "rounds" if _measured(call, device) else "exact"
        measurement_store.insert(key, device, {"chosen": result, "what": f"TF32 in {call[0]}"})
    return result == "rounds"


def _calls(target: Any, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Splits the node into calls with one result each, without the bias."""
    if target is aten.convolution.default:
        return [(target, *args[:2], None, *args[3:])]
    *rest, mask = args
    rest[3] = None
    return [(target, *rest, [k == 0, k == 1, False]) for k in range(2) if mask[k]]


def _known(value: Any, last: bool) -> Any:
    """Returns a meta tensor of the captured sizes for a tensor, its value in the captured call for
    a size."""
    if not isinstance(value, torch.Tensor):
        return hint(value) if isinstance(value, torch.SymInt) else value
    shape, strides = tuple(map(hint, value.shape)), tuple(map(hint, value.stride()))
    blank = torch.empty_strided(shape, strides, device="meta")
    return blank.to(memory_format=torch.channels_last) if last and blank.dim() == 4 else blank


def _measured(call: tuple[Any, ...], device: torch.device) -> bool:
    """Measures the rounding. Returns True also where memory is short: then speed alone decides the
    layout."""
    target, *args = call
    try:
        with (
            torch.cuda.device(device),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cuda", enabled=False),
        ):
            simple, stepped = (
                _result(target, args, device, factor) for factor in (1.0, 1.0 + _LAST_BIT)
            )
            ratio = torch.sum(stepped * simple, dtype=torch.float64) / torch.sum(
                simple * simple, dtype=torch.float64
            )
            return bool(abs(float(ratio) - 1.0) < _LAST_BIT / 2)
    except torch.OutOfMemoryError:
        logger().warning("%s: there is no memory to see whether it rounds to TF32", target)
        return True


def _result(
    target: Callable[..., Any], args: Sequence[Any], device: torch.device, factor: float
) -> torch.Tensor:
    """Returns the operator's result for operands of ``±1``, the first of them times `factor`."""
    generator = torch.Generator(device).manual_seed(0)
    operands: list[Any] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            real = torch.empty_strided(arg.shape, arg.stride(), device=device)
            arg = (
                real.bernoulli_(0.5, generator=generator)
                .mul_(2)
                .sub_(1)
                .mul_(1.0 if operands else factor)
            )
        operands.append(arg)
    result = target(*operands)
    tensor: torch.Tensor = (
        next(x for x in result if x is not None) if isinstance(result, tuple) else result
    )
    return tensor
