"""Every architecture trained for one step, judged by float64 parameter by parameter: ``python -m
benchmarks.gradients``.

In: models of `benchmarks.zoo_models.automatic` (every architecture of transformers that builds from
a small random configuration, every family of timm and torchvision), a backend, a device. Out: a
state file with one JSON line a model, a short table (counts, then what is not right), and with
``--page`` the committed table in ``results/gradients``.

What always holds: forward, a loss that depends on each element of each output, backward; dropout
zero, TF32 off unless ``--tf32``; outputs, gradients of parameters and inputs, and buffers are
judged each alone (`benchmarks.gradient_errors` says how). Several processes take models in turn;
one that dies or does not answer in ``--limit`` seconds loses its model's row only. Rows that the
state file has are not run again; ``--time-budget`` ends the run cleanly, for a lease of a GPU:

    python -m benchmarks.gradients --device cuda --workers 12 --time-budget 540 --out
    $OUT/gradients.jsonl python -m benchmarks.gradients --models swin --backend aten_eager python -m
    benchmarks.gradients --models transformers/swin --options '{"fuse": false}' --out /tmp/a.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.results import FOLDER, commit, machine
from benchmarks.tables import table

MODULE = "benchmarks.gradients_process"
RESULTS = FOLDER / "gradients"
#: A process is replaced after so many models: what they leave behind adds up.
_MODELS = 25
#: Seconds that importing the model libraries may take.
_IMPORTS = 90.0
_BAD = ("wrong", "error", "crashed", "broken")


class Sweep:
    """Models to run, and the processes that run them (mutable: threads take models from it)."""

    def __init__(
        self, waiting: list[str], chosen: argparse.Namespace, out: Path, end: float
    ) -> None:
        self.waiting, self.chosen, self.out, self.end = waiting[::-1], chosen, out, end
        self.lock = threading.Lock()
        self.settings = {
            "backend": chosen.backend, "device": chosen.device, "tf32": chosen.tf32,
            "threads": chosen.threads,
            "options": json.loads(chosen.options) if chosen.options else None,
        }  # fmt: skip

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._work)
            for _ in range(min(self.chosen.workers, len(self.waiting)))
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def _take(self) -> str | None:
        with self.lock:
            return self.waiting.pop() if self.waiting and time.monotonic() < self.end else None

    def _work(self) -> None:
        name = self._take()
        while name is not None:
            with processes.worker(self.chosen.module, [json.dumps(self.settings)]) as child:
                for number in range(_MODELS):
                    left = self.end - time.monotonic()
                    # the first answer of a process waits for its imports
                    limit = self.chosen.limit + (
                        _IMPORTS if number == 0 and self.chosen.module == MODULE else 0
                    )
                    try:
                        row = child.ask(name, limit=max(1.0, min(limit, left)))
                    except processes.Failed as error:
                        if (
                            time.monotonic() < self.end
                        ):  # else the budget ended it: it runs the next time
                            self._put(name, {"status": "crashed", "error": str(error)[-700:]})
                        name = self._take()
                        break
                    self._put(name, row)
                    spoilt = "CUDA error" in str(row.get("error"))
                    name = self._take()
                    if name is None or spoilt:
                        break

    def _put(self, name: str, row: dict[str, Any]) -> None:
        row = key(self.chosen) | {"model": name} | row
        with self.lock:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if row["status"] in _BAD or self.chosen.verbose:
                print("  ".join(line(row)), flush=True)


def key(chosen: argparse.Namespace) -> dict[str, Any]:
    """What a row belongs to beside its model."""
    return {
        "backend": chosen.backend,
        "device": chosen.device,
        "tf32": chosen.tf32,
        "options": chosen.options or "",
    }


HEAD = [
    "model",
    "status",
    "parameters",
    "wrong",
    "worst",
    "ours",
    "eager",
    "graphs",
    "breaks",
    "first s",
    "why",
]


def line(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    worst = row.get("worst") or ["", None, None]
    why = row.get("error") or "; ".join(row.get("problems") or ())
    if row["status"] == "wrong":
        others = row.get("wrong_with_other_inputs")
        why = f"{why}; with other inputs {others}".lstrip("; ")
    return [
        row["model"], row["status"], str(row.get("parameters", "")), str(row.get("number_wrong",
        "")), worst[0],
        *("" if one is None else f"{one:.1e}" for one in worst[1:]), str(row.get("graphs", "")),
        str(len(row["breaks"])) if "breaks" in row else "", str(row.get("seconds_first", "")),
        " ".join(why.split())[:200],
    ]  # fmt: skip


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Counts by library, then the rows that are not right, the worst first; at the end those that
    eager cannot run.
    """
    text = []
    for library in dict.fromkeys(row["model"].partition("/")[0] for row in rows):
        mine = [row for row in rows if row["model"].startswith(f"{library}/")]
        counts = Counter(row["status"] for row in mine)
        told = ", ".join(
            f"{counts[status]} {status}" for status in sorted(counts, key=lambda s: (s != "ok", s))
        )
        text.append(f"{library}: {len(mine)} models: {told}")
    bad = sorted(
        (row for row in rows if row["status"] in _BAD),
        key=lambda r: (_BAD.index(r["status"]), r["model"]),
    )
    if bad:
        text += ["", table(HEAD, [line(row) for row in bad])]
    judged = [row for row in rows if row["status"] in ("ok", "wrong")]
    if judged:
        worst = max(judged, key=lambda row: row.get("largest", 0.0))
        broken = sum(bool(row.get("breaks")) for row in judged)
        text += ["", f"{len(judged)} trained, {sum(r.get('compared', 0) for r in judged)} tensors compared; largest error of a "
                 f"gradient {worst.get('largest', 0.0):.1e} ({worst['model']}); {broken} with graph breaks"]  # fmt: skip
    return "\n".join(text)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a state file, the last of each model; a line that a killed run cut off is left
    out.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue
        rows[row["model"], row["backend"], row["device"], row["tf32"], row["options"]] = row
    return list(rows.values())


