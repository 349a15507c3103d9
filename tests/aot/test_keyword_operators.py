"""``a | b`` and ``a & b`` of tensors are operators that write to nothing, though the names of Python's
functions for them end as those of writes in place do."""

from __future__ import annotations

import operator

import pytest
import torch

import tracer_core
from tracer_core.plugin_api import Backend

BITS = torch.tensor([[True, False, True], [False, False, True]])
PROGRAMS = {
    "or of views of one tensor": lambda x: x[:, :, None] | x[:, None],
    "and of a tensor and itself": lambda x: x & x,
    "operators by name": lambda x: operator.and_(operator.or_(x, x[:1]), x.logical_not()),
    "written afterwards": lambda x: (x | x[:1]).logical_or_(x[1:]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_written(name):
    specs = []

    def compile_graph(graph, spec):
        specs.append(spec)
        return lambda inputs: graph.forward(*inputs)

    program = PROGRAMS[name]
    backend = Backend(name="notes_specs", compile=compile_graph, ir="aten")
    compiled = tracer_core.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        x = BITS.clone()
        version = x._version
        assert torch.equal(compiled(x), program(BITS))
        assert torch.equal(x, BITS) and x._version == version
    (spec,) = specs  # one graph, not cut
    assert spec.mutations == ()
