"""FakeTensor: creation, queries, and the exceptions for unsupported and data-dependent operators.

No operator runs here that a mode would record.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.dispatch import (
    inside_transforms,
    no_python_dispatch,
    transforms_active,
)
from tracer_core.torch_private.releases import is_tested
from tracer_core.torch_private.symbols import input_source


@functools.cache
def fake_class() -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def fake_tensor_mode(shape_env: Any = None) -> Any:
    """Returns a new FakeTensorMode that rejects real tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False)


def forget_data_sizes(mode: Any) -> None:
    """Makes later reads of a tensor's elements return new symbols: a write that bumped no version
    may have changed what earlier ones returned."""
    mode.epoch += 1


@contextlib.contextmanager
def meta_failures_unlogged() -> Iterator[None]:
    """Context in which FakeTensorMode does not log what meta kernels raise on this thread."""
    before = getattr(_unlogged, "on", False)
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_logged)
    _unlogged.on = True
    try:
        yield
    finally:
        _unlogged.on = before


_unlogged = threading.local()


def _is_logged(record: logging.LogRecord) -> bool:
    return not (getattr(_unlogged, "on", False) and record.exc_info)


def is_fake(value: Any) -> bool:
    """Returns whether `value` is a FakeTensor."""
    if isinstance(value, fake_class()):
        return True
    return type(value) is torch.Tensor and transforms_active() and _wraps_fake(value)


def _wraps_fake(value: torch.Tensor) -> bool:
    """Returns whether a tensor is a fake inside torch.func wrappers."""
    inner = inside_transforms(value)
    return inner is not value and isinstance(inner, fake_class())


def is_fake_without_subclass(value: Any, mode: Any) -> bool:
    """Returns whether `value` is a fake of `mode` with static sizes and no known value."""
    return is_simple_fake(value, mode) and not value._has_symbolic_sizes_strides


def is_simple_fake(value: Any, mode: Any) -> bool:
    """Returns whether `value` is a dense fake of `mode` with no known value."""
    return (
        type(value) is fake_class()
        and value.fake_mode is mode
        and value.constant is None
        and value.layout is torch.strided
    )


def has_symbols(values: Iterable[Any]) -> bool:
    """Returns whether a value is a SymInt, or a tensor with symbolic sizes or strides."""
    return any(
        isinstance(value, torch.SymInt)
        or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides)
        for value in values
    )


def fake_mode_of(value: Any) -> Any:
    """Returns the FakeTensorMode of a FakeTensor."""
    return value.fake_mode


def device_of_fake(value: Any) -> torch.device:
    """Returns the device of a fake."""
    # a property that returns `_fake_device` since torch 2.12
    fake_device: torch.device = value.fake_device
    return fake_device


def fake_like(
    value: Any,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    strides: Any = None,
) -> Any:
    """Returns a new fake with one's sizes, strides, dtype and device (or others); no recording mode
    sees it."""
    return _new_fake(value.fake_mode, value, dtype, device, strides)


def new_fake_like_real(mode: Any, real: torch.Tensor) -> Any:
    """Returns a new fake with a real tensor's sizes, strides, dtype and device; no mode sees it."""
    return _new_fake(mode, real)


def _new_fake(
    mode: Any, like: Any, dtype: Any = None, device: Any = None, strides: Any = None
) -> Any:
    wanted = like.stride() if strides is None else strides
    with no_python_dispatch(), torch.no_grad():
        meta = torch.empty_strided(like.shape, wanted, dtype=dtype or like.dtype, device="meta")
    return fake_class()(mode, meta, device or like.device)


def wrap_meta(mode: Any, meta: torch.Tensor, device: torch.device) -> Any:
    """Wraps a meta tensor in a fake on `device` (FakeTensor's constructor; in the tested releases
    without its argument checks). No torch function mode sees the meta tensor: one is on while an
    autograd.Function's apply() makes views of its results."""
    if not is_tested():
        return fake_class()(mode, meta, device)
    with torch._C.DisableTorchFunction():
        fake = torch.Tensor._make_subclass(
            fake_class(), meta, meta.requires_grad, dispatch_device=True,
            device_for_backend_keys=device,
        )  # fmt: skip
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(_FAKE_ATTRIBUTES, fake_mode=mode)
    fake.__dict__[_device_attribute()] = device
    return fake


@functools.cache
def _device_attribute() -> str:
    """Returns the attribute with a fake's device: `fake_device` is a property since torch 2.12."""
    is_property = isinstance(vars(fake_class()).get("fake_device"), property)
    return "_fake_device" if is_property else "fake_device"


