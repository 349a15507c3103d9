"""Programs at the edges of capture: how many are one graph and right, beside torch.compile.

In: names of `benchmarks.capture_programs`, or words in them. Out: a table with a row a program
(graphs, breaks and the reason of the first, equal to eager; torch.compile's graphs and whether it
is equal) and a summary a kind. Both compilers get a callable backend that runs what was captured.
Three calls with different tensors: results, types, errors, what the program changed and the state
of the random generator are compared with eager. What always holds: a process serves one compiler;
one that dies or hangs is replaced, and costs its program's row only.
"""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.capture_programs import PROGRAMS
from benchmarks.timing import table

#: Seconds for one program, and for the imports of a process.
LIMIT = 60.0
CALLS = 3
#: Kinds that are measured under fullgraph=True, where that works.
WHOLE = frozenset({"data"})
_ENVIRONMENT = {"TRACER_STRICT": "1", "OMP_NUM_THREADS": "1"}


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if one of ours is not equal to eager."""
    parser = harness.options("capture", __doc__)
    parser.add_argument("programs", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--rows", type=int, default=None, help="print so many rows only")
    chosen = parser.parse_args(arguments)
    names = [n for n in PROGRAMS if not chosen.programs or any(w in n for w in chosen.programs)]
    store = harness.Store("capture", again=chosen.again)
    for compiler in ("ours", "torch"):
        _measure(store, compiler, [n for n in names if store.stored(f"{n} {compiler}") is None])
    return _print(store, names)


def _measure(store: harness.Store, compiler: str, waiting: Sequence[str]) -> None:
    queue = list(waiting)[::-1]
    while queue:
        with harness.worker(serve, compiler, environment=_ENVIRONMENT) as child:
            while queue:
                name = queue.pop()
                try:
                    row = child.ask(name, limit=2 * LIMIT)
                except harness.Failed as error:
                    store.put(f"{name} {compiler}", {"failed": str(error)[-700:]})
                    break
                store.put(f"{name} {compiler}", row)


def _print(store: harness.Store, names: Sequence[str]) -> int:
    lines, totals = [], collections.defaultdict(lambda: [0] * 5)
    wrong = 0
    for name in names:
        ours, torch = store.rows[f"{name} ours"], store.rows[f"{name} torch"]
        kind = PROGRAMS[name][0]
        counts = totals[kind], totals["all"]
        for count in counts:
            for place, holds in enumerate(
                (True, _one(ours), _right(ours), _one(torch), _right(torch))
            ):
                count[place] += holds
        wrong += not _right(ours)
        reason = ours.get("failed") or ours.get("error") or next(iter(ours["breaks"]), "")
        lines.append([name, *_cells(ours), str(len(ours.get("breaks", ()))), *_cells(torch),
                      reason.partition("\n")[0][:90]])  # fmt: skip
    head = ["program", "graphs", "right", "breaks", "torch: graphs", "right", "ours: why"]
    print(table(head, lines))
    head = ["kind", "programs", "one graph and right", "right", "torch: one and right", "right"]
    print(f"\n{table(head, [[kind, *map(str, row)] for kind, row in totals.items()])}")
    return 1 if wrong else 0


def _right(row: dict[str, Any]) -> bool:
    return bool(row.get("right"))


def _one(row: dict[str, Any]) -> bool:
    return _right(row) and row["graphs"] == 1 and not row["breaks"]


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    if "failed" in row:
        return "-", "DIED"
    return str(row["graphs"]), "yes" if row["right"] else "NO"


# One program --------------------------------------------------------------------------------------


def serve(compiler: str) -> Callable[[str], dict[str, Any]]:
    """In a child: what answers a program's name with its row."""
    warnings.simplefilter("ignore")
    return lambda name: measure(name, compiler)


