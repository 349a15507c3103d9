"""Runs the conformance table for a backend.

In: the name of an installed backend (or a `Backend`), dtypes, an optional sample. Out: one `Row` a
case; the same seed gives the same sample. What always holds: a case that fails is a row; the table
goes on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tracer_core.aot.backend_failure import raising_failures
from tracer_core.contract.backend import Backend
from tracer_core.debug.fallbacks import failures
from tracer_core.dispatch.validation import build_config
from tracer_core.testing.compare import Mismatch
from tracer_core.testing.conformance.cases import ANY, CASES, Case
from tracer_core.testing.conformance.graphs import graph_row
from tracer_core.testing.conformance.programs import PROGRAMS, Program, Subject
from tracer_core.testing.conformance.row import BAD, STATUSES, Row, dtype_name, error_text

#: One thing to try: its name, and what gives its row.
Trial = tuple[str, Callable[[], Row]]


def trials(
    backend: Backend | str,
    *,
    cases: Sequence[Case] = CASES,
    programs: Sequence[Program] = (),
    dtypes: Sequence[torch.dtype] = ANY,
    options: Any = None,
    sample: int | None = None,
    seed: int = 0,
) -> list[Trial]:
    """Every case in those of its dtypes that are in `dtypes` (sample: so many of them, by seed),
    then the programs. Raises what ``compile()`` raises if the backend cannot run at all."""
    config = build_config(backend=backend, options=options)
    result: list[Trial] = [
        (
            f"{case.name} {dtype_name(dtype)} {shape}",
            lambda c=case, d=dtype, s=shape: graph_row(c, d, s, config),  # type: ignore[misc]
        )
        for case in cases
        for dtype in case.dtypes
        if dtype in dtypes
        for shape in case.shapes
    ]
    if sample is not None and sample < len(result):
        chosen = sorted(random.Random(seed).sample(range(len(result)), sample))
        result = [result[index] for index in chosen]
    subject = Subject(config.backend, options)
    return result + [(item.name, lambda p=item: program_row(p, subject)) for item in programs]


def conformance(backend: Backend | str, **settings: Any) -> tuple[Row, ...]:
    """Runs what `trials` gives for the same settings, and raises what it raises."""
    return tuple(run() for _, run in trials(backend, **settings))


def everything(backend: Backend | str, **settings: Any) -> tuple[Row, ...]:
    """`conformance` with every program."""
    return conformance(backend, programs=PROGRAMS, **settings)


def program_row(program: Program, subject: Subject) -> Row:
    """The row of a whole program."""
    try:
        with failures() as raised, raising_failures():
            reason = program.run(subject)
        if raised:
            return Row(program.name, None, (), "error", raised[0], program.area)
    except Mismatch as mismatch:
        return Row(program.name, None, (), "wrong", str(mismatch), program.area)
    except Exception as error:  # a row says what went wrong; the table goes on
        return Row(program.name, None, (), "error", error_text(error), program.area)
    status = "ok" if reason is None else "not declared"
    return Row(program.name, None, (), status, reason or "", program.area)


def bad(rows: Sequence[Row]) -> list[Row]:
    """Those that a conforming backend has none of."""
    return [row for row in rows if row.status in BAD]


def table(rows: Sequence[Row]) -> str:
    """The rows as text: one line a case with its counts, then every row that is not ``ok``."""
    return "\n".join([*_counts(rows), *_details(rows)])


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    for name in dict.fromkeys(row.case for row in rows):
        mine = [row.status for row in rows if row.case == name]
        counts = [f"{mine.count(status)} {status}" for status in STATUSES if status in mine]
        yield f"{name:28} {', '.join(counts)}"


def _details(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.status != "ok":
            where = f"{row.dtype} {row.shape}" if row.dtype is not None else row.area
            detail = row.detail.partition("\n")[0]
            yield f"  {row.case} {where}: {row.status}: {detail}"
