"""docs/operators.md is what the committed results of the sweep say, and those hold to the explicit
list.
"""

from __future__ import annotations

import json

import torch

from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering.context import LOWERINGS
from tests.opinfo import page


def test_page_is_made_from_the_results():
    assert page.PAGE.read_text() == page.page(json.loads(page.RESULTS.read_text()))


def test_externs_are_on_the_list():
    listed = {str(operator) for operator in (*FALLBACKS, *LOWERINGS)}
    for row in json.loads(page.RESULTS.read_text())["rows"]:
        # ``index_add_``: of a listed operator, the form that writes to an input
        eager = [name.replace("_.", ".") for name in row["externs"] if name.startswith("aten.")]
        # the results may be of another torch: 2.15 has no aten.cholesky
        here = [name for name in eager if hasattr(torch.ops.aten, name.split(".")[1])]
        unknown = [name for name in here if name not in listed]
        assert not unknown, (row["op"], row["dtype"], unknown)
    assert all(FALLBACKS.values())
    assert torch.ops.aten.mm.default in FALLBACKS
