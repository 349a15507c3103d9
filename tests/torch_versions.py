"""A sample of the tests on the torch that is installed: ``python -m tests.torch_versions``, which
nox runs for each release (``nox -s tests-torch``).

In: pytest's further arguments. Out: a row of benchmarks/results/torch_versions.json under the
release of torch: versions, commit, counts, and the names of what failed. The sample goes through
the whole pipeline and everything that uses torch's private names: capture, settings, breaks, sizes,
lowering, training, each backend, README's programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

from benchmarks.harness import commit, machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_versions.json"

SAMPLE = """
tests/core/test_end_to_end.py tests/tracer/test_data_sizes.py tests/tracer/test_quick_fakes.py
tests/tracer/test_torch_higher_order.py tests/tracer/test_torch_settings.py
tests/aten/test_lower.py tests/inductor/test_random.py tests/test_readme.py
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


def main() -> int:
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    several = (
        "-n",
        "logical",
        "--maxprocesses",
        "4",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    )
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        chosen = (
            "-m",
            "not gpu and not slow",
            *several,
            f"--junitxml={report}",
            *SAMPLE,
            *sys.argv[1:],
        )
        subprocess.run([sys.executable, "-m", "pytest", "-q", *chosen], cwd=ROOT)
        here = machine()
        row = {
            **here["versions"], "torch": torch.__version__, "python": here["python"],
            "commit": commit(),
            "seconds": round(time.time() - begun), **counted(report),
        }  # fmt: skip
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows[release] = row
    ordered = dict(sorted(rows.items(), key=lambda item: tuple(map(int, item[0].split(".")))))
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    print(
        f"torch {torch.__version__}: {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped"
    )
    return 1 if row["failed"] or not row["passed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
