"""Training: are losses and gradients those of eager, in how many graphs, and how fast is a step?

`main`: the models `training_models.TRAINED` for 20 steps. Eager and compiled are both judged by the
same program in float64: the error of a gradient is that of all gradients of a step as one vector,
relative to its length, at parameters that are the same for all three; losses are those of three
separate trainings. The form ``model`` compiles the module, ``step`` the whole step from zero_grad
to optimizer. The exit status is 1 where a row failed, or its error is more than three times eager's
own.

`speed`: forward and backward of `training_models.TIMED` beside eager and torch.compile. Seconds
come from one process a model, in which all compilers share weights and batch and take turns; memory
from one process a model and compiler; gradients are judged by float64 in a process of their own,
without dropout (`benchmarks.gradient_errors`): the largest relative error of any parameter's stands
beside the seconds, eager's in brackets. "peak" is the greatest resident memory during steps after
the first ones; "above idle" is that less what the process has between steps.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks import compilers, harness
from benchmarks.timing import (
    Plan,
    alternate,
    geometric_mean,
    memory,
    milliseconds,
    reset_peak,
    speed_up,
    table,
)
from benchmarks.training_models import TIMED, TRAINED

STEPS = 20
#: Steps after which all gradients are compared, at eager's parameters.
COMPARED = (0, 5, 10, 19)
ALLOWED = 3.0
#: Below these, errors are rounding: of float32, and of bfloat16's 8 bits.
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-2}


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or is wrong."""
    parser = harness.options("training", __doc__, limit=1800.0)
    parser.add_argument(
        "--models", nargs="+", default=list(TRAINED), choices=list(TRAINED), metavar="NAME"
    )
    parser.add_argument("--backends", nargs="+", default=["aten_eager", "inductor"], metavar="NAME")
    parser.add_argument("--forms", nargs="+", default=["model", "step"], choices=["model", "step"])
    parser.add_argument("--precisions", nargs="+", default=list(ROUNDING), choices=list(ROUNDING))
    chosen = parser.parse_args(arguments)
    store = harness.Store("training", again=chosen.again)
    lines, ratios, good = [], [], True
    for key in product(chosen.models, chosen.precisions, chosen.forms, chosen.backends):
        row, _ = store.row(" ".join(key), partial(harness.fresh, measure, *key, limit=chosen.limit))
        fine = "failed" not in row and right(row, key[1])
        good &= fine
        ratios += [] if "failed" in row else [ratio(row)]
        lines.append(line(key, row, fine))
        print("  ".join(lines[-1]), flush=True)
    head = ["model", "precision", "form", "backend", "graphs", "breaks", "loss error / eager's",
    "gradient error / eager's",
            "first call s", "speed", "right"]  # fmt: skip
    print(f"\n{table(head, lines)}\n")
    if ratios:
        print(f"speed of a step over eager's: geometric mean {geometric_mean(ratios):.2f}")
    return 0 if good else 1


def right(row: dict[str, Any], precision: str) -> bool:
    """Whether errors are at most three times eager's own, or rounding."""
    pairs = [row["loss_error"], *row["gradient_errors"]]
    return all(ours <= max(ALLOWED * eager, ROUNDING[precision]) for eager, ours in pairs)


def ratio(row: dict[str, Any]) -> float:
    """How many times as fast as eager a step is."""
    seconds = row["seconds"]
    return statistics.median(seconds["eager"]) / statistics.median(seconds["compiled"])


def line(key: Sequence[str], row: dict[str, Any], fine: bool) -> list[str]:
    """A row of the table."""
    title = TRAINED[key[0]].title
    if "failed" in row:
        return [
            title,
            *key[1:],
            "failed",
            row["failed"].splitlines()[-1][:80],
            "",
            "",
            "",
            "",
            "NO",
        ]
    eager, ours = row["loss_error"]
    gradient = max(
        row["gradient_errors"], key=lambda pair: pair[1] / max(pair[0], 1e-12), default=None
    )
    return [
        title, *key[1:], str(row["graphs"]), str(len(row["breaks"])), f"{ours:.1e} / {eager:.1e}",
        "" if gradient is None else f"{gradient[1]:.1e} / {gradient[0]:.1e}", f"{row['first']:.1f}",
        f"{ratio(row):.2f}",
        ("yes" if fine else "NO") + (" (partly eager)" if row["fallbacks"] else ""),
    ]  # fmt: skip


