"""onnxrt and tvm beside their engines, with unusual loads, and after a search.

`main`: our backends over an engine beside the engine used by hand, on the same model, precision and
threads: whether ours is right (error against float64 as a multiple of eager's), how many graphs the
engine has and the share of operators in them, seconds of the first call, milliseconds a call of
eager, of ours (as installed, and with freeze) and by hand. By hand means: for ONNX Runtime,
torch.onnx.export and an InferenceSession that is fed NumPy arrays; for TVM, torch.export, its
importer with the parameters bound, its zero pipeline and a VirtualMachine. Ratio and difference
beside "by hand" are medians over the rounds, the sides of each measured in one round.

`loads`: how many sessions (builds) the batch sizes 1 to 32 of resnet18 make; by how many megabytes
memory rises while a program reads 105 MB of inputs, and what a copy of them would take; calls a
second of one compiled model from one thread and from eight. Every result is compared with eager's.

`tuning`: MetaSchedule's search for one model with a stated budget (the search's seed is 0), in
milliseconds a call of eager, of TVM with our default schedules, and with the records found; all in
``results/tvm/<model>.json``, beside the records (folder ``records``, one a target: processor and
threads). Where records of this budget are there already, nothing is searched, so that a second run
shows what the committed records give; a search that was interrupted goes on where it ended; a
record is used where it was measured to be quicker than the default schedule (``weighed.json``
beside the records; without that file, everywhere).

What always holds: a row has a fresh process with empty caches; its programs are timed in turns;
what cannot be measured says why.
"""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import compilers, harness, models
from benchmarks.timing import milliseconds, speed_up, table

MODELS = ("resnet18_64", "densenet121_128", "bert_12", "resnext101_7", "gpt2_64", "vit_tiny_224")

#: Rounds, seconds of a turn of one program in a round, and seconds after which no further round
#: begins.
ROUNDS, SECONDS, ENOUGH = 16, 0.12, 15.0


def onnxrt_by_hand(program: models.Program) -> Callable[[], Any]:
    """An InferenceSession of the exported model."""
    run = compilers.exported(compilers.onnxruntime)(program.function)
    return lambda: run(*program.args, **program.kwargs)


def tvm_by_hand(program: models.Program) -> Callable[[], Any]:
    """TVM's own importer and pipeline."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    from tvm_backend.build import target_of

    exported = torch.export.export(program.function, program.args, program.kwargs, strict=False)
    module = from_exported_program(exported, keep_params_as_input=False)
    target = target_of(None, "cpu")
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


def measure(name: str, engine: str, cpu_time: bool) -> dict[str, Any]:
    """One row."""
    import tracer_core
    from tracer_core.testing import error_ratio, tensors_in

    by_hand, made_in = ENGINES[engine]
    model = models.MODELS[name]
    program = model.program()
    match: dict[str, Any] = {
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
            match["refused"][column] = (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            )
            return None
        match["first_call_s"][column] = time.perf_counter() - start
        functions[column] = function
        return result

    with model.mode():
        truth, simple = (
            tuple(tensors_in(value))
            for value in (models.in_float64(program).call(), program.call())
        )
        for column, options in OURS.items():
            created: list[Any] = []

            def build(
                options: dict[str, Any] = options, built: list[Any] = created
            ) -> Callable[[], Any]:
                built.append(tracer_core.compile(program.function, backend=engine, options=options))
                return lambda: program.call(built[0])

            result = begin(column, build)
            if result is None:
                continue
            match["error"][column] = error_ratio(truth, simple, tuple(tensors_in(result)))
            if "graphs" not in match:
                records = tracer_core.last_compile(created[0])
                match["graphs"] = sum(record.name == made_in for record in records)
                match["eagerly"] = [record.text for record in records if record.name == "fallback"]
        begin("by hand", lambda: by_hand(model.program()))
        match["rounds_ms"] = in_turns(
            functions, time.process_time if cpu_time else time.perf_counter
        )
    return match


def share(row: dict[str, Any]) -> str:
    """Which part of the operators runs on the engine."""
    counts = [re.search(r"(\d+) of (\d+) operators", text) for text in row.get("eagerly", ())]
    eager, every = (sum(int(count[i]) for count in counts if count) for i in (1, 2))
    return f"{1 - eager / every:.1%}" if every else "all"


def line(name: str, engine: str, row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    rounds = row["rounds_ms"]
    hand, best = rounds.get("by hand"), rounds.get("freeze", rounds.get("ours", []))
    adds = (
        statistics.median(a - b for a, b in zip(best, hand, strict=True)) if hand and best else None
    )
    times = [
        f"{milliseconds(min(rounds[column]) / 1e3)}" if column in rounds else "failed"
        for column in COLUMNS
    ]
    beside = "" if adds is None else f"{speed_up(best, hand):.3f}x, {adds * 1e3:+.0f} µs"
    firsts = "/".join(
        f"{row['first_call_s'][column]:.1f}" if column in row["first_call_s"] else "-"
        for column in COLUMNS[1:]
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


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if something failed."""
    parser = harness.options("engines", __doc__, limit=420.0)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=tuple(ENGINES))
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time of a process (OMP_NUM_THREADS=1)"
    )
    options = parser.parse_args(arguments)
    harness.warm_up_files()
    store = harness.Store("engines", again=options.again)
    lines, failed = [], False
    for engine in options.engines:
        for model in models.choose(options.models, ()):
            clock = " --cpu-time" if options.cpu_time else ""
            key = f"{engine} {model.name} {torch.get_num_threads()} threads{clock}"
            ask = partial(
                harness.fresh, measure, model.name, engine, options.cpu_time, limit=options.limit
            )
            row, there = store.row(key, ask)
            problems = row.get("failed") or row["refused"] or ""
            failed |= bool(problems)
            print(key, "(stored)" if there else f"(load {row['load']})", problems, flush=True)
            if "rounds_ms" in row:
                lines.append(line(model.name, engine, row))
    print(f"\n{table(HEAD, lines)}")
    return int(failed)


