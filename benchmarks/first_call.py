"""The first call: what a user waits for, in a fresh process with empty caches, stage by stage.

In: models and compilers. Out: for each model a table of seconds by stage, torch.compile beside
ours, and the ratio; over all models the ratios and their geometric mean; for the group ``depth``
how lowering, code generation and C++ build together grow with GPT-2's layers. What always holds:
the compilers take turns, round by round; a number is the median of its rounds; the first row of
each side is not warmed by the other, except that the files of both are in the system's page cache,
because they are read once before.

Stages are exclusive of each other and of imports, so that the rows add up to the whole process.
Only the main thread is recorded, so spans nest. Times are `time.perf_counter_ns()`, the system's
monotonic clock: two processes share it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks import child, compilers, harness, models
from benchmarks.timing import geometric_mean, table, turned

#: In a child: nothing but the standard library was imported until then.
BEGIN = time.perf_counter_ns()

# Spans of time ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """start, end: nanoseconds. name."""

    start: int
    end: int
    name: str


class Recorder:
    """The spans of this process (mutable: they are added as they end)."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, start: int, end: int, name: str) -> None:
        """A span that has ended; those of other threads are left out, because they do not nest."""
        if threading.current_thread() is threading.main_thread():
            self.spans.append(Span(start, end, name))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records the block."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(start, time.perf_counter_ns(), name)

    def watch_imports(self) -> None:
        """From now on each module that is loaded is a span ``import <module>``.

        Both ``import`` statements and importlib look `_find_and_load` up in importlib's frozen
        module, and only for modules that are not loaded yet.
        """
        machinery: Any = sys.modules["_frozen_importlib"]
        load: Callable[..., Any] = machinery._find_and_load

        def timed(name: str, importer: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return load(name, importer)
            finally:
                self.add(start, time.perf_counter_ns(), f"import {name}")

        machinery._find_and_load = timed

    def watch_tracer_core(self) -> None:
        """Stages of tracer_core become spans under their names.

        Not through `stages.observe`: where somebody observes, stages build their texts, which takes
        time.
        """
        from tracer_core.debug import stages

        module: Any = stages
        finish: Callable[..., None] = module._finish

        def finished(done: Any, start: float, seconds: float, suffix: str) -> None:
            end = time.perf_counter_ns()
            self.add(end - int(seconds * 1e9), end, done.name)
            finish(done, start, seconds, suffix)

        module._finish = finished

    def watch_torch_compile(self) -> None:
        """The events that torch.compile times by itself become spans under their names."""
        from torch._dynamo import utils

        logger_type: Any = utils.ChromiumEventLogger
        log_end = logger_type.log_event_end

        def finished(
            logger: Any,
            name: str,
            time_ns: int,
            metadata: Any,
            start_time_ns: int,
            *rest: Any,
            **named: Any,
        ) -> None:
            end = time.perf_counter_ns()
            self.add(
                end - (time_ns - start_time_ns), end, name
            )  # the event's own times are of the wall clock
            log_end(logger, name, time_ns, metadata, start_time_ns, *rest, **named)

        logger_type.log_event_end = finished


def own_seconds(spans: Iterable[Span], label: Callable[[str], str | None]) -> dict[str, float]:
    """Seconds by label, each span without the labelled spans inside it.

    label: a span's name -> its label, or None: the span is taken as a part of what is round it.
    """
    result: dict[str, float] = {}
    open_spans: list[tuple[int, str]] = []  # (end, label) of the spans round the present one
    # Outer spans first: earlier start, or the same start and a later end.
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        text = label(span.name)
        if text is None:
            continue
        while open_spans and open_spans[-1][0] <= span.start:
            open_spans.pop()
        end = min(span.end, open_spans[-1][0]) if open_spans else span.end
        seconds = (end - span.start) / 1e9
        result[text] = result.get(text, 0.0) + seconds
        if open_spans:
            outer = open_spans[-1][1]
            result[outer] -= seconds
        open_spans.append((end, text))
    return result


# The process of one first call --------------------------------------------------------------------

#: What each side's own modules are, imported first so that they are a row of their own. What the
#: first call imports beyond them is seen too.
OWN_MODULES: dict[str, tuple[str, ...]] = {
    "eager": (),
    "torch": ("torch._dynamo", "torch._inductor.compile_fx"),
    "ours": ("tracer_core.execution.compiled_function", "tracer_core.dispatch.compile_graph"),
}

OURS_BY_BACKEND = {"inductor": ("inductor_backend.pipeline",), "onnxrt": ("onnxrt_backend.plugin",)}

#: Labels of the table, in its order, by span name. A span that is not here (nor an import) is a
#: part of the stage round it.
LABELS: dict[str, str] = {
    "python": "start Python",
    "torch": "import torch",
    "library": "import the model library",
    "build": "build the model",
    "compiler": "import the compiler",
    "compile()": "compile()",
    "first call": "first call: the rest",
    # tracer_core
    "trace": "trace",
    "segment": "guards and generated code",
    "lower": "lower to ATen",
    "compile": "backend: fusion and code",
    "inductor_build": "backend: C++ compiler",
    # torch.compile
    "_compile.compile_inner": "trace",
    "bytecode_tracing": "trace",
    "build_guards": "guards and generated code",
    "backend_compile": "lower to ATen",
    "create_aot_dispatcher_function": "lower to ATen",
    "compile_fx_inner": "backend: fusion and code",
    "inductor_compile": "backend: fusion and code",
    "async_compile.wait": "backend: C++ compiler",
    "compile_file": "backend: C++ compiler",
}

IMPORT = "first call: imports"

#: The spans that together are lowering, code generation and C++ build, by compiler; imports inside
#: are not counted.
AFTER_TRACE = {"ours": ("lower", "compile"), "torch": ("backend_compile",)}


def label(name: str) -> str | None:
    """The row of a span."""
    if name.startswith("import "):
        return IMPORT
    return LABELS.get(name)


def package(name: str) -> str | None:
    """The group of an import span: torch's compilers are told from the rest of torch."""
    if not name.startswith("import "):
        return None
    parts = name.removeprefix("import ").split(".")
    if (
        parts[0] == "torch"
        and len(parts) > 1
        and parts[1] in ("_dynamo", "_inductor", "_functorch", "fx")
    ):
        return ".".join(parts[:2])
    return parts[0]


def measure(name: str, compiler: str, warm: bool = False) -> dict[str, Any]:
    """One first call of a model; the answer of this process. warm: what an earlier process has kept
    is there, so that only what every call needs is imported first."""
    model = models.MODELS[name]
    recorder = Recorder()
    recorder.add(child.started(), BEGIN, "python")
    with recorder.span("torch"):
        import torch
    with recorder.span("library"):
        models.import_library(model.library)
    with recorder.span("build"):
        program = model.program()
    known = set(sys.modules)
    start = time.perf_counter_ns()
    with model.mode():
        recorder.watch_imports()
        with recorder.span("compiler"):
            _import_compiler(recorder, compiler, warm)
        imported = time.perf_counter_ns()
        with recorder.span("compile()"):
            compiled = compilers.compiler(compiler)(program.function)
        with recorder.span("first call"):
            program.call(compiled)
        end = time.perf_counter_ns()
        again = time.perf_counter_ns()
        program.call(compiled)
        second = time.perf_counter_ns() - again
    spans = recorder.spans
    late = [span for span in spans if not span.name.startswith("import ") or span.start >= imported]
    return {
        "seconds": own_seconds(late, label),
        "imports": own_seconds([s for s in spans if s.name.startswith("import ")], package),
        "modules_imported": len(set(sys.modules) - known),
        "stages": _totals(spans),
        "after_trace": _after_trace(spans, compiler),
        "first_call": (end - start) / 1e9,
        "process": (end - child.started()) / 1e9,
        "second_call": second / 1e9,
        "threads": torch.get_num_threads(),
    }


def _import_compiler(recorder: Recorder, compiler: str, warm: bool) -> None:
    kind, _, backend = compiler.partition(":")
    wanted = OWN_MODULES[kind]
    if kind == "ours" and warm:
        wanted = wanted[:1]
    elif kind == "ours":
        wanted += OURS_BY_BACKEND.get(backend or "inductor", ())
    for name in wanted:
        __import__(name)
    if kind == "torch":
        recorder.watch_torch_compile()
    if kind == "ours":
        recorder.watch_tracer_core()


def _after_trace(spans: list[Any], compiler: str) -> float | None:
    names = AFTER_TRACE.get(compiler.partition(":")[0])
    if names is None:
        return None
    result = own_seconds(
        [span for span in spans if span.name in names or span.name.startswith("import ")],
        lambda name: "import" if name.startswith("import ") else "after trace",
    )
    return result.get("after trace")


def _totals(spans: list[Any]) -> dict[str, float]:
    """Seconds of all other spans by name, what is inside them included."""
    result: dict[str, float] = {}
    for span in spans:
        if not span.name.startswith("import "):
            result[span.name] = result.get(span.name, 0.0) + (span.end - span.start) / 1e9
    return result


def read_files(modules: Sequence[str]) -> None:
    """Imports modules, so that their files are in the page cache of the system."""
    for library in ("torchvision", "timm", "transformers"):
        models.import_library(library)
    for name in modules:
        __import__(name)


# The command --------------------------------------------------------------------------------------

#: What happens before the compiler is touched, the same for both sides.
BEFORE = ("start Python", "import torch", "import the model library", "build the model")


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("first_call", __doc__, limit=600.0)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="+", default=[], choices=models.GROUPS)
    parser.add_argument("--compilers", nargs="+", default=["torch", "ours"], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--warm", action="store_true", help="second processes, with the caches of a first one"
    )
    chosen = parser.parse_args(arguments)
    wanted = models.choose(chosen.models, []) if chosen.models else []
    wanted += models.choose([], chosen.groups) if chosen.groups else []
    wanted = wanted or models.choose(["resnet18_64", "bert_12"], [])
    harness.warm_up_files()
    _read_files(chosen.compilers)
    store = harness.Store("first_call", again=chosen.again)
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(chosen.rounds):
        for model in wanted:
            for compiler in turned(chosen.compilers, number):
                row = _row(store, model.name, compiler, number, chosen.limit, chosen.warm)
                measured.setdefault((model.name, compiler), []).append(row)
    good = True
    for model in wanted:
        rows = {name: measured[model.name, name] for name in chosen.compilers}
        good &= _print(model, rows)
    _print_all(wanted, measured, chosen.compilers)
    depths = [model for model in wanted if "depth" in model.groups]
    if len(depths) > 1:
        _print_depth(depths, measured, chosen.compilers)
    return 0 if good else 1


