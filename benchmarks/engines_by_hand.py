"""Our backends over an engine beside the engine used by hand, on the same model, precision and
threads.

``python -m benchmarks.engines_by_hand [--models resnet18_64 ...] [--engines onnxrt tvm] [--again]``

In: names of `benchmarks.models`. Out: a table, and rows in ``results/engines``: for each model and
engine whether ours is right (error against float64 as a multiple of eager's), how many graphs the
engine has and the share of operators in them, seconds of the first call, and milliseconds a call of
eager, of ours (as installed, and with freeze) and by hand (with ``--cpu-time`` of one thread's
processor time, for machines that do other work). By hand means: for ONNX Runtime, torch.onnx.export
and an InferenceSession that is fed NumPy arrays; for TVM, torch.export, its importer with the
parameters bound, its zero pipeline and a VirtualMachine. What always holds: a row has a fresh
process with empty caches; its programs are timed in turns; ratio and difference beside "by hand"
are medians over the rounds, the sides of each measured in one round; a row that is there is not
measured again, and what cannot be measured says why.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import engines, models, processes
from benchmarks.results import Store
from benchmarks.tables import milliseconds, table
from benchmarks.timing import speed_up

MODELS = ("resnet18_64", "densenet121_128", "bert_12", "resnext101_7", "gpt2_64", "vit_tiny_224")

#: Rounds, seconds of a turn of one program in a round, and seconds after which no further round
#: begins.
ROUNDS, SECONDS, ENOUGH = 16, 0.12, 15.0


def onnxrt_by_hand(program: models.Program) -> Callable[[], Any]:
    """An InferenceSession of the exported model."""
    run = engines.exported(engines.onnxruntime)(program.function)
    return lambda: run(*program.args, **program.kwargs)


def tvm_by_hand(program: models.Program) -> Callable[[], Any]:
    """TVM's own importer and pipeline."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    exported = torch.export.export(program.function, program.args, program.kwargs, strict=False)
    module = from_exported_program(exported, keep_params_as_input=False)
    target = tvm.target.Target.from_device("cpu")
    with target:
        module = relax.get_pipeline("zero")(module)
        executable = tvm.compile(module, target=target)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    tensors = [
        value
        for value in (*program.args, *program.kwargs.values())
        if isinstance(value, torch.Tensor)
    ]
    return lambda: main(*tensors)


#: engine: (by hand, the stage in which ours makes what the engine runs)
ENGINES: dict[str, tuple[Callable[[models.Program], Callable[[], Any]], str]] = {
    "onnxrt": (onnxrt_by_hand, "onnxrt export"),
    "tvm": (tvm_by_hand, "tvm import"),
}

#: Ours: name of the column: options.
OURS: dict[str, dict[str, Any]] = {"ours": {}, "freeze": {"freeze": True}}


def in_turns(
    functions: dict[str, Callable[[], Any]], clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Least milliseconds of each, by round."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    begun = time.perf_counter()
    for number in range(ROUNDS):
        if number >= 2 and time.perf_counter() - begun > ENOUGH:
            break
        for name, function in functions.items():
            best, end = float("inf"), time.perf_counter() + SECONDS
            while True:
                start = clock()
                function()
                best = min(best, clock() - start)
                if time.perf_counter() > end:
                    break
            times[name].append(best * 1e3)
    return times


def measure(name: str, engine: str, clock: Callable[[], float]) -> dict[str, Any]:
    """One row."""
    import tracer_core
    from tracer_core.testing import error_ratio, tensors_in

    by_hand, made_in = ENGINES[engine]
    model = models.MODELS[name]
    program = model.program()
    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "first_call_s": {},
        "error": {},
        "refused": {},
    }
    functions: dict[str, Callable[[], Any]] = {"eager": lambda: program.call()}

    def begin(column: str, build: Callable[[], Callable[[], Any]]) -> Any:
        """The first result; what cannot be built is a line of the row."""
        start = time.perf_counter()
        try:
            function = build()
            result = function()
        except Exception as error:  # the engine's own errors have no common base
            found["refused"][column] = (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            )
            return None
        found["first_call_s"][column] = time.perf_counter() - start
        functions[column] = function
        return result

    with model.mode():
        truth, plain = (
            tuple(tensors_in(value))
            for value in (models.in_float64(program).call(), program.call())
        )
        for column, options in OURS.items():
            made: list[Any] = []

            def build(
                options: dict[str, Any] = options, made: list[Any] = made
            ) -> Callable[[], Any]:
                made.append(tracer_core.compile(program.function, backend=engine, options=options))
                return lambda: program.call(made[0])

            result = begin(column, build)
            if result is None:
                continue
            found["error"][column] = error_ratio(truth, plain, tuple(tensors_in(result)))
            if "graphs" not in found:
                records = tracer_core.last_compile(made[0])
                found["graphs"] = sum(record.name == made_in for record in records)
                found["eagerly"] = [record.text for record in records if record.name == "fallback"]
        begin("by hand", lambda: by_hand(model.program()))
        found["rounds_ms"] = in_turns(functions, clock)
    return found


