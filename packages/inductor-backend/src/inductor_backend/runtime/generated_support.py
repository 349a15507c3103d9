"""What generated modules import: loading their library, arena views, example inputs and timing.

Nothing here runs on each call of a static graph (`arena_view` serves symbolic sizes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.runtime.arena import ArenaPool
from inductor_backend.runtime.arena import view as arena_view
from inductor_backend.runtime.cpp.build import Library, build
from inductor_backend.runtime.huge_pages import large_empty, large_zeros
from inductor_backend.runtime.profile_rows import call_with_rows
from tracer_core.plugin_api import BackendError, define, profiler_state

__all__ = [
    "ArenaPool",
    "arena_view",
    "branches_of",
    "call_with_rows",
    "example_tensor",
    "expect",
    "large_empty",
    "large_zeros",
    "load_library",
    "profiler_state",
    "report",
    "steps_of",
    "while_of",
]


def load_library(sources: Sequence[str], name: str, ready: Library | None) -> Library:
    """Returns the compiled sources. ready: a library loaded from a stored binary; then nothing is
    compiled."""
    return (
        ready
        if ready is not None
        else build([without_comments(source) for source in sources], name=name)
    )


def _call_of(name: str, code: str) -> Callable[[list[Any]], list[torch.Tensor]]:
    """Returns the function of a generated module without constants."""
    space: dict[str, Any] = {"__name__": f"inductor_{name}", "CONSTANTS": {}}
    return define("call", code, space, f"inductor {name}")


def branches_of(name: str, if_true: str, if_false: str) -> Callable[..., list[torch.Tensor]]:
    """Returns the cond whose branches are generated modules: (predicate, inputs, numbers) -> the
    results of one of them."""
    branches = _call_of(f"{name}_true", if_true), _call_of(f"{name}_false", if_false)

    def run(
        predicate: torch.Tensor, inputs: Sequence[torch.Tensor], numbers: Sequence[int]
    ) -> list[torch.Tensor]:
        return branches[0 if predicate else 1]([*inputs, *numbers])

    return run


def while_of(name: str, code: str) -> Callable[..., list[torch.Tensor]]:
    """Returns the loop whose step is a generated module: (whether there is a first step, outer,
    carry, numbers) -> the last carry."""
    step = _call_of(name, code)

    def run(
        more: torch.Tensor,
        outer: Sequence[torch.Tensor],
        carry: Sequence[torch.Tensor],
        numbers: Sequence[int],
    ) -> list[torch.Tensor]:
        state = [tensor.clone() for tensor in carry]
        while more:
            *state, more = step([*outer, *state, *numbers])
        return state

    return run


def steps_of(name: str, code: str) -> Callable[..., list[torch.Tensor]]:
    """Returns the loop over slices whose step is a generated module: (outer, carry, rows, numbers,
    length, reverse) -> the last carry and the stacked parts."""
    step = _call_of(name, code)

    def run(
        outer: Sequence[torch.Tensor],
        carry: Sequence[torch.Tensor],
        rows: Sequence[torch.Tensor],
        numbers: Sequence[int],
        length: int,
        reverse: bool,
    ) -> list[torch.Tensor]:
        state, parts, count = list(carry), [], len(carry)
        order = range(length - 1, -1, -1) if reverse else range(length)
        for row in order:
            result = step([*outer, *state, *(sliced[row] for sliced in rows), *numbers])
            state = result[:count]
            parts.append(result[count:])
        if reverse:
            parts.reverse()
        return [*state, *(torch.stack(pair) for pair in zip(*parts, strict=True))]

    return run


def without_comments(source: str) -> str:
    """Removes comment lines: they name the user's lines, and moving those must not recompile."""
    return "".join(
        line for line in source.splitlines(keepends=True) if not line.lstrip().startswith("//")
    )


def expect(
    operator: str, *results: tuple[torch.Tensor, Sequence[int], Sequence[int], torch.dtype]
) -> None:
    """Raises BackendError where an operator's results do not match its node, whose layout later
    kernels rely on: (tensor, sizes, strides, dtype) of each result. Strides of size-1 dimensions
    are ignored."""
    for value, sizes, strides, dtype in results:
        same = tuple(value.shape) == tuple(sizes) and value.dtype is dtype
        if same and value.layout is torch.strided and 0 not in sizes:
            same = all(
                n == 1 or a == b for n, a, b in zip(sizes, value.stride(), strides, strict=True)
            )
        if not same:
            raise BackendError(
                "inductor",
                "first call",
                f"{operator} returned {value.dtype} of sizes {tuple(value.shape)} and strides"
                f" {tuple(value.stride())}; the graph says {dtype} of sizes {tuple(sizes)} and"
                f" strides {tuple(strides)}",
            )


def example_tensor(
    sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns random values; integers are zeros, which are valid indices everywhere."""
    result = torch.empty_strided(sizes, strides, dtype=dtype)
    return result.copy_(torch.rand(tuple(sizes))) if dtype.is_floating_point else result.zero_()


def report(
    call: Callable[[list[Any]], Sequence[Any]], inputs: Callable[[], list[Any]], calls: int = 20
) -> None:
    """Prints the median time of a call, including the device's work."""
    example = inputs()
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in example)
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    call(list(example))
    wait()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call(list(example))
        wait()
        times.append(time.perf_counter() - start)
    print(f"median of {calls} calls: {sorted(times)[calls // 2] * 1e3:.3f} ms")
