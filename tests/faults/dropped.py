"""Many functions compiled, called and dropped, twenty in use at once: what a process holds must stay flat.

``python -m tests.faults.dropped --count 20000 --own 1500``: every function has code of its own,
`own` of them kernels of their own too, compiled without optimization; the others share ten kernels.
One in ten runs a backward. Prints a row of JSON a tenth of the way.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

#: A compiler that does not optimize, for kernels that run once.
CHEAP = '#!/bin/sh\nexec g++ "$@" -O0\n'

#: Bytes of the store, which 20,000 functions exceed.
LIMIT = "100MB"

#: Functions that are in use at once.
ALIVE = 20

SHARED = ("sin(x)", "cos(x)", "tanh(x)", "exp(x * 0.1)", "sigmoid(x)", "relu(x)", "erf(x)", "square(x)",
"abs(x)", "sqrt(x * x)")  # fmt: skip


def program(number: int, own: bool) -> str:
    """Returns the source of function number `number`."""
    work = f"torch.sin(x * {number}.5) + {number}" if own else f"torch.{SHARED[number % 10]}"
    return f"import torch\n\ndef f(x, w):\n    name = 'number {number}'\n    return {work} * w\n"


def mapped_libraries() -> int:
    """Returns how many compiled libraries are mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if "/inductor-cpp/" in line}
    return len(paths)


def held() -> dict[str, Any]:
    """Returns what this process holds now: memory in MB, objects, mappings, and so on."""
    import tracer_core

    gc.collect()
    status = Path("/proc/self/status").read_text()
    words = dict(line.split(":", 1) for line in status.splitlines())
    kept = tracer_core.cache.info()
    return {
        "rss_mb": round(int(words["VmRSS"].split()[0]) / 1024, 1),
        "objects": len(gc.get_objects()),
        "libraries": mapped_libraries(),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(words["Threads"]),
        "python_threads": threading.active_count(),
        "store_mb": round(kept.size / 1e6, 1),
        "store_files": sum(number for number, _ in kept.entries.values()),
    }


def compiled(number: int, own: bool, x: Any, w: Any, folder: Path) -> Any:
    """Returns the compiled function of a module that was written to `folder`, imported, and compared
    with eager."""
    import torch

    import tracer_core

    name = f"dropped_{number}"
    source = folder / f"{name}.py"
    source.write_text(program(number, own))
    importlib.invalidate_caches()
    function = importlib.import_module(name).f
    source.unlink()
    train = number % 10 == 9
    with torch.set_grad_enabled(train):
        fast = tracer_core.compile(function)
        actual = fast(x, w)
        expected = function(x, w)
        if not torch.allclose(actual, expected, atol=1e-4, rtol=1e-4):
            raise AssertionError(f"function {number}: {actual} is not {expected}")
        if train:
            (got,), (true,) = (torch.autograd.grad(value.sum(), w) for value in (actual, expected))
            if not torch.allclose(got, true, atol=1e-3, rtol=1e-3):
                raise AssertionError(f"function {number}: gradient {got} is not {true}")
    return fast


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--own", type=int, default=1500)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cheap = Path(folder, "g++")
        cheap.write_text(CHEAP)
        cheap.chmod(cheap.stat().st_mode | stat.S_IXUSR)
        os.environ["CXX"] = str(cheap)
        os.environ["TRACER_CACHE_DIR"] = str(Path(folder, "cache"))
        os.environ["TRACER_CACHE_LIMIT"] = LIMIT
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        rows = measured(arguments.count, arguments.own, Path(folder))
    if arguments.out is not None:
        arguments.out.write_text(
            json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1) + "\n"
        )
    return 0


def measured(count: int, own: int, folder: Path) -> list[dict[str, Any]]:
    """Drops `count` functions and returns what was held at each tenth, and after reset()."""
    import torch

    import tracer_core
    from tracer_core.execution.store import persistent_cache

    torch.set_num_threads(1)
    x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
    rows, begun = [], time.monotonic()
    alive: list[Any] = []
    every = max(1, count // max(1, own))
    for number in range(count):
        alive.append(compiled(number, number % every == 0 and number // every < own, x, w, folder))
        if (number + 1) % ALIVE == 0:
            persistent_cache.flush()  # what is dropped before a second of quiet is not stored
            alive.clear()
            for name in [name for name in sys.modules if name.startswith("dropped_")]:
                del sys.modules[name]
        if (number + 1) % max(1, count // 20) == 0:
            rows.append(
                {"functions": number + 1, "seconds": round(time.monotonic() - begun), **held()}
            )
            print(json.dumps(rows[-1]), flush=True)
    del alive
    tracer_core.reset()
    rows.append({"functions": count, "after": "reset()", **held()})
    print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
