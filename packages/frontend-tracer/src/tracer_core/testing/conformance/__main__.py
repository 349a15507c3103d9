"""``python -m tracer_core.testing.conformance --backend NAME [--only TEXT] [--json FILE] [--page
FILE] [--resume FILE]``

In: a backend's name, or ``module:attribute`` of a `Backend` (or of a function that gives one). Out:
the table on stdout; exit status 1 if a row is wrong or an error, 2 if nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tracer_core.contract.backend import Backend, resolve
from tracer_core.dispatch.validation import find_backend
from tracer_core.errors import OptionError, TracerError
from tracer_core.testing.conformance.cases import ANY, CASES
from tracer_core.testing.conformance.page import as_json, markdown
from tracer_core.testing.conformance.programs import PROGRAMS
from tracer_core.testing.conformance.row import Row, dtype_name
from tracer_core.testing.conformance.run import bad, table, trials


def backend_named(text: str) -> Backend:
    """The backend that ``--backend`` names. Raises TracerError if there is none."""
    if ":" not in text:
        return find_backend(text)
    try:
        result: Any = resolve(text)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"--backend {text}: {error}") from error
    if callable(result):
        result = result()
    if not isinstance(result, Backend):
        raise OptionError(f"--backend {text}: it is {result!r}, no plugin_api.Backend")
    return result


class Known:
    """Rows of earlier runs, on disk. Mutable: rows are added. of: whose they are; others' are not
    taken.
    """

    def __init__(self, path: Path | None, of: str) -> None:
        self._path, self._of = path, of
        text = path.read_text() if path is not None and path.exists() else ""
        full = text[: text.rfind("\n") + 1]  # the last line may be cut off
        if path is not None and full != text:
            path.write_text(full)
        result = [json.loads(line) for line in full.splitlines()]
        self._rows = {item["trial"]: Row.from_json(item) for item in result if item["of"] == of}

    def row(self, trial: str, run: Callable[[], Row]) -> Row:
        """The row of a trial, run if it is not there."""
        if trial not in self._rows:
            self._rows[trial] = run()
            if self._path is not None:
                line = json.dumps({"of": self._of, "trial": trial, **self._rows[trial].to_json()})
                with self._path.open("a") as file:
                    file.write(f"{line}\n")
        return self._rows[trial]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tracer_core.testing.conformance", description=__doc__
    )
    parser.add_argument("--backend", required=True, help="an installed name, or module:attribute")
    parser.add_argument(
        "--options", type=json.loads, default=None, help="the backend's options, as JSON"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=[dtype_name(dtype) for dtype in ANY], help="default: all"
    )
    parser.add_argument("--sample", type=int, help="only so many cases, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    only = "only cases and programs with this in their name; the bad ones with tracebacks"
    parser.add_argument("--only", metavar="TEXT", help=only)
    parser.add_argument("--json", type=Path, help="where to write every row")
    parser.add_argument("--page", type=Path, help="where to write the support matrix, as Markdown")
    parser.add_argument("--resume", type=Path,
                        help="keeps each row here at once, and goes on from those that are there; "
                        "for one state of the backend's code: delete it after a change")  # fmt: skip
    parser.add_argument("--note", default="", help="a sentence for the page")
    parser.add_argument("--quiet", action="store_true", help="no line for each case while it runs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the table; returns the exit status."""
    inputs = _parser().parse_args(arguments)
    dtypes = [getattr(torch, name) for name in inputs.dtypes] if inputs.dtypes else ANY
    try:
        backend = backend_named(inputs.backend)
        result = trials(backend, cases=CASES, programs=PROGRAMS, dtypes=dtypes,
                       options=inputs.options, sample=inputs.sample, seed=inputs.seed)  # fmt: skip
    except TracerError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    rows = []
    known = Known(inputs.resume, f"{backend.name} {inputs.options!r} torch {torch.__version__}")
    if inputs.only is not None:
        result = [trial for trial in result if inputs.only.casefold() in trial[0].casefold()]
        if not result:
            hint = "without --only every name is shown"
            sys.stderr.write(f"nothing has {inputs.only!r} in its name; {hint}\n")
            return 2
    for number, (name, run) in enumerate(result, 1):
        rows.append(known.row(name, run))
        if not inputs.quiet:
            sys.stderr.write(f"[{number}/{len(result)}] {name}: {rows[-1].status}\n")
    sys.stdout.write(table(rows) + "\n")
    if inputs.only is not None:
        for row in bad(rows):
            sys.stdout.write(f"\n{row.case} {row.dtype} {row.shape}: {row.detail}\n")
    for path, text in (
        (inputs.json, json.dumps(as_json(backend, rows, inputs.note), indent=1) + "\n"),
        (inputs.page, markdown(backend, rows, inputs.note)),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if bad(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
