"""What a compiled call costs before it computes anything.

In: nothing. Out: a table of microseconds a call with a backend that does nothing, where what is left is guards and
rebuilding the output: adding two tensors, an MLP of 24 blocks, resnet18, BERT-base, resnext101, and the MLP with
modules without parameters on and off its way (the figure must not grow with them). What always holds: each
compiler is alone in its process, the processes take turns, and a figure is the smallest of several medians,
because what disturbs a measurement only ever adds to it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.models import Program
from benchmarks.results import Store
from benchmarks.tables import table
from benchmarks.timing import per_call


def add(x: Any, y: Any) -> Any:
    """The smallest program."""
    return x + y


def _add() -> Program:
    import torch

    torch.manual_seed(models.SEED)
    return Program(add, (torch.randn(10), torch.randn(10)))


def _mlp(extra: int = 0, on_the_way: bool = False) -> Callable[[], Program]:
    """24 blocks of linear, norm and activation; extra: modules without parameters, called or only held."""

    def build() -> Program:
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self, number: int) -> None:
                super().__init__()
                self.norm, self.linear, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()
                count = extra // 24 + (number < extra % 24)
                self.extra = nn.ModuleList(nn.Identity() for _ in range(count))

            def forward(self, x: Any) -> Any:
                x = x + self.act(self.linear(self.norm(x)))
                if on_the_way:
                    for module in self.extra:
                        x = module(x)
                return x

        torch.manual_seed(models.SEED)
        return Program(nn.Sequential(*map(Block, range(24))).eval(), (torch.randn(2, 16),))

    return build


@dataclass(frozen=True, slots=True)
class Case:
    """program; compilers; base: the one that is subtracted, "" where the figure is all overhead; calls: in a
    sample."""

    title: str
    program: Callable[[], Program]
    compilers: tuple[str, ...]
    base: str
    calls: int


_NOTHING = ("torch:nothing", "ours:nothing", "python:nothing")


def _nothing(title: str, program: Callable[[], Program], calls: int) -> Case:
    return Case(f"{title}, backend that does nothing", program, _NOTHING, "", calls)


CASES = {
    "add": Case("add, 2 tensors of 10", _add, ("eager", "torch", "ours"), "eager", 1000),
    "add_nothing": _nothing("add, 2 tensors of 10", _add, 1000),
    "mlp": _nothing("MLP of 24 blocks", _mlp(), 200),
    "resnet18": _nothing("resnet18 1×3×64×64", models.MODELS["resnet18_64"].program, 100),
    "bert": _nothing("BERT-base 1×12", models.MODELS["bert_12"].program, 50),
    "resnext101": _nothing("resnext101_32x8d 64×3×7×7", models.MODELS["resnext101_7"].program, 20),
    "mlp_held_100": _nothing("MLP and 100 Identity that are not called", _mlp(100), 200),
    "mlp_held_1000": _nothing("MLP and 1000 Identity that are not called", _mlp(1000), 200),
    "mlp_called_100": _nothing("MLP and 100 Identity on its way", _mlp(100, True), 200),
    "mlp_called_1000": _nothing("MLP and 1000 Identity on its way", _mlp(1000, True), 200),
}

_MEDIANS, _SAMPLES = 7, 15


def measure(case: Case, compiler: str) -> dict[str, Any]:
    """One process's figure: the smallest of several medians, in seconds a call."""
    import torch

    program = case.program()
    with torch.no_grad():
        function = compilers.compiler(compiler)(program.function)
        for _ in range(3):
            program.call(function)
        medians = [
            statistics.median(
                per_call(function, program.args, program.kwargs, case.calls) for _ in range(_SAMPLES)
            )
            for _ in range(_MEDIANS)
        ]
    return {"medians": medians, "seconds": min(medians)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.overhead", description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--compilers", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--repeats", type=int, default=3, help="processes a compiler")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a process may take")
    parser.add_argument("--in-this-process", nargs=2, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.in_this_process:
        case, compiler = chosen.in_this_process
        processes.answer(measure(CASES[case], compiler))
        return 0
    processes.warm_up_files()
    store = Store("overhead", again=chosen.again)
    lines: list[list[str]] = []
    failed = False
    for name in chosen.cases:
        case = CASES[name]
        wanted = [one for one in case.compilers if not chosen.compilers or one in chosen.compilers]
        found = _measured(store, name, wanted, chosen)
        failed |= len(found) < len(wanted)
        base = found.get(case.base, 0.0)
        for compiler, seconds in found.items():
            over = "" if compiler == case.base else f"{(seconds - base) * 1e6:.2f}"
            over = "" if case.base and case.base not in found else over
            lines.append([case.title, compilers.title(compiler), f"{seconds * 1e6:.2f}", over])
    print(table(["case", "compiler", "µs a call", "µs over eager"], lines))
    return 1 if failed else 0


def _measured(store: Store, name: str, wanted: Sequence[str], chosen: argparse.Namespace) -> dict[str, float]:
    """Seconds by compiler, the best of the processes; without those that failed."""
    found: dict[str, float] = {}
    for number in range(chosen.repeats):
        for compiler in wanted:
            child = ["--in-this-process", name, compiler]
            key = f"{name} {compiler} {number}"
            measure_it = partial(processes.fresh, "benchmarks.overhead", child, limit=chosen.limit)
            row, there = store.row(key, measure_it)
            if "failed" in row:
                print(f"{key} failed: {row['failed']}", flush=True)
                continue
            print(f"{key}: {row['seconds'] * 1e6:.2f} µs{' (stored)' if there else ''}", flush=True)
            found[compiler] = min(row["seconds"], found.get(compiler, float("inf")))
    return found


if __name__ == "__main__":
    sys.exit(main())
