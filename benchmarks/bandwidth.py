"""Memory-bound kernels beside what this machine's memory can do.

In: sizes. Out: for each program the bytes that it must move (inputs read once, outputs written
once) over our time, as a share of the best copy: memcpy, a copy with streaming stores, and a triad,
on the same threads. `read` is what reading alone reaches (eight streams at once), which no program
that only reads can pass. What always holds: inputs take turns, so that they are past the caches
together (results are not: malloc hands out the same memory again, as it does to users); each number
of threads is a process of its own, in which rounds of the copies and of all programs alternate; the
best of the rounds of a program and of the copies beside it counts, because what a busy machine adds
is no property of a kernel; one thread is timed by its processor time; everything lies in large
pages, as our results do; results are compared with eager's.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.timing import table

if TYPE_CHECKING:
    import torch

#: The least share of the copy's bandwidth that issue 5 asks for.
WANTED = 0.85

#: Bytes moved a float, by copy.
COPY_NAMES = {"memcpy": 8, "stream": 8, "triad": 12}
READ_NAMES = {"read": 4}

#: Sets of inputs that take turns: of 28 MiB each, they are past 32 MiB of cache together.
TURNS = 4

COPIES = r"""
#include "prelude.h"
#include <cstring>
extern "C" int omp_get_max_threads(void);
#if defined(__AVX512F__)
typedef float V __attribute__((vector_size(64)));
#else
typedef float V __attribute__((vector_size(32)));
#endif
#define PARTS \
    const int64_t parts = omp_get_max_threads(); \
    _Pragma("omp parallel for schedule(static) num_threads(parts)") \
    for (int64_t p = 0; p < parts; ++p)
