"""``tracer-core bisect SCRIPT``: which stage, then which operators or fusion, make a script fail.

In: a script that ends in an error where a result is wrong, and without one in eager mode. Out: lines
of text. Each trial runs the script in a process of its own, with settings that compile less of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer_core.errors import TracerError
from tracer_core.verification.trial import Trial

#: Options of the backend inductor that fuse nothing and compute each operator as eager does.
_ALONE = {"fuse": False, "inline": False, "numerics": "eager", "freeze": False}
_EAGER = Trial(variables={"TRACER_DISABLE": "1"})
#: More fusions than a graph has. With a number of fusions repeated subgraphs are lowered whole.
_FUSED = Trial(options={"freeze": False}, variables={"TRACER_FUEL": "1000000"})
#: What is added to the trial before, and its settings.
STAGES = {
    "eager mode": _EAGER,
    "capture (backend 'eager')": Trial("eager"),
    "lowering and autograd (backend 'aten_eager')": Trial("aten_eager"),
    "kernels of single operators (fuse=False, inline=False, numerics='eager')": Trial(
        options=_ALONE
    ),
    "inlining (inline=True)": Trial(options={**_ALONE, "inline": True}),
    "rounding in kernels (numerics='fused')": Trial(options={"fuse": False, "freeze": False}),
    "fusion (fuse=True)": _FUSED,
    "kernels of repeated subgraphs": Trial(options={"freeze": False}),
    "the script's own backend, mode and options": Trial(),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of the script. error: its last line, or "". rows: what `trial` recorded."""

    error: str
    rows: Sequence[Mapping[str, Any]]

    def operators(self) -> list[tuple[str, str | None]]:
        """Returns the operators that were compiled, with the user's lines."""
        return [(name, frame) for row in self.rows for name, frame in row.get("operators", ())]

    def kernels(self) -> dict[str, list[str]]:
        """Returns the user's lines of each generated kernel."""
        rows = (row for row in self.rows if "kernel" in row)
        return {f"kernel {row['kernel']} of {row['graph']}": row["frames"] for row in rows}


def bisect(script: str, arguments: Sequence[str], timeout: float) -> Iterator[str]:
    """Yields the lines of the report, as they are known.

    Raises:
        TracerError: There is no such file; the script does not fail, or fails in eager mode, too.
    """

    def run(trial: Trial) -> Outcome:
        return _run(trial, [script, *arguments], timeout)

    if not Path(script).is_file():
        raise TracerError(f"bisect: there is no file {script}")
    first = run(Trial())
    if not first.error:
        raise TracerError(
            f"bisect: {script} ends without an error, so there is nothing to search for: let it end in"
            " one where a result is wrong (tracer_core.verify(fast, x).raise_if_wrong())"
        )
    yield f"fails as it is: {first.error}"
    for title, trial in STAGES.items():
        outcome = run(trial)
        if any(
            "unchanged" in row for row in outcome.rows
        ):  # another backend, without these options
            title, trial = list(STAGES.items())[-1]
        yield f"FAILS with {title}: {outcome.error}" if outcome.error else f"ok    with {title}"
        if outcome.error and trial is _EAGER:
            raise TracerError(
                f"bisect: {script} fails in eager mode, too: nothing compiled is at fault"
            )
        if outcome.error:
            yield f"the stage that makes the difference: {title}"
            yield from _narrowed(run, trial, outcome)
            return
    yield "no stage failed: the failure comes and goes"


def _narrowed(run: Callable[[Trial], Outcome], trial: Trial, outcome: Outcome) -> Iterator[str]:
    """Yields which graphs, and which operators or fusion of them, the failure needs."""
    graphs = dict.fromkeys(row["graph"] for row in outcome.rows if "operators" in row)
    needed = smallest(graphs, lambda some: run(dataclasses.replace(trial, graphs=some)))
    chosen = dataclasses.replace(trial, graphs=needed)
    outcome = run(chosen)
    yield f"graphs that must be compiled for it: {', '.join(needed)}"
    if trial.variables:
        yield from _first_fusion(run, chosen, 2 * len(outcome.operators()))
    elif trial.backend != "eager":
        kinds = dict.fromkeys(name for name, _ in outcome.operators())
        needed = smallest(kinds, lambda some: run(dataclasses.replace(chosen, operators=some)))
        outcome = run(dataclasses.replace(chosen, operators=needed))
        yield "operators that must be compiled for it, the others in eager mode:"
        lines = {
            kind: [frame for name, frame in outcome.operators() if name == kind] for kind in needed
        }
        yield from _shown({**lines, **outcome.kernels()})


def _first_fusion(run: Callable[[Trial], Outcome], trial: Trial, most: int) -> Iterator[str]:
    """Yields the number of fusions with which the script begins to fail, and what is new with it."""

    def fused(count: int) -> Outcome:
        return run(dataclasses.replace(trial, variables={"TRACER_FUEL": str(count)}))

    passes, fails = 0, most
    if fused(passes).error or not fused(fails).error:
        yield "whether it fails does not depend on the number of fusions alone"
        return
    while fails - passes > 1:
        middle = (passes + fails) // 2
        passes, fails = (passes, middle) if fused(middle).error else (middle, fails)
    yield f"it fails from fusion {fails} on (TRACER_FUEL={fails}; {passes} passes); new with it:"
    before, after = fused(passes).kernels(), fused(fails).kernels()
    yield from _shown({name: lines for name, lines in after.items() if name not in before})
    yield from ["  a kernel that was not written: the backend failed on it"] * (not after)


def _shown(rows: Mapping[str, Iterable[str | None]]) -> Iterator[str]:
    for name, lines in rows.items():
        yield f"  {name}"
        yield from (f"    {line}" for line in dict.fromkeys(filter(None, lines)))


def smallest(names: Iterable[str], run: Callable[[list[str]], Outcome]) -> list[str]:
    """Returns a part of the names whose run fails, and of which none can be left out (ddmin)."""
    items, count = list(names), 2
    while len(items) > 1:
        size = -(-len(items) // count)
        parts = [items[at : at + size] for at in range(0, len(items), size)]
        rests = [
            [item for item in items if item not in part] for part in parts[: count * (count > 2)]
        ]
        chosen = next((part for part in (*parts, *rests) if run(part).error), None)
        if chosen is None and count >= len(items):
            break
        count = (
            min(2 * count, len(items)) if chosen is None else 2 if chosen in parts else count - 1
        )
        items = chosen or items
    return items


def _run(trial: Trial, command: Sequence[str], timeout: float) -> Outcome:
    """Runs a trial."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records")
        records.touch()
        settings = json.dumps(dataclasses.asdict(trial))
        module = ["-m", "tracer_core.verification.trial", settings, str(records)]
        variables = {**os.environ, "TRACER_KEEP": "0", **trial.variables}
        try:
            done = subprocess.run(
                [sys.executable, *module, *command], env=variables, timeout=timeout,
                capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
            lines = [f"exit status {done.returncode}", *filter(str.strip, done.stderr.splitlines())]
            error = lines[-1].strip()[:200] if done.returncode else ""
        except subprocess.TimeoutExpired:
            error = f"not done after {timeout:g} seconds"
        return Outcome(
            error, [json.loads(line) for line in records.read_text("utf-8").splitlines()]
        )
