"""``python -m tests.opinfo.page sweep.jsonl [more.jsonl] [--machine=TEXT] [--note=TEXT]``:
docs/operators.md and its JSON.

In: JSON lines of rows, as the sweep writes them; a later line of a row replaces an earlier one.
--machine: where rows ran whose lines do not say so. Out: benchmarks/results/opinfo.json (the rows,
and where each ran) and docs/operators.md, made from that alone. What always holds: the page can be
made again from the JSON (`tests/opinfo/test_page.py` does).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "opinfo.json"
PAGE = ROOT / "docs" / "operators.md"
DTYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
)
KEPT = ("op", "dtype", "status", "cases", "problems", "kernels", "externs", "eager", "breaks")
UNSAID = "a machine that the results do not name"

LEGEND = """\
`ok` own kernels (or only views) · `ext` some ATen operators listed in `kernels/aten_fallbacks.py` · `eager` some operators run
eagerly, for a stated reason · `brk` captured with graph breaks · **wrong** another answer than eager's · **failed** another
exception, or one where eager has none · **crash** the process died or hung · blank: eager has no such dtype, or not run
"""


def machine() -> str:
    """Where this process runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = names[0] if names else platform.machine()
    return f"{model}, {os.cpu_count()} processors, torch {torch.__version__}, Python {platform.python_version()}"


def collect(files: list[Path], note: str, usual: str) -> dict[str, Any]:
    """The JSON of some files of the sweep. usual: the machine of rows that name none."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found[row["op"], row["dtype"]] = {
                **{key: row[key] for key in KEPT}, "machine": row.get("machine", usual)
            }  # fmt: skip
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "commit": commit.stdout.strip(),
        "note": note,
        "rows": [found[key] for key in sorted(found)],
    }


def word(row: dict[str, Any]) -> str:
    """What a cell of the table says."""
    if row["status"] != "passed":
        return {"wrong": "**wrong**", "failed": "**failed**"}.get(row["status"], "**crash**")
    kinds = (("breaks", "brk"), ("eager", "eager"), ("externs", "ext"))
    return next((text for key, text in kinds if row[key]), "ok")


def page(results: dict[str, Any]) -> str:
    """docs/operators.md."""
    rows = results["rows"]
    cells = {(row["op"], row["dtype"]): word(row) for row in rows}
    counts = Counter(row["status"] for row in rows)
    cases = sum(sum(row["cases"].values()) for row in rows)
    total = ", ".join(
        f"{counts[status]} {status}"
        for status in ("passed", "wrong", "failed", "crashed", "broken")
    )
    lines = [
        "# Operators of the inductor backend on the CPU",
        "",
        f"Made by `python -m tests.opinfo.page` from `benchmarks/results/{RESULTS.name}`: PyTorch's OpInfo database, each row",
        "(operator, dtype) compiled and compared with eager. The page was made at commit",
        f"{results['commit']}. {results['note']}".rstrip(),
        "",
        f"**{len(rows)} rows, {cases} calls: {total}.**",
        "",
        "Where they ran:",
        "",
        *(
            f"- {count} rows: {name}"
            for name, count in Counter(row.get("machine", UNSAID) for row in rows).most_common()
        ),
        "",
        LEGEND,
    ]
    lines += ["| operator | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES)]
    for op in sorted({row["op"] for row in rows}):
        lines.append(
            f"| {op} | " + " | ".join(cells.get((op, dtype), "") for dtype in DTYPES) + " |"
        )
    lines += ["", *_counted("ATen operators that ran as they are", rows, "externs")]
    lines += ["", *_counted("Why operators ran eagerly", rows, "eager")]
    lines += ["", *_counted("Why capture broke", rows, "breaks")]
    lines += ["", "## What is not as eager", ""]
    for row in rows:
        for kind, case, text in row["problems"][:3]:
            first = text.strip().splitlines()[-1] if text.strip() else ""
            lines.append(f"- {row['op']} {row['dtype']}, {case[:60]}: {kind}: {first[:200]}")
    return "\n".join(lines).rstrip() + "\n"


def why_eager(texts: list[str]) -> list[str]:
    """Each operator with its reason, once, of texts like ``2 of 9 operators run eagerly:
    aten.x.default (2x: dtype y)``.
    """
    found: list[str] = []
    for text in texts:
        parts = re.findall(r"([\w.]+) \(\d+x: ([^()]*)\)?", text)
        found += (
            [f"{operator}: {reason}" for operator, reason in parts]
            if " run eagerly: " in text
            else [text]
        )
    return list(dict.fromkeys(found))


def _counted(title: str, rows: list[dict[str, Any]], key: str) -> list[str]:
    """How many rows have each."""
    named = (why_eager(list(row[key])) if key == "eager" else list(row[key]) for row in rows)
    counts = Counter(name.replace("|", "/") for names in named for name in names)
    table = [
        f"| {name} | {count} |"
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return [f"## {title}", "", "| what | rows |", "|---|---|", *table]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo.page")
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        help="what the sweep wrote; none: the page from the committed JSON",
    )
    parser.add_argument("--note", default="")
    parser.add_argument("--machine", default=UNSAID, help="where rows ran that do not say so")
    options = parser.parse_args()
    if options.files:
        results = collect(options.files, options.note, options.machine)
        lines = [
            json.dumps(row, sort_keys=True) for row in results.pop("rows")
        ]  # a line each: readable differences
        head = json.dumps(results, indent=0, sort_keys=True).removesuffix("\n}")
        RESULTS.write_text(head + ',\n"rows": [\n' + ",\n".join(lines) + "\n]}\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
