"""Steady state: milliseconds a call once everything is compiled; the rows beside every peer.

In: models and compilers. Out: a table of milliseconds and speed-ups over eager, how the compilers
compare in speed, first call, memory and error, and rows in ``results/steady``. What always holds:
each compiler of a row has a fresh process with empty caches, in which nothing of another compiler
is imported, and the same weights and inputs; the processes of a row take turns in rounds, one
running at a time; a ratio is the median over the rounds of ratios whose two sides were measured in
one round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import compilers, harness, models
from benchmarks.timing import (
    Plan,
    geometric_mean,
    memory,
    milliseconds,
    reset_peak,
    speed_up,
    table,
    turn,
    turned,
)

# The process of one compiler ----------------------------------------------------------------------


class Way:
    """One way to run one model, which answers questions about it (mutable: `_first` makes what
    `_turn` calls).

    compiled: what compiles the function of the model. A question is ``{"do": name, ...}`` for a
    method ``_name`` with the other items as arguments. A turn's peak is of that turn alone.
    """

    def __init__(self, model: models.Model, compiled: Callable[[Any], Any]) -> None:
        self._model, self._compiled = model, compiled
        self._program = model.program()
        self._function: Any = None

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answers one question."""
        with self._model.mode():
            answer: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question)
        return answer

    def _first(self) -> dict[str, Any]:
        """Seconds of compile() and the first call."""
        return {"first_call": self._compile_and_call()[0]}

    def _compile_and_call(self) -> tuple[float, Any]:
        """The seconds and the result."""
        start = time.perf_counter()
        self._function = self._compiled(self._program.function)
        result = self._program.call(self._function)
        return time.perf_counter() - start, result

    def _turn(self, **plan: Any) -> dict[str, Any]:
        """Seconds a call over one turn, and the most memory that was resident in it."""
        reset_peak()
        seconds = turn(self._function, self._program.args, self._program.kwargs, Plan(**plan))
        return {"seconds": seconds, "peak": memory("VmHWM")}


class Row(Way):
    """One compiler of one model, judged against float64."""

    def __init__(self, model: str, compiler: str, folder: str) -> None:
        # not `compilers.compiler(compiler)`: importing the compiler is a part of the first call
        super().__init__(
            models.MODELS[model], lambda function: compilers.compiler(compiler)(function)
        )
        self._folder = Path(folder)

    def _truth(self) -> dict[str, Any]:
        """Writes the results in float64 and of eager into the folder."""
        import torch

        from tracer_core.testing.compare import tensors_in

        program = models.in_float64(self._program)
        torch.save(list(tensors_in(program.call())), self._folder / "truth.pt")
        torch.save(list(tensors_in(self._program.call())), self._folder / "eager.pt")
        return {}

    def _first(self) -> dict[str, Any]:
        """Seconds of compile() and the first call, error against float64 and beside eager's own."""
        import torch

        from tracer_core.testing.compare import error_ratio, relative_error, tensors_in

        before = memory("VmRSS")
        seconds, result = self._compile_and_call()
        self._program.call(self._function)
        items = list(tensors_in(result))
        truth, eager = (torch.load(self._folder / name) for name in ("truth.pt", "eager.pt"))
        return {
            "first_call": seconds,
            "error": relative_error(truth, items),
            "error_ratio": error_ratio(truth, eager, items),
            "memory_before": before,
        }


# The command --------------------------------------------------------------------------------------