def _medians(rows: list[dict[str, Any]], key: str) -> float | None:
    """None where a row failed or the compiler does not tell."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values and len(values) == len(rows) else None


def _print_all(
    wanted: Sequence[models.Model], measured: dict[Any, Any], names: Sequence[str]
) -> None:
    """First calls of all models in one table, and ours over torch.compile's."""
    lines, ratios = [], []
    for model in wanted:
        firsts = {name: _medians(measured[model.name, name], "first_call") for name in names}
        ours, torch = firsts.get("ours"), firsts.get("torch")
        ratio = ours / torch if ours and torch else None
        ratios += [ratio] if ratio else []
        cells = [f"{value:.2f}" if value else "failed" for value in firsts.values()]
        lines.append([model.title, *cells, f"{ratio:.3f}" if ratio else ""])
    print("\nFirst call, seconds")
    print(table(["model", *map(compilers.title, names), "ours / torch.compile"], lines))
    if ratios:
        print(
            f"geometric mean of {len(ratios)} ratios: {geometric_mean(ratios):.3f}, largest"
            f" {max(ratios):.3f}"
        )


def _print_depth(
    depths: Sequence[models.Model], measured: dict[Any, Any], names: Sequence[str]
) -> None:
    """What a compiler does after the trace, by depth, over the same at the least depth."""
    lines = []
    for model in depths:
        cells = []
        for name in names:
            seconds = _medians(measured[model.name, name], "after_trace")
            least = _medians(measured[depths[0].name, name], "after_trace")
            cells.append(f"{seconds:.2f} ({seconds / least:.2f})" if seconds and least else "")
        lines.append([model.title, *cells])
    print("\nLowering, code generation and C++ build, seconds (over the first row's)")
    print(table(["model", *map(compilers.title, names)], lines))


