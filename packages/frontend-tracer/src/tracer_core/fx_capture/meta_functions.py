"""Fast meta functions: sizes and strides of the operators that convolutional networks call with
ever new sizes.

Arguments are plain fakes of one device or plain values. A function returns facts in the format of
`fake_cache`, or None to leave the call to FakeTensorMode; it answers only where the answer follows
from the sizes alone, so None where strides are ambiguous (sizes of one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.unbacked import is_data_size
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import pytree

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

#: Metadata of a result: sizes, strides, dtype, device.
Facts = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


def _facts(value: Any) -> Facts:
    """Returns the facts of a result like a value."""
    return value.shape, value.stride(), value.dtype, value.fake_device


def _contiguous(shape: Sequence[int], like: Any) -> Facts:
    """Returns the facts of a contiguous result of the value's dtype and device."""
    steps = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    return torch.Size(shape), steps, like.dtype, like.fake_device


def batch_norm(*args: Any) -> Any:
    """Eval mode: the input's shape, and two empty statistics."""
    if len(args) != 8 or args[5] is not False:
        return None
    value, *others = args[:5]
    if any(other is None or other.dtype is not value.dtype for other in others):
        return None
    if not _dense(value) or value.dtype not in _FLOATS or value.dim() < 2:
        return None
    if any(other.shape != (value.shape[1],) for other in others):
        return None
    empty = _contiguous([0], value)
    return tuple, (_facts(value), empty, empty)


def batch_norm_below(*args: Any) -> Any:
    """The CPU operator that lowering makes of `batch_norm`."""
    if len(args) != 7 or args[0].fake_device.type != "cpu":
        return None
    return batch_norm(*args[:5], False, *args[5:])


def batch_statistics(*args: Any) -> Any:
    """Training mode: the input's shape, mean and inverse deviation per channel, and new running
    statistics."""
    result = batch_norm_in_training(*args)
    if result is None or args[3] is None or args[4] is None or args[0].numel() == args[0].shape[1]:
        return None  # one value per channel has no deviation
    kind, (output, *saved) = result
    return kind, (output, *saved, *saved)


def batch_norm_in_training(*args: Any) -> Any:
    """The input's shape, and mean and inverse deviation per channel."""
    if len(args) != 8 or args[5] is not True:
        return None
    return _with_vectors_of_channels(*args[:5])


def _with_vectors_of_channels(value: Any, *vectors: Any) -> Any:
    """Returns a result like the value and two per-channel vectors, if the given vectors are
    per-channel or None."""
    if value.dtype not in (torch.float32, torch.float64) or not _dense(value, 2) or value.dim() < 2:
        return None
    inputs = [vector for vector in vectors if vector is not None]
    if any(o.dtype is not value.dtype or o.shape != (value.shape[1],) for o in inputs):
        return None
    channels = _contiguous([value.shape[1]], value)
    return tuple, (_facts(value), channels, channels)


def by_element(*args: Any) -> Any:
    """Elementwise operators: operands of one dtype that broadcast, or one tensor and scalars."""
    tensors: list[Any] = [arg for arg in args if isinstance(arg, torch.Tensor)]
    first = tensors[0]
    kinds = (int, float) if first.dtype in _FLOATS else (int,)
    if first.dtype not in (*_FLOATS, torch.int64):
        return None
    if any(type(arg) not in kinds for arg in args if not isinstance(arg, torch.Tensor)):
        return None
    if any(tensor.dtype is not first.dtype for tensor in tensors):
        return None
    result = _combined(tensors)
    return None if result is None else (torch.Tensor, ((*result, first.dtype, first.fake_device),))


