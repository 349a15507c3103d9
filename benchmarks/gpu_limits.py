"""Figures of a GPU beside their limits, and what a launch costs the host.

`main` prints a line for each limit with ``holds`` or ``MISSED``:

- cos+sin over 2^26 elements beside a copy of as many bytes: at most 1.05 times its time;
- layer_norm, gelu, softmax of 4096x4096: one kernel, at most 1.3 times one read and one write of
  the data;
- a second process with warm caches: the first call takes at most 2 s; imports and CUDA's start-up
  (with eager's first calls) are shown apart. The first processes of all rows, which fill the
  caches, run at the same time.

Device times are from events round calls in a row, over several tensors, so that nothing is read
from the last call's cache lines; the programs take turns and the least of the rounds counts.

`launch`: microseconds of one launch of the same small kernel by the driver alone (cuLaunchKernel in
a loop in C), by our launcher (one more kernel in a run), by torch's cheapest operator; then of a
call of compiled functions: one that computes nothing, cos+sin, and what one more kernel adds to a
chain of kernels that cannot be fused. A figure is the median of bursts that fit into the driver's
queue, each begun with an idle device: the host's time, not the device's.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import compilers, gpu, harness
from benchmarks.timing import per_call

#: In a child: when it began to import what it measures.
BEGIN = time.perf_counter()

ROWS = ("cos+sin 10,000", "resnet18 1x64x64", "BERT-base 1x12", "training resnet18 16x224x224")

COPY, CHAIN, WARM = 1.05, 1.3, 2.0

# Bandwidth ----------------------------------------------------------------------------------------


def device_ms(
    programs: dict[str, Callable[[int], Any]], calls: int = 40, rounds: int = 7
) -> dict[str, float]:
    """Milliseconds of the device, a call; a program is given the number of the call."""
    import torch

    result = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            program(0)
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for number in range(calls):
                program(number)
            last.record()
            torch.cuda.synchronize()
            result[name] = min(result[name], first.elapsed_time(last) / calls)
    return result


def bandwidth(row: str, copies: float, calls: int) -> dict[str, Any]:
    """A row of `gpu` beside the driver's copy and torch's kernel that copies. copies: of its first
    input, that move as many bytes as the row."""
    import torch

    import tracer_core

    function, inputs, _ = gpu.to_device(row, *gpu.prepare(row))
    sets = [
        tuple(torch.randn_like(x) if x.dim() == inputs[0].dim() else x for x in inputs)
        for _ in range(6)
    ]
    fast, target = tracer_core.compile(function), torch.empty_like(inputs[0])
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), function(*inputs))
        kernels = launched(lambda: fast(*inputs))
        times = device_ms(
            {
                "compiled": lambda n: fast(*sets[n % 6]),
                "copy_": lambda n: target.copy_(sets[n % 6][0]),
                "a kernel that copies": lambda n: torch.add(sets[n % 6][0], 0, out=target),
            },
            calls,
        )
    limit = copies * min(times["copy_"], times["a kernel that copies"])
    return {**times, "limit_ms": limit, "ratio": times["compiled"] / limit, "kernels": kernels}


def launched(call: Callable[[], Any]) -> int:
    """Kernels that the device runs in a call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())


# First calls of a warm process --------------------------------------------------------------------


def one_process(row: str) -> dict[str, float]:
    """Seconds from the import of this module on, of a process for one row."""
    marks: dict[str, float] = {}

    def mark(name: str) -> None:
        marks[name] = time.perf_counter() - BEGIN - sum(marks.values())

    import torch

    mark("import torch")
    function, inputs = gpu.prepare(row)
    mark("import and build the model")
    function, inputs, parameters = gpu.to_device(row, function, inputs)
    training = gpu.ROWS[row][1]
    for _ in range(3):
        gpu.step_of(function, inputs, parameters, training)()
    torch.cuda.synchronize()
    mark("CUDA, eager's first calls")
    import tracer_core

    mark("import tracer_core")
    gpu.step_of(tracer_core.compile(function), inputs, parameters, training)()
    torch.cuda.synchronize()
    mark("compile and first call")
    return marks


def warm(rows: Sequence[str], limit: float) -> dict[str, Any]:
    """Each row in a first process, all side by side, and in a second one."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(rows)) as pool:
        ask = partial(harness.fresh, one_process, limit=limit, caches=folder)
        first = list(pool.map(ask, rows))
        second = [ask(row) for row in rows]
    return {
        row: {"first process": a, "second process": b}
        for row, a, b in zip(rows, first, second, strict=True)
    }


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a limit is missed."""
    parser = harness.options("gpu_limits", __doc__, limit=150)
    parser.add_argument(
        "--rows", nargs="*", default=list(ROWS), choices=list(gpu.ROWS), metavar="ROW"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="the file of rows; by default of this device in results",
    )
    chosen = parser.parse_args(arguments)
    store = harness.Store(
        "gpu_limits", again=chosen.again, device=harness.require_gpu(), path=chosen.out
    )
    messages = []
    for name, most, copies, calls in (
        ("cos+sin 2^26", COPY, 1.5, 40),  # two reads and a write
        ("layer_norm-gelu-softmax 4096x4096", CHAIN, 1.0, 120),
    ):
        row, _ = store.row(
            name, partial(harness.fresh, bandwidth, name, copies, calls, limit=chosen.limit)
        )
        if "failed" in row:
            messages.append(f"MISSED: {name}: {row['failed']}")
            continue
        messages.append(
            f"{'holds' if row['ratio'] <= most and row['kernels'] == 1 else 'MISSED'}: {name}:"
            f" {row['kernels']} kernel, {row['ratio']:.3f} of the copy of its bytes"
            f" ({row['limit_ms']:.4f} ms); at most {most}"
        )
    if chosen.rows:
        result, _ = store.row(
            f"warm {' '.join(chosen.rows)}", lambda: warm(chosen.rows, chosen.limit)
        )
        if "failed" in result:
            messages.append(f"MISSED: warm: {result['failed']}")
        else:
            messages += [_warm(row, result[row]) for row in chosen.rows]
    print("\n".join(messages))
    return int(any(line.startswith("MISSED") for line in messages))


