"""Running sums, products and extremes as Triton kernels, interpreted: rows in registers, rows
walked in a loop, parts of rows.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from inductor_backend.codegen.triton import block_sizes
from inductor_backend.lowering import scan
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = [
    pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy: infinities less infinities
]

NAN = torch.tensor(
    [[1.0, 5.0, 5.0, float("nan"), 7.0, 2.0], [-1.0, -2.0, -1.0, -1.0, float("-inf"), 3.0]]
)
FAR = torch.tensor([[float("-inf")] * 3 + [1.0, 2.0, float("inf"), 0.0]])

SCANS = {
    "sums": (lambda x: (x.cumsum(1) + 1, x.sin().cumsum(0) * 2), R(4, 11)),
    "products": (lambda x: (x.cumprod(1), (x * 2).cumprod(0)), R(3, 11)),
    "logsumexp": (lambda x, y: (x.logcumsumexp(1), y.logcumsumexp(1)), R(3, 11), FAR),
    "extremes": (lambda x: (*x.cummax(1), *x.cummin(1)), NAN),
    "extremes alone": (lambda x: (x.cummax(0).values, x.cummin(1).values), NAN),
    "equal elements": (lambda x: (*x.cummax(1), *x.cummin(0)), I(0, 3, 4, 9)),
    "integers": (lambda x: (x.cumsum(1), x.cumprod(0), x.int().cumsum(0)), I(-3, 4, 4, 9)),
    "bools": (lambda x: ((x > 0).cumsum(1), *(x > 0).cummax(1), (x > 0).cumsum(0)), R(3, 9)),
    "bfloat16": (lambda x: (x.cumsum(1), *x.cummin(1)), R(3, 17).bfloat16()),
    "float64": (lambda x: x.cumsum(0), R(9, 3).double()),
    "one row": (lambda x: (x.cumsum(0), x.cumprod(0)), R(20)),
    "three dimensions": (lambda x: x.transpose(1, 2).cumsum(1), R(2, 5, 7)),
    "with a reduction of the same rows": (lambda x: (x.cumsum(1), x.sum(1), x * 2), R(5, 13)),
    "nothing": (lambda x: (x.cumsum(0), x.cumsum(1)), R(0, 3)),
}


def externs(result):
    return result.compilation.runner.artifact.externs


@pytest.mark.parametrize("name", SCANS)
def test_rows_in_registers(name):
    fn, *inputs = SCANS[name]
    assert externs(checked(fn, *inputs)) == ()


@pytest.mark.parametrize("name", ["sums", "logsumexp", "bools", "equal elements"])
def test_rows_walked_in_a_loop(name, monkeypatch):
    monkeypatch.setattr(block_sizes, "MAX_PERSISTENT", 1)
    monkeypatch.setattr(block_sizes, "MAX_COLUMN", 1)
    original = block_sizes._reduction

    def small(*arguments):
        tile = original(*arguments)
        axes = (tile.axes[0], block_sizes.replace(tile.axes[1], block=4))
        return block_sizes.replace(tile, axes=axes)

    monkeypatch.setattr(block_sizes, "_reduction", small)
    fn, *inputs = SCANS[name]
    result = checked(fn, *inputs)
    assert any("for start in" in text for text in result.compilation.sources)


def test_parts_of_few_long_rows(monkeypatch):
    monkeypatch.setattr(scan, "MAX_ROW", 16)
    monkeypatch.setattr(scan, "PARTS", (4, 8))
    x = R(3, 40)
    x[1, 13] = float("nan")
    result = checked(lambda x: (x.cumsum(1), (x + 1).cumprod(1), x.cummax(1).values), x)
    assert externs(result) == ()
    assert (
        sum("_parts" in text or "associative_scan" in text for text in result.compilation.sources)
        >= 4
    )
    result = checked(lambda x: (x.t().cumsum(0), x.cummin(1).values), I(-4, 5, 3, 40))
    assert externs(result) == ()
    # Positions cannot be put together from parts, and 41 has no parts.
    result = checked(lambda x, y: (*x.cummax(1), y.cumsum(1)), R(3, 40), R(3, 41))
    assert sorted(externs(result)) == ["aten.cummax.default", "aten.cumsum.default"]


def test_gradients_and_symbolic_sizes():
    result = checked(lambda x: x.cumsum(1) * 2, R(4, 6), dynamic=True)
    for size in ((5, 9), (2, 30)):
        x = torch.randn(size)
        torch.testing.assert_close(result(x)[0], x.cumsum(1) * 2, atol=1e-5, rtol=1e-5)
    assert externs(result) == ()
