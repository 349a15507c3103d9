"""``python -m tests.opinfo.layouts [--only NAME] [--limit N]``: what the graph promises of each ATen
node, beside what the operator gives, for the operators of PyTorch's database.

In: the database's samples, and their variants: gaps, transposed, overlapping, empty, 0-d, and
operands of several dtypes. Out: each kind of difference in dtype, sizes or strides, how often it was
seen, and one example. No kernel of ours runs.
"""

from __future__ import annotations

import argparse
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

import tracer_core
from tests.operator_programs.layouts import NAME, Promises, _Compared
from tests.opinfo import cases
from tests.opinfo.values import copied, rebuild, tensors
from tests.support.opinfo_database import op_db
from tracer_core.plugin_api import Backend, hookimpl
from tracer_core.registry import discovery

DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64)
OTHER = {
    torch.float32: torch.float16, torch.float16: torch.float32, torch.int64: torch.float32,
    torch.bool: torch.int64, torch.complex64: torch.float32,
}  # fmt: skip


def _mixed(case: cases.Case, which: int) -> cases.Case:
    """The case with the operand number `which` in another dtype."""
    number = -1

    def change(leaf: Any) -> Any:
        nonlocal number
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number += 1
        return leaf.to(OTHER.get(leaf.dtype, leaf.dtype)) if number == which else leaf

    args, kwargs = rebuild((case.args, case.kwargs), change)
    return cases.Case("forward", f"{case.name} mixed {which}", case.function, args, kwargs)


def of_operator(op: Any, limit: int) -> Iterator[cases.Case]:
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        items = list(cases.forward(op, dtype, limit, "cpu"))
        yield from items
        for case in items:
            if dtype in (torch.float32, torch.int64) and len(tensors((case.args, case.kwargs))) > 1:
                yield from (_mixed(case, which) for which in (0, 1))


def sweep(ops: list[Any], promises: Promises, limit: int) -> Counter[str]:
    """Runs the operators; the errors that only the compiled programs raised."""

    def compiled(graph: Any, spec: Any) -> Any:
        return lambda inputs: list(_Compared(graph, promises).run(*inputs))

    @hookimpl
    def tracer_backends() -> list[Backend]:
        return [Backend(name=NAME, compile=compiled, ir="aten", shapes="symbolic")]

    unregister = discovery.register(types.SimpleNamespace(tracer_backends=tracer_backends), NAME)
    errors = Counter[str]()
    try:
        for op in ops:
            for case in of_operator(op, limit):
                promises.seed = f"{op.name} {case.name}"  # type: ignore[assignment]
                _try(case, op.name, errors)
    finally:
        unregister()
    return errors


def _try(case: cases.Case, name: str, errors: Counter[str]) -> None:
    function = case.function
    fast = tracer_core.compile(lambda a, k: function(*a, **k), backend=NAME, dynamic=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*copied(case.args), **copied(case.kwargs))
        except Exception:
            return  # eager refuses it
        try:
            fast(copied(case.args), copied(case.kwargs))
        except Exception as error:
            errors[f"{name}: {type(error).__name__}: {error}"[:200]] += 1


def main() -> int:
    known = argparse.ArgumentParser(prog="python -m tests.opinfo.layouts", description=__doc__)
    known.add_argument("--only", default="")
    known.add_argument("--limit", type=int, default=6)
    options = known.parse_args()
    promises = Promises()
    ops = [item for item in op_db if options.only in item.name]
    errors = sweep(ops, promises, options.limit)
    for key, number in promises.found.most_common():
        print(number, *key, promises.examples[key])
    for text, number in errors.most_common():
        print(number, text)
    print(f"{promises.nodes} nodes, {len(promises.found)} kinds of differences")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
