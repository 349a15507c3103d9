"""Steady state: milliseconds a call once everything is compiled.

In: models and compilers. Out: a table of milliseconds and speed-ups over eager, how the compilers
compare in speed, first call, memory and error, and rows in ``results/steady``. What always holds:
each compiler of a row has a fresh process with empty caches, the same weights and inputs; the
processes of a row take turns in rounds, one running at a time; a ratio is the median over the
rounds of ratios whose two sides were measured in one round.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, milliseconds, table
from benchmarks.timing import Plan, speed_up, turned


def measure(model: models.Model, names: Sequence[str], plan: Plan, limit: float) -> dict[str, Any]:
    """One row: seconds by compiler and round, first-call seconds, errors, memory. limit: seconds
    for an answer.
    """
    answers: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        contextlib.ExitStack() as running,
    ):
        workers: dict[str, processes.Worker] = {}
        for name in names:
            child = processes.worker("benchmarks.steady_process", [model.name, name, folder])
            worker = running.enter_context(child)
            try:
                if not workers:
                    worker.ask({"do": "truth"}, limit=limit)
                answers[name] = worker.ask({"do": "first"}, limit=limit)
            except (
                processes.Failed
            ) as error:  # a compiler that cannot do this model: the row says so
                failed[name] = str(error)[:2000]
                continue
            workers[name] = worker
        for number in range(plan.rounds):
            for name in turned(list(workers), number):
                told = workers[name].ask({"do": "turn", **dataclasses.asdict(plan)}, limit=limit)
                seconds.setdefault(name, []).append(told["seconds"])
                peaks[name] = max(peaks.get(name, 0), told["peak"])
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
        "plan": dataclasses.asdict(plan),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.steady", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=["issue"], choices=models.GROUPS)
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument(
        "--rounds", type=int, default=7, help="at least 5 for figures that are reported"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="of a turn of one compiler in a round"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds an answer may take")
    parser.add_argument(
        "--plot", action="store_true", help="write a bar chart beside the JSON (needs matplotlib)"
    )
    chosen = parser.parse_args(arguments)
    plan = Plan(rounds=chosen.rounds, seconds=chosen.seconds, least=3)
    wanted = models.choose(chosen.models, chosen.groups)
    if chosen.compilers[0] != "eager":
        parser.error("--compilers must begin with eager: speed-ups and errors are over it")
    processes.warm_up_files()
    store = Store("steady", again=chosen.again)
    rows: dict[str, dict[str, Any]] = {}
    for model in wanted:
        rows[model.name] = _row(store, model, chosen, plan)
    print()
    print(report(rows, chosen.compilers))
    if chosen.plot:
        plot(rows, chosen.compilers, store.path.with_suffix(".png"))
    return (
        1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0
    )


def _row(
    store: Store, model: models.Model, chosen: argparse.Namespace, plan: Plan
) -> dict[str, Any]:
    print(f"{model.name} ...", end=" ", flush=True)
    key = f"{model.name} {' '.join(chosen.compilers)} {plan.rounds}x{plan.seconds}"
    row, there = store.row(key, lambda: measure(model, chosen.compilers, plan, chosen.limit))
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
    rows.
    """
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
    installed.
    """
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


if __name__ == "__main__":
    sys.exit(main())
