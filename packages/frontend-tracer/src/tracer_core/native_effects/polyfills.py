"""Polyfills: Python versions of C functions that call user code, interpreted in their place.

Each does exactly what the documentation of the original says. The tracer itself calls none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tracer_core.ops.higher_order.adafactor import _fused_adafactor_
from tracer_core.ops.higher_order.scan import scanned_by_tree
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    """itertools.count of numbers that are no plain ints or floats."""
    value = start
    while True:
        yield value
        value = value + step


_NOTHING = object()


class GroupBy:
    """itertools.groupby. Mutable."""

    def __init__(self, iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> None:
        self.items = iter(iterable)
        self.key = key
        self.target = self.current_key = self.value = _NOTHING
        self.group: object = None

    def __iter__(self) -> GroupBy:
        return self

    def __next__(self) -> tuple[Any, Iterator[Any]]:
        self.group = object()
        while self.current_key is self.target or self.current_key == self.target:
            self.value = next(self.items)
            self.current_key = self.value if self.key is None else self.key(self.value)
        self.target = self.current_key
        return self.current_key, self._members(self.target, self.group)

    def _members(self, target: Any, group: object) -> Iterator[Any]:
        while self.group is group and (self.current_key is target or self.current_key == target):
            yield self.value
            try:
                self.value = next(self.items)
            except StopIteration:
                self.current_key = self.target = _NOTHING
                self.items = iter(())
                return
            self.current_key = self.value if self.key is None else self.key(self.value)


class FinishedWork:
    """The handle of a collective with ``async_op=True`` in the graph, which waits for it by itself
    where its result is used first. No trace hands it to the program (native_functions/collectives.py)."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


def use_grad_for_differentiable(step: Any, args: Any, kwargs: Any) -> Any:
    """The wrapper that torch.optim's _use_grad_for_differentiable puts around Optimizer.step."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return step(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def adafactor(
    in_lists: bool,
    params: Any,
    grads: Any,
    row_vars: Any,
    col_vars: Any,
    variances: Any,
    state_steps: Any,
    grad_scale: Any,
    found_inf: Any,
    *,
    d: float,
    lr: float,
    beta2_decay: float,
    weight_decay: float,
    eps1: Any,
    eps2: float,
    maximize: bool,
    **unused: Any,
) -> None:
    """The loop over parameters of torch.optim.Adafactor. in_lists: its form for lists of tensors."""
    if grad_scale is not None or found_inf is not None:
        raise AssertionError("Grad scaling should occur outside of optimizer.step()")
    for param, grad, row_var, col_var, variance, step in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        if eps1 is None:
            eps1 = torch.finfo(param.dtype).eps
        step += 1
        count = known_number(step)
        _fused_adafactor_(
            param,
            -grad if maximize else grad,
            row_var,
            col_var,
            variance,
            weight=count**beta2_decay,
            rho=min(lr, 1 / (count**0.5)),
            decay=1 - lr * weight_decay if weight_decay != 0 else 1.0,
            eps1=eps1,
            eps2=eps2,
            d=d,
            in_lists=in_lists,
        )


def known_number(tensor: Any) -> Any:
    """The number in a tensor; in a trace the one that is known before the graph runs."""
    return tensor.item()


def cached_property_get(self: Any, instance: Any, owner: Any = None) -> Any:
    """functools.cached_property.__get__ without its lock, which no other thread can take in a
    trace."""
    if instance is None:
        return self
    if self.attrname is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    if not hasattr(instance, "__dict__"):
        raise TypeError(
            f"No '__dict__' attribute on {type(instance).__name__!r} "
            f"instance to cache {self.attrname!r} property."
        )
    cache = instance.__dict__
    value = cache.get(self.attrname, _NOTHING)
    if value is _NOTHING:
        value = self.func(instance)
        cache[self.attrname] = value
    return value


def map_rows(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """torch._higher_order_ops.map: `f` of the slices along the first dimension, stacked."""
    leaves, structure = pytree.tree_flatten(xs)
    rows = [
        pytree.tree_flatten(
            f(pytree.tree_unflatten([leaf[i] for leaf in leaves], structure), *args)
        )
        for i in range(leaves[0].shape[0])
    ]
    return pytree.tree_unflatten(
        [torch.stack(parts) for parts in zip(*[flat for flat, _ in rows], strict=True)], rows[0][1]
    )


_INT_PRODUCT = names("_int_mm")


def out_dtype(op: Any, output_dtype: torch.dtype, *args: torch.Tensor) -> torch.Tensor:
    """torch._higher_order_ops.out_dtype: `op` of tensors in the dtype that they and `output_dtype`
    promote to."""
    integers = op is torch.ops.aten.mm.default and output_dtype is torch.int32
    if integers and all(arg.dtype is torch.int8 and arg.is_cuda for arg in args):
        product: torch.Tensor = _INT_PRODUCT[0](*args)
        return product
    promoted = output_dtype
    for arg in args:
        promoted = torch.promote_types(promoted, arg.dtype)
    result: torch.Tensor = op(*[arg.to(promoted) for arg in args]).to(output_dtype)
    return result


def attention_device(query: Any, key: Any, value: Any) -> None:
    """flex_attention's check of devices."""
    if query.device.type not in ("cuda", "cpu"):
        raise ValueError(f"flex_attention is compiled for CUDA and the CPU, not {query.device}")


