"""The step of an optimizer alone, each class of torch.optim in each of its forms.

A row is a class, a form (``default``, ``single`` for ``foreach=False``, ``foreach``, ``fused``,
``capturable``) and a way (``eager``, ``ours``, ``torch``), in a process of its own with empty
caches: 120 parameters of 24 blocks (13 million elements), two sets of gradients in turn, as
backward passes leave them at other addresses. A row has the milliseconds of a settled step, the
seconds of the first three, norms of the weights after ten steps, which must be eager's, and for
ours the graphs captured and those captured after the third step. A form that eager refuses on the
device (``capturable`` on a CPU) has no row.
"""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import compilers, harness
from benchmarks.measured_steps import counting, counts, seconds_of
from benchmarks.models import SEED
from benchmarks.timing import geometric_mean, table

BLOCKS, WIDTH = 24, 256
COMPARED, WARM_UP, ROUND, ROUNDS = 10, 20, 10, 5
#: How far the norm of a weight may be from eager's, relative to it.
ALLOWED = 1e-4
WAYS = ("eager", "ours", "torch")
FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
}
CLASSES = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam",
           "RMSprop", "Rprop", "SGD", "SparseAdam")  # fmt: skip
#: What makes a class do what people use it for.
ARGUMENTS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "LBFGS": {"max_iter": 2}}


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or its weights are others."""
    parser = harness.options("optimizer_steps", __doc__, limit=300.0)
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=CLASSES)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="rows at once; timed one by one")
    parser.add_argument("--seconds", type=float, default=None, help="begin no row after so many")
    parser.add_argument("--json", type=Path, default=None, help="write all rows there, too")
    chosen = parser.parse_args(arguments)
    name = harness.require_gpu() if chosen.device == "cuda" else ""
    store = harness.Store("optimizer_steps", again=chosen.again, device=name)
    measures = {
        " ".join(key): partial(harness.fresh, steps, *key, chosen.device, limit=chosen.limit)
        for key in _keys(chosen.classes, chosen.forms, chosen.ways)
    }
    rows: dict[str, dict[str, Any]] = {}
    for key, row in store.measured(measures, workers=chosen.workers, seconds=chosen.seconds):
        rows[key] = row
        print("  ".join(_cells(key, rows)), flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    rows = {key: rows[key] for key in measures if key in rows and not _refused(key, rows)}
    lines = [_cells(key, rows) for key in rows]
    print("\n" + table(["class", "form", "way", "ms a step", "beside eager", "first 3 calls s", "graphs", "late",
                        "breaks", "weights", "why"], lines))  # fmt: skip
    print(_means(rows))
    return int(any("failed" in row or _differs(key, rows) for key, row in rows.items()))


def _keys(
    classes: Sequence[str], forms: Sequence[str], ways: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yields the combinations of a class, a form that its constructor takes, and a way."""
    import torch

    for name in classes:
        taken = inspect.signature(getattr(torch.optim, name).__init__).parameters
        for form in forms:
            if all(item in taken for item in FORMS[form]):
                yield from ((name, form, way) for way in ways)


# -- what is printed --


def _of(key: str, way: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    row = rows.get(" ".join([*key.split()[:2], way]), {})
    return {} if "failed" in row or "refused" in row else row


def _refused(key: str, rows: dict[str, dict[str, Any]]) -> bool:
    """Whether eager has no such form on this device."""
    return "refused" in rows.get(" ".join([*key.split()[:2], "eager"]), {})


def _differs(key: str, rows: dict[str, dict[str, Any]]) -> str:
    """What is wrong with the weights, or ""."""
    eager, row = _of(key, "eager", rows), rows[key]
    if not eager or "norms" not in row:
        return ""
    worst = max(
        abs(mine - theirs) / max(abs(theirs), 1e-6)
        for theirs, mine in zip(eager["norms"], row["norms"], strict=True)
    )
    return f"off by {worst:.1e}" if not worst <= ALLOWED else ""


def _cells(key: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    row, names = rows[key], key.split()
    for kind in ("failed", "refused"):
        if kind in row:
            return [*names, kind, *[""] * 6, (row[kind].splitlines() or [""])[-1][:80]]
    eager = _of(key, "eager", rows)
    return [
        *names, f"{row['milliseconds']:.3f}",
        f"{eager['milliseconds'] / row['milliseconds']:.2f}" if eager else "",
        " ".join(f"{item:.1f}" for item in row["first"]),
        *(str(row.get(value, "")) for value in ("graphs", "late", "breaks")),
        _differs(key, rows) or ("equal" if eager else "no eager row"),
        "; ".join([*row.get("kinds", []), *row.get("fallbacks", [])])[:120],
    ]  # fmt: skip


def _means(rows: dict[str, dict[str, Any]]) -> str:
    """Returns how much faster ours is than the other ways, by geometric mean, and its worst row."""
    lines = []
    for way in ("eager", "torch"):
        ratios = {
            key: _of(key, way, rows)["milliseconds"] / row["milliseconds"]
            for key, row in rows.items()
            if key.endswith(" ours") and "milliseconds" in row and _of(key, way, rows)
        }
        if ratios:
            worst = min(ratios, key=lambda key: ratios[key])
            lines.append(
                f"{geometric_mean(list(ratios.values())):.2f} times {way} over {len(ratios)} rows; least"
                f" {ratios[worst]:.2f} ({worst})"
            )
    return "\n".join(lines)


# -- one row --


def steps(name: str, form: str, way: str, device: str) -> dict[str, Any]:
    """Steps an optimizer; the row."""
    import torch

    torch.manual_seed(SEED)
    weights = _weights(device, matrices=name == "Muon")
    sets = [[torch.randn_like(weight) * 1e-2 for weight in weights] for _ in range(2)]
    if name == "SparseAdam":
        sets = [[gradient.relu().to_sparse(1) for gradient in gradients] for gradients in sets]
    optimizer = getattr(torch.optim, name)(
        weights, lr=1e-3, **ARGUMENTS.get(name, {}), **FORMS[form]
    )
    closure = [lambda: torch.zeros((), device=device)] if name == "LBFGS" else []
    with counting(way == "ours") as (counted, fallbacks):
        update = compilers.compiler(way)(lambda: optimizer.step(*closure))

        def step(number: int) -> None:
            for weight, gradient in zip(weights, sets[number % 2], strict=True):
                weight.grad = gradient
            update()

        first, late = [], 0
        for number in range(COMPARED):
            start = time.perf_counter()
            try:
                step(number)
            except (RuntimeError, AssertionError, ValueError) as error:
                if way != "eager":
                    raise
                return {"refused": str(error)}
            weights[0].sum().item()  # waits for the device
            if number < 3:
                first.append(time.perf_counter() - start)
                late = len(counted.graphs) if counted is not None else 0
        norms = [float(weight.detach().double().norm()) for weight in weights]
        with harness.alone():
            for number in range(WARM_UP):
                step(number)
            seconds = [seconds_of(step, device, ROUND) for _ in range(ROUNDS)]
    row = {"milliseconds": statistics.median(seconds) * 1e3, "first": first, "norms": norms}
    if counted is not None:
        row["late"] = len(counted.graphs) - late
    return row | counts(counted, fallbacks)


def _weights(device: str, *, matrices: bool) -> list[Any]:
    """Returns the parameters of `BLOCKS` feed-forward blocks with a norm."""
    import torch

    shapes = [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,), (WIDTH,)] * BLOCKS
    return [
        torch.nn.Parameter(torch.randn(shape, device=device) * 0.02)
        for shape in shapes
        if not matrices or len(shape) == 2
    ]
