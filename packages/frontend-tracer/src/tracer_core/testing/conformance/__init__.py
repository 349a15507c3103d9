"""What a backend must get right, as a table: small graphs over dtypes, shapes and layouts, and
whole programs.

In: the name of an installed backend (or a `Backend`). Out: one `Row` a case, a support matrix as a
page and as JSON. From a shell: ``python -m tracer_core.testing.conformance --backend NAME``; with
pytest: ``pytest -p tracer_core.testing.pytest_plugin --tracer-backend NAME``.
"""

from __future__ import annotations

from tracer_core.testing.conformance.cases import CASES, Case
from tracer_core.testing.conformance.page import as_json, markdown
from tracer_core.testing.conformance.programs import PROGRAMS, Program, Subject
from tracer_core.testing.conformance.row import BAD, STATUSES, Row
from tracer_core.testing.conformance.run import bad, conformance, everything, table, trials

__all__ = [
    "BAD", "CASES", "PROGRAMS", "STATUSES", "Case", "Program", "Row", "Subject", "as_json", "bad",
    "conformance", "everything", "markdown", "table", "trials",
]  # fmt: skip
