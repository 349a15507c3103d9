"""The process that `benchmarks.first_call` starts: one model, one compiler, one first call.

In: arguments ``<model> <compiler>``. Out: `answer` of seconds by label, of imports by package, and
of totals. What always holds: nothing but the standard library is imported before the clock runs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.spans import Recorder, own_seconds

BEGIN = time.perf_counter_ns()

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


def measure(model: models.Model, compiler: str) -> dict[str, Any]:
    """One first call; the answer of this process."""
    recorder = Recorder()
    recorder.add(processes.started(), BEGIN, "python")
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
            _import_compiler(recorder, compiler)
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
        "process": (end - processes.started()) / 1e9,
        "second_call": second / 1e9,
        "threads": torch.get_num_threads(),
    }


def _import_compiler(recorder: Recorder, compiler: str) -> None:
    kind, _, backend = compiler.partition(":")
    wanted = OWN_MODULES[kind]
    if kind == "ours":
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
    found = own_seconds(
        [span for span in spans if span.name in names or span.name.startswith("import ")],
        lambda name: "import" if name.startswith("import ") else "after trace",
    )
    return found.get("after trace")


def _totals(spans: list[Any]) -> dict[str, float]:
    """Seconds of all other spans by name, what is inside them included."""
    found: dict[str, float] = {}
    for span in spans:
        if not span.name.startswith("import "):
            found[span.name] = found.get(span.name, 0.0) + (span.end - span.start) / 1e9
    return found


if __name__ == "__main__":
    processes.answer(measure(models.MODELS[sys.argv[1]], sys.argv[2]))
