"""What a compiled call costs before it computes anything, and round a step of training.

In: nothing. Out: a table of microseconds a call with a backend that does nothing, where what is
left is guards and rebuilding the output: adding two tensors, an MLP of 24 blocks, resnet18,
BERT-base, resnext101, and the MLP with modules without parameters on and off its way (the figure
must not grow with them); and, as the group ``after_limit``, tiny programs in which a value changes
with every call (`benchmarks.changing`), long after the recompile limit; there eager and ours take
turns in one process, because the difference is what counts. A step of training that does almost
nothing (zero_grad, forward, loss, backward, SGD of a small MLP) is `steps`. What always holds: else
each compiler is alone in its process, the processes take turns, and a figure is the smallest of
several medians, because what disturbs a measurement only ever adds to it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import changing, compilers, harness, models
from benchmarks.models import Program
from benchmarks.timing import per_call, table, turned


def add(x: Any, y: Any) -> Any:
    """The smallest program."""
    return x + y


def _add() -> Program:
    import torch

    torch.manual_seed(models.SEED)
    return Program(add, (torch.randn(10), torch.randn(10)))


def _mlp(extra: int = 0, on_the_way: bool = False) -> Callable[[], Program]:
    """24 blocks of linear, norm and activation; extra: modules without parameters, called or only
    held."""

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
    """program; compilers; base: the one that is subtracted, "" where the figure is all overhead;
    calls: in a sample. group: one of `GROUPS`; in ``after_limit`` the program's only argument is a
    step that calls its function."""

    title: str
    program: Callable[[], Program]
    compilers: tuple[str, ...]
    base: str
    calls: int
    group: str = "calls"


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


def _changing(maker: changing.Maker) -> Callable[[], Program]:
    """The program's function is called by a step that changes a value first."""

    def build() -> Program:
        function, step = maker()
        numbers = itertools.count()
        return Program(function, (lambda compiled: step(compiled, next(numbers)),))

    return build


for _kind, _table in (("number", changing.NUMBERS), ("value", changing.VALUES)):
    for _name, _maker in _table.items():
        _title = f"a changing {_kind}: {_name.replace('_', ' ')}"
        CASES[f"{_kind}_{_name}"] = Case(
            _title, _changing(_maker), ("eager", "ours:eager"), "eager", 100, "after_limit"
        )
GROUPS = tuple(dict.fromkeys(case.group for case in CASES.values()))
#: Calls before the measurement begins: past the recompile limit by far.
_BEFORE = {"calls": 3, "after_limit": 200}

#: Medians, and samples of each. What takes turns needs many: the smallest must be one that nothing
#: disturbed.
_MEDIANS = {"calls": (7, 15), "after_limit": (60, 3)}


def measure(name: str, names: Sequence[str]) -> dict[str, Any]:
    """The figures of one process for a case by compiler: the smallest of several medians, in
    seconds a call."""
    import torch

    case = CASES[name]
    with torch.no_grad():
        calls = {name: _call(case, name) for name in names}
        medians: dict[str, list[float]] = {name: [] for name in names}
        n_medians, n_samples = _MEDIANS[case.group]
        for number in range(n_medians):
            for name in turned(list(names), number):
                samples = [per_call(*calls[name], case.calls) for _ in range(n_samples)]
                medians[name].append(statistics.median(samples))
    return {"medians": medians, "seconds": {name: min(median) for name, median in medians.items()}}


