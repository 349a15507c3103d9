"""Corrects the strides, and of two losses the dtype, of fake results where meta kernels disagree
with the real kernels.

Sizes stay. A rule sees the sizes of the captured call; symbolic strides take over the
dimension order of its answer, where that is dense (for tuples, only the first result is checked).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait
from tracer_core.torch_private.names import operators

aten = operators("aten")
_collectives = operators("_c10d_functional")


#: (arguments) -> a tensor laid out like the result, None where the fake is right.
_Layout = Callable[[tuple[Any, ...]], torch.Tensor | None]


def _hint(value: Any) -> Any:
    """Replaces SymInts by their hints, and a tensor by a meta tensor of those sizes. Raises
    ValueError for unbacked sizes."""
    if isinstance(value, torch.SymInt):
        if value.node.hint is None:
            raise ValueError(f"{value} depends on data")
        return int(value.node.hint)
    if isinstance(value, torch.Tensor):
        sizes, strides = map(_hint, (tuple(value.shape), value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    return [_hint(item) for item in value] if isinstance(value, (list, tuple)) else value


def _dense(sizes: Sequence[Any], like: torch.Tensor) -> list[Any] | None:
    """Returns dense strides of these sizes in the dimension order of `like`; None if `like` is not
    dense or its order is ambiguous."""
    order = sorted((dim for dim in range(like.dim()) if like.shape[dim] != 1), key=like.stride)
    strides, step, known = [1] * like.dim(), 1, 1
    for dim in order:
        if like.stride(dim) != known:
            return None
        strides[dim], step, known = step, step * sizes[dim], known * like.shape[dim]
    for dim in reversed(range(like.dim())):  # as a contiguous tensor has it: over what follows
        if like.shape[dim] == 1:
            strides[dim] = strides[dim + 1] * sizes[dim + 1] if dim + 1 < like.dim() else 1
    return strides


#: Operators that stand for all elementwise ones of 1, 2 and 3 operands.
_ELEMENTWISE = (aten.neg.default, aten.add.Tensor, aten.addcmul.default)


def _elementwise(args: tuple[Any, ...]) -> torch.Tensor | None:
    """As an elementwise kernel that casts no operand beforehand lays its result out."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if not 0 < len(tensors) <= len(_ELEMENTWISE):
        return None
    layouts = [(tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    alike = (torch.empty_strided(*layout, dtype=torch.float32, device="meta") for layout in layouts)
    return _as_kernel(_ELEMENTWISE[len(tensors) - 1])(tuple(alike))


def _outer_sum(args: tuple[Any, ...]) -> torch.Tensor | None:
    """As an elementwise kernel over the added tensor and the two vectors as a column and a row (the
    fake leaves the added tensor out where ``beta=0``, the kernel does not)."""
    added, column, row = args[:3]
    return _elementwise((added, column.unsqueeze(1), row.unsqueeze(0)))


def _as_kernel(func: Any) -> _Layout:
    """As the CPU's kernel says of a few numbers: it casts operands before it chooses an order of
    dimensions, so that this follows from the dtypes too.
    """

    def rule(args: tuple[Any, ...]) -> torch.Tensor | None:
        operands = [arg for arg in args if isinstance(arg, torch.Tensor)]
        shape = torch.broadcast_shapes(*(operand.shape for operand in operands))
        if not all(shape):
            return None
        sizes = {1: 1}
        for size in sorted({size for operand in operands for size in operand.shape}):
            sizes.setdefault(size, len(sizes) + 1)
        small = (_in_small(arg, sizes) if isinstance(arg, torch.Tensor) else arg for arg in args)
        steps = func(*small).stride()
        return _in_order(
            shape, sorted(range(len(shape)), key=lambda dim: (-steps[dim], shape[dim] == 1))
        )

    return rule


def _in_small(value: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Returns ones of these sizes in place of the tensor's own, and strides in the same order."""
    shape, strides, step = [sizes[size] for size in value.shape], [0] * value.dim(), 1
    for stride in sorted({value.stride(dim) for dim in range(value.dim()) if value.stride(dim)}):
        dims = [dim for dim in range(value.dim()) if value.stride(dim) == stride]
        for dim in dims:
            strides[dim] = step
        step *= 1 + sum(shape[dim] - 1 for dim in dims)
    return torch.ones(step, dtype=value.dtype).as_strided(shape, strides)


def _is_ambiguous(value: Any) -> bool:
    """Whether the order of a tensor's dimensions follows from more than the strides of those with
    several elements: two have one stride, one has none, one of a single element comes before
    another that has no smaller stride, or has not the stride of a contiguous tensor in one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    try:
        layout = list(zip(_hint(tuple(value.shape)), _hint(value.stride()), strict=True))
    except ValueError:
        return False
    steps = [step for size, step in layout if size > 1]
    if 0 in steps or len(set(steps)) < len(steps):
        return True
    expected, contiguous, simple = 1, True, True
    for size, step in reversed(layout):
        contiguous = contiguous and (size == 1 or step == expected)
        simple = simple and step == expected
        expected *= size
    return (contiguous and not simple) or any(
        size == 1 and any(n > 1 and later >= step for n, later in layout[dim + 1 :])
        for dim, (size, step) in enumerate(layout)
    )


@functools.cache
def _is_pointwise(func: Any) -> bool:
    """Whether an operator computes each element of its one result from those of its operands."""
    schema = func._schema
    simple = not schema.is_mutable and [str(item.type) for item in schema.returns] == ["Tensor"]
    return torch.Tag.pointwise in func.tags and simple


def _power_of_number(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous for any layout of the exponent."""
    return torch.empty(args[1].shape, device="meta")


def _like_the_first(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Memory like the first operand's, contiguous where it has to grow."""
    first, second, reduction = (*args, 1)[:3]
    if reduction != 0:
        return torch.empty((), device="meta")
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return torch.empty_like(first) if first.shape == shape else torch.empty(shape, device="meta")


def _suggested(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous or channels last."""
    value = args[0]
    return torch.empty_like(value, memory_format=torch_private.suggested_memory_format(value))


def _batch_norm(args: tuple[Any, ...]) -> torch.Tensor | None:
    """In the first of the formats in which the input is contiguous, whatever the strides of
    dimensions with one element are."""
    value, *vectors = args[:3]
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(value.dim(), [])
    dense = [item for item in formats if value.is_contiguous(memory_format=item)]
    if not dense or not all(vector is None or vector.is_contiguous() for vector in vectors):
        return _suggested(args)
    return torch.empty_like(value, memory_format=dense[0])


def _unpooled(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous, or channels last like the input."""
    value, _, sizes = args[:3]
    result = torch.empty((*value.shape[:-2], *sizes), device="meta")
    return result.contiguous(memory_format=torch_private.suggested_memory_format(value))


def _padded(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous, or channels last like the input (fakes of torch 2.11 and 2.12, and of images with
    depth, say contiguous)."""
    value, padding = args[:2]
    sizes = list(value.shape)
    for dim, both in enumerate(zip(padding[::2], padding[1::2], strict=True), start=1):
        sizes[-dim] += sum(both)
    result = torch.empty(sizes, device="meta")
    return result.contiguous(memory_format=torch_private.suggested_memory_format(value))


def _likelihoods(args: tuple[Any, ...]) -> torch.Tensor | None:
    """One value per target, contiguous for any layout of the target."""
    return torch.empty(args[1].shape, device="meta") if args[3] == 0 else None


def _likelihood(args: tuple[Any, ...]) -> torch.Tensor | None:
    """One value per element, in the order of the first operand's memory."""
    return _as_first(args) if args[3:4] == (0,) else None


def _normal(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous for any layout of the mean and the standard deviation."""
    shapes = [arg.shape for arg in args[:2] if isinstance(arg, torch.Tensor)]
    return torch.empty(torch.broadcast_shapes(*shapes), device="meta")


def _as_first(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Dense memory in the first operand's order, such as a copy of what eager fills in place."""
    return torch.empty_like(args[0])


def _angle(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous for complex inputs of any layout."""
    return torch.empty(args[0].shape, device="meta") if args[0].dtype.is_complex else None


def _contiguous(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous for any layout of the input."""
    return torch.empty(args[0].shape, device="meta")


def _sampled(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous images of the grid's size, for any layout of the images and the grid."""
    images, grid = args[:2]
    return torch.empty((*images.shape[:2], *grid.shape[1:-1]), device="meta")


def _contiguous_of_two(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Contiguous for any layout of a tensor and the mask that it is broadcast with."""
    return torch.empty(torch.broadcast_shapes(args[0].shape, args[1].shape), device="meta")


def _of_backward(layout: _Layout) -> _Layout:
    """Applies the layout of an operator to its backward's result, whose first argument is the
    gradient that enters."""
    return lambda args: layout(args[1:])


def _indexed(args: tuple[Any, ...]) -> torch.Tensor | None:
    """As an elementwise kernel over the operand, with the indexed dimensions expanded, and the
    indices lays its result out."""
    value, indices = args[0], list(args[1])
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None  # the number of elements depends on data
    indices += [None] * (value.dim() - len(indices))
    inputs = [dim for dim, index in enumerate(indices) if index is not None]
    together = inputs == list(range(inputs[0], inputs[-1] + 1))
    before = [dim for dim in range(inputs[0]) if together]
    after = [dim for dim in range(value.dim()) if dim not in (*inputs, *before)]
    shape = torch.broadcast_shapes(*(indices[dim].shape for dim in inputs))
    sizes = [*(value.shape[d] for d in before), *shape, *(value.shape[d] for d in after)]
    steps = [
        *(value.stride(d) for d in before),
        *(0 for _ in shape),
        *(value.stride(d) for d in after),
    ]
    operands = [value.as_strided(sizes, steps)]
    for dim in inputs:
        item = indices[dim].reshape((*indices[dim].shape, *(1 for _ in after)))
        operands.append(item.expand(sizes))
    return torch.empty_strided(sizes, torch_private.elementwise_strides(operands), device="meta")


def _scattered(args: tuple[Any, ...]) -> torch.Tensor | None:
    """A copy of what is scattered into: with its strides, but for one place in memory of several
    elements (fakes of torch 2.11 keep those strides too)."""
    value = args[0]
    dims = zip(value.shape, value.stride(), strict=True)
    overlaps = any(size > 1 and stride == 0 for size, stride in dims)
    return torch.empty_like(value) if overlaps else None


def _half_spectrum(args: tuple[Any, ...]) -> torch.Tensor | None:
    """The last of the transformed dimensions is innermost."""
    value, dims, _, onesided = args
    sizes, last = list(value.shape), dims[-1] % value.dim()
    sizes[last] = sizes[last] // 2 + 1 if onesided else sizes[last]
    return _transformed(value, sizes, dims[:-1], [last])


def _spectrum(args: tuple[Any, ...]) -> torch.Tensor | None:
    return _transformed(args[0], args[0].shape, args[1], [])


def _spectrum_of_cufft(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Of up to three dimensions at a time, as with MKL (fakes of torch 2.11 leave the dimensions in
    the order given).
    """
    value, dims = args[:2]
    left = [dim % value.dim() for dim in dims]
    if not left or not value.numel():
        return None
    order = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
    while left:
        left.sort(key=order.index)
        left, round = left[:-3], left[-3:]
        order = [dim for dim in order if dim not in round] + round
    return _in_order(value.shape, order)


def _real_numbers(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Of several dimensions: complex along all but the last, which is transformed by itself."""
    value, dims, _, length = args
    between = _spectrum((value, dims[:-1])) if len(dims) > 1 else value
    sizes, last = list(value.shape), dims[-1] % value.dim()
    sizes[last] = length
    return None if between is None else _transformed(between, sizes, (), [last])


def _transformed(
    value: Any, sizes: Sequence[int], dims: Sequence[int], last: list[int]
) -> torch.Tensor | None:
    """With MKL (fakes of torch 2.11 say otherwise): dimensions that are not transformed come first,
    then those that are; both in the order of the input's strides, but for the last."""
    if not torch.backends.mkl.is_available() or not value.numel():
        return None

    def in_order(some: Iterable[int]) -> list[int]:
        return sorted(some, key=lambda dim: -value.stride(dim))

    inner = in_order(dim % value.dim() for dim in dims) + last
    return _in_order(sizes, in_order(dim for dim in range(value.dim()) if dim not in inner) + inner)


def _in_order(sizes: Sequence[int], order: list[int]) -> torch.Tensor:
    """Returns dense memory in which the last dimension of `order` is innermost."""
    result = torch.empty([sizes[dim] for dim in order], device="meta")
    return result.permute([order.index(dim) for dim in range(len(order))])


def _rolled(args: tuple[Any, ...]) -> torch.Tensor | None:
    """As the concatenation of two parts, one dimension after the other."""
    value, shifts, dims = (*args, ())[:3]
    if not value.numel():
        return torch.empty_like(value)
    for shift, dim in zip(shifts, dims, strict=False):
        start = -shift % value.shape[dim]
        parts = value.narrow(dim, start, value.shape[dim] - start), value.narrow(dim, 0, start)
        value = torch.cat(parts, dim)
    return value if dims else torch.empty(value.shape, device="meta")


LAYOUTS: dict[Any, _Layout] = {
    operator: rule
    for rule, operators in {
        _elementwise: (
            aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default,
            aten.copysign.Tensor, aten.floor_divide.default, aten.div.Tensor_mode,
            aten.native_dropout_backward.default, aten.logaddexp.default, aten.logaddexp2.default,
            aten.heaviside.default, aten.xlogy.Tensor, aten.special_xlog1py.default,
            aten.complex.default, aten.polar.default, aten.lcm.default, aten.ldexp.Tensor,
            aten.logit_backward.default, aten.elu_backward.default, aten.softplus_backward.default,
            aten.hardtanh_backward.default, aten.hardswish_backward.default,
            aten.hardsigmoid_backward.default,
        ),
        _outer_sum: (aten.addr.default,),
        _sampled: (aten.grid_sampler_2d.default,),
        _power_of_number: (aten.pow.Scalar,),
        _like_the_first: (aten.huber_loss.default,),
        _angle: (aten.angle.default,),
        _contiguous: (
            aten._transformer_encoder_layer_fwd.default, aten.isin.Tensor_Tensor,
            aten.isin.Tensor_Scalar, aten.log_sigmoid_forward.default,
            aten._log_softmax_backward_data.default, aten.native_layer_norm_backward.default,
            aten.rrelu_with_noise.default,
            _collectives.all_reduce.default, _collectives.broadcast.default,
        ),
        _of_backward(_contiguous): (
            aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
            aten.huber_loss_backward.default,
        ),
        _of_backward(_as_first): (aten.binary_cross_entropy_backward.default,),
        _likelihood: (aten.binary_cross_entropy.default,),
        _of_backward(_suggested): (aten.native_group_norm_backward.default,),
        _indexed: (aten.index.Tensor,),
        _rolled: (aten.roll.default,),
        _likelihoods: (aten.nll_loss2d_forward.default,),
        _unpooled: (aten.max_unpool2d.default,),
        _padded: (
            aten.reflection_pad2d.default, aten.reflection_pad3d.default,
            aten.replication_pad2d.default, aten.replication_pad3d.default,
        ),
        _normal: (aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor),
        _as_first: (
            aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
            aten.uniform.default, aten.exponential.default, aten.geometric.default,
            aten.cauchy.default, aten.log_normal.default, aten.normal_functional.default, aten.random.default,
            getattr(aten.random, "from"), aten.random.to, aten.zero.default,
        ),
        _half_spectrum: (aten._fft_r2c.default,),
        _spectrum: (aten._fft_c2c.default,),
        _real_numbers: (aten._fft_c2r.default,),
        _scattered: (
            aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default,
        ),
        _batch_norm: (
            aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_no_training.default,
            aten._native_batch_norm_legit_functional.default, aten._batch_norm_with_update.default,
            aten._batch_norm_with_update_functional.default, aten._batch_norm_no_update.default,
        ),
    }.items()
    for operator in operators
}  # fmt: skip
#: Operators that lay their result out by these rules on every device: a copy that is then written
#: to (of `zero` fakes of torch 2.11 say contiguous), random numbers, and elementwise kernels.
_OF_ALL_DEVICES = frozenset(
    operator
    for operator, rule in LAYOUTS.items()
    if rule
    in (
        _as_first,
        _normal,
        _scattered,
        _contiguous,
        _elementwise,
        _outer_sum,
        _power_of_number,
        _like_the_first,
    )
    and operator not in (aten.native_dropout_backward.default, aten.log_sigmoid_forward.default)
)


#: Other rules on GPUs.
_OF_GPUS: dict[Any, _Layout] = {
    aten._fft_c2c.default: _spectrum_of_cufft,
    aten.channel_shuffle.default: _contiguous,
    aten.index.Tensor: _indexed,
    aten.masked_fill.Scalar: _contiguous_of_two,
    aten.masked_fill.Tensor: _contiguous_of_two,
}
#: Operators that copy, or make memory like their operand's: in the format that they are told, or with
#: the strides of the operand, also of its dimensions of one element, where it is dense.
_COPYING = frozenset({
    aten.clone.default, aten._to_copy.default, aten.empty_like.default, aten.zeros_like.default,
    aten.ones_like.default, aten.full_like.default, aten.rand_like.default, aten.randn_like.default,
    aten.randint_like.default, aten.randint_like.low_dtype, aten.flip.default,
})  # fmt: skip


def _copied(args: tuple[Any, ...]) -> torch.Tensor | None:
    """With the operand's strides where it is dense, else dense in the order of its memory."""
    if not isinstance(args[0], torch.Tensor):  # a number, of which `vmap` makes a tensor
        return None
    return args[0] if _is_dense(args[0]) else torch.empty_like(args[0])


def _is_dense(value: torch.Tensor) -> bool:
    """As eager mode tells dense memory without overlaps: strides of empty dimensions and of those
    with one element do not matter."""
    if not value.numel():
        return True
    step = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


def _rule(func: Any, device: str, kwargs: dict[str, Any]) -> _Layout | None:
    if device == "cuda" and func in _OF_GPUS:
        return _OF_GPUS[func]
    if func in _COPYING:
        data = kwargs.get("memory_format") not in (None, torch.preserve_format)
        return None if data else _copied
    rule = LAYOUTS.get(func, _elementwise)
    if rule is _elementwise and device == "cpu":
        return _as_kernel(functools.partial(func, **kwargs))
    return rule if device == "cpu" or func in _OF_ALL_DEVICES or func not in LAYOUTS else None


def _of_ldexp(args: tuple[Any, ...]) -> torch.dtype:
    """That of the product with a power of 2, of which 0-d operands have less to say."""
    value, exponent = args[:2]
    if not (exponent.is_floating_point() or exponent.is_complex()):
        floats = value.is_floating_point() or value.is_complex()
        dtype: torch.dtype = value.dtype if floats else torch.get_default_dtype()
        return dtype
    with torch_private.no_python_dispatch():
        power = torch.empty((1,) * exponent.dim(), dtype=exponent.dtype, device="meta")
        like = torch.empty((1,) * value.dim(), dtype=value.dtype, device="meta")
        return torch.result_type(like, power)


#: Operators whose second result is laid out like the first where it has the same shape.
_OF_TWO_ALIKE = frozenset({aten.log_sigmoid_forward.default})

#: Dtypes that fakes get wrong.
_DTYPES: dict[Any, Callable[[tuple[Any, ...]], torch.dtype]] = {
    **dict.fromkeys(overloads_with(Trait.DTYPE_OF_FIRST), lambda args: args[0].dtype),
    aten.ldexp.Tensor: _of_ldexp,
    aten.normal.Tensor_Tensor: lambda args: args[0].dtype,  # the mean's
}


def laid_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Returns the result with the kernel's strides and dtype."""
    if func in _DTYPES and result.dtype is not (dtype := _DTYPES[func](args)):
        result = torch_private.fake_like(result, dtype)
    ambiguous = _is_pointwise(func) and any(map(_is_ambiguous, args))
    if func not in LAYOUTS and func not in _OF_GPUS and func not in _COPYING and not ambiguous:
        return result  # which may be a list without tensors: unbind of no rows
    first = result[0] if isinstance(result, (tuple, list)) else result
    rule = None
    if isinstance(first, torch.Tensor):
        device = first.device.type
        if ambiguous or func in LAYOUTS or func in _COPYING or device == "cuda":
            rule = _rule(func, device, kwargs)
    if rule is None:
        return result
    with torch_private.no_python_dispatch(), torch.no_grad():
        try:
            wanted, now = rule(tuple(map(_hint, args))), _hint(first)
        except ValueError:
            return result
    if wanted is None or wanted.shape != now.shape or wanted.stride() == now.stride():
        return result
    if rule is _copied and wanted.stride() == tuple(_hint(args[0].stride())):
        return torch_private.fake_like(first, strides=args[0].stride())
    static = all(type(number) is int for number in (*first.shape, *first.stride()))
    strides = wanted.stride() if static else _dense(first.shape, wanted)
    if strides is None:
        return result
    if first is result:
        return torch_private.fake_like(first, strides=strides)
    alike = 2 if func in _OF_TWO_ALIKE and result[1].shape == first.shape else 1
    created = (torch_private.fake_like(item, strides=strides) for item in result[:alike])
    return (*created, *result[alike:])
