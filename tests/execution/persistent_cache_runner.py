"""Runs the programs of `persistent_cache_programs.txt` eagerly and compiled, as one process of
their users does.

In: a folder, for the programs' files, which form of them, and their names. Out: result.json in the folder: name ->
what differs from eager mode, what was said about stored entries, and how many captures there were.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tracer_core
from tests.support.stored_backend import BACKEND
from tracer_core.execution.store import persistent_cache

PROGRAMS = Path(__file__).with_name("persistent_cache_programs.txt")
BEFORE, AFTER = 0, 1
CALLS = 2


def programs() -> dict[str, str]:
    """Returns the programs' texts, with both forms, by name."""
    _, *rows = re.split(r"^== (.*)\n", PROGRAMS.read_text(), flags=re.M)
    return dict(zip(rows[::2], rows[1::2], strict=True))


def write(text: str, form: int, folder: Path, name: str) -> None:
    """Writes one form of a program into files."""
    text = re.sub("«(.*?)»", lambda actual: actual[1].split("|")[form], text, flags=re.S)
    first, *others = re.split(r"^### (.*)\n", text.replace("{n}", name), flags=re.M)
    files = dict(zip(others[::2], others[1::2], strict=True)) or {"main": first}
    for file, content in files.items():
        (folder / (f"{name}.py" if file == "main" else file)).write_text(content)


def call(function: Callable[..., Any], module: types.ModuleType) -> Any:
    """Returns the result of one call, its input afterwards and the gradients; or the error's text."""
    named, x = vars(module), torch.linspace(-2, 2, 6)
    parameters = named.get("params", [])
    for parameter in parameters:
        parameter.grad = None
    with warnings.catch_warnings():
        named.get("before", lambda: None)()
        arguments = named.get("more", lambda: ())()
        grad = named.get("grad", False)
        try:
            with (
                torch.set_grad_enabled(grad or named.get("grad_mode", False)),
                named.get("around", contextlib.nullcontext)(),
            ):
                result = function(x, *arguments)
                if grad and result.requires_grad:
                    result.sum().backward()
        except Exception as error:
            return repr(error)
    gradients = [None if item.grad is None else item.grad.clone() for item in parameters]
    return [result, x, gradients]


def is_same(item: Any, other: Any) -> bool:
    if isinstance(item, (tuple, list)):
        return len(item) == len(other) and all(map(is_same, item, other))
    if not isinstance(item, torch.Tensor):
        return type(item) is type(other) and bool(item == other)
    facts = ("dtype", "shape", "device", "requires_grad", "__class__")
    if any(getattr(item, fact) != getattr(other, fact) for fact in facts):
        return False
    if item.stride() != other.stride() or item.is_inference() != other.is_inference():
        return False
    tolerance = 1e-3 if item.dtype.itemsize == 2 else 1e-5
    return item.is_meta or torch.allclose(item, other, rtol=tolerance, equal_nan=True)


def run(text: str, form: int, folder: Path, name: str) -> dict[str, Any]:
    write(text, form, folder, name)
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    fast, differences = tracer_core.compile(module.run, backend=BACKEND), []
    for _ in range(CALLS):
        want, got = call(module.run, module), call(fast, module)
        if not (want == got if isinstance(want, str) else is_same(want, got)):
            differences.append(f"{got}, expected {want}")
    rows = tracer_core.last_compile(fast)
    said = rows[0].text if rows and rows[0].name == "persistent_cache" else ""
    persistent_cache.flush()
    captures = sum(row.name == "trace" for row in rows)
    return {"differences": differences, "said": said, "captures": captures}


def main(folder: Path, form: int, names: set[str]) -> None:
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    results = {}
    for number, (name, text) in enumerate(programs().items()):
        if name not in names:
            continue
        try:
            results[name] = run(text, form, folder, f"kept_program_{number}")
        except Exception:
            error = traceback.format_exc()
            results[name] = {"differences": [error], "said": "", "captures": 0}
    (folder / "result.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), set(sys.argv[3:]))