# Loads --------------------------------------------------------------------------------------------

#: engine: the stage of a compile in which the engine makes what it runs.
MADE_IN = {"onnxrt": "onnxrt session", "tvm": "tvm build"}
THREADS, LOAD_SECONDS = 8, 2.0


def batches(engine: str) -> dict[str, Any]:
    """Batch sizes 1 to 32 through one compiled resnet18."""
    import tracer_core
    from tracer_core.debug import stages

    program = models.MODELS["resnet18_64"].program()
    x = program.args[0]
    texts: list[str] = []
    stop = stages.observe(lambda record: texts.append(record.name))
    fast = tracer_core.compile(program.function, backend=engine)
    for size in (*range(2, 33), 1):
        inputs = x.expand(size, -1, -1, -1) * torch.linspace(0.5, 1.5, size).view(-1, 1, 1, 1)
        tracer_core.mark_dynamic(inputs, 0, min=1, max=32)
        torch.testing.assert_close(fast(inputs), program.function(inputs), rtol=1e-3, atol=1e-4)
    stop()
    return {"made_for_1_to_32": texts.count(MADE_IN[engine])}


def memory(engine: str) -> dict[str, Any]:
    """105 MB of inputs."""
    import tracer_core
    from tests.engines.running import peak_growth

    fast = tracer_core.compile(lambda x: x.sum(-1), backend=engine)
    x = torch.randn(1024, 25600)
    torch.testing.assert_close(fast(x), x.sum(-1), rtol=1e-3, atol=1e-2)
    return {
        "inputs_mb": x.nbytes / 1e6,
        "rise_mb": peak_growth(lambda: fast(x)),
        "copy_mb": peak_growth(x.clone),
    }


def threads(engine: str) -> dict[str, Any]:
    """Calls a second of one compiled model."""
    import tracer_core

    program = models.MODELS["resnet18_64"].program()
    fast = tracer_core.compile(program.function, backend=engine, options={"freeze": True})
    inputs = [program.args[0] * (1 + 0.1 * number) for number in range(THREADS)]
    expected = [program.function(x) for x in inputs]
    fast(inputs[0])
    wrong: list[int] = []

    def work(number: int, counts: list[int], end: float) -> None:
        with torch.no_grad():
            while time.perf_counter() < end:
                result = fast(inputs[number])
                counts[number] += 1
                if not torch.allclose(result, expected[number], rtol=1e-3, atol=1e-4):
                    wrong.append(number)

    def rate(n: int) -> float:
        counts, end = [0] * n, time.perf_counter() + LOAD_SECONDS
        running = [threading.Thread(target=work, args=(number, counts, end)) for number in range(n)]
        for item in running:
            item.start()
        for value in running:
            value.join()
        return sum(counts) / LOAD_SECONDS

    results = {
        "calls_a_second_1": rate(1),
        f"calls_a_second_{THREADS}": rate(THREADS),
        "wrong": len(wrong),
    }
    if wrong:
        raise AssertionError(f"wrong results in threads {sorted(set(wrong))}")
    return results


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "batches": batches,
    "memory": memory,
    "threads": threads,
}


def load(part: str, engine: str) -> dict[str, Any]:
    """One row of the loads."""
    with torch.no_grad():
        return PARTS[part](engine)


def loads(arguments: Sequence[str]) -> int:
    """onnxrt and tvm with many batch sizes, large inputs and many threads; 1 if something
    failed."""
    parser = harness.options("engine_loads", loads.__doc__, limit=300.0)
    parser.add_argument("--engines", nargs="+", default=list(MADE_IN), choices=tuple(MADE_IN))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=tuple(PARTS))
    options = parser.parse_args(arguments)
    harness.warm_up_files()
    store = harness.Store("engine_loads", again=options.again)
    lines, failed = [], False
    for engine in options.engines:
        for part in options.parts:
            row, _ = store.row(
                f"{engine} {part}", partial(harness.fresh, load, part, engine, limit=options.limit)
            )
            failed |= "failed" in row
            facts = ", ".join(
                f"{k} {v:.4g}"
                for k, v in row.items()
                if isinstance(v, (int, float)) and k != "load"
            )
            lines.append([engine, part, row.get("failed", facts)])
            print(*lines[-1], flush=True)
    print(f"\n{table(['engine', 'load', 'found'], lines)}")
    return int(failed)


