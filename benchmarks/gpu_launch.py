"""What a kernel launch costs the host, on a GPU: ``python -m benchmarks.gpu_launch [--out FILE]
[--torch]``.

Microseconds of one launch of the same small kernel: by the driver alone (cuLaunchKernel in a loop
in C), by our launcher (one more kernel in a run), by Triton's launcher, by torch's cheapest
operator. Then microseconds of a call of compiled functions: one that computes nothing (guards,
inputs, results), cos+sin with and without its guards, and what one more kernel adds to a chain of
kernels that cannot be fused, which is what a user sees. ``--torch``: torch.compile beside it. What
always holds: a figure is the median of bursts that fit into the driver's queue, each begun with an
idle device: the host's time, not the device's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.compilers import nothing_for_ours, nothing_for_torch
from benchmarks.results import commit, machine
from benchmarks.timing import per_call

#: Launches of a burst: the driver's queue holds 1024 and blocks the host then.
BURST = 400
BURSTS = 25

TEXT = """
@triton.jit
def added(p0, p1, p2, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(p2 + xindex, tl.load(p0 + xindex) + tl.load(p1 + xindex))
"""

#: a: function, threads, bytes of shared memory, stream, launches, parameters
DRIVER_LOOP = """
#include <cstdint>
#include <dlfcn.h>
#define TC_EXPORT extern "C" __attribute__((visibility("default")))
typedef int (*LaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
TC_EXPORT int tc_error[2];
int tc_error[2] = {0, 0};
TC_EXPORT void launch_often(const int64_t* a) {
    static LaunchKernel launch = (LaunchKernel)dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), "cuLaunchKernel");
    int64_t scratch = 0, status = 0;
    void* parameters[5] = {(void*)(a + 5), (void*)(a + 6), (void*)(a + 7), &scratch, &scratch};
    for (int64_t i = 0; i < a[4]; i++)
        status |= launch((void*)a[0], 1, 1, 1, (unsigned)a[1], 1, 1, (unsigned)a[2], (void*)a[3], parameters, nullptr);
    if (status) tc_error[1] = 1000 + (int)status, tc_error[0]++;
}
"""


@triton.jit
def added(p0, p1, p2, XBLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for Triton's own launcher."""
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(p2 + xindex, tl.load(p0 + xindex) + tl.load(p1 + xindex))


