"""Random programs that replace, read, add and drop items of a list, whose items the caller changes
between calls."""

from __future__ import annotations

import random

import pytest
import torch

import tracer_core
from tracer_core.testing import compare

STEPS = (
    "items[{i}] = {n}",
    "items[{i}] += {n}",
    "items[{i}] = items[{j}]",
    "items[{i}], items[{j}] = items[{j}], items[{i}]",
    "total += items[{i}]",
    "total += len(items)",
    "total += sum(items)",
    "total += items[-1]",
    "items[-1] -= {n}",
    "items.append({n})",
    "items.append(items[{i}])",
    "total += items.pop()",
    "del items[{i}]",
    "items.insert({i}, {n})",
    "items[{i}:{j}] = [{n}]",
    "items.reverse()",
    "total += items[{i}:].count({n})",
    "other = items; other[{i}] = total",
    "items[{i}] = [total, items[{j}]][0]",
    "total += max(items) if {n} in items else items.index(items[{i}])",
    "log.extend(items)",
    "items[{i}] += len(log)",
    "kept = tuple(items); items[{i}] = 0; total += kept[{i}]",
)


def program(seed):
    draw = random.Random(seed)
    lines = ["def step(x, items, log):", "    total = 0"]
    for _ in range(draw.randint(2, 6)):
        numbers = {"i": draw.randint(0, 2), "j": draw.randint(0, 3), "n": draw.randint(1, 3)}
        lines += [f"    {part}" for part in draw.choice(STEPS).format(**numbers).split("; ")]
        if draw.random() < 0.1:
            lines.append("    graph_break()")
    lines.append("    return x * total, total, items[:2]")
    names = {"graph_break": tracer_core.graph_break}
    exec("\n".join(lines), names)
    return names["step"]


def session(step, seed):
    """What each of eight calls gives and leaves: the list, and one that it is added to."""
    draw, actual = random.Random(seed), []
    items, log = [draw.randint(0, 4) for _ in range(5)], []
    for _ in range(8):
        try:
            result = step(torch.ones(2), items, log)
        except (IndexError, ValueError) as error:
            result = str(error)
        actual.append((result, list(items), list(log)))
        del log[3:]
        if items and draw.random() < 0.5:
            items[draw.randrange(len(items))] = draw.randint(0, 4)
        if draw.random() < 0.3 or len(items) < 4:
            items[:] = [draw.randint(0, 4) for _ in range(draw.randint(4, 6))]
    return actual


@pytest.mark.sweep(keep=25)
@pytest.mark.parametrize("seed", range(120))
def test_a_random_program(seed):
    step = program(seed)
    expected = session(step, seed)
    compare(expected, session(tracer_core.compile(step, backend="eager"), seed))