def share(row: dict[str, Any]) -> str:
    """Which part of the operators runs on the engine."""
    counts = [re.search(r"(\d+) of (\d+) operators", text) for text in row.get("eagerly", ())]
    eager, every = (sum(int(one[i]) for one in counts if one) for i in (1, 2))
    return f"{1 - eager / every:.1%}" if every else "all"


def line(name: str, engine: str, row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    rounds = row["rounds_ms"]
    hand, best = rounds.get("by hand"), rounds.get("freeze", rounds.get("ours", []))
    adds = (
        statistics.median(a - b for a, b in zip(best, hand, strict=True)) if hand and best else None
    )
    times = [
        f"{milliseconds(min(rounds[one]) / 1e3)}" if one in rounds else "failed" for one in COLUMNS
    ]
    beside = "" if adds is None else f"{speed_up(best, hand):.3f}x, {adds * 1e3:+.0f} µs"
    firsts = "/".join(
        f"{row['first_call_s'][one]:.1f}" if one in row["first_call_s"] else "-"
        for one in COLUMNS[1:]
    )
    errors = "/".join(f"{value:.2f}" for value in row["error"].values())
    return [
        models.MODELS[name].title,
        engine,
        errors,
        str(row.get("graphs", "-")),
        share(row),
        firsts,
        *times,
        beside,
    ]


COLUMNS = ("eager", *OURS, "by hand")
HEAD = ["model", "engine", "error/eager's", "graphs", "on the engine",
"first call s (ours/freeze/by hand)",
        *(f"{name} ms" for name in COLUMNS), "frozen beside by hand"]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: measures what is not there yet and prints all; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.engines_by_hand", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=tuple(ENGINES))
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time of this process (OMP_NUM_THREADS=1)"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds a row may take")
    parser.add_argument("--row", nargs=2, metavar=("ENGINE", "MODEL"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.row:
        engine, name = given.row
        processes.answer(
            measure(name, engine, time.process_time if given.cpu_time else time.perf_counter)
        )
        return 0
    processes.warm_up_files()
    store = Store("engines", again=given.again)
    lines, failed = [], False
    clock = ["--cpu-time"] if given.cpu_time else []
    for engine in given.engines:
        for model in models.choose(given.models, ()):
            key = " ".join([engine, model.name, f"{torch.get_num_threads()} threads", *clock])
            child = ["--row", engine, model.name, *clock]
            row, there = store.row(
                key,
                lambda child=child: processes.fresh(
                    "benchmarks.engines_by_hand", child, limit=given.limit
                ),  # type: ignore[misc]
            )
            problems = row.get("failed") or row["refused"] or ""
            failed |= bool(problems)
            print(key, "(stored)" if there else f"(load {row['load']})", problems, flush=True)
            if "rounds_ms" in row:
                lines.append(line(model.name, engine, row))
    print(f"\n{table(HEAD, lines)}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
