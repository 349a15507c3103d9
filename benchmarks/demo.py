"""Real models, eager beside compiled, as a table.

In: models. Out: progress while it works, then a table, a plot and the report of one row (in
`FOLDER`), and exit status 1 if a model failed or its error is more than 3 times eager's own. What
always holds: each model has a fresh process and an empty cache, so "first call" is what a user
waits for the first time (import of the compiler, capture, compile, run); errors are against the
same program in float64; a row whose rounds lie far apart is marked, and its fastest rounds stand
for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness, models
from benchmarks.timing import Plan, alternate, geometric_mean, milliseconds, speed_up, spread, table

ALLOWED = 3.0

#: Of rounds whose speed-ups lie further apart than this share of their median, the fastest ones count.
MAX_SPREAD = 0.15

PLAN = Plan(rounds=5, seconds=0.1, least=2)

#: Without --models: those of the issue, and two as the seeds write them (train mode, grad mode).
DEFAULT = (
    "cos_sin",
    "resnet18_64",
    "resnet18_224",
    "densenet121_128",
    "bert_12",
    "bert_128",
    "resnext101_7",
    "resnet18_64_seed",
    "bert_12_seed",
)


#: Where the plot of the rows is written, and the report of the first one.
FOLDER = Path("build") / "demo"


def measure(name: str, backend: str, page: str | None) -> dict[str, Any]:
    """One row, in this process. page: where to write the report of what was compiled."""
    model = models.MODELS[name]
    program = model.program()
    truth_program = models.in_float64(program)
    with model.mode():
        start = time.perf_counter()
        import tracer_core
        from benchmarks.watch import Watch

        watch = Watch(backend)
        compiled = tracer_core.compile(program.function, backend=watch.backend)
        result = program.call(compiled)
        first = time.perf_counter() - start
        eager_result = program.call()
        truth = truth_program.call()
        del truth_program
        functions = {"eager": program.function, "compiled": compiled}
        rounds = alternate(functions, program.args, program.kwargs, PLAN)
    from tracer_core.testing import error_ratio, relative_error

    if page is not None:
        tracer_core.report(compiled, page)
    fallbacks = [r.text for r in tracer_core.last_compile(compiled) if r.name == "fallback"]
    return {
        "seconds": rounds,
        "first_call": first,
        "error": relative_error(truth, result),
        "eager_error": relative_error(truth, eager_result),
        "error_ratio": error_ratio(truth, eager_result, result),
        "type": type(result).__name__,
        "graphs": watch.graphs,
        "breaks": watch.breaks,
        "kernels": watch.kernels,
        "operators": watch.operators,
        "fallbacks": fallbacks,
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the demo; 1 if a model failed or is less exact than allowed."""
    parser = harness.options("demo", __doc__, limit=300.0)
    parser.add_argument(
        "--models", nargs="+", default=list(DEFAULT), metavar="NAME", help="`all` for every model"
    )
    parser.add_argument("--backend", default="inductor")
    parser.add_argument(
        "--resume", action="store_true", help="keep rows on disk and use those there"
    )
    chosen = parser.parse_args(arguments)
    names = list(models.MODELS) if chosen.models == ["all"] else chosen.models
    wanted = models.choose(names, [])
    harness.warm_up_files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    store = harness.Store("demo", again=chosen.again, keep=chosen.resume)
    begin = time.perf_counter()
    rows: dict[str, dict[str, Any]] = {}
    for number, model in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {model.title} ({model.modes}) ...", end=" ", flush=True)
        page = (
            str(FOLDER.absolute() / f"{model.name}.html")
            if model.name == _reported(names)
            else None
        )
        ask = partial(harness.fresh, measure, model.name, chosen.backend, page, limit=chosen.limit)
        rows[model.name], _ = store.row(f"{model.name} {chosen.backend}", ask)
        print(progress(rows[model.name]), flush=True)
    took = time.perf_counter() - begin
    wrong = [name for name, row in rows.items() if not acceptable(row)]
    (FOLDER / "speed.svg").write_text(plot(rows), encoding="utf-8")
    written = "\n".join(f"  {path}" for path in sorted(FOLDER.iterdir()))
    print(
        f"\n{report(rows, chosen.backend)}\n\nWritten:\n{written}\n\n{NEXT}\n\n{verdict(rows, took)}"
    )
    return 1 if wrong else 0


def _reported(names: Sequence[str]) -> str:
    """Returns the model whose report is written: a BERT, which has some of everything."""
    return next((name for name in names if name.startswith("bert")), names[0])


def plot(rows: dict[str, dict[str, Any]]) -> str:
    """Returns an SVG picture: a bar a model, as long as its speed-up; a line where eager's speed is."""
    bars = [(name, seconds(row)[2]) for name, row in rows.items() if "failed" not in row]
    scale = 360 / max([1.0, *(ratio for _, ratio in bars)])
    height, left = 28 * len(bars) + 40, 170
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="620" height="{height}" font-family="sans-serif"'
        ' font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (name, ratio) in enumerate(bars):
        y = 28 * number + 14
        parts.append(
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>'
            f'<rect x="{left}" y="{y}" width="{ratio * scale:.0f}" height="18" fill="#3b6fd4"/>'
            f'<text x="{left + ratio * scale + 6:.0f}" y="{y + 13}">{ratio:.2f}</text>'
        )
    eager = left + scale
    parts.append(
        f'<line x1="{eager:.0f}" x2="{eager:.0f}" y1="6" y2="{height - 24}" stroke="#c33"/>'
        f'<text x="{eager:.0f}" y="{height - 8}" text-anchor="middle">eager\'s speed = 1</text></svg>'
    )
    return "\n".join(parts)


