"""Our backends over an engine beside the engine used by hand, on the same exported precision and threads.

``python -m benchmarks.engines_by_hand [--models resnet18_64 ...] [--engines onnxrt tvm] [--json FILE]``

In: names of `benchmarks.models`. Out: for each model and engine a line: whether ours is right (error against float64
as a multiple of eager's), graphs and the share of operators on the engine, seconds of the first call, milliseconds a call
of ours and by hand (least of rounds taken in turns in one process; with ``--cpu-time`` of one thread's processor
time, for machines that do other work), and what ours adds. By hand means: for ONNX Runtime, torch.onnx.export and an
InferenceSession that is fed NumPy arrays; for TVM, torch.export, its importer, its zero pipeline and a VirtualMachine.
What always holds: a line that cannot be measured says why.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import engines, models

MODELS = ("resnet18_64", "densenet121_128", "bert_12", "resnext101_7", "gpt2_64", "vit_tiny_224")
ROUNDS = 9
SECONDS = 0.5


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
    tensors = [value for value in (*program.args, *program.kwargs.values()) if isinstance(value, torch.Tensor)]
    return lambda: main(*tensors)


#: engine: (options of ours, by hand)
ENGINES: dict[str, tuple[dict[str, Any], Callable[[models.Program], Callable[[], Any]]]] = {
    "onnxrt": ({"freeze": True}, onnxrt_by_hand),
    "tvm": ({}, tvm_by_hand),
}


def in_turns(functions: Sequence[Callable[[], Any]], clock: Callable[[], float]) -> list[float]:
    """Least milliseconds of each."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for index, function in enumerate(functions):
            function()
            end = time.perf_counter() + SECONDS / ROUNDS
            while True:
                start = clock()
                function()
                best[index] = min(best[index], clock() - start)
                if time.perf_counter() > end:
                    break
    return [seconds * 1e3 for seconds in best]


def row(name: str, engine: str, clock: Callable[[], float]) -> dict[str, Any]:
    """One line."""
    import tracer_core
    from tracer_core.testing import error_ratio, tensors_in

    options, by_hand = ENGINES[engine]
    model = models.MODELS[name]
    program = model.program()
    found: dict[str, Any] = {"model": name, "engine": engine}
    with model.mode():
        fast = tracer_core.compile(program.function, backend=engine, options=options)
        start = time.perf_counter()
        ours = program.call(fast)
        found["first_call_s"] = time.perf_counter() - start
        records = tracer_core.last_compile(fast)
        found["graphs"] = sum(record.name == "compile" for record in records)
        found["eagerly"] = [record.text for record in records if record.name == "fallback"]
        truth = models.in_float64(program)
        plain = [tuple(tensors_in(value)) for value in (truth.call(), program.call(), ours)]
        found["error"] = error_ratio(*plain)
        functions = [lambda: program.call(fast), lambda: program.call()]
        try:
            functions.append(by_hand(model.program()))
        except Exception as error:
            found["by_hand"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        found.update(zip(("ours_ms", "eager_ms", "by_hand_ms"), in_turns(functions, clock), strict=False))
    return found


def line(found: dict[str, Any]) -> str:
    """A row as text."""
    hand = found.get("by_hand_ms")
    beside = f"by hand {hand:8.2f} ms ({found['ours_ms'] / hand:.3f}x, {(found['ours_ms'] - hand) * 1e3:+.0f} µs)" if hand else \
        found["by_hand"]  # fmt: skip
    whole = "all on the engine" if not found["eagerly"] else "; ".join(found["eagerly"])
    return (
        f"{found['model']:18} {found['engine']:7} error {found['error']:.2f} of eager's; {found['graphs']} graphs, {whole}; "
        f"first call {found['first_call_s']:.1f} s; ours {found['ours_ms']:8.2f} ms, eager {found['eager_ms']:8.2f} ms, {beside}"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--engines", nargs="+", default=tuple(ENGINES), choices=tuple(ENGINES))
    parser.add_argument("--cpu-time", action="store_true", help="processor time of this process (OMP_NUM_THREADS=1)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for engine in given.engines:
        for model in models.choose(given.models, ()):
            rows.append(row(model.name, engine, time.process_time if given.cpu_time else time.perf_counter))
            print(line(rows[-1]), flush=True)
            if given.json:
                facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
                given.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
