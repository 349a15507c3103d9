"""Stores kernels that were measured to be faster than others that compute the same.

A key is a kernel and its number of programs. `autotune.tile_search` measures and inserts; a run that
launches such a kernel looks the faster one up when its module is loaded, in later processes too.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.runtime.cuda import measurement_store
from inductor_backend.runtime.cuda.build import load_stored
from inductor_backend.runtime.cuda.triton_compile import Kernel
from tracer_core.plugin_api import BackendError, logger

if TYPE_CHECKING:
    from inductor_backend.runtime.cuda.build import LoadedKernel
    from inductor_backend.runtime.cuda.launch import Launch


def key_of(kernel: Kernel, programs: int) -> str:
    return f"{kernel.key()} {programs}"


def allowed(kernel: Kernel) -> bool:
    """Returns whether another tile may replace that of a kernel now: not where it would add in
    another order than in the last process (deterministic algorithms), or on other ranks."""
    if kernel.searched != "order":
        return bool(kernel.searched)
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not group and not torch.are_deterministic_algorithms_enabled()


def known(kernel: Kernel, programs: int, device: torch.device) -> bool:
    """Returns whether the kernel was measured on this machine."""
    return measurement_store.read(key_of(kernel, programs), device) is not None


def insert(
    kernel: Kernel,
    programs: int,
    device: torch.device,
    faster: tuple[Kernel, int] | None,
    facts: dict[str, Any],
) -> None:
    """Stores a measurement. faster: a kernel and its number of programs; None: there is none. facts:
    what was measured, for people."""
    best, count = (None, 0) if faster is None else (asdict(faster[0]), faster[1])
    stored = {**facts, "kernel": best, "programs": count}
    key = key_of(kernel, programs)
    measurement_store.insert(key, device, stored)
    _loaded.pop((key, device), None)


def replaced(launch: Launch) -> Launch:
    """Returns a launch of the faster kernel that is stored for it; the launch itself where there is
    none, or its machine code is not here."""
    loaded, programs, *rest = launch
    if not isinstance(programs, int) or not allowed(loaded.kernel):
        return launch
    key = key_of(loaded.kernel, programs), loaded.device
    if key not in _loaded:
        _loaded[key] = _faster(*key)
    faster = _loaded[key]
    return launch if faster is None else (*faster, *rest)


#: What `_faster` returned.
_loaded: dict[tuple[str, torch.device], tuple[LoadedKernel, int] | None] = {}


def _faster(key: str, device: torch.device) -> tuple[LoadedKernel, int] | None:
    """Loads the faster kernel that is stored, with its number of programs."""
    stored = measurement_store.read(key, device)
    if stored is None or stored.get("kernel") is None:
        return None
    try:
        faster = load_stored(Kernel(**stored["kernel"]), device)
        return None if faster is None else (faster, int(stored["programs"]))
    except (BackendError, KeyError, TypeError, ValueError) as error:
        logger().info("a measured tile is not used: %s: %s", type(error).__name__, error)
        return None
