"""Fake-tensor cache: runs ATen operators on fakes without FakeTensorMode's overhead where possible.

`run` returns what FakeTensorMode would (sizes, strides, dtype, device, aliasing) or `SLOW`, which
leaves the call to FakeTensorMode. Views and a list of plain operators run torch's own meta kernel;
for other operators that return new tensors the cache keeps FakeTensorMode's answer under a key of
everything that it depends on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.meta_functions import (
    RULES,
    batch_norm_in_training,
    symbolic_convolution_format,
)
from tracer_core.fx_capture.result_strides import laid_out
from tracer_core.fx_capture.symbolic_fake_cache import SymbolicFakeCache
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait
from tracer_core.torch_private.names import classes, names, operators
from tracer_core.torch_private.needed import OpOverload

SLOW: Any = object()

_aten = operators("aten")
_VIEWS = overloads_with(Trait.VIEW_KERNEL)
#: Operators whose meta kernel is the meta function of their structured kernel.
_STRUCTURED = frozenset(names(
    "add.Tensor sub.Tensor mul.Tensor div.Tensor relu.default silu.default gelu.default"
    " sigmoid.default tanh.default exp.default neg.default rsqrt.default sqrt.default cos.default"
    " sin.default pow.Tensor_Scalar mean.dim sum.dim_IntList addmm.default mm.default bmm.default"
    " baddbmm.default _softmax.default _log_softmax.default maximum.default minimum.default"
    " eq.Tensor eq.Scalar ne.Scalar lt.Tensor lt.Scalar le.Tensor gt.Tensor gt.Scalar ge.Tensor"
    " ge.Scalar leaky_relu.default hardtanh.default hardswish.default",
    of="ops.aten",
))  # fmt: skip
_BATCH_NORMS = frozenset(names(
    "native_batch_norm.default cudnn_batch_norm.default miopen_batch_norm.default", of="ops.aten"
))  # fmt: skip
#: Operator -> where its input, weight and settings are among its arguments; the third is the bias,
#: or its sizes.
_CONVOLUTIONS = {
    _aten.convolution.default: slice(0, 9),
    _aten.convolution_backward.default: slice(1, 10),
}
_DTYPES = frozenset(names("float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool"))
_TAGS = frozenset(names("data_dependent_output dynamic_output_shape inplace_view", of="Tag"))
_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format}
)
_SEQUENCES = frozenset(
    {list, tuple, torch.Size, *classes("fx.immutable_collections.immutable_list")}
)
_MAX_ENTRIES = 8192
#: The keywords of `meta_functions.copied`; other meta functions take none.
_COPY = {"memory_format"}

#: Metadata of an operator's results: (sizes, strides, dtype, device) of each tensor.
_Facts = tuple[Any, ...]
_cached: dict[Any, Any] = {}
_symbolic = SymbolicFakeCache(_PLAIN, _SEQUENCES, _DTYPES, SLOW)


class _Unknown(Exception):
    """Raised for an argument that no cache key can describe."""


class _Kind(enum.Enum):
    """VIEW: runs its meta kernel. FRESH: returns new tensors. INPLACE: mutates and returns its
    first argument. OTHER: left to FakeTensorMode."""

    VIEW = "view"
    FRESH = "fresh"
    INPLACE = "inplace"
    OTHER = "other"


_kinds: dict[Any, _Kind] = {}


def _classify(func: Any) -> _Kind:
    """Classifies an operator by its schema; answers of FRESH and INPLACE depend on metadata alone."""
    if func in _VIEWS:
        return _Kind.VIEW
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return _Kind.OTHER
    if not _TAGS.isdisjoint(func.tags):
        return _Kind.OTHER
    schema = func._schema
    returns = {str(value.type) for value in schema.returns}
    aliases = {
        argument.name: argument.alias_info
        for argument in schema.arguments
        if argument.alias_info is not None
    }
    if not aliases and returns and returns <= {"Tensor", "List[Tensor]"}:
        return _Kind.FRESH
    first_only = [*aliases] == [argument.name for argument in schema.arguments[:1]]
    one_tensor = [str(value.type) for value in schema.returns] == ["Tensor"]
    if first_only and one_tensor and all(info.is_write for info in aliases.values()):
        return _Kind.INPLACE
    return _Kind.OTHER


def run(
    mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], slow: Callable[[], Any]
) -> Any:
    """Returns the operator's result, or SLOW. slow(): computes the result with FakeTensorMode."""
    if mode.in_kernel_invocation:
        return SLOW
    if func in _CONVOLUTIONS and not kwargs:
        if torch_private.has_symbols(args[_CONVOLUTIONS[func]][:1]):
            return _symbolic_convolution(mode, func, args)
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = _classify(func)
    if kind is _Kind.OTHER:
        return SLOW
    if kind is _Kind.VIEW:
        result = _by_kernel(mode, func, args, kwargs)
        if result is SLOW and mode.shape_env is not None:
            return _symbolic.run(mode, func, True, args, kwargs, slow)
        return result
    tensors: list[Any] = []
    try:
        named = _key(mode, tuple(kwargs.items()), tensors) if kwargs else None
        choices = torch.get_default_dtype(), *torch_private.kernel_choices()
        key = (func, _key(mode, args, tensors), named, *choices)
    except _Unknown:
        symbolic = mode.shape_env is not None and kind is _Kind.FRESH
        if not symbolic or _writes_unseen(func, args):
            return SLOW
        return _symbolic.run(mode, func, False, args, kwargs, slow)
    known = _cached.get(key, SLOW)
    if known is None:
        return SLOW
    if known is not SLOW:
        return args[0] if kind is _Kind.INPLACE else _made(mode, known)
    if torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors):
        return SLOW  # without a version, a write is not seen
    if _writes_unseen(func, args):
        simple = func is _aten.native_batch_norm.default and not kwargs
        return _trained(mode, args) if simple else SLOW
    return _first_time(mode, func, args, kwargs, slow, key, tensors)