def measure(model: models.Model, names: Sequence[str], plan: Plan, limit: float) -> dict[str, Any]:
    """One row: seconds by compiler and round, first-call seconds, errors, memory. limit: seconds
    for an answer."""
    answers: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        contextlib.ExitStack() as running,
    ):
        workers: dict[str, harness.Worker] = {}
        for name in names:
            child = harness.worker(Row, model.name, name, folder)
            worker = running.enter_context(child)
            try:
                if not workers:
                    worker.ask({"do": "truth"}, limit=limit)
                answers[name] = worker.ask({"do": "first"}, limit=limit)
            except harness.Failed as error:  # a compiler that cannot do this model: the row says so
                failed[name] = str(error)[:2000]
                continue
            workers[name] = worker
        for number in range(plan.rounds):
            for name in turned(list(workers), number):
                messages = workers[name].ask({"do": "turn", **plan.numbers()}, limit=limit)
                seconds.setdefault(name, []).append(messages["seconds"])
                peaks[name] = max(peaks.get(name, 0), messages["peak"])
    return {
        "seconds": seconds,
        "first_call": {name: row["first_call"] for name, row in answers.items()},
        "errors": {name: row["error"] for name, row in answers.items()},
        "error_ratios": {
            name: row["error_ratio"] for name, row in answers.items() if name != "eager"
        },
        "peak_bytes": peaks,
        "model_bytes": {name: row["memory_before"] for name, row in answers.items()},
        "failed_compilers": failed,
        "plan": plan.numbers(),
    }


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("steady", __doc__, limit=1200.0)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=["issue"], choices=models.GROUPS)
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument(
        "--rounds", type=int, default=7, help="at least 5 for figures that are reported"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="of a turn of one compiler in a round"
    )
    parser.add_argument(
        "--plot", action="store_true", help="write a bar chart beside the JSON (needs matplotlib)"
    )
    chosen = parser.parse_args(arguments)
    plan = Plan(rounds=chosen.rounds, seconds=chosen.seconds, least=3)
    if chosen.compilers[0] != "eager":
        parser.error("--compilers must begin with eager: speed-ups and errors are over it")
    harness.warm_up_files()
    store = harness.Store("steady", again=chosen.again)
    rows = {
        model.name: _row(store, model, chosen, plan)
        for model in models.choose(chosen.models, chosen.groups)
    }
    print(f"\n{report(rows, chosen.compilers)}")
    if chosen.plot:
        plot(rows, chosen.compilers, store.path.with_suffix(".png"))
    return (
        1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0
    )


def _row(
    store: harness.Store, model: models.Model, chosen: argparse.Namespace, plan: Plan
) -> dict[str, Any]:
    print(f"{model.name} ...", end=" ", flush=True)
    key = f"{model.name} {' '.join(chosen.compilers)} {plan.rounds}x{plan.seconds}"
    row, there = store.row(key, partial(measure, model, chosen.compilers, plan, chosen.limit))
    for name, text in row.get("failed_compilers", {}).items():
        print(f"\n  {compilers.title(name)} failed: {text}")
    if "failed" in row:
        print(f"failed: {row['failed']}")
        return row
    times = (
        f"{compilers.title(n)} {milliseconds(statistics.median(s))} ms"
        for n, s in row["seconds"].items()
    )
    print(", ".join(times), "(stored)" if there else f"(load {row['load']})", flush=True)
    return row


def report(rows: dict[str, dict[str, Any]], names: Sequence[str]) -> str:
    """The table: milliseconds a compiler and speed-ups over eager; then comparisons over all
    rows."""
    others = [name for name in names if name != "eager"]
    head = ["model", "mode", *(f"{compilers.title(name)} ms" for name in names)]
    head += [f"{compilers.title(name)} speed-up" for name in others]
    good = {name: row for name, row in rows.items() if "eager" in row.get("seconds", {})}
    text = table(
        head, [_line(models.MODELS[name], row, names, others) for name, row in good.items()]
    )
    comparisons = [(name, ("eager",)) for name in others]
    comparisons += [(a, b) for a, b in BESIDE if a in names and set(b) <= set(names)]
    return text + "".join(f"\n{_compared(good, name, base)}" for name, base in comparisons)


#: Who is compared with whom (with the fastest of several) beside eager.
BESIDE = (
    ("ours", ("torch",)),
    ("ours+freeze", ("torch+freeze",)),
    ("ours+freeze", ("onnxruntime", "openvino")),
)


def _compared(rows: dict[str, dict[str, Any]], name: str, base: Sequence[str]) -> str:
    """One line: how `name` does beside the fastest of `base`, by geometric mean and at worst."""
    both = {key: row for key, row in rows.items() if {name, *base} <= set(row["seconds"])}
    ratios = {key: min(_ratio(row, other, name) for other in base) for key, row in both.items()}
    if not ratios:
        return f"{compilers.title(name)}: no row"
    worst = min(ratios, key=lambda key: ratios[key])
    parts = [
        f"speed {geometric_mean(list(ratios.values())):.3f} over {len(ratios)} models, lowest"
        f" {ratios[worst]:.3f} ({worst})"
    ]
    for what, field in (("first call", "first_call"), ("peak memory", "peak_bytes")):
        if what == "first call" and base == ("eager",):
            continue
        least = {
            key: row[field][name] / min(row[field][other] for other in base)
            for key, row in both.items()
        }
        most = max(least, key=lambda key: least[key])
        parts.append(
            f"{what} {geometric_mean(list(least.values())):.3f}, highest {least[most]:.3f} ({most})"
        )
    if base == ("eager",):
        errors = {key: row["error_ratios"][name] for key, row in both.items()}
        most = max(errors, key=lambda key: errors[key])
        parts.append(f"error at most {errors[most]:.2f} times eager's ({most})")
    beside = " or ".join(compilers.title(other) for other in base)
    return f"{compilers.title(name)} / {beside}: {'; '.join(parts)}"


