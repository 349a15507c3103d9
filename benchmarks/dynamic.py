"""One compile for every size: resnet18 over batch sizes, BERT over batch sizes and sequence
lengths.

In: nothing. Out: a table with a row for each model and compiler: compiles, the largest error
against eager, sizes at which results differ from eager's, seconds of all calls. What always holds:
each compiler is alone in its process; every size is compared with eager, also those where eager
raises; sizes 0 and 1 come last.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.grid import Grid

LIMIT = 1800.0
COMPILERS = ("torch", "torch:dynamic", "ours:eager", "ours:inductor", "ours:inductor:dynamic")

_BATCHES = [(n,) for n in (2, 3, 5, 8, 16, 33, 64, 7, 1, 0)]
_TEXTS = [
    (2, 16), (3, 16), (3, 9), (4, 2), (64, 33), (2, 512), (8, 128), (5, 5), (16, 64), (6, 7), (1,
    16), (2, 1), (1, 1), (0, 8),
]  # fmt: skip
#: Of BERT-base, fewer and smaller: a call is long.
_LONG_TEXTS = [
    (2, 16),
    (3, 16),
    (3, 9),
    (16, 33),
    (2, 512),
    (4, 128),
    (64, 2),
    (6, 7),
    (1, 16),
    (2, 1),
    (1, 1),
    (0, 8),
]


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
MODELS: dict[str, tuple[Callable[[], tuple[Any, Callable[..., Any]]], Sequence[tuple[int,
...]]]] = {
    "resnet18": (_resnet, _BATCHES),
    "bert_small": (
        _bert(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        vocab_size=500), _TEXTS
    ),
    "bert_base": (_bert(), _LONG_TEXTS),
}  # fmt: skip


def _compiled(model: Any, compiler: str) -> tuple[Any, Callable[[], int]]:
    """The compiled model, and how many graphs were compiled so far."""
    kind, *rest = compiler.split(":")
    dynamic = True if "dynamic" in rest else None
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


def _outcome(function: Callable[..., Any], argument: Any) -> Any:
    try:
        result = function(argument)
    except Exception as error:  # also what eager raises is compared
        return type(error).__name__
    return result if hasattr(result, "shape") else result[0]


def measure(name: str, compiler: str) -> dict[str, Any]:
    """Compiles, errors and seconds over all sizes."""
    import torch

    from tests.support import torchvision_ops

    torchvision_ops.define()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    build, sizes = MODELS[name]
    model, made = build()
    fast, compiles = _compiled(model, compiler)
    worst, seconds, steps = 0.0, 0.0, []
    wrong: list[str] = []
    with torch.no_grad():
        for size in sizes:
            argument = made(*size)
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


GRID = Grid(
    "dynamic",
    __doc__,
    {"models": list(MODELS), "compilers": list(COMPILERS)},
    measure,
    ("compiles, sizes from 2", "with 0 and 1", "largest error", "wrong", "seconds"),
    lambda row: [
        str(row["compiles_from_2_on"]), str(row["compiles"]), f"{row['error']:.1e}",
        str(len(row["wrong"])),
        f"{row['seconds']:.1f}",
    ],
    left_out=frozenset({"bert_base"}),  # minutes a row
    limit=LIMIT,
    # a compiler of others may be wrong: the table says how often
    wrong=lambda row, name, compiler: row["wrong"] if compiler.startswith("ours") else [],
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(GRID.main())
