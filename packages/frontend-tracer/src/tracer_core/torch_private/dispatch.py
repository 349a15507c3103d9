"""The dispatcher: modes, decompositions, dispatch keys, and the transforms of torch.func."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.functional_tensors import functionalization_off
from tracer_core.torch_private.releases import is_before


def python_dispatcher() -> Any:
    """Context in which operators use torch's Python kernels where registered (batch_norm's running
    statistics become visible writes; upsampling keeps symbolic sizes)."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def without_symbols() -> tuple[str, ...]:
    """Returns the names of functions whose C++ kernels take symbolic sizes in later releases only:
    torch 2.11's matmul of a stack asks for the number of its elements."""
    return ("matmul", "linalg_matmul", "linear") if is_before("2.13") else ()


def no_python_dispatch() -> Any:
    """Context without dispatch modes."""
    return torch._C._DisableTorchDispatch()


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Context in which operators run for real, without dispatch modes and functionalization."""
    with no_python_dispatch(), functionalization_off():
        yield


def default_torch_function(function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """A `__torch_function__` with torch's behaviour for a plain tensor."""
    return torch._C._disabled_torch_function_impl(function, types, args, kwargs)


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Returns a tensor's dispatch key set as an int."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


@contextlib.contextmanager
def outside_recording() -> Iterator[None]:
    """Inside, no dispatch mode and no functionalisation sees an operator, but fake tensors stay
    fake: with symbolic sizes, a kernel could not run for real.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), functionalization_off():
        yield


def is_composite(op: Any) -> bool:
    """Returns whether an operator is CompositeImplicitAutograd without a kernel of its own.
    TorchScript-only operators (``aten::size``), which the dispatcher does not know, are not."""
    name = op.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = torch._C._dispatch_has_kernel(name) and has(name, "CompositeImplicitAutograd")
    return bool(composite and not has(name, "CPU"))


def overload_of(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the overload that a call of a packet (``torch.ops.aten.add``) runs; the packet itself
    if the arguments fit none, whose call raises."""
    try:
        chosen = torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs)
    except RuntimeError:
        return packet
    return getattr(packet, chosen, packet)  # TorchScript-only overloads have no object


@functools.cache
def core_aten_table() -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions to core ATen (cached: it takes 50 ms; do not mutate)."""
    from torch._decomp import core_aten_decompositions

    missing = [torch.ops.aten._native_batch_norm_legit_functional, torch.ops.aten.var_mean]
    return dict(core_aten_decompositions()) | decompositions(missing)


def decompositions(ops: Any) -> dict[Any, Callable[..., Any]]:
    """Returns torch's decompositions of these operators (OpOverloads or packets)."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions(ops))


def transforms_active() -> bool:
    """Returns whether a torch.func transform is running."""
    return bool(torch._C._are_functorch_transforms_active())


def is_transform(function: Any) -> bool:
    """Returns whether torch.func.jacrev or the like made a function, whatever names it has."""
    module = getattr(function, "__globals__", {}).get("__name__")
    return bool(module == "torch._functorch.eager_transforms")


def duals_active() -> bool:
    """Returns whether tensors may have tangents (torch.autograd.forward_ad)."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


def outside_transforms() -> Any:
    """Context without torch.func transforms."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def is_batched(tensor: torch.Tensor) -> bool:
    """Returns whether vmap hides a dimension of a dense tensor (torch.func's, or that of
    ``torch.autograd.grad(..., is_grads_batched=True)``), whose memory kernels cannot read."""
    return tensor.layout is torch.strided and not torch._C._has_storage(tensor)


@contextlib.contextmanager
def outside_vmap() -> Iterator[None]:
    """Context without torch.func transforms and without the vmap of `is_grads_batched`."""
    depth = torch._C._vmapmode_increment_nesting() - 1
    for _ in range(depth + 1):
        torch._C._vmapmode_decrement_nesting()
    try:
        with outside_transforms():
            yield
    finally:
        for _ in range(depth):
            torch._C._vmapmode_increment_nesting()


def inside_transforms(value: torch.Tensor) -> torch.Tensor:
    """Unwraps torch.func's wrappers; the result has the dimensions that vmap hides."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value
