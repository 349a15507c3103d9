"""Counts every reason for which a graph, an operator or a function falls back.

Runs items of several sections (`benchmarks.fallback_items`) in many processes, each forked from one
that has imported everything, and adds up what they note (`benchmarks.fallback_notes`). The result is
a JSON file: the versions, and for each section the items run and category -> reason -> count, items
and an example. Files of the same versions are merged, files of others shown side by side:

    python -m benchmarks fallbacks --programs 10000 --workers 32 --seconds 180 --json after.json
    PYTHONPATH=base/packages/... python -m benchmarks fallbacks ... --json before.json
    python -m benchmarks fallbacks --show before.json after.json

An item that hangs or ends its process is counted as such, and another process goes on. The commit
is that of the packages which are imported, or FALLBACKS_COMMIT outside of git.
"""

from __future__ import annotations

import collections
import importlib.metadata
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.fallback_notes import CATEGORIES
from benchmarks.timing import table

#: Items of one process, after which a fresh one takes its place.
_ITEMS_OF_A_PROCESS = 400
#: Settings that would change what is counted.
_DROPPED = ("TRACER_STRICT", "TRACER_CHECK", "TRACER_LOGS", "TRACER_DEBUG", "TRACER_LIMITS")
_SECTIONS = ("zoo", "steps", "energy", "capture", "opinfo", "program")
_DISTRIBUTIONS = ("torch", "transformers", "timm", "torchvision", "triton")

Counts = dict[str, dict[str, dict[str, Any]]]
#: Backend, device, and the sections that a process has to prepare itself, unless it is forked.
_Settings = tuple[str, str, Sequence[str] | None]


def main(arguments: Sequence[str]) -> int:
    """Counts, writes and prints; 1 if there were errors of ours."""
    begun = time.monotonic()
    parser = harness.options("fallbacks", __doc__, again=False)
    parser.add_argument("--sections", nargs="+", default=list(_SECTIONS), choices=_SECTIONS)
    parser.add_argument("--programs", type=int, default=2000, help="operator programs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--shard", default="0/1", help="K/N: every Nth item, from the Kth")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--backend", default="aten_eager")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument(
        "--spawn", action="store_true", help="processes import everything themselves"
    )
    parser.add_argument("--only", nargs="+", help="items, in place of all")
    parser.add_argument("--json", type=Path, help="result; what it has of this run is added to")
    parser.add_argument("--show", nargs="+", type=Path, help="print these results side by side")
    parser.add_argument("--merge", nargs="+", type=Path, help="add these results up into --json")
    parser.add_argument("--rows", type=int, default=60, help="reasons in the printed table")
    chosen = parser.parse_args(arguments)
    if chosen.show:
        print(shown([_read(path) for path in chosen.show], chosen.rows))
        return 0
    if chosen.merge:
        merged = merge([_read(path) for path in chosen.merge])
    else:
        merged = _count(chosen, begun)
        if chosen.json is not None and chosen.json.exists():
            merged = merge([_read(chosen.json), merged])
    if chosen.json is not None:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(merged, indent=1, sort_keys=True)
        chosen.json.write_text(text + "\n", encoding="utf-8")
    print(shown([merged], chosen.rows))
    return int(any("error of ours" in item["counts"] for item in merged["sections"].values()))


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


# -- running --


