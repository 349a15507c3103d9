"""A sample of the sweep: the same rows in every run, few calls each, in this process."""

from __future__ import annotations

import pytest
import torch

from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from tests.opinfo.cases import Case
from tests.opinfo.judge import differs
from tests.opinfo.row import DTYPES, Row

#: (operator, dtype): one or two of each family, and those that were wrong once.
ROWS = [
    ("add", "int32"), ("floor_divide", "float32"), ("logical_and", "float32"), ("clamp_max",
    "uint8"),
    ("sum", "bfloat16"), ("std", "float32"), ("max_reduction_no_dim", "int64"), ("gather",
    "float32"),
    ("index_select", "int64"), ("cumsum", "float32"), ("nn_functional_softmin", "float16"),
    ("sort", "float32"),
]  # fmt: skip


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name, dtype", ROWS)
def test_row(name, dtype):
    result = Row(name, DTYPES[dtype], 2, lambda at: None).run()
    assert result["status"] == "passed", result["problems"]
    listed = {str(operator) for operator in FALLBACKS}
    assert not set(result["externs"]) - listed, "an operator that is not listed ran as ATen's"
    unlisted = [reason for reason in result["eager"] if "neither a lowering nor a place" in reason]
    assert not unlisted, unlisted


def test_a_wrong_kernel_is_found(monkeypatch):
    """The sweep fails where a lowering computes something else."""
    from inductor_backend.codegen.common import op_table

    monkeypatch.setitem(op_table.CPP.ops, "add", lambda value, a, b: f"{a} - {b}")
    result = Row("add", DTYPES["float32"], 1, lambda at: None).run()
    assert result["status"] == "wrong" and result["problems"], result


def judged(program, change, *inputs):
    """What the judge says of eager's own result, changed."""
    case = Case("forward", "forward 0", program, inputs, {})
    row = Row("add", DTYPES["float32"], 1, lambda at: None)
    (expected,) = row.eager([case])
    (actual,) = row.eager([case])
    actual.result.copy_(change(actual.result))
    return differs(expected, actual, row.exact(case))


def test_small_elements_are_judged_by_themselves():
    x = torch.tensor([1e6, 1e-3, 3.0])
    assert judged(torch.sin, lambda y: y + torch.tensor([0.0, 1e-7, 0.0]), x), (
        "a wrong element beside large ones"
    )
    assert judged(torch.exp2, lambda y: y * torch.tensor([1.0, 1.0, 1.00001]), x[1:].repeat(2)[:3])
    assert judged(lambda x: x * 3, lambda y: y * (1 + 2e-7), x) is None, "a unit in the last place"


def test_rounding_of_intermediates_is_allowed():
    """Of a difference of nearly equal numbers few digits are known, and another order of the same
    sums gives others.
    """
    x = torch.rand(3, 4000, generator=torch.Generator().manual_seed(0)) + 1
    program = lambda x: (x - x.mean(1, keepdim=True)).sum(1)
    assert judged(program, lambda y: y + 1e-4, x) is None
    assert judged(program, lambda y: y + 10.0, x)
