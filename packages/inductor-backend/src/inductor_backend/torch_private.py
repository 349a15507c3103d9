"""Every private name of torch that this package uses. Tried on torch 2.13.0.

In: nothing. Out: functions with public-looking names. What always holds: no other module of the
package imports a private torch module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch._ops import OpOverload as OpOverload


@functools.cache
def core_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch._decomp's core ATen table: operator -> decomposition (made once: it takes 30 ms)."""
    from torch._decomp import core_aten_decompositions

    return MappingProxyType(dict(core_aten_decompositions()))


def fake_tensor_mode() -> Any:
    """A new FakeTensorMode."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def cuda_raw_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device, without making a Stream object."""
    import torch

    raw: int = torch._C._cuda_getCurrentRawStream(device)
    return raw


def tf32_allowed(convolution: bool) -> bool:
    """Whether matmuls (or convolutions) of float32 on CUDA may round to TF32 now."""
    import torch

    return bool(
        torch._C._get_fp32_precision_getter("cuda", "conv" if convolution else "matmul") == "tf32"
    )


def keep_device_busy(cycles: int) -> None:
    """Has the current CUDA device wait (an H100 does about two million cycles in a millisecond)."""
    import torch

    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(cycles)


def lazy_graph_module(root: Any, graph: Any) -> Any:
    """A GraphModule that writes its Python code when somebody runs or prints it, which for most
    graphs is never.
    """
    import torch

    try:
        from torch.fx._lazy_graph_module import _LazyGraphModule
    except ImportError:  # a torch that has none
        return torch.fx.GraphModule(root, graph)
    return _LazyGraphModule(root, graph)


def storage_key(tensor: Any) -> int:
    """Equal for two live tensors exactly if they share their memory; of fakes too."""
    return int(tensor.untyped_storage()._cdata)


def floor_div(size: Any, number: int) -> Any:
    """The floor of a symbolic size divided by a number."""
    from torch.utils._sympy.functions import FloorDiv  # heavy: sympy

    return FloorDiv(size, number)


def is_known_to_be(size: Any, number: Any) -> bool:
    """Whether a size is that number, of which either may be symbolic, for every call that passes the
    guards. A comparison of symbolic sizes by ``==`` adds a guard, which is too late in a backend."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # heavy: sympy

    return bool(statically_known_true(size == number))


def are_known_to_be(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a tensor's sizes are `others` in this sense."""
    return len(sizes) == len(others) and all(map(is_known_to_be, sizes, others))


def upper_bound(expr: Any, ranges: Mapping[Any, tuple[int, int | None]]) -> int | None:
    """Returns an upper bound of a sympy expression, or None. ranges: symbol -> its least and largest
    value (None: unbounded)."""
    from torch.utils._sympy.numbers import int_oo  # heavy: sympy
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    known = {
        symbol: ValueRanges(lower, int_oo if upper is None else upper)
        for symbol, (lower, upper) in ranges.items()
    }
    upper = bound_sympy(expr, known).upper
    return int(upper) if upper.is_Integer else None


@functools.cache
def multiplies_16_bits(dtype: Any) -> bool:
    """Whether ATen's kernels of the CPU multiply bfloat16 or float16 by the processor's instructions."""
    import torch

    supported = {
        torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported",
    }  # fmt: skip
    check = getattr(torch.ops.mkldnn, supported[dtype], None)
    return check is None or bool(check())


@functools.cache
def has_tiles() -> bool:
    """Whether the processor multiplies tiles of bfloat16, and the system lets it (AMX)."""
    import torch

    check = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return check is not None and bool(check())
