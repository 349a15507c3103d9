"""Benchmarks whose rows are all combinations of a few names: measured in fresh processes, kept,
printed as a table.

In: a `Grid`. Out: the table, and 1 if a row failed or is wrong. What always holds: a row that is
stored for this commit and machine is not measured again; a combination is measured in a process of
its own with empty caches.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import processes
from benchmarks.results import Store
from benchmarks.tables import table


def _nothing_wrong(row: dict[str, Any], *names: str) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Grid:
    """name: of the module in this package, and of the folder of its results. doc: for --help. axes:
    option -> the names it may take. measure: one combination, in its own process. head: of the
    table. line: what it says of a row after the names. left_out: names that are measured only when
    asked for. limit: seconds a row may take. wrong: what a row that did not fail got wrong, a line
    each."""

    name: str
    doc: str | None
    axes: Mapping[str, Sequence[str]]
    measure: Callable[..., dict[str, Any]]
    head: Sequence[str]
    line: Callable[[dict[str, Any]], Sequence[str]]
    left_out: frozenset[str] = frozenset()
    limit: float = 600.0
    wrong: Callable[..., list[str]] = _nothing_wrong

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measures what is not there yet and prints all; 1 if a row failed or is wrong."""
        parser = argparse.ArgumentParser(prog=f"benchmarks.{self.name}", description=self.doc)
        for option, names in self.axes.items():
            usual = [name for name in names if name not in self.left_out]
            parser.add_argument(f"--{option}", nargs="+", default=usual, choices=list(names))
        parser.add_argument(
            "--again", action="store_true", help="measure rows that are there already"
        )
        parser.add_argument(
            "--in-this-process", nargs=len(self.axes), default=None, help=argparse.SUPPRESS
        )
        chosen = parser.parse_args(arguments)
        if chosen.in_this_process:
            processes.answer(self.measure(*chosen.in_this_process))
            return 0
        store = Store(self.name, again=chosen.again)
        lines, bad = [], False
        for names in itertools.product(*(getattr(chosen, option) for option in self.axes)):
            row = self._row(store, names)
            if "failed" in row:
                print(f"{' '.join(names)} failed: {row['failed']}")
                bad = True
                continue
            for text in self.wrong(row, *names):
                print(f"{', '.join(names)}: {text}")
                bad = True
            lines.append([*names, *self.line(row)])
        print(table([*(option.removesuffix("s") for option in self.axes), *self.head], lines))
        return int(bad)

    def _row(self, store: Store, names: Sequence[str]) -> dict[str, Any]:
        child = ["--in-this-process", *names]
        module = f"benchmarks.{self.name}"
        row, _ = store.row(
            " ".join(names), lambda: processes.fresh(module, child, limit=self.limit)
        )
        return row
