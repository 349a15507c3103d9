"""Views of buffers that grow: shapes stay, strides change, and one graph serves them all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.eager_reference import compare_with_eager, same


def histories(rows: int = 2) -> list[torch.Tensor]:
    """Token histories of growing length."""
    torch.manual_seed(0)
    return [torch.randn(rows, length, 4) for length in range(5, 11)]


#: name -> the part of a history that the program is given.
WINDOWS = {
    "last_token": lambda history: history[:, -1],
    "last_tokens": lambda history: history[:, -3:],
    "last_tokens_transposed": lambda history: history[:, -3:].transpose(1, 2),
    "every_second_feature": lambda history: history[:, -3:, ::2],
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("rows", [1, 2])
def test_windows_into_a_growing_history_share_one_graph(name, rows):
    def sampled(logits):
        return logits.softmax(-1), logits.argmax(-1), logits.stride(), logits.is_contiguous()

    steps = [(WINDOWS[name](history),) for history in histories(rows)]
    same(sampled, *steps, graphs=2, breaks=0)


def test_views_of_a_window_have_the_strides_of_the_call():
    same(
        lambda x: (x.transpose(0, 1), x[:, 1:], x.unsqueeze(0), torch.empty_like(x).stride()),
        *[(history[:, -3:],) for history in histories()],
        graphs=2,
        breaks=0,
    )


def test_a_window_that_is_written_to():
    def make():
        def fn(window):
            window.mul_(2)
            return window.sum(1)

        return fn

    compare_with_eager(make, *[(history[:, -3:],) for history in histories()], graphs=2, breaks=0)


def test_contiguous_tensors_keep_a_graph_of_their_own():
    parts = [history[:, -3:] for history in histories()]
    steps = [(part,) for part in (*parts[:3], parts[0].contiguous(), *parts[3:])]
    compared = same(lambda x: (x + 1, x.is_contiguous()), *steps, breaks=0)
    assert len(compared.counter.graphs) == 3


def test_another_order_of_dimensions_is_another_graph():
    images = [
        torch.randn(2, 3, 4, 4),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ]
    same(lambda x: (x * 2, x.stride()), *[(image,) for image in images * 2], graphs=2, breaks=0)


def test_gradients_of_windows():
    layer = nn.Linear(4, 3)
    compiled = tracer_core.compile(lambda x: layer(x).relu() * x.sum(), backend="aten_eager")
    for history in histories():
        gradients = []
        for run in (compiled, compiled.__wrapped__):
            leaf = history.clone().requires_grad_()
            run(leaf[:, -1]).sum().backward()
            gradients.append((leaf.grad, layer.weight.grad))
            layer.weight.grad = None
        torch.testing.assert_close(*gradients)


def test_compiled_kernels_read_strides_at_run_time():
    compiled = tracer_core.compile(lambda x: (x.sin() + 1).sum(1))
    for history in histories():
        window = history[:, -3:]
        torch.testing.assert_close(compiled(window), compiled.__wrapped__(window))