# The process of one training ----------------------------------------------------------------------


def measure(name: str, precision: str, form: str, backend: str) -> dict[str, Any]:
    """One row."""
    with harness.noted_fallbacks() as fallbacks:
        return {**_measured(name, precision, form, backend), "fallbacks": fallbacks}


def _measured(name: str, precision: str, form: str, backend: str) -> dict[str, Any]:
    trained = TRAINED[name]
    module, batches = trained.make()
    import tracer_core
    from tracer_core.testing import CaptureCounter

    truth, twin = copy.deepcopy(module).double(), copy.deepcopy(module)
    with CaptureCounter() as counter:
        start = time.perf_counter()
        runs = {
            "eager": Run(module, trained, precision),
            "compiled": Run(
                twin, trained, precision, form, lambda f: tracer_core.compile(f, backend=backend)
            ),
            "truth": Run(truth, trained, "float64"),
        }
        losses: dict[str, list[float]] = {key: [] for key in runs}
        gradients: list[tuple[float, float]] = []
        first = 0.0
        for number in range(STEPS):
            batch = batches[number % len(batches)]
            for key, run in runs.items():
                start = time.perf_counter()
                losses[key].append(run.step(batch))
                if key == "compiled" and number == 0:
                    first = time.perf_counter() - start
            if form == "model" and number in COMPARED:
                gradients.append(compare_gradients(runs, module, batch))
    facts = {
        "graphs": len(counter.graphs),
        "breaks": [list(record) for record in counter.breaks],
        "recompiles": [reason for _, reason in counter.recompiles],
        "first": first,
        "loss_error": [worst(losses[key], losses["truth"]) for key in ("eager", "compiled")],
        "loss_difference": worst(losses["compiled"], losses["eager"]),
        "gradient_errors": gradients,
        "losses": losses["compiled"][:: STEPS - 1],
    }
    return facts | speeds(runs, batches[0])


class Run:
    """One training (mutable)."""

    def __init__(self, module: Any, trained: Any, precision: str, form: str = "",
                 compile_: Callable[[Any], Any] | None = None) -> None:  # fmt: skip
        import torch

        self.module, self.loss_of, self.precision = module, trained.loss, precision
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
        self.function = compile_(module) if compile_ is not None and form == "model" else module
        self.run = compile_(self._step) if compile_ is not None and form == "step" else self._step

    def step(self, batch: tuple[Any, Any]) -> float:
        """The loss of one step."""
        return float(self.run(*self.cast(batch)).detach())

    def cast(self, batch: tuple[Any, Any]) -> list[Any]:
        if self.precision != "float64":
            return list(batch)
        return [value.double() if value.is_floating_point() else value for value in batch]

    def forward(self, inputs: Any, target: Any) -> Any:
        import torch

        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.loss_of(self.function(inputs), target)

    def _step(self, inputs: Any, target: Any) -> Any:
        self.optimizer.zero_grad(True)
        loss = self.forward(inputs, target)
        loss.backward()
        self.optimizer.step()
        return loss

    def gradients(self, state: dict[str, Any], batch: tuple[Any, Any]) -> list[Any]:
        """Of all parameters, at the parameters and buffers of `state`; the run itself goes on where
        it was."""
        import torch

        before = copy.deepcopy(self.module.state_dict())
        self.module.load_state_dict(state)
        self.module.zero_grad()
        self.forward(*self.cast(batch)).backward()
        result = [p.grad.double() for p in self.module.parameters() if p.grad is not None]
        self.module.load_state_dict(before)
        self.module.zero_grad()
        assert result and torch.is_grad_enabled()
        return result


