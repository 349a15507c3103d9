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
    inputs = [item.clone() if isinstance(item, torch.Tensor) else item for item in make()]
    for item in inputs:
        if trained and isinstance(item, torch.Tensor) and item.is_floating_point():
            item.requires_grad_()
    return inputs


def outcome(function, value, trained):
    """The result and gradients, or the error."""
    torch.manual_seed(1)
    try:
        result = function(*value)
        parts = result if isinstance(result, (tuple, list)) else [result]
        differentiable = [
            part for part in parts if isinstance(part, torch.Tensor) and part.requires_grad
        ]
        if trained and differentiable:
            sum(item.sum() for item in differentiable).backward()
    except Exception as error:
        return type(error)
    tensors = [item for item in value if isinstance(item, torch.Tensor)]
    return [parts, [tensor.grad for tensor in tensors]]


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
            actual = outcome(compiled, prepared(make, trained), trained)
            if isinstance(expected, type):
                assert actual is expected, f"{kind} in {order}: {actual}"
            else:
                assert isinstance(actual, list), f"{kind} in {order}: {actual}"
    return isinstance(bad, type)


@pytest.mark.sweep(keep=14)
@pytest.mark.parametrize("name", ROWS)
def test_a_bad_call_is_refused(name):
    call = ROWS[name]
    refused = [check(call.program, call, trained) for trained in (False, True)[: 1 + call.trained]]
    assert any(refused), "eager takes the bad call"


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", BY_VALUE)
def test_a_bad_call_is_refused_where_nobody_reads_the_result(name):
    call = ROWS[name]

    def function(*value):
        call.program(*value)
        return value[0] * 2

    assert check(function, call, trained=False)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", BY_VALUE)
def test_a_bad_call_is_refused_where_a_part_of_the_result_is_read(name):
    call = ROWS[name]

    def function(*value):
        result = call.program(*value)
        while isinstance(result, (tuple, list)):
            result = result[0]
        return result.reshape(-1)[:1] * 1

    assert check(function, call, trained=False)


def test_the_page_is_made_of_the_rows():
    assert PAGE.read_text() == page()
