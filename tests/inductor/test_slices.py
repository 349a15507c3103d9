"""Slices that leave the graph, and slices whose begin follows from a symbolic size."""

from __future__ import annotations

import pytest
import torch

from tests.support.eager_reference import same


def doubled(x):
    return torch.cat([x, x], 1)


def both_halves(x):
    wide = doubled(x)
    return wide[:, 1:], wide[:, :2], wide.sum(1)


def grown_twice(x):
    wide = torch.cat([x + 1, x], 1)
    return wide[:, 1:], torch.cat([wide, x], 1)[:, 1:3]


#: Outputs that show a part of what was computed: eager's views have its strides, with gaps or
#: repeats.
PARTS = {
    "columns": lambda x: (x + 1)[:, :3],
    "columns of a concatenation": lambda x: (doubled(x)[:, 2:5], x * 2),
    "columns of a product": lambda x: (x @ x.T)[:, 1:3],
    "every second column": lambda x: (x + 1)[:, ::2],
    "rows of a transpose": lambda x: doubled(x).t()[1:],
    "halves and their sum": both_halves,
    "concatenations that share memory": grown_twice,
    "a diagonal": lambda x: (x @ x.T).diagonal(),
    "windows": lambda x: (x + 1).unfold(1, 3, 1),
    "flipped": lambda x: (x + 1).flip(0)[:, :2],
    "expanded": lambda x: (x + 1).sum(0).expand(4, -1),
    "an expanded column": lambda x: (x + 1)[:, :1].expand(4, 3),
    "an expanded sum of a concatenation": lambda x: doubled(x).sum(1, keepdim=True).expand(4, 7),
    "nothing": lambda x: (x + 1)[:, 2:2],
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PARTS)
def test_an_output_with_gaps_has_eager_strides(name):
    calls = [(torch.arange(4.0 * n).reshape(4, n),) for n in (5, 6, 9)]
    same(PARTS[name], *calls, graphs=2, breaks=0, backend="inductor")


def window(past, new):
    """The last eleven of a growing sequence: what a sliding window keeps."""
    full = torch.cat([past, new], dim=1)
    return full.sum(1), full[:, -11:]


def written(x, y):
    z = x + 1
    z[:, -5:] = y
    return z


def shifted(x):
    return (x * 2)[:, -7:-2] + 1


#: program, sizes of the second dimension (the first two make it symbolic), graphs.
BEGINS = {
    "a window that fills": (
        lambda n: (window, torch.randn(2, n, 3), torch.randn(2, 1, 3)),
        (5, 6, 9, 3),
        2,
    ),
    "a full window": (
        lambda n: (window, torch.randn(2, n, 3), torch.randn(2, 1, 3)),
        (12, 13, 20, 10),
        2,
    ),
    "a window at its limit": (
        lambda n: (window, torch.randn(2, n, 3), torch.randn(2, 1, 3)),
        (8, 9, 10, 11, 12),
        3,
    ),
    "a write to the end": (
        lambda n: (written, torch.randn(2, n), torch.randn(2, 5)),
        (6, 7, 12, 5),
        3,
    ),
    "from and to the end": (lambda n: (shifted, torch.randn(2, n)), (8, 9, 20), 2),
}


@pytest.mark.parametrize("name", BEGINS)
def test_a_slice_counted_from_the_end_of_a_symbolic_size(name):
    make, sizes, graphs = BEGINS[name]
    (program, *_), calls = make(sizes[0]), [tuple(make(n)[1:]) for n in sizes]
    same(program, *calls, graphs=graphs, breaks=0, backend="inductor")


def test_inputs_that_are_parts_of_growing_tensors():
    """Their strides follow from no size: a stride is an input of its own."""

    def program(x, y):
        return torch.cat([x, y], 1).sum(1), x + 1, x.mT.contiguous()

    calls = [
        (torch.randn(2, wide, 4)[:, :n], torch.randn(2, 1, 4))
        for n, wide in ((5, 5), (6, 9), (7, 12), (8, 20), (3, 4))
    ]
    same(program, *calls, graphs=2, breaks=0, backend="inductor")
