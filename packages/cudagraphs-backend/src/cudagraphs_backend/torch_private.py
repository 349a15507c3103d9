"""The only module of this package that uses private torch names: storages, streams, dispatch modes
and the CUDA allocator.

Where a name is absent (a torch without CUDA, another version), a slower public way with the same
meaning takes its place, or the function reports that the feature is missing. Tried on torch 2.11.0
(CUDA 13) and 2.13.0 (CPU)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_map_only as tree_map_only

#: How many C++ owners a storage has, by the address of its C++ object (`storage_key`).
storage_uses: Callable[[int], int] = torch._C._storage_Use_Count


def storage_key(storage: torch.UntypedStorage) -> int:
    """Returns the address of the storage's C++ object: equal for two live tensors exactly if they
    share their memory."""
    return int(storage._cdata)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that torch leaves as it is: others it wraps so that their first operator imports
    torch._dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def by_address(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor over the same memory that does not keep it alive: what a CUDA graph's host
    calls read and write lies in its pool, where captured work after them uses it again."""
    storage = tensor.untyped_storage()
    with without_modes():
        memory = torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), tensor.device, storage.nbytes()
        )
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return alias.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())


def _same_addresses_in_python(tensors: list[Any], pointers: list[int], indices: list[int]) -> bool:
    return all(tensors[index].data_ptr() == pointers[index] for index in indices)


#: (tensors, pointers, indices): whether tensors[i].data_ptr() == pointers[i] for all of indices.
same_addresses: Callable[[list[Any], list[int], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses_in_python
)

#: The raw handle of the current stream, by device index.
current_raw_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each source into its target, those of one dtype with one `_foreach_copy_`: of several
    dtypes, that launches a copy for each tensor."""
    dtypes: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        group = dtypes.setdefault(target.dtype, ([], []))
        group[0].append(target)
        group[1].append(source)
    for group in dtypes.values():
        torch._foreach_copy_(*group)


def drop_cublas_workspaces() -> None:
    """Makes cuBLAS allocate its workspaces anew: a CUDA graph must own the one that it uses."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def stop_allocating(device: int, pool: Any) -> None:
    """Ends the allocator's use of the pool of a failed capture, and that capture's reference to the
    pool. Where a Python exception ended the capture, torch has done both already and raises."""
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError as error:
        if "not currently recording" not in str(error):
            raise
        return
    torch._C._cuda_releasePool(device, pool)


#: What `watch_record_stream` registers; it lasts as long as the process.
_watching: list[torch.library.Library] = []


def watch_record_stream(seen: Callable[[int], None]) -> bool:
    """Registers `seen` to be called with the storage key of each tensor given to `record_stream`,
    before torch's own implementation runs. Returns False, and registers nothing, where this torch
    lacks the private names. The second dispatch key covers inference mode."""
    below = getattr(torch._C, "_AutoDispatchBelowAutograd", None)
    without = getattr(torch._C, "_ExcludeDispatchKeyGuard", None)
    if below is None or without is None:
        return False
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

    def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
        seen(storage_key(tensor.untyped_storage()))
        with below(), without(views):
            torch.ops.aten.record_stream.default(tensor, stream)

    library = torch.library.Library("aten", "IMPL")
    for key in ("AutogradCUDA", "AutogradCPU", "ADInplaceOrView"):
        library.impl("record_stream", record_stream, key)
    _watching.append(library)
    return True


def can_switch_pools() -> bool:
    """Returns whether a capture may allocate from several pools."""
    names = (
        "_cuda_endAllocateToPool",
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_releasePool",
    )
    return all(hasattr(torch._C, name) for name in names)


def switch_pool(device: int, leave: Any, enter: Any) -> None:
    """Makes this thread allocate from `enter` instead of `leave`. CUDA graphs hold both pools, so
    the reference that the allocator adds for `enter` is released."""
    torch._C._cuda_endAllocateToPool(device, leave)
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, enter)
    torch._C._cuda_releasePool(device, enter)


def lie_in_pool(tensors: Sequence[torch.Tensor], pool: Any) -> bool:
    """Returns whether all of these CUDA tensors were allocated from a pool."""
    ranges = [
        (item["address"], item["address"] + item["total_size"])
        for item in torch.cuda.memory_snapshot()
        if tuple(item["segment_pool_id"]) == tuple(pool)
    ]
    addresses = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    return all(any(low <= address < high for low, high in ranges) for address in addresses)


#: Not `_get_cublas_allow_tf32` and its like: they raise once a program has set
#: `torch.backends.cuda.matmul.fp32_precision`.
_PRECISIONS = tuple(
    functools.partial(torch._C._get_fp32_precision_getter, "cuda", kind)
    for kind in ("matmul", "conv", "rnn")
)

_SETTINGS: tuple[Callable[[], Any], ...] = _PRECISIONS + tuple(
    getattr(torch._C, name)
    for name in (
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_deterministic_algorithms",
        "_get_cudnn_enabled",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_flash_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled",
        "_get_cudnn_sdp_enabled",
    )
    if hasattr(torch._C, name)
)


def numeric_settings() -> tuple[Any, ...]:
    """Returns the settings by which torch chooses kernels: a CUDA graph replays the kernels that it
    was captured with."""
    return tuple([get() for get in _SETTINGS])
