"""Communication that no graph holds: an explained break, in eager's order, between captured graphs.
What a graph holds is in test_in_graph.py.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=4)

#: program -> (graphs, breaks).
PROGRAMS = {
    "of_objects": (1, ["processes"]),
    "barrier": (2, ["processes"]),
    "escaping": (2, ["unsupported_value"]),
    "awaited_later": (2, ["requested", "requested", "processes"]),
    "strided": (2, ["processes"]),
    "of_ranks": (2, ["processes"]),
    "in_place_with_gradient": (2, ["processes"]),
    "with_gradients": (2, ["processes"]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_collective(pair, program):
    graphs, breaks = PROGRAMS[program]
    for seen in pair.run("collectives:called", name=program):
        assert seen == {"graphs": graphs, "breaks": breaks, "recompiles": 0}
