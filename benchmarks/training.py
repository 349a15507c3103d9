"""Training: are losses and gradients eager's, in how many graphs, and how fast is a step?

In: models of `benchmarks.training_models`, backends, forms and precisions. Out: a table; exit
status 1 where a row failed, or its error against float64 is more than three times eager's own. What
always holds: each row has a process of its own with empty caches; rows are resumable.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from benchmarks import processes
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, table
from benchmarks.training_models import TRAINED

MODULE = "benchmarks.training_process"
ALLOWED = 3.0
#: Below these, errors are rounding: of float32, and of bfloat16's 8 bits.
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.training", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=list(TRAINED), choices=list(TRAINED), metavar="NAME"
    )
    parser.add_argument("--backends", nargs="+", default=["aten_eager", "inductor"], metavar="NAME")
    parser.add_argument("--forms", nargs="+", default=["model", "step"], choices=["model", "step"])
    parser.add_argument("--precisions", nargs="+", default=list(ROUNDING), choices=list(ROUNDING))
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    chosen = parser.parse_args(arguments)
    store = Store("training", again=chosen.again)
    rows, good = [], True
    for key in product(chosen.models, chosen.precisions, chosen.forms, chosen.backends):
        name = " ".join(key)
        if store.again or "failed" in store.rows.get(name, {"failed": ""}):
            try:
                store.put(name, processes.fresh(MODULE, key, limit=1800))
            except processes.Failed as error:
                store.put(name, {"failed": str(error)[-2000:]})
        row = store.rows[name]
        fine = "failed" not in row and right(row, key[1])
        good &= fine
        rows.append(line(key, row, fine))
        print("  ".join(rows[-1]), flush=True)
    head = ["model", "precision", "form", "backend", "graphs", "breaks", "loss error / eager's",
    "gradient error / eager's",
            "first call s", "speed", "right"]  # fmt: skip
    print(f"\n{table(head, rows)}\n")
    ratios = [ratio(row) for row in store.rows.values() if "failed" not in row]
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


if __name__ == "__main__":
    sys.exit(main())