def _combined(tensors: list[Any]) -> tuple[torch.Size, tuple[int, ...]] | None:
    """Returns shape and strides of an elementwise result."""
    shape = tensors[0].shape
    alike = all(tensor.shape == shape for tensor in tensors)
    dense = all(map(_dense, tensors))
    if alike and dense:
        return shape, tensors[0].stride()
    if not alike:
        try:
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        except RuntimeError:
            return None  # FakeTensorMode raises what it raises
    ordered = dense or (
        alike and shape[:1] == (1,) and all(tensor.is_contiguous() for tensor in tensors)
    )
    if ordered and min(shape[1:], default=2) > 1:
        return shape, tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    if alike and min(shape, default=0) > 1 and all(min(tensor.stride()) > 0 for tensor in tensors):
        return shape, torch_private.elementwise_strides(tensors)
    return None


def by_element_of_floats(*args: Any) -> Any:
    """Elementwise operators on floating-point operands."""
    first = next(arg for arg in args if isinstance(arg, torch.Tensor))  # the scalar may come first
    return by_element(*args) if first.dtype in _FLOATS else None


def comparison(*args: Any) -> Any:
    """Elementwise comparisons: bool results."""
    known = by_element(*args)
    if known is None:
        return None
    kind, ((shape, steps, _, device),) = known
    return kind, ((shape, steps, torch.bool, device),)


def comparison_of_tensors(*args: Any) -> Any:
    """Elementwise comparisons that reject scalars."""
    return comparison(*args) if all(isinstance(arg, torch.Tensor) for arg in args) else None


def choice(test: Any, item: Any, other: Any) -> Any:
    """where() of contiguous operands of one shape or of zero dimensions."""
    if item.dtype is not other.dtype or test.dtype is not torch.bool:
        return None
    operands = [test, *(value for value in (item, other) if value.dim() > 0)]
    if test.dim() == 0 or any(v.shape != test.shape or not _dense(v) for v in operands):
        return None
    return torch.Tensor, ((test.shape, test.stride(), item.dtype, test.fake_device),)


def batch_norm_gradient(*args: Any) -> Any:
    """Training mode, all three gradients."""
    if len(args) != 10 or args[7] is not True or args[2] is None or not all(args[9]):
        return None
    slope, value, *vectors = args[:7]
    if slope.shape != value.shape or slope.dtype is not value.dtype or not _dense(slope, 2):
        return None
    return _with_vectors_of_channels(value, *vectors)


def cat(parts: Any, dim: int = 0) -> Any:
    """cat of contiguous tensors of one dtype."""
    first = parts[0]
    rank = first.dim()
    if type(dim) is not int or not -rank <= dim < rank:
        return None
    dim %= rank
    for part in parts:
        if part.dim() != rank or part.dtype is not first.dtype or not _dense(part, 2):
            return None
        if any(part.shape[k] != first.shape[k] for k in range(rank) if k != dim):
            return None
    shape = [*first.shape]
    shape[dim] = sum(part.shape[dim] for part in parts)
    return torch.Tensor, (_contiguous(shape, first),)


def stack(parts: Any, dim: int = 0) -> Any:
    """stack of contiguous tensors of one shape and dtype."""
    first = parts[0]
    rank = first.dim() + 1
    if type(dim) is not int or not -rank <= dim < rank:
        return None
    alike = all(part.shape == first.shape and part.dtype is first.dtype for part in parts)
    if not alike or not all(_dense(part, 2) for part in parts):
        return None
    shape = [*first.shape]
    shape.insert(dim % rank, len(parts))
    return torch.Tensor, (_contiguous(shape, first),)


def copied(value: Any, *, memory_format: torch.memory_format = torch.preserve_format) -> Any:
    """clone: contiguous, in the requested format, or with the strides of a dense value."""
    if memory_format is torch.preserve_format:
        if not _dense(value):
            return (torch.Tensor, (_facts(value),)) if _without_holes(value) else None
    elif memory_format is not torch.contiguous_format or min(value.shape, default=1) < 1:
        return None
    return torch.Tensor, (_contiguous(value.shape, value),)