def _read_files(names: Sequence[str]) -> None:
    """Imports both sides once in a process that is not measured, so that all files were read
    before."""
    print("reading the files of the compilers and libraries once ...", flush=True)
    modules = [module for name in names for module in OWN_MODULES[name.partition(":")[0]]]
    modules += [module for backend in OURS_BY_BACKEND.values() for module in backend]
    harness.fresh(read_files, modules, limit=600)


def _row(
    store: harness.Store, model: str, compiler: str, number: int, limit: float, warm: bool
) -> dict[str, Any]:
    key = f"{model} {compiler} {number}{' warm' * warm}"
    run = partial(_second, model, compiler, limit) if warm else partial(
        harness.fresh, measure, model, compiler, limit=limit)  # fmt: skip
    row, there = store.row(key, run)
    messages = (
        row.get("failed") or f"{row['first_call']:.2f} s first call, {row['process']:.2f} s process"
    )
    print(f"{key}: {messages}{' (stored)' if there else ''}", flush=True)
    return row


def _second(model: str, compiler: str, limit: float) -> dict[str, Any]:
    """The first call of a process that finds what another one has kept."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as caches:
        harness.fresh(measure, model, compiler, limit=limit, caches=caches)
        row: dict[str, Any] = harness.fresh(
            measure, model, compiler, True, limit=limit, caches=caches
        )
    return row


def _print(model: models.Model, rows: dict[str, list[dict[str, Any]]]) -> bool:
    """One model's table; False if a compiler has no row that worked."""
    good = {name: [row for row in result if "failed" not in row] for name, result in rows.items()}
    print(
        f"\n{model.title} ({model.modes}), seconds, median of {max(map(len, rows.values()))}"
        " processes"
    )
    for name, result in good.items():
        if not result:
            print(f"  {compilers.title(name)} failed: {rows[name][0]['failed']}")
    names = [name for name, result in good.items() if result]
    labels = list(dict.fromkeys([*LABELS.values(), IMPORT]))
    before = [text for text in labels if text in BEFORE]
    lines = [_line(text, good, names) for text in before]
    lines += [
        _line(text, good, names) for text in labels if text not in BEFORE and _any(text, good)
    ]
    for text, key in (
        ("FIRST CALL (import, compile, run)", "first_call"),
        ("whole process", "process"),
    ):
        lines.append(
            [
                text,
                *(f"{statistics.median([row[key] for row in good[name]]):.2f}" for name in names),
            ]
        )
    print(table(["stage", *map(compilers.title, names)], lines))
    for name in names:
        print(f"  imports of {compilers.title(name)}: {_imports(good[name])}")
    if {"torch", "ours"} <= set(names):
        ratios = {
            key: (
                statistics.median([r[key] for r in good["ours"]])
                / statistics.median([r[key] for r in good["torch"]])
            )
            for key in ("first_call", "process")
        }
        print(
            f"  ours / torch.compile: first call {ratios['first_call']:.3f}, "
            f"whole process {ratios['process']:.3f}"
        )
    return len(names) == len(rows)


def _any(text: str, good: dict[str, list[dict[str, Any]]]) -> bool:
    return any(text in row["seconds"] for result in good.values() for row in result)


def _line(text: str, good: dict[str, list[dict[str, Any]]], names: Sequence[str]) -> list[str]:
    return [
        text,
        *(
            f"{statistics.median([row['seconds'].get(text, 0.0) for row in good[name]]):.2f}"
            for name in names
        ),
    ]


def _imports(rows: list[dict[str, Any]]) -> str:
    groups = {name for row in rows for name in row["imports"]}
    seconds = {
        name: statistics.median([row["imports"].get(name, 0.0) for row in rows]) for name in groups
    }
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:6]
    return ", ".join(f"{name} {value:.2f}" for name, value in largest)
