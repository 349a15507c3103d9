"""``as_strided`` with an offset names a place in the input's storage, also where the graph writes
to the input.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core


def after_a_write(x):
    x.add_(1)
    return torch.as_strided(x, (2,), (1,), 3) * 2


def a_method_of_a_view(x):
    y = x.view(-1)
    y.mul_(3)
    return y.as_strided((2,), (2,), storage_offset=3).sin()


def written_through(x):
    x.as_strided((2,), (1,), 3).add_(1)
    return x.sum()


def scattered(x):
    x.add_(1)
    return torch.as_strided_scatter(x, torch.ones(2), (2,), (1,), 3)


def copied(x):
    x.add_(1)
    return torch.as_strided_copy(x, (2,), (1,), 3)


def without_an_offset(x):
    x.add_(1)
    return x.as_strided((2,), (1,)) * 2


def without_a_write(x):
    return x.as_strided((2,), (1,), 3) * 2


def by_its_packet(x):
    x[2] = 7
    return torch.ops.aten.as_strided(x, (2,), (1,), 3)


def scattered_by_its_packet(x):
    x[2] = 7
    return torch.ops.aten.as_strided_scatter(x, torch.ones(2), (2,), (1,), 3)


def from_where_it_begins(x):
    return x.as_strided((2,), (2,), x.storage_offset()) * 2


def where_a_view_begins(x):
    return x * x[1:].storage_offset()


def of_a_clone(x):
    y = x.clone()
    y.as_strided((2,), (1,), 1).copy_(x[:2])
    return y


PROGRAMS = [
    after_a_write, a_method_of_a_view, written_through, scattered, copied, without_an_offset,
    without_a_write,
    by_its_packet, scattered_by_its_packet, from_where_it_begins, where_a_view_begins, of_a_clone,
]  # fmt: skip


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda value: value.__name__)
def test_a_view_that_begins_later(program, backend):
    fast = tracer_core.compile(program, backend=backend)
    for start in (2, 2, 1, 0):
        bases = [torch.arange(8.0), torch.arange(8.0)]
        mine, theirs = (
            item(base[start : start + 4]) for item, base in zip((fast, program), bases, strict=True)
        )
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        torch.testing.assert_close(*bases, rtol=0, atol=0)


@pytest.mark.parametrize(
    "program", [lambda x: x * x._is_view(), lambda x: x * x.is_set_to(x[:])], ids=["view", "same"]
)
def test_whose_memory_an_input_has_is_asked_in_each_call(program):
    fast = tracer_core.compile(program)
    for x in (torch.ones(3), torch.ones(4)[:3], torch.ones(3)):
        torch.testing.assert_close(fast(x), program(x))


def windows_with_gaps(x):
    x.unfold(0, 2, 3).mul_(3)
    return x + 1


def a_last_element_in_no_window(x):
    x.view(-1).unfold(dimension=0, size=2, step=2)[1:].add_(1)
    return x.sum()


def windows_of_a_value(x):
    y = x * 2
    y.unfold(0, 1, 3).neg_()
    return y, y * 2


def windows_that_take_all(x):
    x[:6].unfold(0, 3, 3).mul_(x[0].clone())
    return x


def windows_that_are_read(x):
    x.add_(1)
    return x.unfold(0, 2, 3) * 2


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize(
    "program",
    [
        windows_with_gaps,
        a_last_element_in_no_window,
        windows_of_a_value,
        windows_that_take_all,
        windows_that_are_read,
    ],
    ids=lambda value: value.__name__,
)
def test_writes_through_windows_keep_what_lies_between(program, backend):
    mine, theirs = torch.arange(1.0, 8.0), torch.arange(1.0, 8.0)
    fast = tracer_core.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(fast(mine), program(theirs), rtol=0, atol=0)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_gradients_of_writes_through_windows():
    def run(x):
        y = x * 1
        y.unfold(0, 2, 3).mul_(3)
        return (y * y).sum()

    xs = [torch.arange(1.0, 8.0).requires_grad_() for _ in range(2)]
    for fn, x in zip((tracer_core.compile(run, backend="aten_eager"), run), xs, strict=True):
        fn(x).backward()
    assert torch.equal(xs[0].grad, xs[1].grad)
