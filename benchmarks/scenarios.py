"""Beside eager and torch.compile: one compile for many sizes, loops with breaks.

dynamic: resnet18 over batch sizes, BERT over batch sizes and sequence lengths; every size is
compared with eager, also those where eager raises; sizes 0 and 1 come last. loops: microseconds an
iteration of loops of 1,000 iterations with a graph break in them, and a thousandth of a call with a
loop of 20,000 of eager Python, with backends that run the captured operators as they are;
eager, torch.compile and ours run in one process, in turns. What always holds: each row is a process
of its own with empty caches; results are compared with eager's.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import models
from benchmarks.harness import Grid


def _compiled(model: Any, compiler: str) -> tuple[Any, Callable[[], int]]:
    """The compiled model, and how many graphs were compiled so far."""
    kind, *rest = compiler.split(":")
    dynamic = True if "dynamic" in rest else None
    if kind == "eager":
        return model, lambda: 0
    if kind == "torch":
        import torch
        from torch._dynamo.utils import counters

        return torch.compile(model, dynamic=dynamic), lambda: int(
            counters["stats"]["unique_graphs"]
        )
    import tracer_core
    from tracer_core.testing import CaptureCounter

    counter = CaptureCounter()
    counter.__enter__()
    return tracer_core.compile(model, backend=rest[0], dynamic=dynamic), lambda: len(counter.graphs)


# Dynamic sizes ------------------------------------------------------------------------------------

_BATCHES = [(n,) for n in (2, 3, 5, 8, 16, 33, 64, 7, 1, 0)]
_TEXTS = [
    (2, 16), (3, 16), (3, 9), (4, 2), (64, 33), (2, 512), (8, 128), (5, 5), (16, 64), (6, 7), (1,
    16), (2, 1), (1, 1), (0, 8),
]  # fmt: skip
#: Of BERT-base, fewer and smaller: a call is long.
_LONG_TEXTS = [
    (2, 16), (3, 16), (3, 9), (16, 33), (2, 512), (4, 128), (64, 2), (6, 7), (1, 16), (2, 1), (1,
    1), (0, 8),
]  # fmt: skip


def _resnet() -> tuple[Any, Callable[..., Any]]:
    import torch
    import torchvision

    return torchvision.models.resnet18().eval(), lambda n: torch.randn(n, 3, 32, 32)


def _bert(**settings: int) -> Callable[[], tuple[Any, Callable[..., Any]]]:
    def build() -> tuple[Any, Callable[..., Any]]:
        import torch
        from transformers import BertConfig, BertModel

        config = BertConfig(**settings)
        return BertModel(config).eval(), lambda *size: torch.randint(0, config.vocab_size, size)

    return build


#: name -> (how the model and its inputs are made, sizes).
SIZED: dict[str, tuple[Callable[[], tuple[Any, Callable[..., Any]]], Sequence[tuple[int, ...]]]] = {
    "resnet18": (_resnet, _BATCHES),
    "bert_small": (
        _bert(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        vocab_size=500), _TEXTS
    ),
    "bert_base": (_bert(), _LONG_TEXTS),
}  # fmt: skip


def _outcome(function: Callable[..., Any], argument: Any) -> Any:
    try:
        result = function(argument)
    except Exception as error:  # also what eager raises is compared
        return type(error).__name__
    return result if hasattr(result, "shape") else result[0]


def measure_dynamic(name: str, compiler: str) -> dict[str, Any]:
    """Compiles, errors and seconds over all sizes."""
    import torch

    models.import_library("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build, sizes = SIZED[name]
    model, result = build()
    fast, compiles = _compiled(model, compiler)
    worst, seconds, steps = 0.0, 0.0, []
    wrong: list[str] = []
    with torch.no_grad():
        for size in sizes:
            argument = result(*size)
            want = _outcome(model, argument)
            start = time.perf_counter()
            got = _outcome(fast, argument)
            seconds += time.perf_counter() - start
            if isinstance(want, str) or isinstance(got, str):
                wrong += [f"{size}: {got}, eager {want}"] if str(want) != str(got) else []
            elif want.shape != got.shape:
                wrong.append(f"{size}: shape {tuple(got.shape)}, eager {tuple(want.shape)}")
            elif want.numel():
                error = float((want - got).abs().max())
                worst = max(worst, error)
                wrong += [f"{size}: error {error:.1e}"] if not error < 1e-4 else []
            steps.append([list(size), compiles()])
    in_range = [count for size, count in steps if min(size) >= 2]
    return {
        "compiles": compiles(), "compiles_from_2_on": in_range[-1], "error": worst, "wrong": wrong,
        "seconds": seconds,
        "steps": steps,
    }  # fmt: skip


dynamic = Grid(
    "dynamic",
    __doc__,
    {"models": list(SIZED), "compilers": ["torch", "torch:dynamic", "ours:eager", "ours:inductor",
    "ours:inductor:dynamic"]},
    measure_dynamic,
    ("compiles, sizes from 2", "with 0 and 1", "largest error", "wrong", "seconds"),
    lambda row: [
        str(row["compiles_from_2_on"]), str(row["compiles"]), f"{row['error']:.1e}",
        str(len(row["wrong"])),
        f"{row['seconds']:.1f}",
    ],
    left_out=frozenset({"bert_base"}),  # minutes a row
    limit=1800.0,
    # a compiler of others may be wrong: the table says how often
    wrong=lambda row, name, compiler: row["wrong"] if compiler.startswith("ours") else [],
).main  # fmt: skip

# Loops --------------------------------------------------------------------------------------------

ITERATIONS, LOOP_ROUNDS = 1000, 7


def branch(x: Any, w: Any, n: int) -> Any:
    """A branch on a tensor's value."""
    hits = 0
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        if x.sum().item() > 1e9:
            hits += 1
    return x, hits


