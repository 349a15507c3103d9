"""The first call: what a user waits for, in a fresh process with empty caches, stage by stage.

In: models and compilers. Out: for each model a table of seconds by stage, torch.compile beside
ours, and the ratio; over all models the ratios and their geometric mean; for the group ``depth``
how lowering, code generation and C++ build together grow with GPT-2's layers. What always holds:
the compilers take turns, round by round; a number is the median of its rounds; the first row of
each side is not warmed by the other, except that the files of both are in the system's page cache,
because they are read once before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.first_call_process import IMPORT, LABELS, OURS_BY_BACKEND, OWN_MODULES
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, table

MODULE = "benchmarks.first_call_process"

#: What happens before the compiler is touched, the same for both sides.
BEFORE = ("start Python", "import torch", "import the model library", "build the model")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.first_call", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=[], choices=models.GROUPS)
    parser.add_argument("--compilers", nargs="+", default=["torch", "ours"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a process may take")
    chosen = parser.parse_args(arguments)
    wanted = models.choose(chosen.models, []) if chosen.models else []
    wanted += models.choose([], chosen.groups) if chosen.groups else []
    wanted = wanted or models.choose(["resnet18_64", "bert_12"], [])
    processes.warm_up_files()
    _read_files(chosen.compilers)
    store = Store("first_call", again=chosen.again)
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(chosen.rounds):
        for model in wanted:
            turned = chosen.compilers[number % 2 :] + chosen.compilers[: number % 2]
            for compiler in turned:
                row = _row(store, model.name, compiler, number, chosen.limit)
                measured.setdefault((model.name, compiler), []).append(row)
    good = True
    for model in wanted:
        rows = {name: measured[model.name, name] for name in chosen.compilers}
        good &= _print(model, rows)
    _print_all(wanted, measured, chosen.compilers)
    depths = [model for model in wanted if "depth" in model.groups]
    if len(depths) > 1:
        _print_depth(depths, measured, chosen.compilers)
    return 0 if good else 1


def _medians(rows: list[dict[str, Any]], key: str) -> float | None:
    """None where a row failed or the compiler does not tell."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return _median(values) if values and len(values) == len(rows) else None


def _print_all(
    wanted: Sequence[models.Model], measured: dict[Any, Any], names: Sequence[str]
) -> None:
    """First calls of all models in one table, and ours over torch.compile's."""
    lines, ratios = [], []
    for model in wanted:
        firsts = {name: _medians(measured[model.name, name], "first_call") for name in names}
        ours, torch = firsts.get("ours"), firsts.get("torch")
        ratio = ours / torch if ours and torch else None
        ratios += [ratio] if ratio else []
        cells = [f"{value:.2f}" if value else "failed" for value in firsts.values()]
        lines.append([model.title, *cells, f"{ratio:.3f}" if ratio else ""])
    print("\nFirst call, seconds")
    print(table(["model", *map(compilers.title, names), "ours / torch.compile"], lines))
    if ratios:
        print(
            f"geometric mean of {len(ratios)} ratios: {geometric_mean(ratios):.3f}, largest"
            f" {max(ratios):.3f}"
        )


def _print_depth(
    depths: Sequence[models.Model], measured: dict[Any, Any], names: Sequence[str]
) -> None:
    """What a compiler does after the trace, by depth, over the same at the least depth."""
    lines = []
    for model in depths:
        cells = []
        for name in names:
            seconds = _medians(measured[model.name, name], "after_trace")
            least = _medians(measured[depths[0].name, name], "after_trace")
            cells.append(f"{seconds:.2f} ({seconds / least:.2f})" if seconds and least else "")
        lines.append([model.title, *cells])
    print("\nLowering, code generation and C++ build, seconds (over the first row's)")
    print(table(["model", *map(compilers.title, names)], lines))


def _read_files(names: Sequence[str]) -> None:
    """Imports both sides once in a process that is not measured, so that all files were read
    before.
    """
    print("reading the files of the compilers and libraries once ...", flush=True)
    modules = [module for name in names for module in OWN_MODULES[name.partition(":")[0]]]
    modules += [module for backend in OURS_BY_BACKEND.values() for module in backend]
    processes.fresh("benchmarks.read_files", modules, limit=600)


def _row(store: Store, model: str, compiler: str, number: int, limit: float) -> dict[str, Any]:
    key = f"{model} {compiler} {number}"
    row, there = store.row(key, lambda: processes.fresh(MODULE, [model, compiler], limit=limit))
    told = (
        row.get("failed") or f"{row['first_call']:.2f} s first call, {row['process']:.2f} s process"
    )
    print(f"{key}: {told}{' (stored)' if there else ''}", flush=True)
    return row


def _print(model: models.Model, rows: dict[str, list[dict[str, Any]]]) -> bool:
    """One model's table; False if a compiler has no row that worked."""
    good = {name: [row for row in found if "failed" not in row] for name, found in rows.items()}
    print(
        f"\n{model.title} ({model.modes}), seconds, median of {max(map(len, rows.values()))}"
        " processes"
    )
    for name, found in good.items():
        if not found:
            print(f"  {compilers.title(name)} failed: {rows[name][0]['failed']}")
    names = [name for name, found in good.items() if found]
    labels = list(dict.fromkeys([*LABELS.values(), IMPORT]))
    before = [text for text in labels if text in BEFORE]
    lines = [_line(text, good, names) for text in before]
    lines += [
        _line(text, good, names) for text in labels if text not in BEFORE and _any(text, good)
    ]
    for text, key in (
        ("FIRST CALL (import, compile, run)", "first_call"),
        ("whole process", "process"),
    ):
        lines.append(
            [text, *(f"{_median([row[key] for row in good[name]]):.2f}" for name in names)]
        )
    print(table(["stage", *map(compilers.title, names)], lines))
    for name in names:
        print(f"  imports of {compilers.title(name)}: {_imports(good[name])}")
    if {"torch", "ours"} <= set(names):
        ratios = {
            key: _median([r[key] for r in good["ours"]]) / _median([r[key] for r in good["torch"]])
            for key in ("first_call", "process")
        }
        print(
            f"  ours / torch.compile: first call {ratios['first_call']:.3f}, "
            f"whole process {ratios['process']:.3f}"
        )
    return len(names) == len(rows)


def _any(text: str, good: dict[str, list[dict[str, Any]]]) -> bool:
    return any(text in row["seconds"] for found in good.values() for row in found)


def _line(text: str, good: dict[str, list[dict[str, Any]]], names: Sequence[str]) -> list[str]:
    return [
        text,
        *(
            f"{_median([row['seconds'].get(text, 0.0) for row in good[name]]):.2f}"
            for name in names
        ),
    ]


def _imports(rows: list[dict[str, Any]]) -> str:
    groups = {name for row in rows for name in row["imports"]}
    seconds = {name: _median([row["imports"].get(name, 0.0) for row in rows]) for name in groups}
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:6]
    return ", ".join(f"{name} {value:.2f}" for name, value in largest)


def _median(values: list[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())