def _without_holes(value: Any) -> bool:
    """Returns whether a tensor is dense in some dimension order and all sizes exceed one."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if stride != expected or size < 2:
            return False
        expected *= size
    return True


def largest_of_windows(
    value: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    up: bool = False,
) -> Any:
    """max_pool2d_with_indices of contiguous images: values and indices."""
    if value.dim() != 4 or value.dtype not in _FLOATS or not _dense(value, 2) or up is not False:
        return None
    kernel, stride, padding, dilation = (
        list(value) * 2 if len(value) == 1 else list(value)
        for value in (kernel, stride or kernel, padding, dilation)
    )
    if any(type(item) is not int for item in (*kernel, *stride, *padding, *dilation)):
        return None
    wide = any(2 * edge > size for edge, size in zip(padding, kernel, strict=True))
    if wide or min(*stride, *kernel, *dilation) < 1:
        return None  # FakeTensorMode raises what it raises
    windows = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    sizes = [(value.shape[i + 2] + 2 * padding[i] - windows[i]) // stride[i] + 1 for i in range(2)]
    if min(sizes) < 2 or min(padding) < 0:
        return None
    shape, steps, dtype, device = _contiguous((*value.shape[:2], *sizes), value)
    return tuple, ((shape, steps, dtype, device), (shape, steps, torch.int64, device))


def gradient_of_windows(slope: Any, value: Any, *args: Any) -> Any:
    """Gradient of contiguous images, from a contiguous gradient."""
    if value.dim() != 4 or value.dtype not in _FLOATS or slope.dtype is not value.dtype:
        return None
    if len(args) != 6 or not all(_dense(item, 2) for item in (slope, value, args[5])):
        return None
    return torch.Tensor, (_facts(value),)


def reduced(value: Any, dims: Any = None, keepdim: bool = False) -> Any:
    """Sums and means of floating-point tensors over some dimensions."""
    rank = value.dim()
    if value.dtype not in _FLOATS or not dims or not _dense(value):
        return None
    if any(type(dim) is not int for dim in dims):
        return None
    if type(keepdim) is not bool or not all(-rank <= dim < rank for dim in dims):
        return None
    gone = {dim % rank for dim in dims}
    if len(gone) != len(dims):
        return None  # FakeTensorMode raises what it raises
    sizes = [
        1 if k in gone else size for k, size in enumerate(value.shape) if keepdim or k not in gone
    ]
    return torch.Tensor, (_contiguous(sizes, value),)


def rectified_in_place(value: Any) -> Any:
    """relu_: allocates nothing."""
    return () if value.dtype in _FLOATS and _dense(value) else None


def changed_in_place(value: Any, other: Any) -> Any:
    """add_ and the like: allocate nothing if the other operand is a scalar, or fits in dtype and
    shape."""
    if value.dtype not in (*_FLOATS, torch.int64) or not _dense(value):
        return None
    if not isinstance(other, torch.Tensor):
        kinds = (int, float) if value.dtype in _FLOATS else (int,)
        return () if type(other) in kinds else None
    fits = other.dtype is value.dtype and other.dim() <= value.dim()
    sizes = zip(reversed(other.shape), reversed(value.shape), strict=False)
    return () if fits and all(item in (1, size) for item, size in sizes) else None


def _dense(value: Any, least: int = 1) -> bool:
    """Returns whether a tensor is contiguous with a new tensor's strides, and no size but the first
    is below `least`."""
    shape, steps = value.shape, 1
    for size, stride in zip(reversed(shape), reversed(value.stride()), strict=True):
        if stride != steps:
            return False
        steps *= size
    return min(shape, default=1) > 0 and min(shape[1:], default=least) >= least


def convolution(*args: Any) -> Any:
    """Contiguous convolution in two or three dimensions."""
    if len(args) != 9:
        return None
    value, weight, bias, stride, padding, dilation, transposed, more, groups = args
    dims = value.dim() - 2
    if dims not in (2, 3) or weight.dim() != dims + 2 or len(more) != dims:
        return None
    if not (len(stride) == len(padding) == len(dilation) == dims) or value.dtype not in _FLOATS:
        return None
    operands = [value, weight] if bias is None else [value, weight, bias]
    if any(operand.dtype is not value.dtype or not operand.is_contiguous() for operand in operands):
        return None
    inputs, result = weight.shape[1] * groups, weight.shape[0]
    if transposed:
        inputs, result = result, inputs
    fits = value.shape[1] == inputs and weight.shape[0] % groups == 0
    if not fits or (bias is not None and bias.shape != (result,)):
        return None
    windows = [dilation[i] * (weight.shape[i + 2] - 1) + 1 for i in range(dims)]
    if transposed:
        sizes = [
            (value.shape[i + 2] - 1) * stride[i] - 2 * padding[i] + windows[i] + more[i]
            for i in range(dims)
        ]
    else:
        sizes = [
            (value.shape[i + 2] + 2 * padding[i] - windows[i]) // stride[i] + 1 for i in range(dims)
        ]
    shape = (value.shape[0], result, *sizes)
    if min(shape) < 1 or shape[1] == 1 or math.prod(sizes) == 1 or min(value.shape) < 1:
        return None
    # Asking for the convolution backend imports torch.distributed.tensor; no CPU backend chooses
    # channels last by itself.
    simple = value.fake_device.type == "cpu" and _dense(value) and _dense(weight)
    if not simple and torch_private.convolution_format(*args) is not torch.contiguous_format:
        return None
    return torch.Tensor, (_contiguous(shape, value),)


def convolution_gradients(*args: Any) -> Any:
    """Gradients of contiguous operands on the CPU, where no backend chooses channels last by
    itself."""
    if len(args) != 11 or len(args[10]) != 3:
        return None
    slope, value, weight, counts, *_, wanted = args
    if value.dim() not in (4, 5) or weight.dim() != value.dim() or value.fake_device.type != "cpu":
        return None
    if value.dtype not in _FLOATS or any(item.dtype is not value.dtype for item in (slope, weight)):
        return None
    if not _dense(value) or not _dense(weight) or min(*value.shape[1:], *slope.shape) < 1:
        return None
    if any(type(item) is not bool for item in wanted) or (wanted[2] and len(counts or ()) != 1):
        return None
    facts = [_facts(value), _facts(weight), _contiguous(counts or (), value)]
    return tuple, tuple(fact if asked else None for fact, asked in zip(facts, wanted, strict=True))


def product(item: Any, other: Any) -> Any:
    """mm and bmm: new, contiguous memory."""
    rank = item.dim()
    if item.dtype not in _FLOATS or other.dtype is not item.dtype:
        return None
    if other.dim() != rank or rank not in (2, 3):
        return None
    if item.shape[-1] != other.shape[-2] or item.shape[:-2] != other.shape[:-2]:
        return None
    shape = (*item.shape[:-1], other.shape[-1])
    if min(*shape, item.shape[-1]) < 2:
        return None
    return torch.Tensor, (_contiguous(shape, item),)


def sum_with_product(bias: Any, item: Any, other: Any) -> Any:
    """addmm whose first operand has as many columns as the result."""
    known = product(item, other) if item.dim() == 2 else None
    if known is None or bias.dtype is not item.dtype:
        return None
    _, ((shape, *_),) = known
    return known if bias.shape in (shape, shape[1:]) else None


def symbolic_convolution_format(mode: Any, *args: Any) -> torch.memory_format | None:
    """Returns the memory format of a convolution with symbolic input sizes if it is the same for
    small and large sizes, else None."""
    value, weight, bias, *options = args
    device, dims = torch_private.device_of_fake(value), value.dim() - 2
    parameters = [value for value in (weight, bias) if value is not None]
    if dims != 2 or weight.dim() != 4:
        return None
    if any(torch_private.device_of_fake(parameter) != device for parameter in parameters):
        return None
    if torch_private.has_symbols(parameters):
        return None
    if any(parameter.dtype is not value.dtype for parameter in parameters):
        return None
    if any(isinstance(number, torch.SymInt) for number in pytree.tree_leaves(options)):
        return None
    if any(map(is_data_size, value.shape)):
        return None  # an unbacked size
    layout = _layout(value)
    if layout is None:
        return None
    formats = set()
    batches: list[tuple[int | None, int]] = [(None, 1), (2, 1), (16, 1), (None, 8)]
    if torch_private.may_be_one(value.shape[0]):
        batches.append((1, 1))
    for batch, scale in batches:
        sizes = list(map(_hint, value.shape))
        for dim in (0, 2, 3):
            if isinstance(value.shape[dim], torch.SymInt):
                sizes[dim] = batch if batch and dim == 0 else sizes[dim] * scale
        meta = _meta(sizes, value.dtype, layout)
        inputs = torch_private.wrap_meta(mode, meta, device)
        formats.add(torch_private.convolution_format(inputs, weight, bias, *options))
    return formats.pop() if len(formats) == 1 else None


def _layout(value: Any) -> torch.memory_format | None:
    """Returns contiguous or channels last if a tensor with four dimensions has exactly that format."""
    sizes, strides = list(map(_hint, value.shape)), tuple(map(_hint, value.stride()))
    if min(sizes) < 1:
        return None
    formats = (torch.contiguous_format, torch.channels_last)
    alike = (item for item in formats if _meta(sizes, value.dtype, item).stride() == strides)
    return next(alike, None)


def _meta(sizes: list[int], dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    with torch_private.no_python_dispatch():
        return torch.empty(sizes, dtype=dtype, device="meta", memory_format=layout)


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


_aten = operators("aten")
#: Without a meta function here, torch's reference implementations may run, whose first dtype
#: promotion imports torch._dynamo: 80 MiB and 0.6 s in programs that do not need it otherwise.
_SAME_DTYPE = names("add.Tensor sub.Tensor mul.Tensor relu.default neg.default", of="ops.aten")
#: These operators promote integers to floating point.
_FLOATING = names(
    "sigmoid.default tanh.default exp.default silu.default gelu.default sqrt.default rsqrt.default"
    " cos.default sin.default log.default erf.default",
    of="ops.aten",
)
_COMPARISONS = tuple(getattr(_aten, name) for name in ("le", "lt", "ge", "gt", "eq", "ne"))

RULES: dict[Any, Callable[..., Any]] = {
    _aten.native_batch_norm.default: batch_norm,
    _aten._native_batch_norm_legit_no_training.default: batch_norm_below,
    _aten._native_batch_norm_legit_functional.default: batch_statistics,
    _aten.convolution.default: convolution,
    _aten.convolution_backward.default: convolution_gradients,
    _aten.cat.default: cat,
    _aten.stack.default: stack,
    _aten.clone.default: copied,
    _aten.max_pool2d_with_indices.default: largest_of_windows,
    _aten.max_pool2d_with_indices_backward.default: gradient_of_windows,
    _aten.relu_.default: rectified_in_place,
    **dict.fromkeys((_aten.sum.dim_IntList, _aten.mean.dim), reduced),
    **dict.fromkeys((_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor), changed_in_place),
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), product),
    _aten.addmm.default: sum_with_product,
    **dict.fromkeys(_SAME_DTYPE, by_element),
    **dict.fromkeys((_aten.div.Tensor, *_FLOATING), by_element_of_floats),
    **{item.Scalar: comparison for item in _COMPARISONS},
    **{comparison.Tensor: comparison_of_tensors for comparison in _COMPARISONS},
    _aten.where.self: choice,
    _aten.native_batch_norm_backward.default: batch_norm_gradient,
}
