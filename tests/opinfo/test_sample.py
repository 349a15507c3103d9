"""A sample of the sweep: the same rows in every run, few calls each, in this process."""

from __future__ import annotations

import pytest

from inductor_backend.externs.fallbacks import FALLBACKS
from tests.opinfo.row import DTYPES, Row

#: (operator, dtype): one or two of each family, and those that were wrong once.
ROWS = [
    ("add", "int32"), ("floor_divide", "float32"), ("logical_and", "float32"), ("clamp_max", "uint8"),
    ("sum", "bfloat16"), ("std", "float32"), ("max_reduction_no_dim", "int64"), ("gather", "float32"),
    ("index_select", "int64"), ("cumsum", "float32"), ("nn_functional_softmin", "float16"), ("sort", "float32"),
]  # fmt: skip


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
    from inductor_backend.codegen.cpp import expressions

    monkeypatch.setitem(expressions.CPP_OPS, "add", lambda value, a, b: f"{a} - {b}")
    result = Row("add", DTYPES["float32"], 1, lambda at: None).run()
    assert result["status"] == "wrong" and result["problems"], result
