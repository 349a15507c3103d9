"""Several backends on one model: the choice that is made by measurement beside each backend alone.

In: the CPU models of the anchors. Out: a table of milliseconds a call (eager, each backend alone,
auto), auto's time over that of the best right backend alone, auto's own table for each model, and
rows in ``results/auto``. What always holds: each way of a row is a fresh process with empty caches,
and all of a row take turns in rounds, one running at a time; a ratio is the median over the rounds
of ratios measured in one round; a backend whose results auto found wrong is not a best one; a way
that fails, and one that a row leaves out, is said. Rows that are there are not measured again, so a
run that was stopped goes on at the same commit. About 18 minutes on a quiet machine; 8 GiB.

The best alone is the least of several measured medians, so it is flattered where some are level:
"auto / its choice alone" says how much of a difference is the choice's and how much that of two
processes that run the same code.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import harness, models
from benchmarks.steady import Way
from benchmarks.timing import Plan, geometric_mean, milliseconds, speed_up, table, turned

# The process of one way ---------------------------------------------------------------------------

#: label: (backend, its options). OpenVINO computes float32 in bfloat16 unless it is told not to.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "inductor": ("inductor", {}),
    "inductor+freeze": ("inductor", {"freeze": True}),
    "onnxrt": ("onnxrt", {}),
    "onnxrt+freeze": ("onnxrt", {"freeze": True}),
    "openvino": ("openvino", {"config": {"INFERENCE_PRECISION_HINT": "f32"}}),
    "tvm": ("tvm", {}),
}

#: Seconds for a graph: more than the default, so that no row ends for lack of time.
BUDGET = 240.0


def compiled(function: Any, way: str) -> Any:
    """The function, compiled in a way."""
    import tracer_core

    if way == "eager":
        return function
    kind, _, labels = way.partition(":")
    if kind != "auto":
        backend, options = CANDIDATES[way]
        return tracer_core.compile(function, backend=backend, options=options or None)
    candidates = [CANDIDATES[label] for label in labels.split(",")]
    return tracer_core.compile(
        function, backend=candidates, options={"budget": BUDGET, "remember": False}
    )


class Tried(Way):
    """One way of one model: ``eager``, a label of `CANDIDATES`, or ``auto:<label>,<label>``, whose
    candidates are compiled as those alone; of auto's, also what it found."""

    def __init__(self, model: str, way: str) -> None:
        super().__init__(models.MODELS[model], lambda function: compiled(function, way))

    def _choices(self, seconds: float) -> dict[str, Any]:
        """Seconds a call while candidates compile, the tables when all is decided, and after how
        long that was. Raises TimeoutError where that takes longer than `seconds`: a time that is
        measured then would be anybody's."""
        start = time.perf_counter()
        meanwhile = []
        while not all(choice.decided for choice in self._function.choices()):
            if time.perf_counter() - start > seconds:
                undecided = "\n".join(str(choice) for choice in self._function.choices())
                raise TimeoutError(f"auto had not decided after {seconds:.0f} s:\n{undecided}")
            begun = time.perf_counter()
            self._program.call(self._function)
            meanwhile.append(time.perf_counter() - begun)
            time.sleep(1.0)  # a program that is called now and then
        choices = self._function.choices()
        if not choices:
            raise RuntimeError("auto saw no graph")
        return {
            "decided_after": time.perf_counter() - start,
            "meanwhile": sorted(meanwhile),
            "tables": [str(choice) for choice in choices],
            "choices": [choice.to_json() for choice in choices],
        }


# The command --------------------------------------------------------------------------------------

_FIVE = ("inductor", "inductor+freeze", "onnxrt", "onnxrt+freeze", "openvino")
#: model: what is tried. TVM where it builds in seconds; its products of matrices are far behind the
#: others' and its build of a transformer takes minutes, so it is left out there.
ROWS: dict[str, tuple[str, ...]] = {
    "resnet18_64": (*_FIVE, "tvm"),
    "lstm_64": _FIVE,
    "vit_tiny_224": _FIVE,
    "densenet121_b1": _FIVE,
    "resnet18_224": _FIVE,
    "bert_12": _FIVE,
    "bert_128": _FIVE,
    "gpt2_64": _FIVE,
    "llama_64": _FIVE,
}
AUTO = "auto"
#: What counts as slower.
SLACK = 1.05


def measure(model: models.Model, labels: Sequence[str], plan: Plan, limit: float) -> dict[str, Any]:
    """One row: seconds by way and round, first-call seconds, auto's tables. Raises Failed where
    auto or eager fails, or auto does not decide."""
    started = time.perf_counter()
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    peaks: dict[str, int] = {}
    with contextlib.ExitStack() as running:
        arguments = {name: name for name in ("eager", *labels)} | {AUTO: f"auto:{','.join(labels)}"}
        workers = {
            name: running.enter_context(harness.worker(Tried, model.name, way))
            for name, way in arguments.items()
        }
        for name in list(workers):  # auto last, when nobody else compiles
            try:
                first[name] = workers[name].ask({"do": "first"}, limit=limit)["first_call"]
            except harness.Failed as error:
                failed[name] = str(error)[-2000:]
                del workers[name]
        for needed in ("eager", AUTO):
            if needed not in workers:
                raise harness.Failed(f"{needed}: {failed[needed]}")
        messages = workers[AUTO].ask(
            {"do": "choices", "seconds": BUDGET + limit}, limit=BUDGET + 2 * limit
        )
        for number in range(plan.rounds):
            for name in turned(list(workers), number):
                answer = workers[name].ask({"do": "turn", **plan.numbers()}, limit=limit)
                seconds.setdefault(name, []).append(answer["seconds"])
                peaks[name] = max(peaks.get(name, 0), answer["peak"])
    took = time.perf_counter() - started
    return {
        "seconds": seconds,
        "first_call": first,
        "peak_bytes": peaks,
        "failed_ways": failed,
        "auto": messages,
        "took": took,
    }


