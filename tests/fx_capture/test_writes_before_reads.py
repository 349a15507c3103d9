"""Numbers and sizes of data, read after a write to the memory that they are in.

The write may go through an alias that has a version counter of its own, such as ``x.data``.
"""

from __future__ import annotations

import pytest
import torch

from tests.support.eager_reference import compare_with_eager, module

BACKENDS = ("eager", "aten_eager", "inductor")


def mask_of_data(count, x):
    count.data.mul_(2).add_(1)
    return x[count < 4]


def codebook(counts, book):
    counts.data.mul_(0.5).add_(1)
    dead = counts < 1.7
    book.data[dead] = book.flip(0)[dead]
    return book * 2


#: pytest rewrites the assertions of this file.
ASSERTION = """
def assertion(x, y):
    x.data.add_(1)
    assert (x < 4).all(), "too large"
    return x * y
"""
assertion = module(ASSERTION).assertion


def branch(step, x):
    step.add_(1)
    step.data.add_(1)
    return x * 3 if step.item() > 4 else x + 1


def scale(step, x):
    step.add_(1)
    return x.add(1, alpha=step.item())


def scale_by_data(step, x):
    step.data.add_(1)
    return x.add(1, alpha=step.item())


def scale_by_view(step, x):
    step.view(1)[0] += 1
    return x * int(step)


def read_twice(step, x):
    step.add_(1)
    first = x * step.item()
    step.data.mul_(2)
    return first, x.new_zeros(step.item()), x.sum() + int(step)


def read_late(step, x):
    before = x * step.item()
    step.add_(1)
    y = x.new_full((2,), step.item())
    step.zero_()
    return before, y, x + step.item()


def read_thrice(count, x):
    results = [count.nonzero()]
    count.data[1:] = 0
    results.append(count.nonzero())
    count.data.add_(1)
    return *results, count.nonzero(), count.unique()


def pointer(queue, position):
    begin = int(position[0])
    queue[begin : begin + 1] = 1
    position[0] = (begin + 1) % 3
    return queue.sum(), queue[: int(position[0])]


def elements():
    return torch.arange(4.0), torch.arange(4.0)


def step():
    return torch.tensor(1), torch.arange(4.0)


PROGRAMS = {
    mask_of_data: elements,
    codebook: lambda: (torch.arange(4.0), torch.arange(8.0).view(4, 2)),
    assertion: elements,
    branch: step,
    scale: step,
    scale_by_data: step,
    scale_by_view: step,
    read_twice: step,
    read_late: step,
    read_thrice: lambda: (torch.arange(4), torch.arange(4.0)),
    pointer: lambda: (torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_reads_see_writes(program, backend):
    def make():
        args = PROGRAMS[program]()
        return (lambda: program(*args)), args

    compare_with_eager(make, *[()] * 5, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_step_count_of_a_buffer(backend):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.steps.data += 1
            steps = self.steps.item()
            self.mean.data.mul_(1 - 1 / steps).add_(x.mean(0), alpha=1 / steps)
            return (x - self.mean) * steps

    def make():
        net = Mean()
        return net, net

    calls = [(torch.arange(6.0).view(2, 3) + number,) for number in range(4)]
    compare_with_eager(make, *calls, backend=backend)
