"""All peers' rows that were measured, the newest of each model: ``python -m benchmarks.peers_table
[--plot]``.

In: the JSON of ``benchmarks.steady`` on this kind of machine (a session rarely measures all thirty
rows at one commit). Out: a line a model with the commit that it was measured at and our ratios, and
their geometric means; with ``--plot`` ``results/steady/peers.png``. What always holds: a ratio's
two sides are of one run; a row counts only with all seven compilers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.results import FOLDER
from benchmarks.steady import plot

COMPILERS = ("eager", "torch", "torch+freeze", "onnxruntime", "openvino", "ours", "ours+freeze")


def newest() -> dict[str, tuple[str, dict[str, Any]]]:
    """Model -> (commit, row)."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for file in (FOLDER / "steady").glob("*.json"):
        for key, row in json.loads(file.read_text())["rows"].items():
            name = key.split()[0]
            if not name.endswith(("_b1", "_b8")) or not set(COMPILERS) <= set(
                row.get("seconds", {})
            ):
                continue
            if name not in found or row["when"] > found[name][1]["when"]:
                found[name] = file.name[:7], row
    return dict(sorted(found.items()))


def _over(one: str, *others: str) -> Callable[[dict[str, Any]], float]:
    """How many times faster than the fastest of the others, by medians."""

    def ratio(row: dict[str, Any]) -> float:
        medians = {name: statistics.median(row["seconds"][name]) for name in (one, *others)}
        return min(medians[name] for name in others) / medians[one]

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", action="store_true")
    chosen = parser.parse_args()
    found = newest()
    for name, (commit, row) in found.items():
        print(
            f"{name:26} {commit}  "
            + ", ".join(f"{title} {of(row):.2f}" for title, of in RATIOS.items())
        )
    for end in ("_b1", "_b8", ""):
        rows = [row for name, (_, row) in found.items() if name.endswith(end)]
        print(f"{len(rows)} rows {end}: {means(rows)}")
    if chosen.plot:
        plot(
            {name: row for name, (_, row) in found.items()},
            COMPILERS,
            FOLDER / "steady" / "peers.png",
        )


if __name__ == "__main__":
    main()
