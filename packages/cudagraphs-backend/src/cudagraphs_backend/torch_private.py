"""The one door to names that torch does not promise to keep.

Out: plain functions over storages, addresses, streams and the CUDA allocator. Nothing else in this
package uses a private torch name. What always holds: where a name is absent (a torch without CUDA,
another version) there is a slower way of the same meaning, or the function says that nothing was
there to do.

Tried on torch 2.11.0 (CUDA 13) and 2.13.0 (CPU).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload as OpOverload

#: How many C++ owners a storage has, by the address of its C++ object (`storage_key`).
storage_uses: Callable[[int], int] = torch._C._storage_Use_Count


def storage_key(storage: torch.UntypedStorage) -> int:
    """The address of the storage's C++ object: equal for two live tensors exactly if they share
    their memory.
    """
    return int(storage._cdata)


def _same_addresses_in_python(tensors: list[Any], pointers: list[int], indices: list[int]) -> bool:
    return all(tensors[index].data_ptr() == pointers[index] for index in indices)


#: (tensors, pointers, indices): whether tensors[i] lies at pointers[i] for every i of indices.
same_addresses: Callable[[list[Any], list[int], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses_in_python
)

#: The handle of the current stream of a device, by its index.
current_raw_stream: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each source into its target, in few kernels."""
    torch._foreach_copy_(targets, sources)


def drop_cublas_workspaces() -> None:
    """Has cuBLAS ask for its workspaces anew: a recording must own the one that it uses."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def stop_allocating(device: int, pool: Any) -> None:
    """After a capture that failed: the allocator no longer looks at its pool, and the failed graph
    no longer holds it. Where the capture was ended in order (an exception of Python's), torch has
    done both and says so by raising."""
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
    """From here on calls `seen` with the key of each storage that is given to `record_stream`,
    before torch does what it does. False, and nothing, where this torch lacks what it takes. It is
    called in inference mode too, by the second key."""
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
    """Whether a capture may take memory from several pools."""
    names = (
        "_cuda_endAllocateToPool",
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_releasePool",
    )
    return all(hasattr(torch._C, name) for name in names)


def switch_pool(device: int, leave: Any, enter: Any) -> None:
    """What this thread allocates comes from `enter` and no longer from `leave`. Both are held by
    graphs: the count that the allocator adds for `enter` is taken back."""
    torch._C._cuda_endAllocateToPool(device, leave)
    torch._C._cuda_beginAllocateCurrentThreadToPool(device, enter)
    torch._C._cuda_releasePool(device, enter)


def lie_in_pool(tensors: Sequence[torch.Tensor], pool: Any) -> bool:
    """Whether all of these CUDA tensors were allocated from a pool."""
    segments = [
        (one["address"], one["address"] + one["total_size"])
        for one in torch.cuda.memory_snapshot()
        if tuple(one["segment_pool_id"]) == tuple(pool)
    ]
    addresses = [one.data_ptr() for one in tensors if one.numel()]
    return all(any(low <= address < high for low, high in segments) for address in addresses)


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
    """The switches by which torch chooses its kernels: a recording keeps the kernels of its own."""
    return tuple([get() for get in _SETTINGS])


def mark_written(tensors: Sequence[torch.Tensor]) -> None:
    """Tells autograd that these tensors were written to (a replay writes behind its back)."""
    torch.autograd.graph.increment_version([one for one in tensors if not one.is_inference()])