def best_alone(row: dict[str, Any]) -> str:
    """The fastest way of those that are right, auto aside."""
    wrong = {
        index
        for choice in row["auto"]["choices"]
        for index, candidate in enumerate(_candidates(choice))
        if candidate["status"] in ("wrong", "failed", "refused")
    }
    labels = ROWS[row["model"]]
    right = [
        "eager",
        *(
            label
            for index, label in enumerate(labels)
            if index not in wrong and label in row["seconds"]
        ),
    ]
    return min(right, key=lambda name: statistics.median(row["seconds"][name]))


def _kept(row: dict[str, Any]) -> str | None:
    """The way that auto chose, where it chose the same one for all graphs."""
    result = {
        next(
            (index for index, item in enumerate(_candidates(choice)) if item["status"] == "chosen"),
            None,
        )
        for choice in row["auto"]["choices"]
    }
    if len(result) > 1:
        return None
    (index,) = result
    name = "eager" if index is None else ROWS[row["model"]][index]
    return name if name in row["seconds"] else None


def _candidates(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table in the order of the candidates (eager's is the last)."""
    return [row for row in choice["rows"] if row["name"] != "eager"]


def report(rows: dict[str, dict[str, Any]]) -> str:
    """The table, and how auto does beside the best."""
    ways = ["eager", *dict.fromkeys(label for name in rows for label in ROWS[name]), AUTO]
    lines, ratios = [], {}
    for name, row in rows.items():
        best = best_alone(row)
        ratios[name] = 1 / speed_up(row["seconds"][best], row["seconds"][AUTO])
        times = [milliseconds(statistics.median(row["seconds"][way])) if way in row["seconds"] else
                 "failed" if way in row["failed_ways"] else "" for way in ways]  # fmt: skip
        chosen = ", ".join(dict.fromkeys(choice["chosen"] for choice in row["auto"]["choices"]))
        kept = _kept(row)
        beside = f"{1 / speed_up(row['seconds'][kept], row['seconds'][AUTO]):.3f}" if kept else ""
        lines.append(
            [models.MODELS[name].title, *times, best, f"{ratios[name]:.3f}", chosen, beside]
        )
    head = [
        "model, ms a call",
        *ways,
        "best alone",
        "auto / best",
        "auto's choice",
        "auto / its choice alone",
    ]
    text = table(head, lines)
    slower = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if ratio > SLACK]
    text += (
        f"\n\nauto / the best right backend alone: {geometric_mean(list(ratios.values())):.3f} over"
        f" {len(ratios)} models, highest {max(ratios.values()):.3f}; slower than it by more than 5"
        f" %: {', '.join(slower) or 'none'}"
    )
    return text


def tables(rows: dict[str, dict[str, Any]]) -> str:
    """Why each was chosen."""
    parts = []
    for name, row in rows.items():
        lines = row["auto"]
        eager = statistics.median(row["seconds"]["eager"])
        meanwhile = f"; eager's calls meanwhile {milliseconds(statistics.median(lines['meanwhile']))} ms at the median, " \
            f"{milliseconds(eager)} alone" if lines["meanwhile"] else ""  # fmt: skip
        parts.append(
            f"{models.MODELS[name].title}: decided after {lines['decided_after']:.0f} s{meanwhile}"
        )
        parts += [f"  {line}" for text in lines["tables"] for line in text.splitlines()]
        parts += [
            f"  {way} alone failed: {_reason(text)}" for way, text in row["failed_ways"].items()
        ]
    return "\n".join(parts)


def _reason(text: str) -> str:
    """The line of a traceback that says what it was."""
    lines = text.splitlines()
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])


def main(arguments: Sequence[str]) -> int:
    """The command; 1 if a row failed or auto was slower than the best by more than 5 %."""
    parser = harness.options("auto", __doc__, limit=300.0)
    parser.add_argument(
        "--models", nargs="+", default=list(ROWS), choices=tuple(ROWS), metavar="NAME"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="of a turn of one way in a round"
    )
    chosen = parser.parse_args(arguments)
    plan = Plan(rounds=chosen.rounds, seconds=chosen.seconds, least=3)
    harness.warm_up_files()
    store = harness.Store("auto", again=chosen.again)
    rows: dict[str, dict[str, Any]] = {}
    for name in chosen.models:
        model = models.MODELS[name]
        print(f"{name} ...", end=" ", flush=True)
        key = f"{name} {' '.join(ROWS[name])} {plan.rounds}x{plan.seconds}"
        row, there = store.row(
            key, lambda m=model: {"model": m.name, **measure(m, ROWS[m.name], plan, chosen.limit)}
        )
        done = "stored" if there else f"{row.get('took', 0):.0f} s (load {row['load']})"
        print(row.get("failed", done), flush=True)
        if "failed" not in row:
            rows[name] = row
    if rows:
        print(f"\n{report(rows)}\n\n{tables(rows)}")
    slow = any(
        speed_up(row["seconds"][best_alone(row)], row["seconds"][AUTO]) < 1 / SLACK
        for row in rows.values()
    )
    return 1 if slow or len(rows) < len(chosen.models) else 0