# The search of TVM --------------------------------------------------------------------------------

WHERE = harness.RESULTS / "tvm"


def search(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fills the records. Says how long it took."""
    import tracer_core

    model = models.MODELS[name]
    program = model.program()
    with model.mode():
        start = time.perf_counter()
        program.call(tracer_core.compile(program.function, backend="tvm", options=options))
    return {"seconds": time.perf_counter() - start}


def compare(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Eager, default schedules, and what the records give, in one process."""
    import tracer_core
    from tracer_core.testing import error_ratio, tensors_in

    model = models.MODELS[name]
    program = model.program()
    empty = str(Path(options["records"]) / "none")
    fast = {
        "default schedules": tracer_core.compile(
            program.function, backend="tvm", options={**options, "records": empty}
        ),
        "records": tracer_core.compile(program.function, backend="tvm", options=options),
    }
    results: dict[str, Any] = {"first_call_s": {}, "error": {}}
    with model.mode():
        truth, simple = (
            tuple(tensors_in(value))
            for value in (models.in_float64(program).call(), program.call())
        )
        for column, function in fast.items():
            start = time.perf_counter()
            result = program.call(function)
            results["first_call_s"][column] = time.perf_counter() - start
            results["error"][column] = error_ratio(truth, simple, tuple(tensors_in(result)))
            results.setdefault("searched", []).extend(
                record.seconds
                for record in tracer_core.last_compile(function)
                if record.name == "tvm tune"
            )
        programs = {"eager": lambda: program.call()}
        programs |= {name: lambda value=item: program.call(value) for name, item in fast.items()}  # type: ignore[misc]
        results["rounds_ms"] = in_turns(programs, time.perf_counter)
    return results


@contextlib.contextmanager
def said(records: Path, trials: int) -> Iterator[None]:
    """While a search runs in another process, says twice a minute how far it is."""
    done = threading.Event()
    start = time.perf_counter()

    def watch() -> None:
        while not done.wait(30.0):
            tried = sum(
                len(path.read_bytes().splitlines())
                for path in records.glob("*/database_tuning_record.json")
            )
            print(
                f"{time.perf_counter() - start:5.0f} s: {tried} schedules recorded (budget"
                f" {trials})",
                flush=True,
            )

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def tuning(arguments: Sequence[str]) -> int:
    """The search of tvm's MetaSchedule for one model with a stated budget; with the records that
    are there, what they give. 1 if the records are slower than eager, or were not enough."""
    parser = harness.options("tvm_tuning", tuning.__doc__, limit=3600.0)
    parser.add_argument("--model", default="resnet18_64", choices=tuple(models.MODELS))
    parser.add_argument("--trials", type=int, default=512, help="schedules tried in all")
    parser.add_argument("--trials-per-operator", type=int, default=48)
    parser.add_argument(
        "--cost-model", default="random", choices=("xgb", "random"), help="xgb needs xgboost"
    )
    parser.add_argument("--records", type=Path, default=WHERE / "records")
    inputs = parser.parse_args(arguments)
    options: dict[str, Any] = {"records": str(inputs.records.resolve()), "freeze": True}
    budget = {
        "trials": inputs.trials,
        "trials_per_operator": inputs.trials_per_operator,
        "cost_model": inputs.cost_model,
    }
    path = WHERE / f"{inputs.model}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    threads = torch.get_num_threads()
    if (
        inputs.again
        or known.get("budget") != budget
        or known.get("threads") != threads
        or not inputs.records.exists()
    ):
        print(f"searching: {inputs.trials} schedules ...", flush=True)
        with said(inputs.records, inputs.trials):
            answer = harness.fresh(search, inputs.model, options | budget, limit=inputs.limit)
        known = {"budget": budget, "threads": threads, "search_s": answer["seconds"]}
    row = harness.fresh(compare, inputs.model, options, limit=600)
    best = {name: min(times) for name, times in row["rounds_ms"].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = (
        known | row | {"best_ms": best, "commit": harness.commit(), "machine": harness.machine()}
    )
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"search {known['search_s']:.0f} s ({inputs.trials} schedules, seed 0); with the records a first call takes "
          f"{row['first_call_s']['records']:.1f} s")  # fmt: skip
    for name, least in best.items():
        print(f"{name:18} {least:8.2f} ms, {best['eager'] / least:.2f} times eager's speed")
    return int(best["records"] > best["eager"] or bool(row["searched"]))