_MEMOS = ("nonzero_memo", "item_memo", "unique_memo", "unique_consecutive_memo", "nested_int_memo")

_FAKE_ATTRIBUTES: dict[str, Any] = {
    **dict.fromkeys(("constant", "pytype", "dispatch_keys", "real_tensor")),
    **dict.fromkeys(f"_{memo}{part}" for memo in _MEMOS for part in ("", "_vc", "_epoch")),
}


def to_fake(mode: Any, tensor: torch.Tensor) -> Any:
    """Returns the fake of a real tensor, with static sizes; one per tensor and mode."""
    # Without a source torch makes one, from torch._dynamo.
    return mode.from_tensor(tensor, static_shapes=True, source=input_source("input"))


def fake_without_subclass(
    mode: Any, tensor: torch.Tensor, storages: dict[int | None, Any], memory: int | None
) -> Any:
    """Returns the fake of a real tensor, or None where only FakeTensorMode can make it.

    Made directly: torch describes the tensor first, for which it imports torch._inductor. storages:
    memory of a real tensor -> its meta storage, so that fakes of aliased inputs share memory.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        or tensor.layout is not torch.strided
        or not (tensor.is_leaf or not tensor.requires_grad)
        or tensor.is_inference()
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return None
    storage = tensor.untyped_storage()
    meta_storage = storages.get(memory)
    if meta_storage is None:
        meta_storage = storages[memory] = torch.UntypedStorage(storage.nbytes(), device="meta")
    with torch.no_grad():
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        meta.set_(meta_storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    meta.requires_grad_(tensor.requires_grad)
    if is_tested() and tensor.device.type == "cpu":
        return wrap_meta(mode, meta, tensor.device)
    return FakeTensor(mode, meta, tensor.device)


def join_storage(
    mode: Any, tensor: torch.Tensor, storages: dict[int | None, Any], memory: int | None
) -> None:
    """Has FakeTensorMode put its fakes of a real tensor's storage on the meta storage of
    `fake_without_subclass`, if there is one."""
    storage = tensor.untyped_storage()
    meta_storage = storages.get(memory)
    if meta_storage is not None:
        converter = mode.fake_tensor_converter.meta_converter
        converter.set_storage_memo(converter.describer.describe_storage(storage), meta_storage)


def to_symbolic_fake(
    mode: Any,
    tensor: torch.Tensor,
    name: str,
    symbolic: tuple[bool, ...],
    shared: dict[Any, Any] | None = None,
) -> Any:
    """Returns the fake of a real tensor whose marked sizes, and strides after them, become symbols
    of the mode's ShapeEnv. shared: the symbols of tensors that are alike; filled by the first."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    n, dynamic, inferred = tensor.dim(), DimDynamic.DYNAMIC, DimDynamic.INFER_STRIDE
    strides = symbolic[n:] or (False,) * n
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[dynamic if dim else DimDynamic.STATIC for dim in symbolic[:n]],
        dynamic_strides=[dynamic if dim else inferred for dim in strides],
        constraint_sizes=[None] * n,
    )
    env = mode.shape_env
    env.shared = shared
    try:
        return mode.from_tensor(tensor, symbolic_context=context, source=input_source(name))
    finally:
        env.shared = None


def fake_failures() -> tuple[type[Exception], ...]:
    """Returns FakeTensor's exceptions for data-dependent shapes and operators without a meta
    kernel."""
    from torch._subclasses import fake_tensor

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,
    )


def no_fakes() -> tuple[type[Exception], ...]:
    """Returns the exceptions that torch raises for a tensor of which it can make no fake."""
    from torch._subclasses import fake_tensor

    return (fake_tensor.UnsupportedFakeTensorException,)


def data_dependent_failures() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """Returns (value needed, shape needed): FakeTensor's exceptions for data-dependent values and
    shapes."""
    from torch._subclasses import fake_tensor

    # a module that is not imported raised nothing
    shapes = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    unknown = () if shapes is None else (shapes.GuardOnDataDependentSymNode,)
    values = fake_tensor.DataDependentOutputException, *unknown
    return values, (fake_tensor.DynamicOutputShapeException,)


def leave_modes(fake_mode: Any, functions: int) -> None:
    """Leaves a FakeTensorMode that is still entered, and torch-function modes above the first
    `functions`."""
    key = torch._C._TorchDispatchModeKey.FAKE
    while fake_mode.enter_stack and torch._C._get_dispatch_mode(key) is fake_mode:
        fake_mode.__exit__(None, None, None)
    while torch._C._len_torch_function_stack() > functions:
        torch._C._pop_torch_function_stack()
