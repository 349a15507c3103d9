"""Plain shared libraries beside ONNX Runtime, eager mode and a compiled model with frozen weights.

In: a model of `benchmarks.models` and a number of threads. Out: megabytes of the library and
seconds to write it; milliseconds from the start of the example program in C until the first result
is there, and the same of a Python program that opens ONNX Runtime's model file (its session and
first run alone, too); milliseconds a run. What always holds: the program in C reads the same inputs
from a file; rounds of all take turns; errors are those of the largest output against float64.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Grid, Target

MODELS = ("resnet18_1x224", "resnet18_8x224", "bert_base_1x128", "bert_base_8x128")

#: Starts of each program, and rounds of runs, of which a round makes that many.
STARTS, ROUNDS, RUNS = 5, 7, 8

#: Opens ONNX Runtime's model, and prints when it was imported and when the first result was there.
SESSION = """
import json, sys, time
import numpy, onnxruntime
imported = time.monotonic()
model, inputs, threads = sys.argv[1:]
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = int(threads)
session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
given = numpy.load(inputs)
session.run(None, {one.name: given[one.name] for one in session.get_inputs()})
print(json.dumps([imported, time.monotonic()]))
"""


def program(name: str) -> Any:
    """The module of a row, and its inputs by name."""
    import torch

    from benchmarks.models import SEED, import_library

    kind, _, sizes = name.rpartition("_")
    batch, size = map(int, sizes.split("x"))
    import_library("torchvision" if kind == "resnet18" else "transformers")
    torch.manual_seed(SEED)
    if kind == "resnet18":
        from torchvision.models import resnet18

        return resnet18().eval(), {"x": torch.randn(batch, 3, size, size)}
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="sdpa")).eval()
    tokens = torch.randint(0, 30_000, (batch, size))
    mask = (torch.arange(size) < torch.linspace(size, size // 2, batch).long()[:, None]).long()
    return model, {"input_ids": tokens, "attention_mask": mask}


def measure(name: str, threads: str) -> dict[str, Any]:
    """One row."""
    os.environ["OMP_NUM_THREADS"] = threads
    import torch

    torch.set_num_threads(int(threads))
    model, inputs = program(name)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, torch.no_grad():
        return _row(model, inputs, Path(folder), threads)


def _row(model: Any, inputs: dict[str, Any], folder: Path, threads: str) -> dict[str, Any]:
    import copy

    import torch

    import tracer_core

    first = _first_of(model)
    truth = _first_of(copy.deepcopy(model).double())(**_in_float64(inputs))
    library = _Library(first, inputs, folder / "model")
    session = _Session(first, inputs, folder, threads)
    fast = tracer_core.compile(first, backend="inductor", options={"freeze": True}, fullgraph=True)
    functions: dict[str, Callable[[], Any]] = {
        "eager": lambda: first(**inputs),
        "compiled": lambda: fast(**inputs),
        "onnxruntime": session.run,
    }
    results = {key: run() for key, run in functions.items()}
    starts = {"library": [library.start() for _ in range(STARTS)],
              "onnxruntime": [session.start() for _ in range(STARTS)]}  # fmt: skip
    results["library"] = library.result()
    times: dict[str, list[float]] = {key: [] for key in (*functions, "library")}
    for _ in range(ROUNDS):
        for key, run in functions.items():
            run()
            begun = time.perf_counter()
            for _ in range(RUNS):
                run()
            times[key].append((time.perf_counter() - begun) / RUNS)
        times["library"].append(library.seconds(RUNS))
    scale = truth.norm().item()
    return {
        "megabytes": round(library.path.stat().st_size / 1e6, 1),
        "onnx_megabytes": round(session.path.stat().st_size / 1e6, 1),
        "write_s": round(library.write_seconds, 1),
        "first_ms": {
            key: [round(1e3 * item, 1) for item in start] for key, start in starts.items()
        },
        "onnxruntime_session_ms": [round(1e3 * second, 1) for second in session.session_seconds],
        "run_ms": {key: [round(1e3 * item, 3) for item in result] for key, result in times.items()},
        "error": {
            key: (torch.as_tensor(result).double() - truth).norm().item() / scale
            for key, result in results.items()
        },
    }


def _first_of(model: Any) -> Any:
    """The model as a module that returns its first output."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> Any:
            result = self.model(**inputs)
            return result if isinstance(result, torch.Tensor) else result[0]

    return First().eval()