def acceptable(row: dict[str, Any]) -> bool:
    """Whether the row worked and its error is at most 3 times eager's own (NaN is not)."""
    return "failed" not in row and bool(row["error_ratio"] <= ALLOWED)


def seconds(row: dict[str, Any]) -> tuple[float, float, float]:
    """Returns eager's and the compiled seconds of a row and its speed-up: medians, or the fastest rounds
    where the machine was busy, which can only make a round slower."""
    eager, compiled = row["seconds"]["eager"], row["seconds"]["compiled"]
    if is_steady(row):
        middle = statistics.median
        return middle(eager), middle(compiled), speed_up(eager, compiled)
    return min(eager), min(compiled), min(eager) / min(compiled)


def is_steady(row: dict[str, Any]) -> bool:
    """Whether the rounds of a row agree on its speed-up."""
    return spread(row["seconds"]["eager"], row["seconds"]["compiled"]) <= MAX_SPREAD


def progress(row: dict[str, Any]) -> str:
    """What is said when a model is done."""
    if "failed" in row:
        return f"FAILED\n{row['failed']}"
    return f"first call {row['first_call']:.1f} s, {seconds(row)[2]:.2f} times eager's speed"


HEAD = (
    "model",
    "mode",
    "eager ms",
    "compiled ms",
    "speed-up",
    "spread",
    "first call s",
    "error",
    "eager's error",
    "graphs",
    "kernels",
    "operator calls",
)


def report(rows: dict[str, dict[str, Any]], backend: str) -> str:
    """The table, with what is worth a note below it."""
    good = {name: row for name, row in rows.items() if "failed" not in row}
    lines = [_line(models.MODELS[name], row) for name, row in good.items()]
    notes = [
        table(HEAD, lines),
        f"backend {backend}; spread: how far the speed-ups of the {PLAN.rounds} rounds lie apart",
    ]
    if not all(map(is_steady, good.values())):
        notes.append(
            f"~ the rounds are more than {MAX_SPREAD:.0%} apart, so the machine was busy: times and"
            " speed-up are of the fastest rounds"
        )
    said: dict[str, list[str]] = {}
    for name, row in good.items():
        for text in (*row["fallbacks"], *row["breaks"]):
            said.setdefault(text, []).append(name)
    notes += [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in said.items()]
    notes += [f"{name}: FAILED" for name, row in rows.items() if "failed" in row]
    return "\n".join(notes)


#: What the reader may do now; the last line is the result.
NEXT = """What to do next:
  your own program      fast = tracer_core.compile(model), then call fast (docs/tutorial.md: ten minutes)
  what became of it     tracer_core.explain(fast)(x); tracer_core.report(fast, "report.html")
  is this machine fine  tracer-core doctor
  more rows             python -m nox -s demo -- --models all; -- --backend onnxrt
  beside torch.compile  python -m nox -s bench"""


def verdict(rows: dict[str, dict[str, Any]], took: float) -> str:
    """Returns the last line: the mean over all rows that ran (where some ran on a busy machine the
    median, which a single row cannot move far), and what went wrong."""
    good = [row for row in rows.values() if "failed" not in row]
    ratios = sorted(seconds(row)[2] for row in good)
    busy = sum(not is_steady(row) for row in good)
    wrong = [name for name, row in rows.items() if not acceptable(row)]
    parts = ["no row ran"]
    if good:
        mean, name = geometric_mean(ratios), "geometric mean"
        if busy:
            mean, name = statistics.median(ratios), "median"
        span = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        parts = [f"{mean:.2f} times eager's speed, the {name} of {len(good)} rows {span}"]
    parts += [f"{busy} of them on a busy machine, by their fastest rounds"] if busy else []
    parts += [f"NOT RIGHT: {', '.join(wrong)}"] if wrong else []
    return f"Result: {'; '.join([*parts, f'{took:.0f} s in all'])}"


def _line(model: models.Model, row: dict[str, Any]) -> list[str]:
    eager, compiled, ratio = seconds(row)
    return [
        model.title,
        model.modes,
        milliseconds(eager),
        milliseconds(compiled),
        f"{'' if is_steady(row) else '~ '}{ratio:.2f}",
        f"{spread(row['seconds']['eager'], row['seconds']['compiled']):.0%}",
        f"{row['first_call']:.1f}",
        f"{row['error']:.1e}{'' if acceptable(row) else ' WRONG'}",
        f"{row['eager_error']:.1e}",
        str(row["graphs"]),
        "-" if row["kernels"] is None else str(row["kernels"]),
        "-" if row["operators"] is None else str(row["operators"]),
    ]
