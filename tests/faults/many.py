"""Makes trials of every kind and writes what became of them.

``python -m tests.faults --state state.jsonl --page benchmarks/results/store_faults/faults.json`` goes on from
its state file where an earlier run stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.faults.children import import_everything
from tests.faults.kinds import KINDS, Bench, Kind

#: A compiler that does not optimize: the store is tried, not the code.
CHEAP = '#!/bin/sh\nexec g++ "$@" -O0\n'


@contextlib.contextmanager
def bench_in(parent: str | None = None) -> Iterator[Bench]:
    """Makes a bench with a store that four programs have filled."""
    import_everything()
    root = Path(tempfile.mkdtemp(prefix="tracer-faults-", dir=parent))
    root.chmod(0o755)
    (root / "logs").mkdir()
    cheap = root / "g++"
    cheap.write_text(CHEAP)
    cheap.chmod(0o755)
    changed = {"CXX": str(cheap), "TRACER_KEEP": "1", "TRACER_CHECK": "0", "TRACER_STRICT": "0"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        bench = Bench(root)
        bench.measure()
        yield bench
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(root, ignore_errors=True)


def make(bench: Bench, kind: Kind, turn: int, seed: int) -> dict[str, Any]:
    """Makes one trial and returns its row."""
    bench.rng, bench.turn = random.Random(f"{seed} {kind.name} {turn}"), turn
    row: dict[str, Any] = {"kind": kind.name, "turn": turn, "seed": seed}
    begun = time.monotonic()
    try:
        kind.trial(bench)
    except AssertionError as error:
        row["failed"] = str(error)[-2000:]
    row["seconds"] = round(time.monotonic() - begun, 2)
    for log in (bench.root / "logs").iterdir():
        log.unlink()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--state", type=Path, default=Path("store_faults.jsonl"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in KINDS])
    parser.add_argument("--sample", action="store_true", help="the trials that CI makes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stops after these")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.state.exists():
        rows = [json.loads(line) for line in arguments.state.read_text().splitlines()]
    done = {(row["kind"], row["turn"]) for row in rows if row["seed"] == arguments.seed}
    end = time.monotonic() + arguments.seconds
    with bench_in() as bench, arguments.state.open("a") as state:
        for kind in KINDS:
            if kind.name not in (arguments.kinds or [kind.name]):
                continue
            if kind.root and os.geteuid() != 0:
                print(f"{kind.name}: needs root")
                continue
            for turn in range(kind.sample if arguments.sample else kind.trials):
                if (kind.name, turn) in done or time.monotonic() > end:
                    continue
                rows.append(make(bench, kind, turn, arguments.seed))
                state.write(json.dumps(rows[-1]) + "\n")
                state.flush()
                if "failed" in rows[-1]:
                    print(f"{kind.name} {turn}: {rows[-1]['failed']}", flush=True)
            print(f"{kind.name}: {summary(rows).get(kind.name, 'no time left')}", flush=True)
    if arguments.page is not None:
        page = {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "kinds": summary(rows),
        }
        arguments.page.write_text(json.dumps(page, indent=1) + "\n")
    return int(any("failed" in row for row in rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns, by kind, how many faults were made and which trials failed."""
    return {
        kind.name: {
            "faults": kind.each * len(own),
            "failed": [row["turn"] for row in own if "failed" in row],
            "seconds": round(sum(row["seconds"] for row in own)),
        }
        for kind in KINDS
        if (own := [row for row in rows if row["kind"] == kind.name])
    }
