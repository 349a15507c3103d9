"""The special functions of the kernels against float64 over all of float32's exponents, in ulp."""

from __future__ import annotations

import pytest
import torch

from inductor_backend.runtime.cpp.build import Library, build
from tests.inductor_runtime.test_prelude import every_exponent, loop, run, ulp_error

#: name -> (its meaning in float64, the greatest error in ulp, where it is looked at closely).
FUNCTIONS = {
    "erfinv": (torch.erfinv, 3.5, (-1, 1)),
    "digamma": (torch.digamma, 0.51, (-20, 50)),
    "i0": (torch.special.i0, 3.2, (-95, 95)),
    "i0e": (torch.special.i0e, 0.51, (-50, 50)),
    "i1": (torch.special.i1, 3.2, (-95, 95)),
    "i1e": (torch.special.i1e, 0.51, (-50, 50)),
}


@pytest.fixture(scope="module")
def library() -> Library:
    text = '#include "prelude.h"\n#include "prelude_special.h"\n'
    text += "".join(loop(name, "float", f"ts_{name}(x[i])") for name in FUNCTIONS)
    text += loop("hypot", "float", "ts_hypot(x[i], y[i])")
    return build([text], name="special_test")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_error_in_ulp(library: Library, name: str) -> None:
    exact_value_of, limit, (low, high) = FUNCTIONS[name]
    x = torch.cat([every_exponent(), torch.linspace(low, high, 1_000_000)])
    got, exact = run(library, name, x), exact_value_of(x.double())
    error = ulp_error(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= limit, (
        f"{name}({x[worst].item()!r}) = {got[worst].item()!r}, {error[worst]:.2f} ulp"
    )


def test_hypot_neither_overflows_nor_vanishes(library: Library) -> None:
    x = every_exponent()
    y = x.flip(0)
    assert ulp_error(run(library, "hypot", x, y), torch.hypot(x.double(), y.double())).max() <= 0.51