def _ratio(row: dict[str, Any], base: str, name: str) -> float:
    return speed_up(row["seconds"][base], row["seconds"][name])


def _line(
    model: models.Model, row: dict[str, Any], names: Sequence[str], others: Sequence[str]
) -> list[str]:
    seconds = row["seconds"]
    line = [model.title, model.modes]
    line += [
        milliseconds(statistics.median(seconds[name])) if name in seconds else "failed"
        for name in names
    ]
    return line + [
        f"{_ratio(row, 'eager', name):.3f}" if name in seconds else "" for name in others
    ]


def plot(rows: dict[str, dict[str, Any]], names: Sequence[str], path: Path) -> None:
    """A bar a model and compiler: speed-up over eager. Says so where matplotlib is not
    installed."""
    try:
        import matplotlib  # type: ignore[import-not-found]
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    good = {name: row for name, row in rows.items() if "failed" not in row}
    others = [name for name in names if name != "eager"]
    figure, axes = pyplot.subplots(figsize=(2 + 1.1 * len(good), 4))
    width = 0.8 / max(1, len(others))
    for index, compiler in enumerate(others):
        heights = [
            _ratio(row, "eager", compiler) if compiler in row["seconds"] else 0.0
            for row in good.values()
        ]
        places = [place + index * width for place in range(len(good))]
        axes.bar(places, heights, width, label=compilers.title(compiler))
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(good))], list(good), rotation=30, ha="right"
    )
    axes.set_ylabel("speed-up over eager")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    print(f"plot: {path}")


# Beside every peer --------------------------------------------------------------------------------

PEERS = ("eager", "torch", "torch+freeze", "onnxruntime", "openvino", "ours", "ours+freeze")


def newest() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> (commit, row), of the rows that have all seven compilers."""
    result: dict[str, tuple[str, dict[str, Any]]] = {}
    for file in (harness.RESULTS / "steady").glob("*.json"):
        for key, row in json.loads(file.read_text())["rows"].items():
            name = key.split()[0]
            if not name.endswith(("_b1", "_b8")) or not set(PEERS) <= set(row.get("seconds", {})):
                continue
            if name not in result or row["when"] > result[name][1]["when"]:
                result[name] = row["commit"][:7], row
    return dict(sorted(result.items()))


def _over(text: str, *others: str) -> Callable[[dict[str, Any]], float]:
    """How many times faster than the fastest of the others, by medians."""

    def ratio(row: dict[str, Any]) -> float:
        medians = {name: statistics.median(row["seconds"][name]) for name in (text, *others)}
        return min(medians[name] for name in others) / medians[text]

    return ratio


RATIOS: dict[str, Callable[[dict[str, Any]], float]] = {
    "default / torch.compile": _over("ours", "torch"),
    "freeze / freezing": _over("ours+freeze", "torch+freeze"),
    "freeze / engines": _over("ours+freeze", "onnxruntime", "openvino"),
    "default / eager": _over("ours", "eager"),
    "freeze / eager": _over("ours+freeze", "eager"),
    "first call / torch.compile's": lambda row: (
        row["first_call"]["ours"] / row["first_call"]["torch"]
    ),
}


def means(rows: Sequence[dict[str, Any]]) -> str:
    """Geometric means of the ratios."""
    return ", ".join(
        f"{name} {statistics.geometric_mean(map(of, rows)):.3f}" for name, of in RATIOS.items()
    )


def peers(arguments: Sequence[str]) -> int:
    """A line a model with the commit that it was measured at and our ratios, then their geometric
    means."""
    parser = harness.options("peers", peers.__doc__, again=False)
    parser.add_argument("--plot", action="store_true", help="write results/steady/peers.png")
    chosen = parser.parse_args(arguments)
    result = newest()
    for name, (commit, row) in result.items():
        print(
            f"{name:26} {commit}  "
            + ", ".join(f"{title} {of(row):.2f}" for title, of in RATIOS.items())
        )
    for end in ("_b1", "_b8", ""):
        rows = [row for name, (_, row) in result.items() if name.endswith(end)]
        print(f"{len(rows)} rows {end}: {means(rows) if rows else 'none'}")
    if chosen.plot:
        plot(
            {name: row for name, (_, row) in result.items()},
            PEERS,
            harness.RESULTS / "steady" / "peers.png",
        )
    return 0
