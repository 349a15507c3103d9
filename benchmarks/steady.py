"""Steady state: milliseconds a call once everything is compiled.

In: models and compilers. Out: a table of milliseconds, speed-ups over eager and their geometric means, and
rows in ``results/steady``. What always holds: each model has a fresh process with empty caches, in which all
compilers share the weights and the inputs and take turns in rounds; a speed-up is the median over the
rounds of a ratio whose two sides were measured in one round.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, milliseconds, table
from benchmarks.timing import Plan, alternate, speed_up


def measure(model: models.Model, names: Sequence[str], plan: Plan) -> dict[str, Any]:
    """One row, in this process: seconds by compiler and round, first-call seconds, errors."""
    from tracer_core.testing import error_ratio, relative_error

    program = model.program()
    truth_program = models.in_float64(program)
    functions: dict[str, Callable[..., Any]] = {}
    first: dict[str, float] = {}
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with model.mode():
        truth = truth_program.call()
        del truth_program
        for name in names:
            start = time.perf_counter()
            try:
                function = compilers.compiler(name)(program.function)
                results[name] = program.call(function)
                first[name] = time.perf_counter() - start
                program.call(function)
            except Exception as error:  # a compiler that cannot do this model: the row says so
                failed[name] = f"{type(error).__name__}: {error}"[:2000]
                continue
            functions[name] = function
        rounds = alternate(functions, program.args, program.kwargs, plan)
    return {
        "seconds": rounds,
        "first_call": first,
        "errors": {name: relative_error(truth, result) for name, result in results.items()},
        "error_ratios": {
            name: error_ratio(truth, results["eager"], result)
            for name, result in results.items()
            if "eager" in results and name != "eager"
        },
        "failed_compilers": failed,
        "plan": dataclasses.asdict(plan),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.steady", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=["issue"], choices=("issue", "seeds", "more"))
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7, help="at least 5 for figures that are reported")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn of one compiler in a round")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds a process may take")
    parser.add_argument(
        "--plot", action="store_true", help="write a bar chart beside the JSON (needs matplotlib)"
    )
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    plan = Plan(rounds=chosen.rounds, seconds=chosen.seconds)
    wanted = models.choose(chosen.models, chosen.groups)
    if "eager" not in chosen.compilers:
        parser.error("--compilers must name eager: speed-ups are over it")
    if chosen.in_this_process:
        processes.answer(measure(wanted[0], chosen.compilers, plan))
        return 0
    processes.warm_up_files()
    store = Store("steady", again=chosen.again)
    rows: dict[str, dict[str, Any]] = {}
    for model in wanted:
        rows[model.name] = _row(store, model, chosen, plan)
    print()
    print(report(rows, chosen.compilers))
    if chosen.plot:
        plot(rows, chosen.compilers, store.path.with_suffix(".png"))
    return 1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0


def _row(store: Store, model: models.Model, chosen: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    print(f"{model.name} ...", end=" ", flush=True)
    child = ["--in-this-process", "--models", model.name, "--compilers", *chosen.compilers]
    child += ["--rounds", str(plan.rounds), "--seconds", str(plan.seconds)]
    key = f"{model.name} {' '.join(chosen.compilers)} {plan.rounds}x{plan.seconds}"
    row, there = store.row(key, lambda: processes.fresh("benchmarks.steady", child, limit=chosen.limit))
    for name, text in row.get("failed_compilers", {}).items():
        print(f"\n  {compilers.title(name)} failed: {text}")
    if "failed" in row:
        print(f"failed: {row['failed']}")
        return row
    times = (
        f"{compilers.title(n)} {milliseconds(statistics.median(s))} ms" for n, s in row["seconds"].items()
    )
    print(", ".join(times), "(stored)" if there else f"(load {row['load']})", flush=True)
    return row


def report(rows: dict[str, dict[str, Any]], names: Sequence[str]) -> str:
    """The table: milliseconds a compiler, speed-up over eager, error against eager's own."""
    others = [name for name in names if name != "eager"]
    head = ["model", "mode", *(f"{compilers.title(name)} ms" for name in names)]
    head += [f"{compilers.title(name)} speed-up" for name in others]
    head += [f"{compilers.title(name)} error/eager's" for name in others]
    lines = [
        _line(models.MODELS[name], row, names, others) for name, row in rows.items() if "failed" not in row
    ]
    text = table(head, lines)
    for name in others:
        ratios = {key: _speed_up(row, name) for key, row in rows.items() if name in row.get("seconds", {})}
        worst = min(ratios, key=lambda key: ratios[key], default="")
        text += f"\n{compilers.title(name)}: geometric mean {geometric_mean(list(ratios.values())):.3f}"
        text += f" over {len(ratios)} models, lowest {ratios[worst]:.3f} ({worst})" if worst else ""
    return text


def _speed_up(row: dict[str, Any], name: str) -> float:
    return speed_up(row["seconds"]["eager"], row["seconds"][name])


def _line(model: models.Model, row: dict[str, Any], names: Sequence[str], others: Sequence[str]) -> list[str]:
    seconds = row["seconds"]
    line = [model.title, model.modes]
    line += [
        milliseconds(statistics.median(seconds[name])) if name in seconds else "failed" for name in names
    ]
    line += [f"{_speed_up(row, name):.3f}" if name in seconds else "" for name in others]
    return line + [f"{row['error_ratios'][name]:.2f}" if name in seconds else "" for name in others]


def plot(rows: dict[str, dict[str, Any]], names: Sequence[str], path: Path) -> None:
    """A bar a model and compiler: speed-up over eager. Says so where matplotlib is not installed."""
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
        heights = [_speed_up(row, compiler) if compiler in row["seconds"] else 0.0 for row in good.values()]
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
