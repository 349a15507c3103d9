"""Autograd sees what compiled code writes to: whoever compares versions is told."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.plugin_api import Backend, Runner


def add_one(x):
    x.add_(1)
    return x * 2


@pytest.fixture(params=["eager", "aten_eager", "inductor"])
def backend(request):
    return request.param


def test_each_call_counts_up_the_version_of_what_it_writes(backend):
    fast = tracer_core.compile(add_one, backend=backend)
    x, other = torch.ones(5), torch.ones(5)
    for _ in range(3):
        before = x._version
        fast(x)
        assert x._version > before
    assert other._version == 0


def test_a_backward_whose_saved_tensor_was_written_to_raises(backend):
    fast = tracer_core.compile(add_one, backend=backend)
    fast(torch.ones(5))  # compiled before
    weight = torch.ones(5, requires_grad=True)
    y = weight * 2
    loss = (y * y).sum()
    with torch.no_grad():
        fast(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors_have_no_version(backend):
    fast = tracer_core.compile(add_one, backend=backend)
    with torch.inference_mode():
        x = torch.ones(5)
        for n in range(3):
            torch.testing.assert_close(fast(x), torch.full((5,), 2.0 * (n + 2)))


def test_frozen_statistics_are_made_again_after_training_wrote_to_them():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
    )
    fast = tracer_core.compile(model, options={"freeze": True})
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        for _ in range(2):
            model.eval()
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
            model.train()
            fast(x)
        model.eval()
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_graph_that_runs_out_of_memory_after_a_write_is_not_followed_by_the_program(error):
    """The program would write a second time. Any allocation may fail, whatever a backend says of
    its early writes.
    """
    short = False

    def compile_graph(graph, spec):
        def run(inputs):
            if short:
                inputs[0].data.add_(1)  # as a kernel writes, which no version counts
                raise error
            return graph.forward(*inputs)

        return Runner(run, mutated_on_error=frozenset())

    fast = tracer_core.compile(add_one, backend=Backend(name="short", compile=compile_graph))
    x = torch.ones(3)
    fast(x)
    assert x.tolist() == [2, 2, 2]
    short = True
    with pytest.raises(type(error)):
        fast(x)
    assert x.tolist() == [3, 3, 3]
