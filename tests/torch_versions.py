"""The tests on the torch that is installed: ``python -m tests.torch_versions``, which nox runs for
each release (``nox -s tests-torch``).

Out: a row of benchmarks/results/torch_versions.json under the release of torch: versions, commit,
counts, and the names of what failed. A run that was stopped leaves the row as it was, and the other
releases' rows stay. With arguments only a part runs, and no row is written: ``--sample`` stands for
the files of SAMPLE, which go through the whole pipeline and everything that uses torch's private
names; other arguments are pytest's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import commit, machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_versions.json"

#: The tests of ``nox -s tests``, and as many processes.
PYTEST = (
    "-q", "-m", "not full and not gpu and not slow", "-n", "logical", "--maxprocesses", "4",
    "--dist", "loadfile", "--no-loadscope-reorder",
)  # fmt: skip

SAMPLE = """
tests/core/test_end_to_end.py tests/fx_capture/test_data_sizes.py tests/fx_capture/test_fake_cache.py
tests/fx_capture/test_torch_higher_order.py tests/fx_capture/test_torch_settings.py
tests/aot/test_lower.py tests/inductor/test_random.py tests/test_readme.py
""".split()


def counted(report: Path) -> dict[str, Any]:
    """What pytest's report in JUnit's form says."""
    cases = list(xml.parse(report).iter("testcase"))
    kinds = {
        kind: [case for case in cases if case.find(kind) is not None]
        for kind in ("failure", "error", "skipped")
    }
    failed = [
        f"{case.get('classname')}::{case.get('name')}" for case in kinds["failure"] + kinds["error"]
    ]
    skipped = len(kinds["skipped"])
    return {"passed": len(cases) - len(failed) - skipped, "failed": len(failed), "skipped": skipped,
            "failures": sorted(failed)}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    import torch

    part = [item for inputs in arguments for item in (SAMPLE if inputs == "--sample" else [inputs])]
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = (*PYTEST, f"--junitxml={report}", *part)
        code = subprocess.run([sys.executable, "-m", "pytest", *command], cwd=ROOT).returncode
        if part or code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return code
        here = machine()
        row = {
            **here["versions"], "torch": torch.__version__, "python": here["python"],
            "commit": commit(), "seconds": round(time.time() - begun), **counted(report),
        }  # fmt: skip
    release = ".".join(torch.__version__.split(".")[:2])
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows[release] = row
    ordered = dict(sorted(rows.items(), key=lambda item: tuple(map(int, item[0].split(".")))))
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    counts = ", ".join(f"{row[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    print(f"torch {torch.__version__}: {counts}")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