def compare_gradients(
    runs: dict[str, Run], module: Any, batch: tuple[Any, Any]
) -> tuple[float, float]:
    """(eager's, compiled's) relative error against float64."""
    state = copy.deepcopy(module.state_dict())
    result = {key: run.gradients(state, batch) for key, run in runs.items()}
    truth = result["truth"]
    length = sum(float(t.square().sum()) for t in truth) ** 0.5
    error = {
        key: (
            sum(float((g - t).square().sum()) for g, t in zip(result[key], truth, strict=True))
            ** 0.5
            / length
        )
        for key in ("eager", "compiled")
    }
    return error["eager"], error["compiled"]


def worst(values: list[float], truth: list[float]) -> float:
    """The greatest relative difference."""
    return max(abs(value - other) / abs(other) for value, other in zip(values, truth, strict=True))


def speeds(runs: dict[str, Run], batch: tuple[Any, Any]) -> dict[str, Any]:
    """Seconds of a step, eager beside compiled: the median of alternating rounds."""
    functions = {key: runs[key].run for key in ("eager", "compiled")}
    rounds = alternate(functions, batch, {}, Plan(rounds=5, seconds=0.2, least=2))
    return {"seconds": rounds}


# Speed and memory of a step -----------------------------------------------------------------------


def speed(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("training_speed", __doc__, limit=1800.0)
    parser.add_argument(
        "--models", nargs="+", default=list(TIMED), choices=list(TIMED), metavar="NAME"
    )
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument(
        "--rounds", type=int, default=7, help="at least 5 for figures that are reported"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of a turn of one compiler in a round"
    )
    parser.add_argument("--memory", choices=("yes", "no"), default="yes")
    chosen = parser.parse_args(arguments)
    if "eager" not in chosen.compilers:
        parser.error("--compilers must name eager: speed-ups are over it")
    harness.warm_up_files()
    store = harness.Store("training_speed", again=chosen.again)
    rows = {name: _speed_row(store, name, chosen) for name in chosen.models}
    print(f"\n{report(rows, chosen.compilers)}")
    return (
        1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0
    )


def _speed_row(store: harness.Store, name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    def measured() -> dict[str, Any]:
        ask, names = partial(harness.fresh, limit=chosen.limit), chosen.compilers
        row: dict[str, Any] = ask(measure_speed, name, names, chosen.rounds, chosen.seconds)
        row["gradients"] = ask(measure_gradients, name, names)
        if chosen.memory == "yes":
            row["memory"] = {item: ask(measure_memory, name, item) for item in row["seconds"]}
        return row

    key = (
        f"{name} {' '.join(chosen.compilers)} {chosen.rounds}x{chosen.seconds}"
        f" memory:{chosen.memory}"
    )
    row, _ = store.row(key, measured)
    if "failed" in row:
        print(f"{name} failed: {row['failed']}", flush=True)
        return row
    for compiler, text in row["failed_compilers"].items():
        print(f"  {compilers.title(compiler)} failed: {text}")
    print("  ".join(_speed_line(name, row, chosen.compilers)), flush=True)
    return row


def _speed_line(name: str, row: dict[str, Any], names: Sequence[str]) -> list[str]:
    from benchmarks import gradient_errors

    seconds, memory = row["seconds"], row.get("memory", {})
    line = [TIMED[name].title]
    line += [
        milliseconds(statistics.median(seconds[n])) if n in seconds else "failed" for n in names
    ]
    line += [
        f"{speed_up(seconds['eager'], seconds[n]):.2f}" if n in seconds else ""
        for n in names
        if n != "eager"
    ]
    line += [f"{row['first'][n]:.1f}" if n in row["first"] else "" for n in names]
    line += [gradient_errors.told(row.get("gradients", {}).get(n)) for n in names if n != "eager"]
    for n in names:
        result = memory.get(n)
        line.append(f"{result['peak']:.0f} ({result['above_idle']:.0f})" if result else "")
    return line


def report(rows: dict[str, dict[str, Any]], names: Sequence[str]) -> str:
    """The table, and geometric means."""
    others = [name for name in names if name != "eager"]
    title = compilers.title
    head = [
        "step of",
        *(f"{title(n)} ms" for n in names),
        *(f"{title(n)} speed-up" for n in others),
    ]
    head += [
        *(f"{title(n)} first s" for n in names),
        *(f"{title(n)} gradient error (eager's)" for n in others),
        *(f"{title(n)} peak MiB (above idle)" for n in names),
    ]
    good = {name: row for name, row in rows.items() if "failed" not in row}
    text = table(head, [_speed_line(name, row, names) for name, row in good.items()])
    for other in others:
        ratios = {
            key: speed_up(row["seconds"]["eager"], row["seconds"][other])
            for key, row in good.items()
            if other in row["seconds"]
        }
        worst = min(ratios, key=lambda key: ratios[key], default="")
        if worst:
            mean = geometric_mean(list(ratios.values()))
            text += (
                f"\n{title(other)}: {mean:.3f} times eager over {len(ratios)} steps, lowest"
                f" {ratios[worst]:.3f} ({worst})"
            )
    return text


class Steps:
    """Training steps of one model (mutable: the module learns nothing, but its buffers change)."""

    def __init__(self, name: str) -> None:
        self.trained = TIMED[name]
        self.module, batches = self.trained.make()
        self.batch = batches[0]

    def step(self, compiler: str) -> Callable[[], float]:
        """A step of the module as that compiler has it. Gradients stay until the next step
        begins."""
        inputs, target = self.batch
        function, loss_of, module = (
            compilers.compiler(compiler)(self.module),
            self.trained.loss,
            self.module,
        )

        def step() -> float:
            module.zero_grad(set_to_none=True)
            loss = loss_of(function(inputs), target)
            loss.backward()
            return float(loss.detach())

        return step


def measure_speed(name: str, names: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Seconds of a step by compiler and round."""
    import torch

    steps, functions, first = Steps(name), {}, {}
    losses, failed = {}, {}
    for compiler in names:
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            functions[compiler] = step = steps.step(compiler)
            losses[compiler] = step()
        except Exception as error:  # a compiler that cannot do this model: the row says so
            failed[compiler] = f"{type(error).__name__}: {error}"[:2000]
            functions.pop(compiler, None)
            continue
        first[compiler] = time.perf_counter() - start
    return {
        "seconds": alternate(functions, (), {}, Plan(rounds=rounds, seconds=seconds, least=2)),
        "first": first,
        "losses": losses,
        "failed_compilers": failed,
        "threads": torch.get_num_threads(),
    }


def measure_gradients(name: str, names: Sequence[str]) -> dict[str, Any]:
    """By compiler: the largest relative error of any gradient against float64, with dropout off."""
    from benchmarks import gradient_errors

    steps = Steps(name)
    module, (inputs, target) = gradient_errors.without_dropout(steps.module), steps.batch

    def run(wide: Any) -> None:
        arguments = [x.double() if x.is_floating_point() else x for x in (inputs, target)]
        steps.trained.loss(wide(arguments[0]), arguments[1]).backward()

    truth = gradient_errors.true_gradients(module, run)
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    result: dict[str, Any] = {}
    eager: Any = None
    for compiler in ("eager", *(name for name in names if name != "eager")):
        for key, value in module.named_buffers():
            value.copy_(buffers[key])
        try:
            steps.step(compiler)()
        except Exception:  # the row of seconds says why
            continue
        ours = gradient_errors.gradients_of(module)
        if compiler == "eager":
            eager = ours
        result[compiler] = gradient_errors.largest_errors(truth, eager, ours)
    return result


def measure_memory(name: str, compiler: str) -> dict[str, Any]:
    """MiB: peak during steps, idle between them."""
    import ctypes

    steps = Steps(name)
    step = steps.step(compiler)
    for _ in range(3):
        step()
    steps.module.zero_grad(set_to_none=True)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    idle = memory("VmRSS") / 2**20
    reset_peak()
    for _ in range(4):
        step()
    peak = memory("VmHWM") / 2**20
    return {"idle": idle, "peak": peak, "above_idle": peak - idle}