def microseconds(call: Callable[[], Any], launches: int = 1) -> float:
    """Of the host, a call. launches: kernels that it launches."""
    calls = max(1, BURST // launches)
    per_call(call, (), {}, 3)
    found = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        found.append(per_call(call, (), {}, calls))
    torch.cuda.synchronize()
    return statistics.median(found) * 1e6


def trig(x: Any, y: Any) -> Any:
    return torch.cos(x) + torch.sin(y)


def chain(x: Any, pairs: int) -> Any:
    """Of each pair, one kernel goes along rows and the other along columns."""
    for _ in range(pairs):
        x = x.softmax(0).softmax(1)
    return x


def launchers() -> dict[str, float]:
    """Of one launch of the same kernel."""
    from inductor_backend.runtime.cpp.build import build
    from inductor_backend.runtime.cuda.build import load_kernels
    from inductor_backend.runtime.cuda.launch import current_stream, launches
    from inductor_backend.runtime.cuda.triton_compile import Kernel

    device = torch.device("cuda", torch.cuda.current_device())
    x, y, z = (torch.randn(128, device=device) for _ in range(3))
    (kernel,) = load_kernels([Kernel("added", TEXT, ["*fp32"] * 3, 0, {"XBLOCK": 128}, 4)], device)
    loop = build([DRIVER_LOOP], name="driver_loop").function("launch_often", 8)
    stream = current_stream(device)

    def driver(count: int) -> Callable[[], None]:
        return lambda: loop(kernel.function, kernel.threads, kernel.shared, stream, count, x, y, z)

    def ours(count: int) -> Callable[[], None]:
        run, description = launches(3, [(kernel, 1, [(0, 0), (1, 0), (2, 0)])] * count)
        return lambda: run(description, stream, x, y, z)

    found = {}
    for name, make in {
        "cuLaunchKernel, in a loop in C": driver,
        "our launcher, one more in a run": ours,
    }.items():
        one, many = make(1), make(101)
        many()
        torch.cuda.synchronize()
        assert torch.equal(z, x + y), name
        z.zero_()
        found[name] = (microseconds(many, 101) - microseconds(one)) / 100
        found[f"{name.partition(',')[0]}, one from Python"] = microseconds(one)
    found["Triton's launcher, kernel[grid](...)"] = microseconds(
        lambda: added[(1,)](x, y, z, XBLOCK=128)
    )
    found["torch.add(x, y, out=z)"] = microseconds(lambda: torch.add(x, y, out=z))
    return found


def ours() -> dict[str, float]:
    """Of calls of compiled functions, without CUDA graphs."""
    import tracer_core
    from inductor_backend.pipeline import compile_graph
    from inductor_backend.plugin import BACKEND

    made: list[Any] = []

    def kept(gm: Any, spec: Any) -> Any:
        made.append(compile_graph(gm, spec))
        return made[-1]

    def compiled(function: Any) -> Any:
        return tracer_core.compile(function, backend=replace(BACKEND, compile=kept))

    x, y = torch.randn(10_000, device="cuda"), torch.randn(10_000, device="cuda")
    square = torch.randn(64, 64, device="cuda")
    nothing, fast = tracer_core.compile(trig, backend=nothing_for_ours()), compiled(trig)
    found = {"ours: a call that computes nothing": microseconds(lambda: nothing(x, y))}
    found["ours: a call of cos+sin"] = microseconds(lambda: fast(x, y))
    runner = made[-1]
    found["ours: cos+sin without guards (allocation and launch)"] = microseconds(
        lambda: runner([x, y])
    )
    found["eager: a call of cos+sin (three launches)"] = microseconds(lambda: trig(x, y), 3)
    costs = []
    for pairs in (4, 20):
        deep = compiled(lambda x, pairs=pairs: chain(x, pairs))
        torch.testing.assert_close(deep(square), chain(square, pairs))
        count = made[-1].artifact.kernels
        costs.append((count, microseconds(lambda deep=deep: deep(square), count)))
    (few, short), (many, long) = costs
    found[f"ours: one more kernel in a compiled function ({few} and {many} kernels)"] = (
        long - short
    ) / (many - few)
    return found


def theirs() -> dict[str, float]:
    """torch.compile's, without CUDA graphs."""
    x, y = torch.randn(10_000, device="cuda"), torch.randn(10_000, device="cuda")
    square = torch.randn(64, 64, device="cuda")
    nothing, fast = torch.compile(trig, backend=nothing_for_torch), torch.compile(trig)
    found = {"torch.compile: a call that computes nothing": microseconds(lambda: nothing(x, y))}
    found["torch.compile: a call of cos+sin"] = microseconds(lambda: fast(x, y))
    costs = []
    for pairs in (4, 20):
        deep = torch.compile(lambda x, pairs=pairs: chain(x, pairs))
        count = launched(lambda deep=deep: deep(square))
        costs.append((count, microseconds(lambda deep=deep: deep(square), count)))
    (few, short), (many, long) = costs
    found[f"torch.compile: one more kernel in a compiled function ({few} and {many} kernels)"] = (
        long - short
    ) / (many - few)
    return found


def launched(call: Callable[[], Any]) -> int:
    """Kernels that the device runs in a call."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_launch", description=__doc__)
    parser.add_argument("--out", default="")
    parser.add_argument("--torch", action="store_true", help="torch.compile beside it")
    chosen = parser.parse_args()
    found: dict[str, float] = {}
    with torch.no_grad():
        for part in [launchers, ours, *([theirs] if chosen.torch else [])]:
            found |= part()
            if chosen.out:
                told = {
                    "machine": machine(),
                    "commit": commit(),
                    "device": torch.cuda.get_device_name(0),
                    "microseconds": found,
                }
                Path(chosen.out).write_text(json.dumps(told, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name:76} {value:8.2f} us")
    base = found["cuLaunchKernel, in a loop in C"]
    print(
        f"a launch of ours is {found['our launcher, one more in a run'] / base:.2f} of the driver's"
    )


if __name__ == "__main__":
    main()
