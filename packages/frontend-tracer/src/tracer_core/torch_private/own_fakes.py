"""Operators that FakeTensorMode does not answer: those that read objects of C++ (ScriptObjects, such
as packed weights), those of which some size depends on data that no program sees, those whose
kernels for symbolic sizes torch registers for its Python dispatcher alone, and those whose fakes are
laid out otherwise than their results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_CLASSES = "__torch__.torch.classes"


@functools.lru_cache(maxsize=4096)
def takes_objects(func: Any) -> bool:
    """Returns whether an operator has an argument that is an object of C++."""
    return isinstance(func, torch._ops.OpOverload) and any(
        _CLASSES in str(argument.type) for argument in func._schema.arguments
    )


@contextlib.contextmanager
def without_cache(mode: Any) -> Iterator[None]:
    """Keeps a FakeTensorMode from using its cache, whose keys would compare the objects."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def _packed_weight_linear(mode: Any, value: Any, packed: Any, *options: Any) -> Any:
    """A linear layer over packed weights, of any sizes."""
    if value.dtype is not torch.float32 or value.dim() < 2:
        return None
    with torch._C._DisableTorchDispatch():
        wide, narrow = packed.unpack()[0].shape
    return value.new_empty((*value.shape[:-1], wide)) if value.shape[-1] == narrow else None


def _ctc_loss(mode: Any, log_probs: Any, targets: Any, *rest: Any, **options: Any) -> Any:
    """The second result is for the backward alone, and at most as wide."""
    if log_probs.dim() != 3 or targets.dim() not in (1, 2):
        return None
    steps, batch, _ = log_probs.shape
    wide = 2 * targets.shape[-1] + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, wide))


def _ctc_loss_gradient(mode: Any, gradient: Any, log_probs: Any, *rest: Any, **options: Any) -> Any:
    return log_probs.new_empty(log_probs.shape)


def _packed_sequences(mode: Any, value: Any, lengths: Any, batch_first: bool) -> Any:
    """Rows of all sequences, and how many of these each step has: torch's fake has another dtype."""
    env = mode.shape_env
    if not hasattr(env, "unread") or value.dim() < 2:
        return None
    rows, steps = (env.create_unbacked_symint() for _ in range(2))
    sizes = torch.empty((steps,), dtype=torch.int64, device="cpu")
    return value.new_empty((rows, *value.shape[2:])), sizes


def _padded(mode: Any, value: Any, pad: Any, fill: Any = 0) -> Any:
    """Padding by amounts that are symbolic. Where nothing is added, eager copies the strides, which
    only for a contiguous tensor are those of an empty one."""
    symbolic = any(isinstance(item, torch.SymInt) for item in pad)
    if not symbolic or len(pad) % 2 or len(pad) > 2 * value.dim():
        return None
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # heavy: sympy

    layout = torch._prims_common.suggest_memory_format(value)
    grows = any(statically_known_true(item > 0) for item in pad)
    if not grows and not value.is_contiguous(memory_format=layout):
        return None
    sizes = list(value.shape)
    for dim, around in enumerate(zip(pad[::2], pad[1::2], strict=True), start=1):
        sizes[-dim] += sum(around)
        torch._check(sizes[-dim] >= 0)
    return torch.empty(sizes, dtype=value.dtype, device=value.device, memory_format=layout)


def _cudnn_layers(mode: Any, value: Any, *rest: Any) -> Any:
    """cuDNN's recurrent layers of batches that come first: their kernels turn what they wrote, steps
    first, where torch's fake is laid out as new tensors are."""
    weights, stride, buffer, hx, cx, kind, hidden, projected, layers, batch_first, *others = rest
    batch_sizes = others[3]
    if not batch_first or batch_sizes or value.dim() != 3:
        return None
    before = (weights, stride, buffer, hx, cx, kind, hidden, projected, layers)
    result = torch.ops.aten._cudnn_rnn.default(value.transpose(0, 1), *before, False, *others)
    output = result[0].transpose(0, 1)
    return result[0].new_empty_strided(output.shape, output.stride()), *result[1:]


def corrected_states(args: Sequence[Any], result: Any) -> Any:
    """Returns the result of ``torch.lstm`` on symbolic sizes with states of the passed states' shapes:
    those of torch 2.11 have a dimension of size 1 more (its form for such sizes squeezes the batches).
    """
    states = args[1]
    if len(args) != 9 or not isinstance(states, (list, tuple)):
        return result  # of packed sequences
    out, *new = result
    pairs = zip(new, states, strict=True)
    return out, *(a if a.dim() == b.dim() else torch.reshape(a, b.shape) for a, b in pairs)


@functools.cache
def fakes() -> dict[Any, Callable[..., Any]]:
    """Returns the functions that give an operator's result on fakes, or None where they do not know
    it."""
    result: dict[Any, Callable[..., Any]] = {
        torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
        torch.ops.aten._ctc_loss_backward.Tensor: _ctc_loss_gradient,
        torch.ops.aten._pack_padded_sequence.default: _packed_sequences,
        torch.ops.aten.constant_pad_nd.default: _padded,
        torch.ops.aten._cudnn_rnn.default: _cudnn_layers,
    }
    for name in ("linear_dynamic", "linear_dynamic_fp16"):
        for kind in (name, name.replace("linear", "linear_relu")):
            result[getattr(torch.ops.quantized, kind).default] = _packed_weight_linear
    return result


def fake_result(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Returns an operator's result on the fakes of a mode; None where FakeTensorMode gives it."""
    function = fakes().get(func)
    if function is None:
        return None
    with mode:
        return function(mode, *args, **kwargs)