def _count(chosen: Any, begun: float) -> dict[str, Any]:
    for name in _DROPPED:
        os.environ.pop(name, None)
    folder = tempfile.mkdtemp(prefix="fallbacks-")
    os.environ.update(OMP_NUM_THREADS="1", TRACER_CACHE_DIR=folder, HF_HUB_OFFLINE="1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # CUDA does not survive a fork
    from benchmarks import fallback_items  # heavy: torch, after the settings are made

    sections = tuple(section for section in _SECTIONS if section in chosen.sections)
    wanted = chosen.only or _wanted(chosen, sections)
    if not chosen.spawn:
        fallback_items.prepare(sections, chosen.device)
    totals = {item.partition(":")[0]: _empty() for item in wanted}
    for item in wanted:
        totals[item.partition(":")[0]]["wanted"] += 1
    prepared = sections if chosen.spawn else None
    pool = _Pool(wanted, chosen.workers, (chosen.backend, chosen.device, prepared), totals)
    try:
        pool.run(begun + chosen.seconds)
    finally:
        pool.end()
        shutil.rmtree(folder, ignore_errors=True)
    facts = _facts(chosen.backend, chosen.device)
    return {"run": facts, "seconds": round(time.monotonic() - begun), "sections": totals}


def _wanted(chosen: Any, sections: Sequence[str]) -> list[str]:
    """The items of this shard, listed by a process of its own, since that may begin CUDA."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_list, args=(theirs, chosen, sections)
    )
    process.start()
    theirs.close()
    texts: list[str] = ours.recv()
    process.join()
    return texts


def _list(pipe: Any, chosen: Any, sections: Sequence[str]) -> None:
    from benchmarks import fallback_items

    part, parts = map(int, chosen.shard.split("/"))
    seeds = range(chosen.first, chosen.first + chosen.programs)
    pipe.send([
        item
        for section in sections
        for item in _mixed(fallback_items.items(section, seeds, chosen.device))[part::parts]
    ])  # fmt: skip


def _mixed(items: list[str]) -> list[str]:
    """The items in an order that is the same each time: a run that is stopped has a sample."""
    random.Random(0).shuffle(items)
    return items


def _empty() -> dict[str, Any]:
    return {"wanted": 0, "done": 0, "graphs": 0, "status": {}, "counts": {}}


def _facts(backend: str, device: str) -> dict[str, Any]:
    import torch

    import tracer_core

    where = Path(tracer_core.__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=-changed"],
        cwd=where, capture_output=True, text=True,
    )  # fmt: skip
    commit = os.environ.get("FALLBACKS_COMMIT") or described.stdout.strip()
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    return {"commit": commit, "backend": backend, "device": name, "versions": versions,
            "python": platform.python_version()}  # fmt: skip


@dataclass
class _Worker:
    """Mutable. item: that it is at; late: when it is ended."""

    process: Any
    pipe: multiprocessing.connection.Connection
    item: str = ""
    late: float = 0.0
    served: int = 0


class _Pool:
    """Processes that run items (mutable)."""

    def __init__(
        self, items: list[str], workers: int, settings: _Settings, totals: dict[str, Any]
    ) -> None:
        self.todo, self.most = list(reversed(items)), workers
        self.settings, self.totals = settings, totals
        self.workers: list[_Worker] = []

    def run(self, end: float) -> None:
        """Runs all items, or those that are done at `end`."""
        begun, messages = len(self.todo), time.monotonic()
        while time.monotonic() < end and (self.todo or any(w.item for w in self.workers)):
            self._employ()
            busy = [worker for worker in self.workers if worker.item]
            soon = min([end, *(item.late for item in busy)])
            waiting: list[Any] = [item.pipe for item in busy]
            multiprocessing.connection.wait(waiting, min(5.0, max(0.0, soon - time.monotonic())))
            for item in busy:
                self._hear(item)
            if time.monotonic() - messages > 20:
                messages = time.monotonic()
                print(f"{begun - len(self.todo)} of {begun}", flush=True)

    def end(self) -> None:
        for worker in list(self.workers):
            self._dismiss(worker)

    def _employ(self) -> None:
        from benchmarks.fallback_items import LIMITS

        while self.todo:
            idle = next((worker for worker in self.workers if not worker.item), None)
            if idle is None:
                if len(self.workers) >= self.most:
                    return
                idle = self._hire()
            idle.item = self.todo.pop()
            idle.served += 1
            # A process may have to begin CUDA, or to import, first.
            idle.late = time.monotonic() + LIMITS[idle.item.partition(":")[0]] + 60
            idle.pipe.send(idle.item)

    def _hire(self) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        *_, prepared = self.settings
        context: Any = multiprocessing.get_context("fork" if prepared is None else "spawn")
        process = context.Process(target=_serve, args=(theirs, *self.settings))
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()

    def _hear(self, worker: _Worker) -> None:
        try:
            if not worker.pipe.poll():
                if time.monotonic() > worker.late:
                    self._lost(worker, "hung")
                return
            result = worker.pipe.recv()
        except (EOFError, ConnectionError):
            worker.process.join(5)
            self._lost(worker, "died")
            return
        self._add(worker.item, result)
        worker.item = ""
        if result.get("spoiled") or worker.served >= _ITEMS_OF_A_PROCESS:
            self._dismiss(worker)

    def _lost(self, worker: _Worker, how: str) -> None:
        why = f"exit code {worker.process.exitcode}" if how == "died" else "no answer"
        counts = {how: {f"{worker.item.partition(':')[0]}: {why}": 1}}
        self._add(worker.item, {"status": how, "graphs": 0, "counts": counts})
        self._dismiss(worker)

    def _add(self, item: str, result: dict[str, Any]) -> None:
        total = self.totals[item.partition(":")[0]]
        total["done"] += 1
        total["graphs"] += result["graphs"]
        total["status"][result["status"]] = total["status"].get(result["status"], 0) + 1
        if result["status"] == "invalid" and not item.startswith("program:"):
            total.setdefault("invalid", {})[item] = result.get("why", "")
        for category, reasons in result["counts"].items():
            for reason, times in reasons.items():
                row = {"count": times, "items": 1, "example": item}
                _add_row(total["counts"], category, reason, row)


def _add_row(counts: Counts, category: str, reason: str, row: dict[str, Any]) -> None:
    result = counts.setdefault(category, {}).setdefault(
        reason, {"count": 0, "items": 0, "example": row["example"]}
    )
    result["count"] += row["count"]
    result["items"] += row["items"]


def _serve(pipe: Any, backend: str, device: str, sections: Sequence[str] | None) -> None:
    """A process's life: items come, what came of them goes."""
    from benchmarks import fallback_items

    if sections is not None:
        fallback_items.prepare(sections, device)

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # torch's own warnings
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            result = fallback_items.run(item, backend, device)
        except Exception as error:
            reason = f"of the benchmark: {type(error).__name__}: {error}"[:300]
            result = {"status": "failed", "graphs": 0, "counts": {"died": {reason: 1}}}
        result["spoiled"] = fallback_items.is_spoiled(result)
        pipe.send(result)


# -- results --


def merge(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up results of one commit and version. Raises SystemExit for others."""
    first = results[0]
    for other in results:
        if other["run"] != first["run"]:
            raise SystemExit(f"results of other runs are not added: {first['run']}, {other['run']}")
    sections: dict[str, Any] = {}
    for name in [item for item in _SECTIONS if any(item in r["sections"] for r in results)]:
        total = sections[name] = _empty()
        status: collections.Counter[str] = collections.Counter()
        for part in [r["sections"][name] for r in results if name in r["sections"]]:
            for key in ("wanted", "done", "graphs"):
                total[key] += part[key]
            status.update(part["status"])
            if "invalid" in part:
                total.setdefault("invalid", {}).update(part["invalid"])
            for category, reasons in part["counts"].items():
                for reason, row in reasons.items():
                    _add_row(total["counts"], category, reason, row)
        total["status"] = dict(status)
    seconds = sum(result["seconds"] for result in results)
    return {"run": first["run"], "seconds": seconds, "sections": sections}


def shown(results: Sequence[dict[str, Any]], rows: int) -> str:
    """Tables of results side by side: what ran, the sum of each category, the most frequent
    reasons."""
    heads = [_head(result["run"]) for result in results]
    names = [section for section in _SECTIONS if any(section in r["sections"] for r in results)]
    ran = [[name, *(_ran(r["sections"].get(name)) for r in results)] for name in names]
    sums, lines = [], []
    for category in CATEGORIES:
        result = [_reasons(result, category) for result in results]
        if not any(result):
            continue
        totals = [sum(row["count"] for row in item.values()) for item in result]
        sums.append([category, *map(str, totals), CATEGORIES[category]])
        reasons = dict.fromkeys(reason for item in result for reason in item)
        for reason in sorted(reasons, key=lambda r: -max(_times(item, r) for item in result)):
            example = next(item[reason]["example"] for item in reversed(result) if reason in item)
            times = [str(_times(item, reason)) for item in result]
            lines.append([category, *times, reason[:150], example])
    short = _most(lines, rows)
    return "\n\n".join([
        table(["items: done/wanted, graphs", *heads], ran),
        table(["category", *heads, "meaning"], sums),
        table(["category", *heads, "reason", "example"], short),
        f"{len(lines)} reasons, {len(short)} shown",
    ])  # fmt: skip


def _most(lines: list[list[str]], rows: int) -> list[list[str]]:
    """The first lines of each category, `rows` at most."""
    of: dict[str, list[list[str]]] = {}
    for line in lines:
        of.setdefault(line[0], []).append(line)
    each, result = max(1, rows // max(1, len(of))), 0
    while sum(min(each + result, len(item)) for item in of.values()) < min(rows, len(lines)):
        result += 1
    return [line for item in of.values() for line in item[: each + result]]


def _head(run: dict[str, Any]) -> str:
    device = "cpu" if run["device"] == "cpu" else "gpu"
    return f"{run['commit'][:8]}, {run['versions']['torch']}, {device}"


def _ran(part: dict[str, Any] | None) -> str:
    if part is None:
        return ""
    invalid = part["status"].get("invalid", 0)
    return f"{part['done']}/{part['wanted']}, {part['graphs']} graphs, {invalid} invalid"


def _reasons(result: dict[str, Any], category: str) -> dict[str, dict[str, Any]]:
    """The reasons of all sections together."""
    counts: Counts = {category: {}}
    for part in result["sections"].values():
        for reason, row in part["counts"].get(category, {}).items():
            _add_row(counts, category, reason, row)
    return counts[category]


def _times(reasons: dict[str, dict[str, Any]], reason: str) -> int:
    return int(reasons[reason]["count"]) if reason in reasons else 0