def write_page(rows: Sequence[dict[str, Any]], chosen: argparse.Namespace) -> Path:
    """The committed table: JSON with all rows, and the same as text."""
    name = f"{chosen.backend}-{chosen.device}{'-tf32' if chosen.tf32 else ''}"
    rows = sorted(rows, key=lambda row: row["model"])
    document = {"commit": commit(), "machine": machine(), **key(chosen), "rows": rows}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    page = RESULTS / f"{name}.md"
    lines = [
        f"# One training step, {chosen.backend} on {chosen.device}{', TF32' if chosen.tf32 else ''}",
        "", "Made by `python -m benchmarks.gradients --page`; `benchmarks/gradient_errors.py` says how errors are judged.",
        "", "```", report(rows), "```", "", "| " + " | ".join(HEAD) + " |",
        "|---" * len(HEAD) + "|",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in line(row)) + " |" for row in rows),
    ]  # fmt: skip
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def listed(chosen: argparse.Namespace) -> list[str]:
    """The models to run, by part of their names and by shard."""
    from tests.support import torchvision_ops

    torchvision_ops.define()
    from benchmarks.zoo_models.automatic import names

    if chosen.exactly:
        return list(chosen.exactly)
    found = [n for n in names() if not chosen.models or any(part in n for part in chosen.models)]
    number, count = map(int, chosen.shard.split("/"))
    return found[number::count]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is not there yet and prints what is not right; 1 if there is any such row."""
    begun = time.monotonic()
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(
        prog="benchmarks.gradients", description=__doc__, formatter_class=raw
    )
    parser.add_argument(
        "--models",
        nargs="*",
        default=[],
        metavar="PART",
        help="those with one of these in their names",
    )
    parser.add_argument(
        "--exactly", nargs="*", default=[], metavar="NAME", help="these, in this order"
    )
    parser.add_argument(
        "--module", default=MODULE, help=argparse.SUPPRESS
    )  # tests put another one in
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--options", default="", help="of the backend, as JSON")
    parser.add_argument(
        "--tf32", action="store_true", help="allow TF32, for eager and compiled alike"
    )
    parser.add_argument("--out", type=Path, default=None, help="the state file (JSON lines)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--threads",
        type=int,
        default=None,
        help="of each process (all for one worker, 1 for several)",
    )
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one model")
    parser.add_argument(
        "--time-budget",
        type=float,
        default=float("inf"),
        help="seconds after which it stops, with what is done",
    )
    parser.add_argument("--shard", default="0/1", help="this one of so many")
    parser.add_argument(
        "--again",
        nargs="*",
        default=[],
        metavar="STATUS",
        help="run rows with these statuses again",
    )
    parser.add_argument("--page", action="store_true", help="write the committed table")
    parser.add_argument(
        "--verbose", action="store_true", help="print each row, not only those that are not right"
    )
    chosen = parser.parse_args(arguments)
    chosen.threads = chosen.threads or (1 if chosen.workers > 1 else os.cpu_count())
    default = f"gradients-{chosen.backend}-{chosen.device}{'-tf32' if chosen.tf32 else ''}.jsonl"
    out = chosen.out or Path(os.environ.get("OUT", processes.ROOT / ".nox")) / default
    out.parent.mkdir(parents=True, exist_ok=True)

    def mine() -> list[dict[str, Any]]:
        return [row for row in read(out) if key(chosen).items() <= row.items()]

    done = {row["model"] for row in mine() if row["status"] not in chosen.again}
    waiting = [name for name in listed(chosen) if name not in done]
    print(f"{len(waiting)} models to run, {len(done)} done; {out}", flush=True)
    processes.warm_up_files()
    sweep = Sweep(waiting, chosen, out, begun + chosen.time_budget)
    sweep.run()
    rows = mine()
    print(f"\n{report(rows)}\n{len(sweep.waiting)} not run; {time.monotonic() - begun:.0f} s")
    if chosen.page:
        print(write_page(rows, chosen))
    return 1 if any(row["status"] in _BAD for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
