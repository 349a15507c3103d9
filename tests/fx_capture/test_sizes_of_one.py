"""One graph for sizes from 1 on, where mark_dynamic says so, and no wrong answer where a size of 1
is another program.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.comparison import assert_same
from tracer_core import markers

LAYER, CONVOLUTION, NORM = (
    torch.nn.Linear(6, 4),
    torch.nn.Conv2d(6, 16, 3),
    torch.nn.BatchNorm1d(6).eval(),
)
WORDS = torch.nn.Embedding(7, 4)

#: Programs of one input of (size, 6), for which one graph serves all sizes.
ONE = {
    "elements": lambda x: torch.relu(x) * 2 + 1,
    "with a row": lambda x: x + torch.arange(6.0),
    "with one row": lambda x: x - x.mean(0, keepdim=True),
    "with its own columns": lambda x: x * x.sum(1, keepdim=True),
    "with its transpose": lambda x: x @ x.t(),
    "layer": lambda x: LAYER(x),
    "convolution": lambda x: CONVOLUTION(x.view(-1, 1, 2, 3).repeat(1, 6, 32, 32)).mean(3),
    "norm": lambda x: NORM(x),
    "softmax of columns": lambda x: F.softmax(x, 0),
    "variance": lambda x: x.var(0, correction=0),
    "joined": lambda x: torch.cat([x, x * 2], 0),
    "stacked": lambda x: torch.stack([x, -x], 1).view(-1, 12),
    "batched product": lambda x: torch.bmm(x[:, :, None], x[:, None, :]),
    "expanded": lambda x: torch.ones(1, 6).expand(x.shape[0], 6) + x,
    "words": lambda x: WORDS(x.abs().long().clamp(max=6)),
    "in place": lambda x: (x * 1).add_(x).mul_(torch.ones(1, 6)),
    "rows gathered": lambda x: x.gather(1, torch.zeros(x.shape[0], 2, dtype=torch.long)),
    "cumulative": lambda x: x.cumsum(0),
    "size itself": lambda x: x / x.shape[0],
    "arange of its size": lambda x: x + torch.arange(x.shape[0])[:, None],
    "masked": lambda x: x.masked_fill(x > 0, 1.0).where(x < 1, torch.zeros(())),
    "view of it": lambda x: x.view(-1, 2, 3).transpose(1, 2),
    "largest": lambda x: (x.amax(0), x.argmax(0)),
}

#: Those that are another program for a size of 1, or may be.
TWO = {
    "squeezed": lambda x: x.squeeze(0) * 1,
    "squeezed everywhere": lambda x: x[:, :1].squeeze(),
    "transposed, contiguous": lambda x: x.t().contiguous(),
    "transposed, reshaped": lambda x: x.t().reshape(-1),
    "branch": lambda x: x * 2 if x.shape[0] == 1 else x + 1,
    "branch on more": lambda x: x * 2 if x.shape[0] > 1 else x + 1,
    "is it contiguous": lambda x: x * 2 if x.t().is_contiguous() else x + 1,
}
SIZES = (5, 1, 2, 7, 1)


def given(size, **marked):
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(size))
    tracer_core.mark_dynamic(x, 0, **(marked or {"min": 1}))
    return x


def tensors(value):
    return list(value) if isinstance(value, tuple) else [value]


def layout(value):
    """Strides of what has more than one element along it."""
    return [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1]


def shares(result, x):
    return result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def graphs(fast):
    function = markers.compiled(fast).function
    return sum(
        len(s.entries)
        for s in [
            *function.runtime.regions.starts.values(),
            *function.runtime.regions.inside.values(),
        ]
    )


def compared(program, backend):
    """Eager and compiled, for several sizes; the number of graphs."""
    fast = tracer_core.compile(program, backend=backend)
    for size in SIZES:
        x = given(size)
        for ours, expected in zip(tensors(fast(x)), tensors(program(x)), strict=True):
            assert_same(ours, expected)
            assert layout(ours) == layout(expected)
            assert shares(ours, x) == shares(expected, x)
    return graphs(fast)


@pytest.mark.sweep(keep=18)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", ONE)
def test_one_graph_for_all_sizes(name, backend):
    assert compared(ONE[name], backend) == 1


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", TWO)
def test_another_program_for_one(name, backend):
    assert compared(TWO[name], backend) == 2


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_what_shares_memory_for_one_is_written_to(backend):
    def program(x):
        rows = x.t().contiguous()  # a view of x for one row, a copy for more
        rows.add_(1)
        return rows * 2

    fast = tracer_core.compile(program, backend=backend)
    for size in SIZES:
        x, y = given(size), given(size)
        torch.testing.assert_close(fast(x), program(y))
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_training(backend):
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    )
    fast = tracer_core.compile(net, backend=backend)
    for size in SIZES:
        x = given(size)
        ours = torch.autograd.grad(fast(x).square().mean(), list(net.parameters()))
        expected = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
        torch.testing.assert_close(ours, expected)
    assert graphs(fast) == 1


def test_first_call_with_one():
    """The first graph is for 1 alone, the second for all."""
    fast = tracer_core.compile(ONE["layer"], backend="aten_eager")
    for size in (1, 5, 1, 3):
        torch.testing.assert_close(fast(given(size)), LAYER(given(size)))
    assert graphs(fast) == 2


def test_without_a_mark_from_one_on_it_has_its_own():
    fast = tracer_core.compile(ONE["layer"], backend="aten_eager")
    for size in SIZES:
        x = given(size, max=9)
        torch.testing.assert_close(fast(x), LAYER(x))
    assert graphs(fast) == 2


def test_several_marked_inputs():
    def program(x, y):
        return x * y + (x if x.shape == y.shape else 0)

    fast = tracer_core.compile(program, backend="aten_eager")
    for item, other in ((5, 5), (1, 1), (5, 1), (1, 5), (1, 1), (3, 3)):
        torch.testing.assert_close(
            fast(given(item), given(other)), program(given(item), given(other))
        )


def test_training_with_convolutions_in_a_range():
    """Which library computes a convolution depends on the batch (16 and more): no guard, where
    layouts do not.
    """
    net = torch.nn.Sequential(
        torch.nn.Conv2d(6, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    )
    fast = tracer_core.compile(net, backend="aten_eager")
    for size in (5, 2, 20):
        x = torch.randn(
            size, 6, 12, 12, generator=torch.Generator().manual_seed(size)
        ).requires_grad_()
        tracer_core.mark_dynamic(x, 0, min=2, max=32)
        wanted = [x, *net.parameters()]
        ours = torch.autograd.grad(fast(x).square().mean(), wanted)
        expected = torch.autograd.grad(net(x).square().mean(), wanted)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
        assert [item.stride() for item in ours] == [item.stride() for item in expected]
    assert graphs(fast) == 1