def attention_by_bias(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """torch.nn.attention.bias.CausalBias's form of scaled_dot_product_attention, on the CPU."""
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")
    square = attn_mask.seq_len_q == attn_mask.seq_len_kv
    upper_left = square or attn_mask.variant.name == "UPPER_LEFT"
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if upper_left else attn_mask._materialize(query.device),
        dropout_p=dropout_p,
        is_causal=upper_left,
        scale=scale,
        enable_gqa=enable_gqa,
    )


def is_finite(scores: Any) -> Any:
    """The end of create_mask: where a score_mod does not mask a score."""
    return torch.where(torch.isneginf(scores), False, True)


def ordered_to_dense(counts: Any, indices: Any, columns: Any = None) -> Any:
    """A BlockMask's matrix of blocks: 1 at the first `counts` of `indices` of each row. columns: of
    the matrix; before torch 2.13 as many as a row has indices."""
    columns = indices.shape[-1] if columns is None else columns
    place = torch.arange(indices.shape[-1], device=indices.device)
    listed = torch.where(place < counts.unsqueeze(-1), indices, columns)
    shape = (*indices.shape[:-1], columns + 1)
    empty = torch.zeros(shape, dtype=torch.int32, device=indices.device)
    return empty.scatter(-1, listed.to(torch.int64), 1)[..., :columns].contiguous()


def dense_to_ordered(dense: Any) -> Any:
    """A BlockMask's rows of blocks: how many, and which (those first)."""
    dense = dense.to(dtype=torch.int32)
    indices = torch.argsort(dense, dim=-1, descending=True, stable=True)
    counts = dense.sum(dim=-1)
    return (
        counts.to(torch.int32, memory_format=torch.contiguous_format),
        indices.to(torch.int32, memory_format=torch.contiguous_format),
    )


def scan(combine_fn: Callable[[Any, Any], Any], init: Any, xs: Any, dim: int, reverse: bool) -> Any:
    """torch._higher_order_ops.scan: the carry goes through the slices along `dim`."""
    inputs = pytree.tree_map(lambda leaf: torch.movedim(leaf, dim, 0), xs)
    if reverse:
        inputs = pytree.tree_map(lambda leaf: leaf.flip([0]), inputs)
    carry, parts = scan_rows(combine_fn, init, inputs)
    if reverse:
        parts = pytree.tree_map(lambda leaf: leaf.flip([0]), parts)
    return carry, pytree.tree_map(
        lambda leaf: torch.movedim(leaf, 0, dim) if dim < leaf.ndim else leaf, parts
    )


