"""Checks that real kernels make and fakes do not: a call that may fail them runs eagerly.

Each check returns why the call may raise, or None. A false positive costs a graph break, never a
wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tracer_core.fx_capture.function_traits import NOT_PROMOTED, operator_name
from tracer_core.fx_capture.number_checks import refused_number
from tracer_core.fx_capture.unbacked import is_data_size
from tracer_core.torch_private.names import name
from tracer_core.torch_private.needed import pytree

#: Makes the context in which operators run on fakes.
OnFakes = Callable[[], AbstractContextManager[None]]

_Check = Callable[[tuple[Any, ...], dict[str, Any]], str | None]


def _is_zero(size: Any) -> bool:
    return type(size) is int and size == 0


def _is_empty_along(value: torch.Tensor, dim: Any) -> bool:
    """Returns whether a tensor has such a dimension, of size 0."""
    valid = type(dim) is int and -value.dim() <= dim < value.dim()
    return valid and _is_zero(value.shape[dim])


def _running_extreme(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    value, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    wrong = type(dim) is int and value.dim() == 0 and dim not in (-1, 0)
    return "a number has one dimension to run along" if wrong else None


def _extreme(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    nothing = _is_empty_along(args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
    return "nothing has no largest and no smallest element" if nothing else None


def _index_reduce(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    if len(args) < 4 or type(args[1]) is not int:
        return None
    index, source = args[2], args[3]
    if not isinstance(index, torch.Tensor) or not isinstance(source, torch.Tensor):
        return None
    along = source.shape[args[1]] if source.dim() else 1
    if index.numel() != along:
        return "as many positions as there are sources"
    if index.dtype not in (torch.int32, torch.int64):
        return "kernels take positions of int32 and int64"
    return _written_as((args[0], source), {})


def _index_fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    index = args[2] if len(args) > 2 else kwargs.get("index")
    wrong = isinstance(index, torch.Tensor) and index.dtype is not torch.int64
    return "kernels take positions of int64" if wrong else None


def _index_select(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    index = args[2] if len(args) > 2 else kwargs.get("index")
    if not isinstance(index, torch.Tensor):
        return None
    if args[0].dim() == 0:
        return "a number is selected from by one position" if index.numel() != 1 else None
    nothing = _is_empty_along(args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
    return "nothing is selected from" if nothing and index.numel() else None


def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    nothing = isinstance(weight, torch.Tensor) and weight.dim() > 0 and _is_zero(weight.shape[0])
    return "a table without rows" if nothing and args[0].numel() else None


def _overlaps(value: torch.Tensor) -> bool:
    """Whether two elements may share memory; symbolic strides count as those of dense dimensions."""
    reach = 0
    pairs = zip(value.stride(), value.shape, strict=True)
    known = ((step, size if type(size) is int else 2) for step, size in pairs if type(step) is int)
    for step, size in sorted(pair for pair in known if pair[1] != 1):
        if step <= reach:
            return size > 1
        reach += step * (size - 1)
    return False


def _scatter_into(view: Callable[..., torch.Tensor]) -> _Check:
    """Makes the check of ``x.select_scatter(source, ...)``, which writes `source` into ``view(x,
    ...)``."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        value, *rest = args
        if _overlaps(value):
            return "the copy that it writes to overlaps itself, too"
        named = dict(kwargs)
        source = rest.pop(0) if rest else named.pop("src", None)
        if view is torch.diagonal and value.requires_grad and not value.is_contiguous():
            return "under autograd its result has other strides than without"
        try:
            with torch.no_grad():
                part = view(value, *rest, **named)
        except (IndexError, RuntimeError, TypeError):
            return "it has no such part to write to"
        fits = isinstance(source, torch.Tensor) and tuple(part.shape) == tuple(source.shape)
        reason = "what is written has other sizes than the part that it is written to"
        return None if fits else reason

    return check