def _warm(row: str, processes: Any) -> str:
    *before, (_, call) = processes["second process"].items()
    apart = ", ".join(f"{what} {seconds:.2f}" for what, seconds in before)
    verdict = "holds" if call <= WARM else "MISSED"
    return (
        f"{verdict}: warm second process, {row}: first call {call:.2f} s; at most {WARM} (apart:"
        f" {apart})"
    )


# Launches -----------------------------------------------------------------------------------------

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

DRIVER, OURS = "cuLaunchKernel, in a loop in C", "our launcher, one more in a run"


def microseconds(call: Callable[[], Any], launches: int = 1) -> float:
    """Of the host, a call. launches: kernels that it launches."""
    import torch

    calls = max(1, BURST // launches)
    per_call(call, (), {}, 3)
    result = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        result.append(per_call(call, (), {}, calls))
    torch.cuda.synchronize()
    return statistics.median(result) * 1e6


def launchers() -> dict[str, float]:
    """Of one launch of the same kernel."""
    import torch

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

    result = {}
    for name, make in {DRIVER: driver, OURS: ours}.items():
        item, many = make(1), make(101)
        many()
        torch.cuda.synchronize()
        assert torch.equal(z, x + y), name
        z.zero_()
        result[name] = (microseconds(many, 101) - microseconds(item)) / 100
        result[f"{name.partition(',')[0]}, one from Python"] = microseconds(item)
    result["torch.add(x, y, out=z)"] = microseconds(lambda: torch.add(x, y, out=z))
    return result


def trig(x: Any, y: Any) -> Any:
    import torch

    return torch.cos(x) + torch.sin(y)


def chain(x: Any, pairs: int) -> Any:
    """Of each pair, one kernel goes along rows and the other along columns."""
    for _ in range(pairs):
        x = x.softmax(0).softmax(1)
    return x


def calls(compiler: str) -> dict[str, float]:
    """Of calls of compiled functions, without CUDA graphs."""
    import torch

    compile_, title = compilers.compiler(compiler), compilers.title(compiler)
    x, y = torch.randn(10_000, device="cuda"), torch.randn(10_000, device="cuda")
    square = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        fast = compile_(trig)
        result = {f"{title}: a call of cos+sin": microseconds(lambda: fast(x, y))}
        if compiler == "eager":
            return result
        nothing = compilers.compiler(f"{compiler}:nothing")(trig)
        result[f"{title}: a call that computes nothing"] = microseconds(lambda: nothing(x, y))
        costs = []
        for pairs in (4, 20):
            deep = partial(compile_(lambda x, pairs=pairs: chain(x, pairs)), square)
            torch.testing.assert_close(deep(), chain(square, pairs))
            count = launched(deep)
            costs.append((count, microseconds(deep, count)))
    (few, short), (many, long) = costs
    result[f"{title}: one more kernel ({few} and {many} kernels)"] = (long - short) / (many - few)
    return result


def launch(arguments: Sequence[str]) -> int:
    """Microseconds of the host for a launch and for a call of compiled functions; 1 if a part
    failed."""
    parser = harness.options("gpu_launch", launch.__doc__, limit=120)
    parser.add_argument(
        "--compilers", nargs="+", default=list(compilers.DEFAULT), choices=compilers.DEFAULT
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="the file of rows; by default of this device in results",
    )
    chosen = parser.parse_args(arguments)
    store = harness.Store(
        "gpu_launch", again=chosen.again, device=harness.require_gpu(), path=chosen.out
    )

    def told(key: str, target: harness.Target, *text: str) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            return {"microseconds": harness.fresh(target, *text, limit=chosen.limit)}

        row, _ = store.row(key, ask)
        for name, value in row.get("microseconds", {key: row.get("failed")}).items():
            print(
                f"{name:76} {value if isinstance(value, str) else f'{value:8.2f} us'}", flush=True
            )
        return row

    rows = [
        told("launchers", launchers),
        *(told(f"calls {compiler}", calls, compiler) for compiler in chosen.compilers),
    ]
    if "failed" not in rows[0]:
        result = rows[0]["microseconds"]
        print(f"a launch of ours is {result[OURS] / result[DRIVER]:.2f} of the driver's")
    return int(any("failed" in row for row in rows))