def counter(x: Any, w: Any, n: int) -> Any:
    """The loop's variable is used in the graph; now and then a value is taken out of it."""
    log = []
    for i in range(n):
        x = (x @ w + i * 1e-4).tanh()
        if i % 100 == 0:
            log.append(x.sum().item())
    return x, log


def shows(x: Any, w: Any, n: int) -> Any:
    """A print in every iteration."""
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        print(end="")
    return x


def total(x: Any, w: Any, n: int) -> Any:
    """A Python number is summed up."""
    result = 0.0
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        result += x[0, 0].item()
    return x, result


def table(x: Any, w: Any, n: int) -> Any:
    """A long loop of eager Python, then operators."""
    result = 0
    for i in range(20 * n):
        result += i * i % 7
    return (x @ w + result * 1e-6).tanh()


def between(x: Any, w: Any, n: int) -> Any:
    """Operators around a long loop of eager Python."""
    x = (x @ w + 0.1).tanh()
    result = 0
    for i in range(20 * n):
        result += i * i % 7
    return (x @ w + result * 1e-6).tanh()


LOOPS: dict[str, Callable[..., Any]] = {
    "branch": branch,
    "counter": counter,
    "shows": shows,
    "total": total,
    "table": table,
    "between": between,
}
SIZES = (8, 64, 128, 256)


def measure_loops(name: str, side: str) -> dict[str, Any]:
    """Medians in microseconds an iteration, and the number of graphs of ours."""
    import torch

    import tracer_core
    from tracer_core.testing import CaptureCounter

    torch.manual_seed(0)
    torch.set_num_threads(1)
    size = int(side)
    args = torch.randn(size, size), torch.randn(size, size) / size**0.5, ITERATIONS
    loop = LOOPS[name]
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), CaptureCounter() as counted:
        functions = {
            "eager": loop, "torch": torch.compile(loop, backend="eager"),
            "ours": tracer_core.compile(loop, backend="eager"),
        }  # fmt: skip
        expected = loop(*args)
        first: dict[str, float] = {}
        for kind, function in functions.items():
            for _ in range(2):
                start = time.perf_counter()
                result = function(*args)
                first.setdefault(kind, time.perf_counter() - start)
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        seconds: dict[str, list[float]] = {kind: [] for kind in functions}
        for _ in range(LOOP_ROUNDS):
            for kind, function in functions.items():
                start = time.perf_counter()
                function(*args)
                seconds[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(all_) / ITERATIONS * 1e6 for kind, all_ in seconds.items()}
    return {"microseconds": medians, "first_call": first, "graphs": len(counted.graphs)}


def _loop_line(row: dict[str, Any]) -> list[str]:
    result, first = row["microseconds"], row.get("first_call", {})
    shown = [f"{result[kind]:.1f}" for kind in ("eager", "torch", "ours")]
    return [
        *shown,
        *(f"{result[kind] / result['eager']:.2f}" for kind in ("torch", "ours")),
        *(f"{first[kind]:.1f}" if first else "" for kind in ("torch", "ours")),
        str(row["graphs"]),
    ]


loops = Grid(
    "loops",
    __doc__,
    {"loops": list(LOOPS), "sizes": [str(size) for size in SIZES]},
    measure_loops,
    ("eager µs", "torch.compile µs", "ours µs", "torch/eager", "ours/eager", "torch first s",
     "ours first s", "graphs"),
    _loop_line,
).main  # fmt: skip