def _symbolic_convolution(mode: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """Avoids a guard on the batch size: FakeTensorMode asks for the convolution backend, which is
    unnecessary where the result's memory format is the same for every size."""
    value, weight, _, *settings = args[_CONVOLUTIONS[func]]
    bias = args[2] if func is _aten.convolution.default else None
    chosen = symbolic_convolution_format(mode, value, weight, bias, *settings)
    if chosen is None:
        return SLOW
    device = torch_private.device_of_fake(value)
    with torch_private.KernelInvocation(mode):
        result = func(*args)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        results = [
            result.to(memory_format=chosen) if result is not None and result.dim() > 1 else result
            for result in results
        ]
    wrapped = [
        None if item is None else torch_private.wrap_meta(mode, item, device) for item in results
    ]
    return wrapped[0] if isinstance(result, torch.Tensor) else tuple(wrapped)


def _first_time(
    mode: Any,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    slow: Callable[[], Any],
    key: Any,
    tensors: Any,
) -> Any:
    """Computes an answer with the operator's kernel or FakeTensorMode, and caches it."""
    if len(_cached) >= _MAX_ENTRIES:
        _cached.clear()
    rule = RULES.get(func) if not kwargs or kwargs.keys() == _COPY else None
    known = None
    if rule is not None and _one_device(mode, args, kwargs):
        known = rule(*args, **kwargs)
    if known is not None:
        _cached[key] = known
        return args[0] if _kinds[func] is _Kind.INPLACE else _made(mode, known)
    before = [t._version for t in tensors]
    result = _by_kernel(mode, func, args, kwargs) if func in _STRUCTURED else SLOW
    result = slow() if result is SLOW else laid_out(func, args, kwargs, result)
    if _kinds[func] is _Kind.INPLACE:
        _cached[key] = () if result is args[0] and _key(mode, args, []) == key[1] else None
    elif before != [t._version for t in tensors]:
        _cached[key] = None
    else:
        _cached[key] = _facts_of(mode, result, tensors)
    return result


def _writes_unseen(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether a call is batch norm in training, which mutates running statistics against
    its schema."""
    return func in _BATCH_NORMS and not (len(args) > 5 and args[5] is False)


def _trained(mode: Any, args: tuple[Any, ...]) -> Any:
    """Runs batch norm in training and keeps the versions of its running statistics, as below
    autograd."""
    known = batch_norm_in_training(*args) if _one_device(mode, args, {}) is not None else None
    return SLOW if known is None else _made(mode, known)


def _by_kernel(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the answer of the operator's meta kernel, or SLOW."""
    device = _one_device(mode, args, kwargs)
    if device is None:
        return SLOW
    try:
        with torch_private.KernelInvocation(mode):
            result = func(*args, **kwargs)
    except Exception:
        return SLOW  # FakeTensorMode raises what it raises
    if isinstance(result, torch.Tensor):
        return torch_private.wrap_meta(mode, result, device)
    return type(result)(torch_private.wrap_meta(mode, item, device) for item in result)


def _one_device(mode: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the device of all tensor arguments; None if they differ or one needs FakeTensorMode."""
    device: Any = None
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in _PLAIN or kind is torch.device:
            continue
        if kind in _SEQUENCES:
            tensors = [item for item in value if type(item) not in _PLAIN]
        else:
            tensors = [value]
        for tensor in tensors:
            if (
                not torch_private.is_fake_without_subclass(tensor, mode)
                or tensor.dtype not in _DTYPES
            ):
                return None
            if device is not None and tensor.fake_device != device:
                return None
            device = tensor.fake_device
    return device


def _key(mode: Any, value: Any, tensors: list[Any]) -> Any:
    """Returns a key of everything in an argument that an answer depends on."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is str or value is None else (kind, value)
    if kind in _SEQUENCES:
        return tuple([_key(mode, item, tensors) for item in value])
    if kind is torch.device:
        return value
    if not torch_private.is_fake_without_subclass(value, mode) or value.dtype not in _DTYPES:
        raise _Unknown
    tensors.append(value)
    return value.shape, value.stride(), value.dtype, value.fake_device


def _facts_of(mode: Any, result: Any, inputs: list[Any]) -> tuple[type, tuple[_Facts, ...]] | None:
    """Returns the cacheable facts of an answer; None unless its tensors are new and dense."""
    kind = next((kind for kind in (torch.Tensor, list, tuple) if isinstance(result, kind)), None)
    if kind is None:
        return None
    seen = {torch_private.storage_id(value) for value in inputs}
    facts = []
    for part in [result] if kind is torch.Tensor else result:
        simple = torch_private.is_fake_without_subclass(part, mode) and part.dtype in _DTYPES
        if not simple or part.storage_offset():
            return None
        storage = torch_private.storage_id(part)
        if storage in seen:
            return None
        seen.add(storage)
        facts.append((part.shape, part.stride(), part.dtype, part.fake_device))
    return kind, tuple(facts)


def _made(mode: Any, known: tuple[type, tuple[_Facts, ...]]) -> Any:
    """Makes new fakes from cached facts."""
    kind, facts = known
    metas: list[Any] = []
    with torch_private.no_python_dispatch():
        for fact in facts:
            if fact is None:  # a gradient that was not asked for
                metas.append(None)
                continue
            shape, stride, dtype, device = fact
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            metas.append(torch_private.wrap_meta(mode, meta, device))
    return metas[0] if kind is torch.Tensor else kind(metas)
