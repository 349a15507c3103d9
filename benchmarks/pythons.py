"""A call and the first call on each release of Python, beside torch.compile there.

In: nothing; the running Python is measured, so that each release is another process in its own
environment (`tools.debian_machine` makes those of 3.13 and 3.14). Out: rows in
``results/pythons/3.N.json``, and a table of all releases that have such a file. What always holds:
each figure comes from a process of its own, compilers take turns, and rounds are kept apart so that
releases can take turns too (``--round 0`` on each, then ``--round 1``). A call's figure is the
smallest of its rounds, a first call's the median.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.timing import table

RESULTS = harness.RESULTS / "pythons"

#: Case of `overhead` -> the compilers that are compared there; eager's time is taken off where it is one.
CALLS = {
    "add": ("eager", "torch", "ours"),
    "bert": ("torch:nothing", "ours:nothing"),
    "resnet18": ("torch:nothing", "ours:nothing"),
}
FIRST_CALLS = {"resnet18_64": ("torch", "ours"), "bert_12": ("torch", "ours")}

HEAD = ("Python", "case", "eager", "torch.compile", "tracer-core", "ours / torch.compile",
        "ours / ours on 3.11")  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measures one round on the running Python and prints all releases; 1 if a row failed."""
    parser = harness.options("pythons", __doc__, limit=600.0)
    parser.add_argument("--round", type=int, default=0, help="which round the rows belong to")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument("--only", default="", help="rows that begin so: 'call resnet18'")
    chosen = parser.parse_args(arguments)
    failed = False
    if not chosen.table:
        harness.warm_up_files()
        release = ".".join(map(str, sys.version_info[:2]))
        store = harness.Store("pythons", again=chosen.again, path=RESULTS / f"{release}.json")
        for kind, key, ask in _asked(chosen.round, chosen.limit):
            if not key.startswith(chosen.only):
                continue
            row, _ = store.row(key, ask)
            failed |= "failed" in row
            print(f"{key}: {row.get('failed') or f'{_figure(kind, row):.4g}'}", flush=True)
    print(table(HEAD, list(_lines())))
    return 1 if failed else 0


def _asked(number: int, limit: float) -> Any:
    """Yields (kind, key, what measures the row)."""
    for name, names in CALLS.items():
        for compiler in names:
            measure = "benchmarks.overhead:measure"
            ask = partial(harness.fresh, measure, name, [compiler], limit=limit)
            yield "call", f"call {name} {compiler} {number}", ask
    for name, names in FIRST_CALLS.items():
        for compiler in names:
            measure = "benchmarks.first_call:measure"
            ask = partial(harness.fresh, measure, name, compiler, limit=limit)
            yield "first_call", f"first_call {name} {compiler} {number}", ask


def _figure(kind: str, row: dict[str, Any]) -> float:
    """Microseconds of a call, seconds of a first call."""
    if kind == "first_call":
        return float(row["first_call"])
    (seconds,) = row["seconds"].values()
    return float(seconds) * 1e6


def figures(rows: dict[str, dict[str, Any]]) -> dict[tuple[str, str, str], float]:
    """(kind, case, compiler) -> its figure over the rounds."""
    rounds: dict[tuple[str, str, str], list[float]] = {}
    for key, row in rows.items():
        if "failed" not in row:
            kind, case, compiler, _ = key.split()
            rounds.setdefault((kind, case, compiler), []).append(_figure(kind, row))
    return {
        key: min(result) if key[0] == "call" else statistics.median(result)
        for key, result in rounds.items()
    }


def _lines() -> Any:
    """Yields the table's lines: for each release and case, ours beside torch.compile and 3.11."""
    files = sorted(RESULTS.glob("3.*.json"), key=lambda path: int(path.stem.split(".")[1]))
    result = {path.stem: figures(json.loads(path.read_text())["rows"]) for path in files}
    for release, own in result.items():
        for kind, cases in (("call", CALLS), ("first_call", FIRST_CALLS)):
            for case, names in cases.items():
                theirs, ours = (own.get((kind, case, name)) for name in names[-2:])
                base = own.get((kind, case, "eager"))
                before = result.get("3.11", {}).get((kind, case, names[-1]))
                yield [
                    release, f"{kind.replace('_', ' ')} {case}", _shown(base), _shown(theirs),
                    _shown(ours), _ratio(ours, theirs, base), _ratio(ours, before, None),
                ]  # fmt: skip


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}"


def _ratio(number: float | None, other: float | None, base: float | None) -> str:
    """One over the other, over eager where that is given."""
    if number is None or other is None:
        return ""
    return f"{(number - (base or 0.0)) / (other - (base or 0.0)):.2f}"
