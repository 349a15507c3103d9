"""Communication inside a compiled function: an explained break, in eager's order, between captured
graphs.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=4)

#: program -> (graphs, breaks). Functional collectives return a tensor subclass, which waits when it
#: is used.
PROGRAMS = {
    "reduced": (2, ["processes"]),
    "reduced_argument": (1, ["processes"]),
    "waited": (3, ["processes", "processes"]),
    "gathered": (2, ["processes"]),
    "gathered_into": (2, ["processes"]),
    "broadcast": (2, ["processes"]),
    "of_objects": (1, ["processes"]),
    "barrier": (2, ["processes"]),
    "functional_sum": (1, ["processes", "processes", "tensor_subclass"]),
    "functional_gather": (1, ["processes", "processes", "tensor_subclass", "tensor_subclass"]),
    "functional_scatter": (1, ["processes", "processes", "tensor_subclass", "tensor_subclass"]),
    "with_gradients": (2, ["processes"]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_collective(pair, program):
    graphs, breaks = PROGRAMS[program]
    for seen in pair.run("collectives:called", name=program):
        assert seen == {"graphs": graphs, "breaks": breaks, "recompiles": 0}