def scan_rows(step: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
    """Returns the last carry and the stacked parts of a loop over slices. The tracer has a
    node for it."""
    leaves, structure = pytree.tree_flatten(xs)
    rows = []
    for row in zip(*[leaf.unbind(0) for leaf in leaves], strict=True):
        carry, part = step(carry, pytree.tree_unflatten(list(row), structure))
        rows.append(pytree.tree_flatten(part))
    stacked = [torch.stack(parts) for parts in zip(*[flat for flat, _ in rows], strict=True)]
    return carry, pytree.tree_unflatten(stacked, rows[0][1])


def map_many_rows(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """torch._higher_order_ops.map as a scan that carries nothing."""
    return scan_rows(lambda carry, row: (carry, f(row, *args)), [], xs)[1]


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], carry: Any) -> Any:
    """torch.while_loop whose condition Python decides."""
    while condition(*carry):
        carry = body(*carry)
    return carry


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool
) -> Any:
    """torch._higher_order_ops.associative_scan: inclusive scan along `dim`, by a tree of depth
    log2(length), or by a kernel that takes one slice after the other.

    `combine_fn` runs on whole slices for both of torch's modes, and autograd differentiates it.
    Torch's gradient of ``combine_mode="pointwise"`` (CUDA) wrongly treats the leaves of `xs` as
    independent.
    """
    leaves, structure = pytree.tree_flatten(xs)
    leaves = [torch.movedim(leaf, dim, 0) for leaf in leaves]
    if reverse:
        leaves = [leaf.flip([0]) for leaf in leaves]
    results = associative_rows(combine_fn, leaves, structure)
    if reverse:
        results = [result.flip([0]) for result in results]
    return pytree.tree_unflatten([torch.movedim(result, 0, dim) for result in results], structure)


def associative_rows(
    combine_fn: Callable[[Any, Any], Any], leaves: list[Any], structure: Any
) -> list[Any]:
    """Returns the inclusive scan of the slices of leaves. The tracer has a node for it."""

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        pairs = [pytree.tree_unflatten(value, structure) for value in (left, right)]
        return list(pytree.tree_leaves(combine_fn(*pairs)))

    return scanned_by_tree(torch.vmap(combine), leaves)


def may_pack(encoder: Any, src: Any, padding: Any) -> bool:
    """Returns whether torch.nn.TransformerEncoder puts its input into a nested tensor, in eager
    mode, if the mask for padding is aligned to the left."""
    first = encoder.layers[0]
    attention = first.self_attn
    if not (
        torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not first.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    ):
        return False
    if not torch.is_grad_enabled():
        return True
    read = (src, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight,
            attention.out_proj.bias, first.norm1.weight, first.norm1.bias, first.norm2.weight,
            first.norm2.bias, first.linear1.weight, first.linear1.bias, first.linear2.weight,
            first.linear2.bias)  # fmt: skip
    return not any(item.requires_grad for item in read)


def packs_by_identity(encoder: Any, src: Any, padding: Any) -> bool:
    """Returns whether `encode_packed` does what the encoder does: its layers are torch's own, and
    the mask is checked and fits."""
    return (
        getattr(encoder, "mask_check", True)
        and (padding.dtype is torch.bool or padding.is_floating_point())
        and padding.dim() == 2
        and padding.shape == src.shape[:2]
        and not src.is_nested
        and all(type(layer) is torch.nn.TransformerEncoderLayer for layer in encoder.layers)
        and not any(layer.training for layer in encoder.layers)
    )


def encode_packed(encoder: Any, src: Any, padding: Any, is_causal: Any) -> Any:
    """torch.nn.TransformerEncoder.forward where `may_pack`: rows of padding are zeros before the
    norm if the mask is aligned to the left; in a nested tensor they do not exist."""
    inputs = padding
    if not padding.is_floating_point():  # True stands for padding
        inputs = torch.zeros_like(padding, dtype=src.dtype).masked_fill(padding, float("-inf"))
    valid = inputs.logical_not()
    counted = torch.arange(valid.shape[1], device=valid.device) < valid.sum(1, keepdim=True)
    aligned = (counted == valid).all()
    dropped = valid.logical_not() & aligned
    layers_mask = inputs.masked_fill(dropped, float("-inf"))
    output = src
    for layer in encoder.layers:
        output = layer(
            output, src_mask=None, is_causal=is_causal is True, src_key_padding_mask=layers_mask
        )
    output = output.masked_fill(dropped.unsqueeze(-1), 0.0).contiguous()
    return output if encoder.norm is None else encoder.norm(output)