def measure(name: str, compiler: str) -> dict[str, Any]:
    """{graphs, breaks, right, error} of one program. graphs: of the first call."""
    import torch

    import tracer_core
    from tracer_core.testing import CaptureCounter, CountingBackend, Mismatch, compare

    backend = CountingBackend()
    row: dict[str, Any] = {"right": True, "graphs": 0, "breaks": []}
    maker = PROGRAMS[name][1]
    simple, world = _made(maker)
    want = [_call(simple, world, number) for number in range(CALLS)]
    target, world = _made(maker)
    make = tracer_core.compile if compiler == "ours" else torch.compile
    tracer_core.reset()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if PROGRAMS[name][0] in WHOLE and _is_whole(make, target, world):
        target, world = _made(maker)
        compiled = make(target, backend=backend, fullgraph=True)
    else:
        target, world = _made(maker)
        compiled = make(target, backend=backend)
    with CaptureCounter() as counter:
        for number in range(CALLS):
            got = _call(compiled, world, number)
            if number == 0:
                row["graphs"] = len(backend.graphs)
                row["breaks"] = [f"{kind}: {why}"[:200] for kind, why, _ in counter.breaks]
            try:
                compare(want[number], got, path=f"call {number}")
            except Mismatch as error:
                row.update(right=False, error=str(error)[:300])
                break
    if compiler == "torch":
        counts = torch._dynamo.utils.counters["graph_break"]
        row["breaks"] = [f"{why.partition(chr(10))[0]}"[:200] for why in counts]
    return row


def _is_whole(make: Callable[..., Any], target: Any, world: Any) -> bool:
    """Whether the program runs under fullgraph=True."""
    from tracer_core.testing import CountingBackend

    full = make(target, backend=CountingBackend(), fullgraph=True)
    return _call(full, world, 0)[0][0] == "returned"


def _made(maker: Callable[[], Any]) -> tuple[Any, Any]:
    result = maker()
    return result if isinstance(result, tuple) else (result, None)


def _call(function: Callable[..., Any], world: Any, number: int) -> Any:
    """What can be seen of a call: its result or error, what it left behind."""
    import torch

    torch.manual_seed(number)
    random.seed(number)
    x = torch.randn(3, 4)
    try:
        result = ("returned", _trained(function(x)))
    except Exception as error:
        result = ("raised", type(error), str(error).partition("\n")[0])
    state = torch.get_rng_state(), random.random()
    return result, x, _told(world), state


def _trained(result: Any) -> Any:
    """The result, and what a backward of it gives; an iterator as what it yields."""
    import torch

    if isinstance(result, Iterator):
        return type(result).__name__, list(result)
    result = _rounded(result)
    tensors = [item for item in (result if isinstance(result, tuple) else (result,))
               if isinstance(item, torch.Tensor) and item.grad_fn is not None]  # fmt: skip
    leaves = [leaf for tensor in tensors for leaf in _leaves(tensor.grad_fn)]
    if tensors:
        for leaf in leaves:
            leaf.grad = None
        sum(tensor.double().sum() for tensor in tensors).backward()
    return result, [leaf.grad for leaf in leaves if leaf.grad is not None]


def _rounded(result: Any) -> Any:
    """NumPy's arrays and scalars as tensors, which are compared within rounding."""
    import numpy
    import torch

    if isinstance(result, (numpy.ndarray, numpy.generic)):
        return type(result), result.dtype, result.strides, torch.tensor(result)
    return tuple(map(_rounded, result)) if type(result) is tuple else result


def _leaves(node: Any) -> list[Any]:
    result, waiting, seen = [], [node], set()
    while waiting:
        item = waiting.pop()
        if item is None or item in seen:
            continue
        seen.add(item)
        if hasattr(item, "variable"):
            result.append(item.variable)
        waiting += [parent for parent, _ in item.next_functions]
    return sorted(result, key=lambda leaf: (tuple(leaf.shape), leaf.tolist()))


def _told(world: Any) -> Any:
    """A copy of what the program changes."""
    if isinstance(world, random.Random):
        return world.getstate()
    if hasattr(world, "__next__"):
        return next(world)
    if hasattr(world, "grad"):
        return world.grad
    if isinstance(world, list):
        return list(world)
    return dict(getattr(world, "__dict__", {}))