#define FROM (n / parts * p / 64 * 64)
#define TO (p + 1 == parts ? n : n / parts * (p + 1) / 64 * 64)
// a[0]: to, a[1]: from, a[2]: from, a[3]: floats (a multiple of 64); aligned to 64 bytes
TC_EXPORT void run_memcpy(const int64_t* a) {
    float* to = (float*)a[0]; const float* from = (const float*)a[1]; const int64_t n = a[3];
    PARTS memcpy(to + FROM, from + FROM, (TO - FROM) * 4);
}
TC_EXPORT void run_stream(const int64_t* a) {
    float* to = (float*)a[0]; const float* from = (const float*)a[1]; const int64_t n = a[3];
    const int64_t lanes = sizeof(V) / 4;
    PARTS for (int64_t i = FROM; i < TO; i += lanes) {
#if defined(__AVX512F__)
        __builtin_ia32_movntps512(to + i, *(const V*)(from + i));
#elif defined(__AVX__)
        __builtin_ia32_movntps256(to + i, *(const V*)(from + i));
#else
        *(V*)(to + i) = *(const V*)(from + i);
#endif
    }
}
TC_EXPORT void run_triad(const int64_t* a) {
    float* to = (float*)a[0]; const float* x = (const float*)a[1]; const float* y = (const float*)a[2];
    const int64_t n = a[3];
    const int64_t lanes = sizeof(V) / 4;
    PARTS for (int64_t i = FROM; i < TO; i += lanes) {
        const V v = *(const V*)(x + i) + 3.0f * *(const V*)(y + i);
#if defined(__AVX512F__)
        __builtin_ia32_movntps512(to + i, v);
#elif defined(__AVX__)
        __builtin_ia32_movntps256(to + i, v);
#else
        *(V*)(to + i) = v;
#endif
    }
}
// reading alone: eight places at once, because one is limited by what a core waits for
TC_EXPORT void run_read(const int64_t* a) {
    float* to = (float*)a[0]; const float* from = (const float*)a[1]; const int64_t n = a[3];
    const int64_t lanes = sizeof(V) / 4;
    PARTS {
        const int64_t part = (TO - FROM) / 8;
        V sums[8] = {};
        for (int64_t i = 0; i + lanes <= part; i += lanes)
            for (int k = 0; k < 8; ++k) { V x; memcpy(&x, from + FROM + k * part + i, sizeof(V)); sums[k] += x; }
        for (int k = 1; k < 8; ++k) sums[0] += sums[k];
        *(V*)(to + p * lanes) = sums[0];
    }
}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """function(*inputs). sizes: of the inputs, by the number of elements `n` = rows × columns."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]


def _cases() -> list[Case]:
    import torch
    from torch.nn import functional as F

    def matrices(count: int) -> Callable[[int, int], tuple[torch.Tensor, ...]]:
        return lambda rows, columns: tuple(torch.randn(rows, columns) for _ in range(count))

    def with_weight(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)

    def labels(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(rows, columns), torch.randint(0, columns, (rows,))

    def square(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        side = int((rows * columns) ** 0.5) // 64 * 64
        return torch.randn(side, side), torch.randn(side, side)

    return [
        Case("add", lambda x, y: x + y, matrices(2)),
        Case("cos + sin", lambda x, y: x.cos() + y.sin(), matrices(2)),
        Case("gelu", F.gelu, matrices(1)),
        Case("gelu (tanh)", lambda x: F.gelu(x, approximate="tanh"), matrices(1)),
        Case("sum of all", lambda x: x.sum(), matrices(1)),
        Case("sum of rows", lambda x: x.sum(1), matrices(1)),
        Case("sum of columns", lambda x: x.sum(0), matrices(1)),
        Case("softmax", lambda x: x.softmax(1), matrices(1)),
        Case("layer_norm", lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), with_weight),
        Case("rms_norm", lambda x, w, b: F.rms_norm(x, x.shape[1:], w), with_weight),
        Case("cross_entropy", F.cross_entropy, labels),
        Case("x + y.t()", lambda x, y: x + y.t(), square),
    ]


def _bytes(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in (*inputs, output))


def _once(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def measure(
    rows: int, columns: int, rounds: int, threads: int, chosen: Sequence[str]
) -> dict[str, Any]:
    """Gigabytes a second: of the copies, and by program ours and eager's."""
    import torch

    import tracer_core
    from inductor_backend.runtime.cpp.build import build

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    clock = time.thread_time if threads == 1 else time.perf_counter
    count = rows * columns
    library = build([COPIES], name="copies")
    buffers = [_in_large_pages(torch.zeros(count + 16)) for _ in range(TURNS + 1)]
    aligned = [b[(-b.data_ptr() % 64) // 4 :][:count] for b in buffers]
    others = {
        name: (
            moved * count,
            _in_turn(library.function(f"run_{name}", 4), _copy_arguments(aligned, count)),
        )
        for name, moved in (COPY_NAMES | READ_NAMES).items()
    }
    results: dict[str, dict[str, float]] = {}
    for case in _cases():
        if chosen and case.name not in chosen:
            continue
        inputs = [tuple(map(_in_large_pages, case.inputs(rows, columns))) for _ in range(TURNS)]
        compiled = tracer_core.compile(case.function)
        with torch.no_grad():
            truth, result = case.function(*inputs[0]), compiled(*inputs[0])
            torch.testing.assert_close(result, truth, rtol=1e-4, atol=1e-4)
            moved = _bytes(inputs[0], truth)
            del truth, result
            runs = others | {
                "ours": (moved, _in_turn(compiled, inputs)),
                "eager": (
                    moved,
                    _in_turn(case.function, inputs[2:] + inputs[:2]),
                ),  # not what ours just read
            }
            best = results.setdefault(case.name, {})
            for _ in range(rounds):
                for name, (size, run) in runs.items():
                    best[name] = max(best.get(name, 0.0), size / _once(run, clock) / 1e9)
    return {"threads": threads, "rows": rows, "columns": columns, "gigabytes_a_second": results}


def _in_large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in large pages."""
    from inductor_backend.runtime.huge_pages import large_empty

    return large_empty(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)


def _copy_arguments(aligned: Sequence[torch.Tensor], count: int) -> list[tuple[Any, ...]]:
    """(to, from, from, count), the sources in turn."""
    target, *sources = aligned
    return [(target, sources[k], sources[(k + 1) % TURNS], count) for k in range(TURNS)]


def _in_turn(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> Callable[[], Any]:
    """Calls the function with the next of the arguments each time."""
    turns = itertools.cycle(arguments)
    return lambda: function(*next(turns))


def _print(answer: dict[str, Any]) -> bool:
    print(
        f"{answer['threads']} threads, {answer['rows']} x {answer['columns']} float32, gigabytes a"
        " second"
    )
    lines, good = [], True
    for name, speeds in answer["gigabytes_a_second"].items():
        best = max(speeds[copy] for copy in COPY_NAMES)
        good &= speeds["ours"] >= WANTED * best
        cells = [f"{speeds[column]:.1f}" for column in (*COPY_NAMES, *READ_NAMES, "ours", "eager")]
        shares = (speeds["ours"] / best, speeds["ours"] / speeds["memcpy"], speeds["eager"] / best)
        lines.append([name, *cells, *(f"{share:.0%}" for share in shares)])
    heads = ["ours / best copy", "ours / memcpy", "eager / best copy"]
    print(table(["program", *COPY_NAMES, *READ_NAMES, "ours", "eager", *heads], lines))
    return good


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; 1 if a program is below what is wanted."""
    parser = harness.options("bandwidth", __doc__, limit=900.0)
    parser.add_argument("--rows", type=int, default=7_168)
    parser.add_argument("--columns", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--cases", nargs="+", default=[], metavar="NAME")
    chosen = parser.parse_args(arguments)
    harness.warm_up_files()
    store = harness.Store("bandwidth", again=chosen.again)
    good = True
    for threads in chosen.threads:
        key = f"{chosen.rows}x{chosen.columns} {threads} threads {' '.join(chosen.cases)}".strip()
        shape = (chosen.rows, chosen.columns, chosen.rounds, threads, chosen.cases)
        row, _ = store.row(
            key, functools.partial(harness.fresh, measure, *shape, limit=chosen.limit)
        )
        if "failed" in row:
            print(row["failed"])
            return 1
        good &= _print(row)
    return 0 if good else 1
