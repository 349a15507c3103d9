"""Corrects fake results of operators where the real kernels save something else for the backward.

Only results that no other than backward operators read are changed. LoweringUnsupported is raised
where the real result cannot be known. `tests/aot/test_training.py` compares with the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import linear_resizing
from tracer_core.aot.attention_seeds import SEEDS, drops_out
from tracer_core.aot.symbolic_sizes import free_symbols
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import pytree

aten = operators("aten")

_LOW = (torch.bfloat16, torch.float16)


def _statistics(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Mean and deviation of a low-precision input are float32 if a parameter or a running statistic
    is.
    """
    value, *others = (arg for arg in args if isinstance(arg, torch.Tensor))
    mixed = value.dtype in _LOW and any(other.dtype is torch.float32 for other in others)
    if not mixed or value.device.type != "cpu":
        return result
    results = [torch_private.fake_like(item, torch.float32) for item in result[1:3]]
    return (result[0], *results, *result[3:])


def _running_statistics(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """New running statistics have the dtype of the old ones."""
    output, mean, deviation, *running = _statistics(mode, args, result)
    results = (
        item if item.dtype is old.dtype else torch_private.fake_like(item, old.dtype)
        for item, old in zip(running, args[3:5], strict=True)
    )
    return (output, mean, deviation, *results)


def _workspace(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The size of oneDNN's workspace for the backward of a recurrent layer is known to oneDNN only;
    fakes say 0.
    """
    if not torch.is_grad_enabled():
        return result
    if any(isinstance(value, torch.Tensor) and free_symbols(value) for value in args):
        raise LoweringUnsupported("a recurrent layer of oneDNN is trained with symbolic sizes")

    def real(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        return torch.zeros(value.shape, dtype=value.dtype) if is_tensor else value

    with torch_private.outside_modes():
        workspace = aten.mkldnn_rnn_layer.default(*map(real, args))[3]
    return (*result[:3], torch_private.new_fake_like_real(mode, workspace))


def _in_float32(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """oneDNN returns gradients of recurrent layers in float32, whatever the layer's dtype (fakes of
    torch 2.11 do not).
    """

    def widened(item: Any) -> Any:
        wide = not isinstance(item, torch.Tensor) or item.dtype is torch.float32
        return item if wide else torch_private.fake_like(item, torch.float32)

    return tuple(map(widened, result))


def _seeds(target: Any) -> Callable[[Any, tuple[Any, ...], Any], Any]:
    """An attention's seed and offset lie on the CPU or the GPU, depending on torch's build.

    A call on a few zeros tells which. Without dropout they do not matter (`attention_seeds`).
    """
    places = SEEDS[target][1]

    def correct(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
        query = args[0]
        if query.device.type != "cuda" or not drops_out(target, args):
            return result
        results = _seed_devices(result[0].dtype, query.device, places)
        items = list(result)
        for place, device in zip(places, results, strict=True):
            if isinstance(items[place], torch.Tensor) and items[place].device != device:
                items[place] = torch_private.fake_like(items[place], device=device)
        return tuple(items)

    return correct


@functools.cache
def _seed_devices(
    dtype: torch.dtype, device: torch.device, places: tuple[int, ...]
) -> list[torch.device]:
    """Returns the devices of an attention's results at `places` on real tensors."""
    with torch_private.outside_modes(), torch.no_grad():
        row = torch.zeros(1, 1, 16, 64, dtype=dtype, device=device)
        if places == (2, 3):
            results = aten._scaled_dot_product_efficient_attention.default(
                row, row, row, None, True
            )
        else:
            results = aten._scaled_dot_product_flash_attention.default(row, row, row)
        return [results[place].device for place in places]


def _logarithms(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Float64 attention keeps its logsumexp in float64 (fakes of torch 2.11 have float32)."""
    if args[0].dtype is not torch.float64 or result[1].dtype is torch.float64:
        return result
    return (result[0], torch_private.fake_like(result[1], torch.float64))


def _bags(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """embedding_bag sums bfloat16 rows without storing the bag of each position (fakes do so for
    the other dtypes only).
    """
    inputs: list[Any] = [*args, *(False, 0, False, None, False, -1)[len(args) - 3 :]]
    weight, _, offsets, _, kind, _, scale, _, padding = inputs
    low = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
    simple = low and kind == 0 and padding < 0
    if not simple or weight.stride(1) != 1 or (scale is not None and scale.stride(0) != 1):
        return result
    with torch_private.outside_modes():
        empty = torch.empty(0, dtype=offsets.dtype)
    return (result[0], torch_private.new_fake_like_real(mode, empty), *result[2:])


def _phases(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The gradient through complex eigenvectors raises if the loss depends on their phases; on
    fakes it does not check.
    """
    vectors = args[2] if len(args) > 2 else True
    if torch.is_grad_enabled() and args[0].is_complex() and vectors:
        reason = "the gradient of complex eigenvectors looks at numbers, and raises for some"
        raise LoweringUnsupported(reason)
    return result


def _sized_by_data(mode: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Fakes of torch 2.11 have the size that the operator gives for zeros."""
    if not free_symbols(result[0]):
        reason = "aten._unique gives as many numbers as its input has different ones"
        raise LoweringUnsupported(reason)
    return result


_NORMS = names(
    "native_layer_norm.default native_group_norm.default native_batch_norm.default"
    " _native_batch_norm_legit_functional.default _native_batch_norm_legit_no_training.default",
    of="ops.aten",
)
_ATTENTIONS = names(
    "_scaled_dot_product_flash_attention.default _scaled_dot_product_efficient_attention.default",
    of="ops.aten",
)
CORRECTIONS: dict[Any, Callable[[Any, tuple[Any, ...], Any], Any]] = {
    **dict.fromkeys(_NORMS, _statistics),
    aten._native_batch_norm_legit_functional.default: _running_statistics,
    **{attention: _seeds(attention) for attention in _ATTENTIONS},
    aten._scaled_dot_product_flash_attention_for_cpu.default: _logarithms,
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
    aten._linalg_eigh.default: _phases,
    aten._unique.default: _sized_by_data,
    aten.mkldnn_rnn_layer.default: _workspace,
    aten.mkldnn_rnn_layer_backward.default: _in_float32,
}


def fake_result(operator: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operator on fakes; with torch's Python kernels where those of C++ take no symbols."""
    run = linear_resizing.FAKES.get(operator, operator)
    try:
        return run(*args, **kwargs)
    except RuntimeError:
        if not torch_private.has_symbols(pytree.arg_tree_leaves(*args, **kwargs)):
            raise
    with torch_private.python_dispatcher():
        return run(*args, **kwargs)