def _in_float64(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }


class _Library:
    """The library of a model, and its example program in C."""

    def __init__(self, model: Any, inputs: dict[str, Any], folder: Path) -> None:
        from inductor_backend.native_library.writer import write_library
        from tests.support.frozen_graphs import frozen_graph

        gm, spec = frozen_graph(model, **inputs)
        begun = time.perf_counter()
        write_library(gm, spec, folder)
        self.write_seconds = time.perf_counter() - begun
        self.folder, self.path = folder, folder / f"{folder.name}.so"
        words = ["gcc", "-O2", "example.c", self.path.name, "-Wl,-rpath,$ORIGIN", "-o", "example"]
        subprocess.run(words, cwd=folder, check=True)
        self.about = json.loads((folder / f"{folder.name}.json").read_text())
        with (folder / "inputs").open("wb") as file:
            for item in self.about["inputs"]:
                (key,) = (
                    key for key in inputs if repr(key) in item["source"] or key == item["source"]
                )
                file.write(inputs[key].numpy().tobytes())

    def _run(self, runs: int) -> list[float]:
        words = ["./example", "inputs", "outputs", str(runs)]
        done = subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True)
        return list(map(float, done.stdout.split()))

    def start(self) -> float:
        """Seconds from the start of the program until the first result."""
        begun = time.monotonic()
        return self._run(1)[0] - begun

    def seconds(self, runs: int) -> float:
        """Seconds a run."""
        return statistics.mean(self._run(runs + 1)[2:]) / 1e3

    def result(self) -> Any:
        import torch

        data = bytearray((self.folder / "outputs").read_bytes())
        (item,) = self.about["outputs"]
        return torch.frombuffer(data, dtype=torch.float32).as_strided(
            item["sizes"], item["strides"]
        )


class _Session:
    """ONNX Runtime's model file and a session of it."""

    def __init__(self, model: Any, inputs: dict[str, Any], folder: Path, threads: str) -> None:
        import numpy
        import onnxruntime
        import torch

        self.path, self.inputs, self.threads = folder / "model.onnx", folder / "in.npz", threads
        torch.onnx.export(model, (), kwargs=inputs, dynamo=True, verbose=False).save(
            str(self.path), external_data=False
        )
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = int(threads)
        self.session = onnxruntime.InferenceSession(
            str(self.path), settings, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in self.session.get_inputs()]
        self.given = {key: value.numpy() for key, value in zip(names, inputs.values(), strict=True)}
        numpy.savez(self.inputs, **self.given)
        self.session_seconds: list[float] = []

    def run(self) -> Any:
        return self.session.run(None, self.given)[0]

    def start(self) -> float:
        """Seconds from the start of a Python program until the first result."""
        words = [sys.executable, "-c", SESSION, str(self.path), str(self.inputs), self.threads]
        begun = time.monotonic()
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        imported, first = json.loads(done.stdout)
        self.session_seconds.append(first - imported)
        return float(first - begun)


def _line(row: dict[str, Any]) -> list[str]:
    runs = {key: statistics.median(result) for key, result in row["run_ms"].items()}
    starts = {key: statistics.median(result) for key, result in row["first_ms"].items()}
    return [
        f"{row['megabytes']:.0f}", f"{starts['library']:.0f}", f"{starts['onnxruntime']:.0f}",
        f"{statistics.median(row['onnxruntime_session_ms']):.0f}",
        *(f"{runs[key]:.1f}" for key in ("library", "onnxruntime", "compiled", "eager")),
        f"{row['error']['library'] / max(row['error']['eager'], 1e-9):.1f}",
    ]  # fmt: skip


def _wrong(row: dict[str, Any], *names: str) -> list[str]:
    """What is further from float64 than rounding explains."""
    far = row["error"]["library"] > max(3 * row["error"]["eager"], 1e-5)
    return [f"error {row['error']['library']:.2g}"] if far else []


_MEASURE: Target = "benchmarks.native_library:measure"

main = Grid(
    "native_library",
    __doc__,
    {"models": MODELS, "threads": ("1", "2")},
    _MEASURE,
    ("MB", "first ms", "ORT", "ORT session", "run ms", "ORT", "compiled", "eager", "error/eager's"),
    _line,
    limit=900.0,
    wrong=_wrong,
).main