def _select(value: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    size = value.shape[dim]
    known = type(index) is int and type(size) is int
    if known and not -size <= index < size:  # fakes of torch 2.11 do not look
        raise IndexError
    return value.select(dim, index)


def _slice(
    value: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(value, dim, start, end, step)  # type: ignore[no-any-return]


#: What `_operand_kinds` has of bools.
_BOOLS = {torch.bool, bool}


def _operand_kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[Any]:
    """Returns the dtypes of a binary operator's tensors, and the types of its numbers."""
    named = (kwargs[name] for name in ("self", "input", "other", "exponent") if name in kwargs)
    return {getattr(operand, "dtype", type(operand)) for operand in (*args[:2], *named)}


def _subtraction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return "kernels do not subtract bools" if _operand_kinds(args, kwargs) & _BOOLS else None


def _place_of_extreme(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return "kernels do not compare bools" if args[0].dtype is torch.bool else None


def _of_one_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    dtypes = {arg.dtype for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)}
    return "kernels take operands of one dtype" if len(dtypes) > 1 and "out" not in kwargs else None


def _dtypes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[torch.dtype]:
    """Returns the dtypes of all operands; nothing under autocast, which may convert them."""
    operands = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    autocast = operands and torch.is_autocast_enabled(operands[0].device.type)
    return set() if autocast else {operand.dtype for operand in operands}


def _normalized_as(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Kernels of norms take weights and statistics of the input's dtype; on CPUs also of float32
    where the input is of half precision."""
    dtypes = _dtypes(args, kwargs)
    half = args[0].dtype in (torch.float16, torch.bfloat16) and args[0].device.type == "cpu"
    mixed = {args[0].dtype, torch.float32} if half else {args[0].dtype}
    return None if dtypes <= mixed else "kernels take weights of the input's dtype"


def _likelihood(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The classes' weights have the dtype of the input; the target may be integers. Of a single
    sample there is one target."""
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if isinstance(target, torch.Tensor) and not target.is_floating_point():
        if args[0].dim() == target.dim() == 1 and target.shape[0] != 1:
            return "one sample has one target"
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    alike = _dtypes((args[0], weight), {}) <= {args[0].dtype}
    return None if alike else "kernels take weights of the input's dtype"


def _of_one_dtype_after_casts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    alike = len(_dtypes(args, kwargs)) < 2
    return None if alike else "kernels take operands of one dtype"


def _whole_loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return None if args[0].is_floating_point() else "its result is no integer"


def _ratio(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """``addcdiv`` divides no integers by integers."""
    named = (kwargs[name] for name in ("tensor1", "tensor2") if name in kwargs)
    divided = [arg for arg in (*args[1:], *named) if isinstance(arg, torch.Tensor)]
    inexact = any(item.is_floating_point() or item.is_complex() for item in divided)
    return None if inexact else "kernels do not divide integers"


def _is_exact(kind: Any) -> bool:
    """Returns whether a dtype, or a type of numbers, has no fractions."""
    if isinstance(kind, torch.dtype):
        return not (kind.is_floating_point or kind.is_complex)
    return kind in (bool, int)


def _summand(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """``alpha`` is a bool only where the result is one, and no float where it is an integer or bool."""
    alpha = kwargs.get("alpha", 1)
    kinds = _operand_kinds(args, kwargs)
    if type(alpha) is bool:
        return None if kinds <= _BOOLS else "alpha is a bool"
    is_float = type(alpha) in (float, torch.SymFloat)
    return "alpha is a float" if is_float and all(map(_is_exact, kinds)) else None


def _summed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return _summand(args, kwargs) or _subtraction(args, kwargs)


def _pooled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The images of an adaptive pool have elements, unless there is no image."""
    nothing = any(_is_zero(size) for size in args[0].shape[1:])
    return "kernels pool no empty images" if nothing else None


def _selected(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Fakes of some torch take any index of a dimension without elements."""
    dim, index = (args[1:] + (None, None))[:2]
    dim, index = kwargs.get("dim", dim), kwargs.get("index", index)
    if type(dim) is not int or not -args[0].dim() <= dim < args[0].dim():
        return None
    return "there is no element to select" if _is_zero(args[0].shape[dim]) else None


def _in_lists(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Fakes of operators on lists promote what kernels do not."""
    inputs = [arg if isinstance(arg, (list, tuple)) else (arg,) for arg in args]
    dtypes = {item.dtype for part in inputs for item in part if isinstance(item, torch.Tensor)}
    return (
        "kernels do not promote such dtypes" if len(dtypes) > 1 and dtypes & NOT_PROMOTED else None
    )


def _added_to_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The tensor that is added to a product of matrices or vectors must expand to its size."""
    operands = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, torch.Tensor)]
    if len(operands) < 2 or not all(operand.dim() for operand in operands[:2]):
        return None
    left, right = operands[:2]
    ranks = left.dim(), right.dim()
    if len(_dtypes((args[0], *operands), {})) > 1:
        return "kernels take operands of one dtype"
    sizes = {
        (1, 1): (*left.shape, *right.shape),
        (2, 1): left.shape[:1],
        (2, 2): (*left.shape[:1], *right.shape[1:]),
    }.get(ranks, (*left.shape[-2:-1], *right.shape[-1:]))
    pairs = zip(reversed(args[0].shape), reversed(sizes), strict=False)
    smaller = any(
        type(size) is int and size != 1 and _is_smaller(other, size) for size, other in pairs
    )
    if ranks == (3, 3) and args[0].dim() == 3:
        return "it does not expand to the product" if smaller else None
    larger = args[0].dim() > len(sizes)
    return "it does not expand to the product" if smaller or larger else None


def _written_as(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Kernels that write numbers into memory do not convert them; autocast may before."""
    inputs = (*args, *(kwargs[name] for name in ("source", "values") if name in kwargs))
    *_, source = (item for item in inputs if isinstance(item, torch.Tensor))
    if source.dtype == args[0].dtype or torch.is_autocast_enabled(args[0].device.type):
        return None
    return "kernels write numbers of the same dtype"


def _assigned(args: tuple[Any, ...], kwargs: dict[str, Any], strips: bool = True) -> str | None:
    """The values of ``x[indices] = values`` must broadcast to ``x[indices]``. strips: they may have
    more dimensions, of one element each, in front."""
    named = {**dict(zip(("self", "indices", "values"), args, strict=False)), **kwargs}
    value, index, source = args[0], named.get("indices"), named.get("values")
    parts = index if isinstance(index, (tuple, list)) else (index,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    masks = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors)
    if masks or not tensors or not isinstance(source, torch.Tensor):
        return None
    try:
        with torch.no_grad():
            wanted = value[tuple(parts)].shape
    except (IndexError, RuntimeError, TypeError):
        return None  # the call itself raises
    if any(map(is_data_size, (*wanted, *source.shape))):
        return None
    items = list(source.shape)
    while strips and len(items) > len(wanted) and items[0] == 1:
        items.pop(0)
    pairs = zip(reversed(items), reversed(wanted), strict=False)
    fits = len(items) <= len(wanted) and all(item in (1, size) for item, size in pairs)
    return None if fits else "the values do not broadcast to the places that are written to"


def _put(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return _written_as(args, kwargs) or _assigned(args, kwargs, strips=False)


def _whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    operands = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
    inexact = any(operand.is_floating_point() or operand.is_complex() for operand in operands)
    return "kernels have it for integers only" if inexact else None


def _diagonal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return "it counts from the beginning of the storage, which no guard watches"


def _threshold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    numbers = (*args[1:], *kwargs.values())
    is_integer = not args[0].dtype.is_floating_point and any(
        type(number) is float for number in numbers
    )
    return "its kernel for integers truncates the threshold and the value" if is_integer else None


def _soft_margin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    value, target = args[0], args[1] if len(args) > 1 else kwargs.get("target")
    if not isinstance(target, torch.Tensor):
        return None
    alike = value.dtype == target.dtype and value.shape == target.shape
    if not alike:
        return "its kernel writes into memory like its input, without promotion"
    return _whole_loss(args, kwargs)


def _normalization(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    value = args[0]
    channels = value.shape[1] if value.dim() > 1 else None
    vectors = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, torch.Tensor)]
    fit = all(vector.numel() == channels for vector in vectors)
    if not fit:
        return "its vectors have another size than there are channels"
    return _normalized_as(args, kwargs)


def _unwritten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return "of one dimension it leaves out= as it was" if kwargs.get("out") is not None else None


def _integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    inexact = args[0].is_floating_point() or args[0].is_complex()
    return None if inexact else "kernels have it for floating and complex numbers only"


def _power(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    is_logical = _operand_kinds(args, kwargs) <= _BOOLS
    return "kernels have no powers of bools" if is_logical else None


def _shuffled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    value, groups = args[0], args[1] if len(args) > 1 else kwargs.get("groups")
    if type(groups) is not int or groups < 1 or value.dim() < 3:
        return None
    if groups == 1 or groups == value.shape[1]:
        return "whether its result is a copy or a view, fakes get wrong"
    if value.device.type != "cuda":
        return None
    try:
        with torch.no_grad():
            value.view(value.shape[0], groups, value.shape[1] // groups, -1)
    except (RuntimeError, ValueError):  # fakes raise it too
        return "on CUDA devices it needs memory of which groups of channels are a view"
    return None


def _softmax_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    same = len(args) < 2 or args[0].dtype == args[1].dtype
    return None if same else "its gradient and its result have one dtype"


def _whole_images(which: str, value: Any, *choices: str) -> _Check:
    """Makes the check of an operator that lacks kernels for integers where one of its arguments,
    of this name, has this value; `choices`: for these dtypes alone."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        inputs = (kwargs.get(which), *args[1:])
        if not any(type(item) is type(value) and item == value for item in inputs):
            return None
        dtype = args[0].dtype
        lacks = str(dtype) in choices if choices else not dtype.is_floating_point
        return f"kernels have no {which}={value!r} of {dtype}" if lacks else None

    return check


def _columns(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """`torch.nn.functional.unfold`, which has the name of a view."""
    images = (
        "kernel_size" in kwargs
        or len(args) == 2
        or (len(args) > 2 and isinstance(args[1], (tuple, list)))
    )
    is_integer = not (
        args[0].is_floating_point() or args[0].is_complex() or args[0].dtype is torch.bool
    )
    return "kernels have it for floating numbers only" if images and is_integer else None


def _running_total(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    logical = any(arg is torch.bool for arg in (kwargs.get("dtype"), *args[2:]))
    return "kernels add up no bools" if logical else None


def _permuted_on_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    permuted = any(isinstance(arg, torch.Tensor) and not arg.is_contiguous() for arg in args)
    on_cuda = args[0].device.type == "cuda"
    return "on CUDA devices its result is laid out otherwise" if permuted and on_cuda else None


def _spaced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    real = kwargs.get("dtype") is not None and not kwargs["dtype"].is_complex
    ends = (*args[:2], *(kwargs[name] for name in ("start", "end") if name in kwargs))
    mixed = real and any(isinstance(end, torch.Tensor) and end.is_complex() for end in ends)
    return "complex ends do not fit a real dtype" if mixed else None


def _seeds_on_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    seeds = "its seeds lie where its kernel puts them, and are not set without dropout"
    return seeds if args[0].device.type == "cuda" else None


def _bucketized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    boundaries = args[1] if len(args) > 1 else kwargs.get("boundaries")
    is_vector = not isinstance(boundaries, torch.Tensor) or boundaries.dim() == 1
    return None if is_vector else "boundaries have one dimension"


def _quantile(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """(The ranks of `quantile` are indices, which are checked.)"""
    q = args[1] if len(args) > 1 else kwargs.get("q")
    by_value = isinstance(q, torch.Tensor) and q.device.type == "cpu"
    return "it raises for a q outside of 0 to 1" if by_value else None


_CHECKS: dict[str, _Check] = {
    "bucketize": _bucketized, "nanquantile": _quantile,
    **dict.fromkeys(("argmax", "argmin"), _place_of_extreme),
    **dict.fromkeys(("addcdiv", "addcdiv_"), _ratio),
    **dict.fromkeys(("add", "add_"), _summand),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "group_norm", "native_group_norm",
        "instance_norm"), _normalized_as),
    **dict.fromkeys(("nll_loss", "cross_entropy", "cross_entropy_loss"), _likelihood),
    "binary_cross_entropy": _of_one_dtype_after_casts, "huber_loss": _whole_loss,
    **dict.fromkeys((f"{which}adaptive_{kind}_pool{n}d{suffix}" for which in ("", "_")
        for kind in ("avg", "max") for n in (1, 2, 3) for suffix in ("", "_with_indices")),
        _pooled),
    "fill_diagonal_": _diagonal,
    **dict.fromkeys(("complex", "polar", "grid_sample", "grid_sampler", "grid_sampler_2d",
        "grid_sampler_3d"), _of_one_dtype),
    **dict.fromkeys(("index_add", "index_add_", "index_copy", "index_copy_", "put", "put_",
        "_unsafe_masked_index_put_accumulate"), _written_as),
    **dict.fromkeys(("index_put", "index_put_"), _put),
    **dict.fromkeys(("setitem", "__setitem__"), _assigned),
    **dict.fromkeys(("gcd", "gcd_", "lcm", "lcm_"), _whole),
    "soft_margin_loss": _soft_margin,
    **dict.fromkeys(("_threshold", "threshold", "threshold_", "_threshold_"), _threshold),
    **dict.fromkeys(("sub", "sub_", "subtract", "subtract_", "isub", "rsub", "__sub__",
        "__rsub__", "__isub__"), _summed),
    "cummax": _running_extreme, "cummin": _running_extreme, "max": _extreme, "min": _extreme,
    **dict.fromkeys(("pow", "pow_", "__pow__", "__ipow__", "ipow"), _power),
    **dict.fromkeys(("__rpow__", "rpow"), _power),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _shuffled),
    "_softmax_backward_data": _softmax_gradient,
    **dict.fromkeys(("addbmm", "addbmm_", "addmm", "addmm_", "addmv", "addmv_", "addr", "addr_",
        "baddbmm", "baddbmm_"), _added_to_product),
    **dict.fromkeys(("cdist", "imatmul", "linear", "matmul", "__matmul__", "__rmatmul__", "mm",
        "mv"), _of_one_dtype_after_casts),
    "select": _selected, "interpolate": _whole_images("mode", "area"),
    "pad": _whole_images("mode", "reflect", "torch.bool"), "unfold": _columns,
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"),
        _whole_images("reduce", "mean", "torch.bool")),
    **dict.fromkeys(("cumsum", "cumsum_", "cumprod", "cumprod_"), _running_total),
    "linspace": _spaced,
    **dict.fromkeys(("ldexp", "ldexp_"), _permuted_on_cuda),
    **dict.fromkeys(("_flash_attention_forward", "_efficient_attention_forward"),
        _seeds_on_cuda),
    "batch_norm": _normalization, "diagonal_scatter": _scatter_into(name("diagonal")),
    "select_scatter": _scatter_into(_select), "slice_scatter": _scatter_into(_slice),
    "embedding": _embedding, "fft_ihfftn": _unwritten, "fft_ihfft2": _unwritten,
    "index_select": _index_select, "index_reduce": _index_reduce, "index_reduce_": _index_reduce,
    "index_fill": _index_fill, "index_fill_": _index_fill,
    **dict.fromkeys(("lerp", "lerp_", "std", "std_mean", "var", "var_mean"), _integers),
}  # fmt: skip

#: Checks whose first operand may be something else than a tensor.
_OF_NUMBERS = frozenset({_power, _summed})

#: Operators without kernels for integers (bools among them), where fakes and kernels of
#: ours have them and would truncate.
_INEXACT_ONLY = frozenset({
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_log_softmax", "_safe_softmax", "_softmax",
    "_softmax_backward_data", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "cross_entropy_loss", "frac", "frac_", "gelu", "gelu_", "glu", "hardshrink", "hardsigmoid",
    "hardsigmoid_", "hardswish", "hardswish_", "hypot", "hypot_", "im2col", "linear_cross_entropy",
    "log_sigmoid", "log_softmax", "logcumsumexp", "logsigmoid", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d_with_indices_backward", "mish", "mish_",
    "multilabel_soft_margin_loss", "nextafter", "nextafter_", "nll_loss", "prelu", "silu",
    "silu_", "smooth_l1_loss", "softmax", "softmin", "softplus", "special_log_softmax",
    "special_softmax",
})  # fmt: skip
#: Operators without kernels for bools.
_NO_BOOLS = frozenset({
    "__imod__", "__mod__", "__rmod__", "abs", "abs_", "absolute", "absolute_", "addcmul",
    "addcmul_", "avg_pool1d", "avg_pool2d", "avg_pool3d", "ceil", "ceil_", "clamp", "clamp_",
    "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_", "floor", "floor_",
    "fmod", "fmod_", "imod", "local_response_norm", "max_pool2d", "max_pool2d_with_indices",
    "max_pool3d", "max_pool3d_with_indices", "mod", "mvlgamma", "mvlgamma_",
    "poisson_nll_loss", "relu", "relu_", "remainder", "remainder_", "round", "round_",
    "softsign", "tanhshrink", "trunc", "trunc_",
})  # fmt: skip
#: Operators without kernels for complex numbers, where fakes have them.
_REAL_ONLY = frozenset(
    {"glu", "hardshrink", "mse_loss", "nanmean", "nansum", "smooth_l1_loss"}
)  # fmt: skip
_LACKING = _INEXACT_ONLY | _NO_BOOLS | _REAL_ONLY
#: Those of them that promote their operands, so that all of them have to be of the kind.
_PROMOTING = frozenset({
    "__imod__", "__mod__", "__rmod__", "addcmul", "addcmul_", "clamp", "clamp_", "clamp_max",
    "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_", "fmod", "fmod_", "hypot",
    "hypot_", "imod", "mod", "mse_loss", "nextafter", "nextafter_", "remainder", "remainder_",
    "smooth_l1_loss",
})  # fmt: skip

#: Operators beneath F.batch_norm: their functional forms mix up ``out=``, and lose a statistic of
#: several calls.
_STATISTICS = frozenset(
    {"_native_batch_norm_legit", "native_batch_norm", "_batch_norm_with_update"}
)


def _is_smaller(size: Any, other: Any) -> bool:
    """Whether a dimension surely is smaller than another, which is not 1."""
    return type(size) is int and (size == 1 or (type(other) is int and size != other))


def _missing_kernel(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Rejects a dtype for which an operator has no kernel: eager raises NotImplementedError."""
    values = (*args, *kwargs.values())
    operands = [value for value in values if isinstance(value, torch.Tensor)]
    if not operands or any(map(_is_zero, operands[0].shape)):
        return None
    if name not in _PROMOTING:
        del operands[1:]
    elif not name.endswith("_loss"):
        operands += [torch.tensor(value) for value in values if type(value) in (bool, int, float)]
    converted = [value for value in values if isinstance(value, torch.dtype)]
    dtypes = converted or [operand.dtype for operand in operands]
    is_integer = not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
    if name in _INEXACT_ONLY and is_integer:
        return "kernels have it for floating numbers only"
    if name in _NO_BOOLS and all(dtype is torch.bool for dtype in dtypes):
        return "kernels do not take bools"
    if name in _REAL_ONLY and any(dtype.is_complex for dtype in dtypes):
        return "kernels take no complex numbers"
    return None


def unchecked(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_fakes: OnFakes
) -> str | None:
    """Returns why a call may raise or behave differently although its fakes do not, or None."""
    name = operator_name(func)
    if name in _STATISTICS:
        return "it writes running statistics; torch.nn.functional.batch_norm is captured"
    refused = refused_number(name, args, kwargs)
    if refused is not None:
        return refused
    if name in _LACKING:
        missing = _missing_kernel(name, args, kwargs)
        if missing is not None:
            return missing
    if name.startswith("_foreach_") and (mixed := _in_lists(args, kwargs)) is not None:
        return mixed
    check = _CHECKS.get(name) if args else None
    if check is not None and (isinstance(args[0], torch.Tensor) or check in _OF_NUMBERS):
        reason = check(args, kwargs)
        if reason is not None:
            return reason
    return None if kwargs.get("out") is None else _other_result(func, args, kwargs, on_fakes)


def _other_result(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_fakes: OnFakes
) -> str | None:
    """Rejects ``out=`` of another dtype than the result, since kernels differ in the dtypes that they
    take, and ``out=`` that kernels resize to strides that are not contiguous, as fakes make them."""
    try:
        with on_fakes(), torch.no_grad():
            result = func(*args, **{name: value for name, value in kwargs.items() if name != "out"})
    except Exception:
        return None  # the operator raises its own error where it runs
    for leaf, out in zip(
        pytree.tree_leaves(result), pytree.tree_leaves(kwargs["out"]), strict=False
    ):
        if not (isinstance(leaf, torch.Tensor) and isinstance(out, torch.Tensor)):
            continue
        if leaf.dtype != out.dtype:
            return "out= has another dtype than the result"
        if leaf.shape == out.shape:
            continue
        if any(out is leaf for leaf in pytree.tree_leaves(args)):
            return "out= is an operand of another size than the result"
        if out._is_view() or not leaf.is_contiguous():
            return "out= is resized: a view, or to strides that are not contiguous"
    return None