def encode_nested(encoder: Any, src: Any, padding: Any, is_causal: Any) -> Any:
    """torch.nn.TransformerEncoder.forward where `may_pack` and not `packs_by_identity`: eager."""
    return encode_eagerly(encoder, src, padding, is_causal)


def encode_eagerly(encoder: Any, src: Any, padding: Any, is_causal: Any) -> Any:
    """Calls torch.nn.TransformerEncoder.forward; a row of the native effects table has it break the graph."""
    return torch.nn.TransformerEncoder.forward(encoder, src, None, padding, is_causal)


def istft(
    spectrum: Any,
    n_fft: int,
    hop: int,
    width: int,
    window: Any,
    center: bool,
    normalized: bool,
    length: int | None,
) -> Any:
    """torch.istft of the one-sided spectrum of a real signal, whose sizes are known to fit."""
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.constant_pad_nd(window, (left, n_fft - width - left), 0)
    frames = (spectrum if spectrum.dim() == 3 else spectrum.unsqueeze(0)).transpose(1, 2)
    frames = torch.fft.irfft(frames, dim=2, norm="ortho" if normalized else None)
    full = n_fft + hop * (frames.shape[1] - 1)
    overlapped = torch.ops.aten.unfold_backward(
        frames * window.view(1, 1, n_fft), [frames.shape[0], full], 1, n_fft, hop
    )
    envelope = torch.ops.aten.unfold_backward(
        window.pow(2).expand(1, frames.shape[1], n_fft), [1, full], 1, n_fft, hop
    )
    start = n_fft // 2 if center else 0
    end = full - start if length is None else start + length
    envelope = envelope[:, start:end]
    if envelope.abs().min() < 1e-11:
        raise RuntimeError("istft: the windows leave a place of the signal without weight")
    signal = overlapped[:, start:end] / envelope
    return signal if spectrum.dim() == 3 else signal.squeeze(0)


def cov(input: Any, correction: int) -> Any:
    """torch.cov without weights, of more observations than the correction takes off."""
    rows = input.view(1, -1) if input.dim() < 2 else input
    observations = rows.shape[1]
    # The kernel divides by numbers in tensors, which decide the dtype for integers.
    total = torch.scalar_tensor(observations, dtype=torch.int64, device=rows.device)
    freedom = torch.scalar_tensor(observations - correction, dtype=torch.int64, device=rows.device)
    centred = rows - (rows.sum(1) / total).unsqueeze(1)
    result = torch.mm(centred, centred.t().conj()) / freedom
    return result.squeeze()


def corrcoef(input: Any) -> Any:
    """torch.corrcoef of at least two observations."""
    result = cov(input, 1)
    if result.dim() == 0:
        return result / result
    variances = result.diagonal()
    deviations = (torch.real(variances) if result.is_complex() else variances).sqrt()
    scaled = result / deviations.view(-1, 1) / deviations.view(1, -1)
    if not scaled.is_complex():
        return scaled.clamp(-1, 1)
    return torch.complex(scaled.real.clamp(-1, 1), scaled.imag.clamp(-1, 1))


def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, momentum: Any, eps: Any
) -> Any:
    """torch.nn.functional.batch_norm in training, whose kernel takes `momentum` as a constant: the
    running statistics are updated by operators of their own."""
    normal = torch.nn.functional.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
    dims = [dim for dim in range(input.dim()) if dim != 1]
    with torch.no_grad():
        variance, mean = torch.var_mean(input.detach().to(running_mean.dtype), dims, correction=1)
        running_mean.mul_(1 - momentum).add_(mean * momentum)
        running_var.mul_(1 - momentum).add_(variance * momentum)
    return normal


def shape_as_tensor(tensor: Any) -> Any:
    """torch._shape_as_tensor, which torch.onnx.operators uses."""
    return torch.tensor([*tensor.shape], dtype=torch.int64)


def reshape_from_tensor(tensor: Any, shape: Any) -> Any:
    """torch._reshape_from_tensor."""
    return tensor.reshape(shape.tolist())
