"""Packages: size, load and first result in a process without caches, beside torch's AOTInductor.

In: models and makers of packages. Out: for each the seconds to make the package (cold), its bytes
(with weights), and medians over fresh processes of the seconds to import, to load, and until the
first result (both also as processor time: machines are busy), with the milliseconds of a settled
call and the error against eager. What always holds: the loading processes have empty caches and
build no model.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, models

#: In a child: nothing but the standard library was imported until then.
BEGIN = time.perf_counter()

_ROUNDS, _CALLS = 5, 20
_MODELS = ("resnet18_64", "resnet18_224", "bert_12", "bert_128")


def _make_ours(program: models.Program, path: str) -> None:
    import tracer_core

    tracer_core.package(program.function, program.args, path, kwargs=program.kwargs)


def _make_aoti(program: models.Program, path: str) -> None:
    import torch

    function: Any = program.function
    exported = torch.export.export(function, program.args, program.kwargs)
    torch._inductor.aoti_compile_and_package(exported, package_path=path)


def _load_ours(path: str) -> Any:
    import tracer_core

    return tracer_core.load_package(path)


def _load_aoti(path: str) -> Any:
    import torch

    return torch._inductor.aoti_load_package(path)


#: Name -> (its library beside torch, makes a package, loads one, how its file is named).
_MAKERS: dict[str, tuple[str, Callable[..., None], Callable[[str], Any], str]] = {
    "ours": ("tracer_core", _make_ours, _load_ours, "model.tracer"),
    "aoti": ("torch._inductor", _make_aoti, _load_aoti, "model.pt2"),
}


def measure(model: str, maker: str) -> dict[str, Any]:
    """Makes a package in this process and loads it in others."""
    import torch

    harness.warm_up_files()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    (chosen,) = models.choose([model], [])
    program = chosen.program()
    if hasattr(program.function, "config"):  # AOTInductor's loader imports no class of transformers
        program.kwargs["return_dict"] = False
    _, make, _, name = _MAKERS[maker]
    with tempfile.TemporaryDirectory(prefix="packages-") as folder, torch.no_grad():
        path, inputs = str(Path(folder) / name), str(Path(folder) / "inputs.pt")
        begin = time.perf_counter()
        make(program, path)
        created = time.perf_counter() - begin
        result = program.call()
        torch.save((program.args, program.kwargs, _tensors(result)), inputs)
        rows = [harness.fresh(load, maker, path, inputs, limit=300.0) for _ in range(_ROUNDS)]
        size = os.path.getsize(path)
    results = {
        name: statistics.median(row[name] for row in rows) for name in rows[0] if name != "error"
    }
    return {"make": created, "bytes": size, **results, "error": max(row["error"] for row in rows)}


def load(maker: str, path: str, inputs: str) -> dict[str, float]:
    """Loads a package and calls it; seconds by what was done."""
    import importlib

    import torch

    library, _, load_it, _ = _MAKERS[maker]
    importlib.import_module(library)
    imported, began = time.perf_counter(), time.process_time()
    with torch.no_grad():
        loaded = load_it(path)
        ready, processor_load = time.perf_counter(), time.process_time() - began
        args, kwargs, wanted = torch.load(inputs)
        read, reading = time.perf_counter(), time.process_time()
        result = loaded(*args, **kwargs)
        first, processor = time.perf_counter(), time.process_time() - reading
        seconds = []
        for _ in range(_CALLS):
            begin = time.perf_counter()
            loaded(*args, **kwargs)
            seconds.append(time.perf_counter() - begin)
    pairs = zip(_tensors(result), wanted, strict=True)
    errors = [float((item - other).norm() / other.norm()) for item, other in pairs]
    return {
        "import": imported - BEGIN,
        "loading": ready - imported,
        "first": first - read,
        "processor": processor_load + processor,
        "call": statistics.median(seconds),
        "error": max(errors),
    }


def _tensors(result: Any) -> list[Any]:
    """Returns the tensors of a result, which is a tensor, a sequence or a mapping."""
    if hasattr(result, "keys"):
        return [result[key] for key in result.keys()]  # noqa: SIM118  (a ModelOutput iterates so)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _line(row: dict[str, Any]) -> Sequence[str]:
    return [
        f"{row['make']:.1f}", f"{row['bytes'] / 1e6:.1f}", f"{row['import']:.2f}",
        f"{row['loading']:.3f}", f"{row['first']:.3f}", f"{row['loading'] + row['first']:.3f}", f"{row['processor']:.3f}",
        f"{row['call'] * 1e3:.2f}", f"{row['error']:.1e}",
    ]  # fmt: skip


def _wrong(row: dict[str, Any], *names: str) -> list[str]:
    return ["an error beyond float32's"] if row["error"] > 1e-3 else []


main = harness.Grid(
    name="packages", doc=__doc__, axes={"models": _MODELS, "makers": tuple(_MAKERS)},
    measure=measure, line=_line, wrong=_wrong, limit=900.0,
    head=["make s", "MB", "import s", "load s", "first s", "load + first", "processor s", "call ms", "error"],
).main  # fmt: skip
