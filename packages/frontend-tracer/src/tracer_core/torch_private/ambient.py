"""Torch settings that affect execution and under which a graph was captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.torch_private import settings
from tracer_core.torch_private.names import names

#: Types of device properties: immutable objects with C attributes. None in builds without CUDA.
DEVICE_PROPERTIES: tuple[type, ...] = names("_C._CudaDeviceProperties", in_every_build=False)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Context that restores every setting on exit (in another thread than the program's its own) and
    drops autocast's casts cached inside."""
    before = settings.own(settings.snapshot())
    try:
        yield
    finally:
        settings.restore(before)


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """Context without autocast."""
    with contextlib.ExitStack() as stack:
        for device in settings.AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def autocast_state() -> tuple[Any, ...]:
    """Returns every autocast setting."""
    devices = [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)


@dataclass(frozen=True, slots=True)
class TorchState:
    """Settings that every graph is captured under. devices: of ``with torch.device(...)``.
    dispatch_modes: the number of active modes. autocast: `autocast_state`, None when disabled."""

    grad: bool
    inference: bool
    default_dtype: torch.dtype
    devices: tuple[Any, ...]
    dispatch_modes: int
    deterministic: bool
    autocast: tuple[Any, ...] | None


def torch_state() -> TorchState:
    """Returns the current settings; the only active function modes must be devices."""
    devices = settings.ambient_devices() if torch._C._len_torch_function_stack() else ()
    assert devices is not None
    return TorchState(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        default_dtype=torch.get_default_dtype(),
        devices=devices,
        dispatch_modes=torch._C._len_torch_dispatch_stack(),
        deterministic=torch._C._get_deterministic_algorithms(),
        autocast=autocast_state() if torch._C._is_any_autocast_enabled() else None,
    )


def kernel_choices() -> tuple[Any, ...]:
    """Returns the settings by which operators choose kernels with different result strides."""
    return (
        torch._C._get_mkldnn_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
    )


def device_constructors() -> Any:
    """Returns the functions to which ``with torch.device(...)`` passes a device."""
    from torch.utils._device import _device_constructors

    return _device_constructors()
