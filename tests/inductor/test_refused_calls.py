"""Calls that eager refuses raise the same error compiled: as the first call, and after good ones.

`tests.support.refused_calls` lists them, one for each check of ATen's kernels; docs/checks.md is
made of that list.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tracer_core
from tests.support.refused_calls import CALLS, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
ROWS = {call.name: call for call in CALLS}
#: What is looked at in the kernel, so that it may be computed for no reader, or for a part.
BY_VALUE = [name for name, call in ROWS.items() if call.kept_by == "the kernel"]


def prepared(make, trained):
    torch.manual_seed(2)
    given = [one.clone() if isinstance(one, torch.Tensor) else one for one in make()]
    for one in given:
        if trained and isinstance(one, torch.Tensor) and one.is_floating_point():
            one.requires_grad_()
    return given


def outcome(function, given, trained):
    """The result and gradients, or the error."""
    torch.manual_seed(1)
    try:
        result = function(*given)
        parts = result if isinstance(result, (tuple, list)) else [result]
        differentiable = [
            one for one in parts if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        if trained and differentiable:
            sum(one.sum() for one in differentiable).backward()
    except Exception as error:
        return type(error)
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    return [parts, [one.grad for one in tensors]]


def check(function, call, trained):
    good, bad = (
        outcome(function, prepared(make, trained), trained) for make in (call.good, call.bad)
    )
    assert isinstance(good, list), good
    if trained and isinstance(bad, list):
        return False
    for order in ("bad", "good, bad, good, bad"):
        compiled = tracer_core.compile(function, backend="inductor")
        for kind in order.split(", "):
            make, expected = (call.good, good) if kind == "good" else (call.bad, bad)
            found = outcome(compiled, prepared(make, trained), trained)
            if isinstance(expected, type):
                assert found is expected, f"{kind} in {order}: {found}"
            else:
                assert isinstance(found, list), f"{kind} in {order}: {found}"
    return isinstance(bad, type)


@pytest.mark.sweep(keep=40)
@pytest.mark.parametrize("name", ROWS)
def test_a_bad_call_is_refused(name):
    call = ROWS[name]
    refused = [check(call.program, call, trained) for trained in (False, True)[: 1 + call.trained]]
    assert any(refused), "eager takes the bad call"


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", BY_VALUE)
def test_a_bad_call_is_refused_where_nobody_reads_the_result(name):
    call = ROWS[name]

    def function(*given):
        call.program(*given)
        return given[0] * 2

    assert check(function, call, trained=False)


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", BY_VALUE)
def test_a_bad_call_is_refused_where_a_part_of_the_result_is_read(name):
    call = ROWS[name]

    def function(*given):
        result = call.program(*given)
        while isinstance(result, (tuple, list)):
            result = result[0]
        return result.reshape(-1)[:1] * 1

    assert check(function, call, trained=False)


def test_the_page_is_made_of_the_rows():
    assert PAGE.read_text() == page()
