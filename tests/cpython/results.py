"""The state file of a sweep, which is also the result that is committed.

One JSON a Python version: file -> method -> outcome, where an outcome that both runs share is a
text, and one that they do not share names both.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "cpython"


def path() -> Path:
    """Returns where the results of this Python are."""
    return FOLDER / f"python-{sys.version_info[0]}.{sys.version_info[1]}.json"


def equal(outcome: Any) -> bool:
    return isinstance(outcome, str)


class State:
    """Mutable: the outcomes known so far."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.files: dict[str, dict[str, Any]] = {}
        if file.exists():
            self.files = json.loads(file.read_text())["files"]

    def count(self) -> int:
        return sum(map(len, self.files.values()))

    def keep_only(self, file: str, names: Iterable[str]) -> None:
        """Forgets methods that a file no longer has, and sorts the others as the file does."""
        known = self.files.get(file, {})
        self.files[file] = {name: known[name] for name in names if name in known}

    def to_do(self, file: str, names: Iterable[str], again: str) -> list[str]:
        known = self.files.get(file, {})
        return [
            name
            for name in names
            if again == "all"
            or name not in known
            or (again == "different" and not equal(known[name]))
        ]

    def add(self, file: str, name: str, row: dict[str, Any]) -> bool:
        """Takes both outcomes of a method; returns whether they are equal."""
        same = row["native"] == row["compiled"]
        outcome: Any = "; ".join(row["native"])
        if not same:
            outcome = {"native": outcome, "compiled": "; ".join(row["compiled"])}
        self.files.setdefault(file, {})[name] = outcome
        return same

    def write(self) -> None:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        messages = {"python": platform.python_version(), "commit": commit.stdout.strip()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.file.with_suffix(".part")
        scratch.write_text(json.dumps({**messages, "files": self.files}, indent=1) + "\n")
        scratch.replace(self.file)
