"""Machine code of kernels does not depend on what ptxas gets wrong."""

from __future__ import annotations

import pytest

from tests.support.processes import reported_by_triton

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What tests/triton_kernels/pairs.py prints, from a process in which Triton compiles."""
    return reported_by_triton("tests.triton_kernels.pairs", cache=tmp_path_factory.mktemp("triton"))


def test_no_kernel_adds_pairs_of_16_bit_integers(report):
    """ptxas up to 13.1 makes 0 of the constant where only the upper half of a pair is read
    (`without_pairs`).
    """
    assert report["pairs in Triton's PTX"] > 0  # else this kernel shows nothing
    assert report["pairs in its machine code"] > 0
    assert report["pairs in ours"] == 0


def test_no_kernel_negates_a_16_bit_integer(report):
    """ptxas 13.0 makes 32768 of the negative of -32768 where it becomes a wider integer."""
    assert report["negatives in Triton's PTX"] >= 2  # else this kernel shows nothing
    assert report["negatives in ours"] == 0 and report["negatives assemble"]


def test_products_are_rounded_before_they_are_added(report):
    """A value that two kernels compute is the same to the bit in both."""
    assert report["products and sums"] > 0
    assert report["fused"] == 0