def _call(case: Case, compiler: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """(function, args, kwargs), called often enough to be as it will stay."""
    program = case.program()
    function, args = compilers.compiler(compiler)(program.function), program.args
    if case.group == "after_limit":
        (step,) = args
        function, args = step, (function,)
    for _ in range(_BEFORE[case.group]):
        function(*args, **program.kwargs)
    return function, args, program.kwargs


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("overhead", __doc__, limit=600.0)
    parser.add_argument("--cases", nargs="+", default=[], choices=list(CASES), metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=["calls"], choices=GROUPS)
    parser.add_argument("--compilers", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--repeats", type=int, default=3, help="processes a compiler")
    chosen = parser.parse_args(arguments)
    harness.warm_up_files()
    store = harness.Store("overhead", again=chosen.again)
    lines: list[list[str]] = []
    failed = False
    for name in chosen.cases or [
        name for name, case in CASES.items() if case.group in chosen.groups
    ]:
        case = CASES[name]
        wanted = [
            compiler
            for compiler in case.compilers
            if not chosen.compilers or compiler in chosen.compilers
        ]
        result = _measured(store, name, wanted, chosen)
        failed |= len(result) < len(wanted)
        base = result.get(case.base, 0.0)
        for compiler, seconds in result.items():
            over = "" if compiler == case.base else f"{(seconds - base) * 1e6:.2f}"
            over = "" if case.base and case.base not in result else over
            lines.append([case.title, compilers.title(compiler), f"{seconds * 1e6:.2f}", over])
    print(table(["case", "compiler", "µs a call", "µs over eager"], lines))
    return 1 if failed else 0


def _measured(
    store: harness.Store, name: str, wanted: Sequence[str], chosen: argparse.Namespace
) -> dict[str, float]:
    """Seconds by compiler, the best of the processes; without those that failed."""
    result: dict[str, float] = {}
    together = (
        [wanted] if CASES[name].group == "after_limit" else [[compiler] for compiler in wanted]
    )
    for number, names in itertools.product(range(chosen.repeats), together):
        key = f"{name} {' '.join(names)} {number}"
        row, there = store.row(
            key, partial(harness.fresh, measure, name, names, limit=chosen.limit)
        )
        if "failed" in row:
            print(f"{key} failed: {row['failed']}", flush=True)
            continue
        for compiler, seconds in row["seconds"].items():
            result[compiler] = min(seconds, result.get(compiler, float("inf")))
        shown = ", ".join(f"{seconds * 1e6:.2f} µs" for seconds in row["seconds"].values())
        print(f"{key}: {shown}{' (stored)' if there else ''}", flush=True)
    return result


# Around a step of training ------------------------------------------------------------------------

#: name -> (what is compiled, how).
STEPS: dict[str, tuple[str, str, str]] = {
    "eager": ("", "", ""),
    "tracer-core, eager": ("model", "ours", "eager"),
    "tracer-core, eager, whole step": ("step", "ours", "eager"),
    "tracer-core, aten_eager": ("model", "ours", "aten_eager"),
    "tracer-core, aten_eager, whole step": ("step", "ours", "aten_eager"),
    "torch.compile, eager": ("model", "torch", "eager"),
    "torch.compile, aot_eager": ("model", "torch", "aot_eager"),
}


def steps(arguments: Sequence[str]) -> int:
    """Microseconds of a training step of a small MLP: zero_grad, forward, loss, backward, SGD.
    Eager, ours with the backends eager and aten_eager (module compiled, and the whole step) and
    torch.compile take turns in one process; ratios are of medians over the rounds."""
    parser = harness.options("step_overhead", steps.__doc__, limit=900.0)
    parser.add_argument("--rounds", type=int, default=60)
    chosen = parser.parse_args(arguments)
    store = harness.Store("step_overhead", again=chosen.again)
    ask = partial(harness.fresh, measure_steps, chosen.rounds, limit=chosen.limit)
    row, _ = store.row(f"MLP {chosen.rounds} rounds", ask)
    if "failed" in row:
        print(row["failed"])
        return 1
    medians = {name: statistics.median(seconds) for name, seconds in row["seconds"].items()}
    lines = [
        [name, f"{median * 1e6:.1f}", f"{median / medians['eager']:.2f}"]
        for name, median in medians.items()
    ]
    print(table(["a step of a small MLP", "µs", "over eager"], lines))
    return 0


def measure_steps(rounds: int) -> dict[str, Any]:
    """Seconds of a step by name, one number a round."""
    import torch

    torch.set_num_threads(1)
    result = {name: _training_step(*way) for name, way in STEPS.items()}
    for step in result.values():
        per_call(step, (), {}, 100)
    results: dict[str, list[float]] = {name: [] for name in result}
    for _ in range(rounds):
        for name, step in result.items():
            results[name].append(per_call(step, (), {}, 40))
    return {"seconds": results}


def _training_step(form: str, compiler: str, backend: str) -> Callable[[], Any]:
    import torch
    from torch import nn

    import tracer_core

    def compiled(function: Any) -> Any:
        if compiler == "ours":
            return tracer_core.compile(function, backend=backend)
        return torch.compile(function, backend=backend)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    forward: Any = compiled(model) if form == "model" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 16)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        optimizer.step()

    run = compiled(step) if form == "step" else step
    return lambda: run(x)
