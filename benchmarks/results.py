"""Measured rows on disk: what makes a benchmark resumable.

In: rows by key. Out: ``benchmarks/results/<benchmark>/<commit>-<machine>.json``, with versions,
processor and commit. What always holds: rows of another commit, other changes to the working tree,
another machine or other versions are never taken for this one's; the file is written after each
row, by one rename.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, Failed

FOLDER = Path(__file__).resolve().parent / "results"

_DISTRIBUTIONS = ("torch", "transformers", "torchvision", "timm", "numpy", "onnxruntime", "triton")

#: What a measurement depends on.
_MEASURED = ("packages", "benchmarks", "noxfile.py")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def commit() -> str:
    """The commit; with a digest of the changes if the measured folders differ from it; "" outside
    git.
    """
    head = _git("rev-parse", "--short=12", "HEAD").strip()
    if not head:
        return ""
    where = ("--", *_MEASURED, ":!benchmarks/results")
    changes = _git("diff", "HEAD", *where)
    for name in _git("ls-files", "--others", "--exclude-standard", *where).splitlines():
        changes += f"{name}\n{_digest((ROOT / name).read_bytes())}\n"
    return f"{head}-changed-{_digest(changes.encode())[:6]}" if changes else head


def machine() -> dict[str, Any]:
    """Processor, number of usable processors, Python and library versions."""
    versions: dict[str, str] = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    isa = [
        flag
        for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile")
        if flag in found.get("flags", "").split()
    ]
    return f"{found.get('model name', platform.processor())} ({' '.join(isa)})"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Store:
    """The rows of one benchmark at this commit on this machine (mutable: rows are added).

    again: forget what is there. keep: False keeps the rows in memory only.
    """

    def __init__(self, benchmark: str, *, again: bool = False, keep: bool = True) -> None:
        facts = machine()
        where = commit()
        self._keep = keep and bool(where)
        mark = _digest(json.dumps(facts, sort_keys=True).encode())[:6]
        self.path = FOLDER / benchmark / f"{where}-{mark}.json"
        self._document: dict[str, Any] = {
            "benchmark": benchmark,
            "commit": where,
            "machine": facts,
            "rows": {},
        }
        self.again = again
        if self._keep and self.path.exists():
            self._document = json.loads(self.path.read_text(encoding="utf-8"))

    @property
    def rows(self) -> dict[str, Any]:
        """The rows by key."""
        rows: dict[str, Any] = self._document["rows"]
        return rows

    def row(self, key: str, measure: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The stored row, or what `measure` returns, stored; and whether it was there already.

        A `Failed` becomes a row ``{"failed": text}``, which is measured again the next time.
        """
        stored = self.rows.get(key)
        if stored is not None and not self.again and "failed" not in stored:
            return stored, True
        try:
            row = measure()
        except Failed as error:
            row = {"failed": str(error)}
        self.put(key, row)
        return row, False

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Stores a row, with the time and the machine's load."""
        row["when"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row["load"] = round(os.getloadavg()[0], 1)
        self.rows[key] = row
        self._save()

    def _save(self) -> None:
        if not self._keep:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text(
            json.dumps(self._document, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        new.replace(self.path)
