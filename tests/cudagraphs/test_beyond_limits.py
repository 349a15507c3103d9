"""Beyond each limit of CUDA graphs results stay eager's, nothing is captured at each call, and the
report says why a size runs plainly."""

from __future__ import annotations

import pytest

from cudagraphs_backend import policy, runner
from tests.support.comparison import assert_equal

UNQUERIED = {"measured": True, "outputs": "saved"}


def results(x):
    return x.cos(), x.sin() * 2, (x + 1).relu()


def moving(x):
    return (x.cos() * 2 + x.sin()).relu()


#: Limit -> (its value in the test, program, sizes of the calls in turn, options, what the report says).
BEYOND = {
    "MAX_COPIED_RESULTS": (1, results, (64,), {}, ""),
    "MAX_COPIED_BYTES_PER_OPERATOR": (1, results, (64,), {}, ""),
    "MAX_COPIED_BYTES": (1, results, (64,), {}, ""),
    "MAX_REMEMBERED_SIZES": (2, moving, (8, 16, 24), {}, "more than 2 sizes"),
    "MAX_MEASURED_SIZES": (1, moving, (8, 16, 24), UNQUERIED, "1 of its sizes are recorded"),
    "MAX_MEASURED_COPIES": (8, moving, (64,), UNQUERIED, "are much to copy"),
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("side", ["under", "beyond"])
@pytest.mark.parametrize("name", BEYOND)
def test_a_limit(simulated, monkeypatch, name, side):
    value, program, sizes, options, says = BEYOND[name]
    if side == "beyond":
        monkeypatch.setattr(runner if hasattr(runner, name) else policy, name, value)
    compiled = simulated.compile(program, **options)
    captures, held = [], []
    for _ in range(24):
        for size in sizes:
            x = simulated.randn(size)
            held.append(x)  # the next call's input lies elsewhere
            assert_equal(compiled(x), program(x))
        captures.append(simulated.simulated.captures)
    assert captures[-1] == captures[19], captures
    assert says in simulated.reasons if side == "beyond" else not simulated.reasons
