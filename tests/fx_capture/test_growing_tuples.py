"""A loop that ends when data say so and collects its results in a tuple: one graph for every length."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

import tracer_core
from tests.fx_capture.test_profiled_branches import captures
from tracer_core.testing import compare

Pair = namedtuple("Pair", "first second")


def steps(x: torch.Tensor, end: float) -> tuple[Any, ...]:
    """What `generate(output_logits=True)` does."""
    logits: tuple[Any, ...] = ()
    while x.max() < end:
        x = x * 2
        logits += (x.sum(), "a step")
        again = logits
    return x, logits, again is logits


def test_one_graph_for_every_length() -> None:
    fast = tracer_core.compile(steps, backend="eager", recompile_limit=4)
    for end in (3.0, 20.0, 1000.0, 20.0):
        x = torch.ones(3)
        compare(steps(x, end), fast(x, end), path="results")
    before = captures(fast)
    fast(torch.ones(3), 1e6)
    assert captures(fast) <= before + 2  # what returns the tuple reads its length


def collected(kind: str, x: torch.Tensor, held: Any) -> Any:
    if kind == "read":
        held += (x,)
        return held[0] + 1, len(held), held
    if kind == "twice":
        more = held + (x,)
        return more, more is held, held + (x + 1,), more
    if kind == "in a list":
        items = [held + (x,)]
        return items, items[0][-1] is x
    if kind == "compared":
        return held + (1,) == (*held, 1), held + () is held
    return (held + (x,))[:-1], held + [x] if isinstance(held, list) else None


@pytest.mark.parametrize("kind", ["read", "twice", "in a list", "compared", "a part"])
@pytest.mark.parametrize(
    "held", [(), (1, 2.5), (torch.ones(2),), Pair(3, 4), torch.Size((2, 3)), [5]]
)
def test_a_tuple_from_before_a_graph_break(kind: str, held: Any) -> None:
    def program(x: torch.Tensor, held: Any) -> Any:
        x = x + 1 if x.sum() > -99 else x
        try:
            return collected(kind, x, held)
        except TypeError as error:
            return str(error)

    fast = tracer_core.compile(program, backend="eager")
    for n in (1, 2, 3):
        x = torch.full((2,), float(n))
        own = [list(held) if type(held) is list else held for _ in range(2)]
        compare(program(x, own[0]), fast(x, own[1]), path="results")
