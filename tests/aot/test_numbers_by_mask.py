"""A number that is stored by a mask or by indices is made in the graph: it is no constant that each
call hands over, or copies to a device."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.plugin_api import Backend

MASKED = {
    "mask": lambda x: x > 0,
    "indices": lambda x: torch.tensor([0, 2]),
    "row_and_indices": lambda x: (torch.tensor([1, 0]), slice(None)),
    "slice": lambda x: slice(0, 2),
}
VALUES = {
    torch.float32: 1.2, torch.float16: 70000.0, torch.bfloat16: 1, torch.int64: True, torch.int32: 3,
    torch.bool: 2, torch.complex64: 1 + 2j, torch.uint8: 7,
}  # fmt: skip


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("where", MASKED)
def test_numbers(where, dtype):
    specs = []

    def compile_graph(graph, spec):
        specs.append(spec)
        return lambda inputs: graph.forward(*inputs)

    index = MASKED[where]((torch.arange(12).reshape(4, 3) % 3) - 1)

    def f(x, index):
        y = x.clone()
        y[index] = VALUES[dtype]
        return y

    backend = Backend(name="notes_inputs", compile=compile_graph, ir="aten")
    fast = tracer_core.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        x = (torch.arange(12).reshape(4, 3) - 5).to(dtype)
        torch.testing.assert_close(fast(x, index), f(x, index), equal_nan=True, rtol=0, atol=0)
    (spec,) = specs
    assert not any(value.source.startswith("constant") for value in spec.inputs)
    assert len(spec.inputs) <= 3


def test_gradients_go_around_what_is_stored():
    def f(x):
        y = x * 2
        y[x > 0] = 3.0
        return (y * y).sum()

    fast = tracer_core.compile(f)
    for _ in range(2):
        ours, theirs = (torch.linspace(-1, 1, 8).requires_grad_() for _ in range(2))
        fast(ours).backward()
        f(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
