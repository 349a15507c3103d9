"""Schedule selection: chooses between recorded and default schedules, the faster one per
function.

`benchmark` benchmarks both schedules of every function that has a record, in turns in this process,
and keeps the times beside the records (``weighed.json``). `choose` drops records whose default
was faster or whose results differed; it measures nothing, so that the same folder always gives
the same schedules. A function without a benchmark keeps its record; if the file cannot be read,
none does."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tracer_core.plugin_api import logger, note
from tvm_backend import schedules
from tvm_backend.dtypes import DTYPES

FILE = "weighed.json"

#: Rounds, seconds per schedule in a round, and the largest difference of results, relative to the
#: largest element.
ROUNDS, SECONDS, APART = 5, 0.02, 1e-3

log = logger("stages")


def benchmark(simple: Any, recorded: Any, target: Any, where: Path) -> None:
    """Benchmarks what was not measured yet. After an interruption, finished measurements are
    kept."""
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(0, torch.get_num_threads())
    known = _known(where) or {}
    for name, before, after in _replaced(simple, recorded):
        key = _key(before)
        arguments = _arguments(before)
        if key in known or arguments is None:
            continue
        forms = {"default": schedules.scheduled(before) or before, "recorded": after}
        with target, tvm.transform.PassContext(opt_level=3):
            runs = {form: _built(function, target) for form, function in forms.items()}
        results = {form: [value.clone() for value in arguments] for form in runs}
        calls = {form: functools.partial(run, *results[form]) for form, run in runs.items()}
        for call in calls.values():
            call()
        known[key] = {
            "name": name,
            "agree": all(map(_agree, results["default"], results["recorded"])),
            "us": _alternating(calls),
        }
        if not known[key]["agree"]:
            log.warning(
                "tvm: the recorded schedule of %s computes something else: it is not used", name
            )
        _write(where, known)


def choose(simple: Any, recorded: Any, where: Path) -> Any:
    """Returns the module with the records that are worth using."""
    known = _known(where)
    taken = []
    every = list(_replaced(simple, recorded))
    for name, before, _ in every:
        if known is None or not _worth_having(known.get(_key(before))):
            recorded[name] = before
            taken.append(name)
    note(
        "stages",
        "tvm: recorded schedules for %d functions; %d have quicker defaults",
        len(every),
        len(taken),
    )
    return recorded


def _worth_having(entry: Any) -> bool:
    """Returns whether a record is correct and faster, or was not benchmarked."""
    return entry is None or bool(
        entry["agree"] and entry["us"]["recorded"] < entry["us"]["default"]
    )


def _replaced(simple: Any, recorded: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, function before, function after) for functions that have a record."""
    import tvm

    after = {name.name_hint: function for name, function in recorded.functions_items()}
    for name, function in simple.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc) or schedules.is_scheduled(function):
            continue
        result = after[name.name_hint]
        if schedules.is_scheduled(result):
            yield name.name_hint, function, result


def _key(function: Any) -> str:
    """Returns a key that is the same in every process and ignores the function's name."""
    import tvm_ffi

    return str(tvm_ffi.structural_hash(function.with_attr("global_symbol", "main")))


def _arguments(function: Any) -> list[torch.Tensor] | None:
    """Returns tensors for the function's parameters, results last; None where a size is symbolic
    or a dtype unknown."""
    dtypes = {text: dtype for dtype, text in DTYPES.items()}
    result = []
    for parameter in function.params:
        shape = getattr(parameter.ty, "shape", None)
        sizes: list[Any] = [] if shape is None else [getattr(size, "value", size) for size in shape]
        if (
            shape is None
            or not all(isinstance(size, int) for size in sizes)
            or str(parameter.ty.dtype) not in dtypes
        ):
            return None
        dtype = dtypes[str(parameter.ty.dtype)]
        result.append(
            torch.rand(sizes).add(0.1).to(dtype)
            if dtype.is_floating_point
            else torch.zeros(sizes, dtype=dtype)
        )
    return result


def _built(function: Any, target: Any) -> Callable[..., Any]:
    import tvm

    executable = tvm.compile(
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), target=target
    )
    run: Callable[..., Any] = executable["main"]
    return run


def _agree(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return torch.equal(tensor, other)
    largest = tensor.abs().nan_to_num().max().item()
    return torch.allclose(tensor, other, rtol=0, atol=APART * largest, equal_nan=True)


def _alternating(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns the least microseconds per call of each schedule."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for form, call in calls.items():
            end = time.perf_counter() + SECONDS
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                best[form] = min(best[form], (now - start) * 1e6)
                if now > end:
                    break
    return best


def _known(where: Path) -> dict[str, Any] | None:
    """Returns the measurements; None, with a warning, where the file cannot be read, since it is
    then unknown which records are correct."""
    path = where / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        data: dict[str, Any] = json.loads(text)
        for entry in data.values():
            bool(entry["agree"]), float(entry["us"]["recorded"]), float(entry["us"]["default"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning(
            "tvm: %s cannot be read (%s): no record is used until a search benchmarks them again",
            path,
            error,
        )
        return None
    return data


def _write(where: Path, known: dict[str, Any]) -> None:
    path = where / f"{FILE}.{os.getpid()}"
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    path.replace(where / FILE)
