"""All benchmarks, one after the other: ``python -m nox -s bench``. In: ``--again``, passed on to
each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import first_call, loops, overhead, steady


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if one of them has a row that failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    chosen = parser.parse_args(arguments)
    again = ["--again"] if chosen.again else []
    failed = 0
    for title, main_of, settings in (
        ("steady state", steady.main, ["--groups", "issue", "seeds", "more"]),
        ("first call", first_call.main, []),
        ("overhead of a call", overhead.main, []),
        ("loops with a break", loops.GRID.main, []),
    ):
        print(f"\n== {title}", flush=True)
        failed |= main_of([*settings, *again])
    return failed


if __name__ == "__main__":
    sys.exit(main())
