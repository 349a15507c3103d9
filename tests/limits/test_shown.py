"""`explain` and `last_compile` name the limits that a program reached, with the user's line."""

from __future__ import annotations

import torch

import tracer_core

X = torch.ones(3)


def smoothed(x, steps):
    for step in steps:
        x = x * 0.5 + step
    return x


def steps(count):
    return iter([0.25] * count)


def test_explain_of_a_function():
    messages = tracer_core.explain(smoothed)(X, steps(65))
    (line,) = (limit for limit in messages.limits if limit.startswith("MAX_ITEMS_AHEAD"))
    assert f"{__file__}:13 in smoothed: 65 of at most 64 items" in line
    assert line.endswith("The loop ends the graph at each item.")
    assert f"limit reached: {line}" in str(messages)
    assert tracer_core.explain(smoothed)(X, steps(64)).limits == ()


def test_what_a_compiled_function_reached_before():
    fast = tracer_core.compile(smoothed, backend="eager")
    fast(X, steps(65))
    rows = [record for record in tracer_core.last_compile(fast) if record.name == "limit"]
    assert rows and rows[0].text.startswith("MAX_ITEMS_AHEAD")
    messages = tracer_core.explain(fast)(X, steps(3))  # this call reaches none
    assert rows[0].text in messages.limits
    tracer_core.reset()
    assert tracer_core.explain(fast)(X, steps(3)).limits == ()


def test_functions_have_limits_of_their_own():
    item, other = (tracer_core.compile(smoothed, backend="eager") for _ in range(2))
    item(X, steps(70))
    other(X, steps(2))
    assert tracer_core.explain(other)(X, steps(2)).limits == ()
    assert tracer_core.explain(item)(X, steps(2)).limits
