"""Programs that random generation, made small, found to differ from eager: tensors, and graphs that
raise."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import compare

X = torch.randn(2, 3)


def test_strides_that_follow_from_no_size():
    wide = torch.arange(12.0).reshape(2, 6)
    same(
        lambda x: 1 * x,
        (torch.ones(1, 3),),
        (wide[:, ::2],),
        (torch.arange(30.0).reshape(3, 10)[:, ::3],),
    )


def test_grad_mode_is_as_before_when_a_graph_raises():
    def fn(x, index):
        with torch.no_grad():
            y = x[index]
        return y, torch.is_grad_enabled()

    same(fn, (X, torch.tensor([5])), (X, torch.tensor([1])), (X, torch.tensor([7])))


def test_random_numbers_of_a_graph_that_raises_are_drawn_once():
    def fn(x, index):
        noise = torch.rand(3)
        try:
            x = x[index]
        except IndexError:
            return noise, torch.rand(2)
        return x + noise

    same(fn, (X, torch.tensor([5])), (X, torch.tensor([1])), (X, torch.tensor([7])))


def test_locals_at_a_break_hold_every_variable():
    def f(x, n):
        y = x + n
        z = y * 2
        found = locals()
        return sorted(found), z, dir(), sorted(vars())

    same(f, (X, 1), (X, 2), (X, 1), breaks=None)


def test_writing_to_an_expanded_tensor():
    def f(x, y):
        x.add_(1)
        try:
            y.add_(1)
        except RuntimeError:
            return x * 2
        return x + y

    wide = torch.ones(3).expand(2, 3)
    same(f, (X, wide), (X, torch.ones(2, 3)), (X, wide), breaks=None)


def test_a_computed_number_as_an_input_has_a_name():
    def make():
        n = 1

        def f(x):
            nonlocal n
            y = x * (1 ^ n)
            n -= 1
            return y

        return f, None

    compare_with_eager(make, *[(X,)] * 4)


def test_a_graph_that_raises_after_a_write_to_an_expanded_tensor():
    def f(x, wide, seen):
        seen.add_(1)
        wide.note = 3
        wide -= wide
        return x + wide

    wide = torch.ones(3)[None].expand(2, 3)
    same(
        f,
        (X, torch.ones(2, 3), torch.zeros(())),
        (X, wide, torch.zeros(())),
        (X, wide, torch.zeros(())),
        breaks=None,
    )


def test_which_error_a_graph_raises_after_a_write():
    def f(x, wide, weight):
        x.mul_(2)
        return wide.mul_(F.linear(x, weight))

    wide = torch.ones(3)[None].expand(2, 3)
    same(
        f,
        (X.double(), wide, torch.ones(3, 3)),
        (X, torch.ones(2, 3), torch.ones(3, 3)),
        breaks=None,
    )


def test_keywords_of_a_call_that_a_refused_argument_breaks():
    """The argument is looked at when the call takes it from the stack: the call's keywords must not
    be lost.
    """
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 2), (3, 2))

    def program(x, g, rate):
        y = x.clone()
        y.add_(g, alpha=-rate)
        return y * 2

    same(
        program,
        (torch.ones(3, 2), sparse, 0.5),
        (torch.ones(3, 2), sparse, 0.25),
        kinds=("tensor_subclass",),
    )


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.mul_(0.5),
        lambda t: t.div_(2),
        lambda t: t.sqrt_(),
        lambda t: t.clamp_(min=0.5),
        lambda t: operator.iadd(t, 0.5),
        lambda t: operator.itruediv(t, 2),
        lambda t: (t + 1).mul_(torch.tensor([0.5])),
    ],
)
def test_a_result_that_integers_cannot_hold_is_eagers_error(write, backend):
    compiled = tracer_core.compile(write, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't be cast"):
            write(torch.arange(4))
        with pytest.raises(RuntimeError, match="can't be cast"):
            compiled(torch.arange(4))


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_what_integers_can_hold_is_written(backend):
    def write(t):
        t.mul_(3).add_(t).clamp_(max=7).fill_(2.5)
        t[1:3] = 9.75
        return t.copy_(t.float() / 2)

    compiled = tracer_core.compile(write, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(torch.arange(6)), write(torch.arange(6)))


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_where_a_view_begins_is_in_no_guard(backend):
    """Views of it are compared as parts of one storage; how far that begins before it does not
    matter.
    """

    def program(x, y):
        top = y.max(0).values
        x.select(0, 0).copy_(x.select(0, -1))
        return y.log_softmax(-3), top, x * 2

    fast = tracer_core.compile(program, dynamic=True, backend=backend)
    for rows, begin, size in ((4, 1, 3), (5, 2, 4), (9, 0, 3), (9, 7, 5), (3, 0, 2), (7, 4, 6)):
        base = torch.randn(rows + begin, 3, dtype=torch.float64)
        ours, theirs = base.clone()[begin:], base[begin:]
        y = torch.randn(size, 3, 2).permute(2, 1, 0)
        compare(program(theirs, y), fast(ours, y))
        compare(theirs, ours)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_a_write_to_nothing_of_a_meshgrid(backend):
    """A write through an expansion as `torch.meshgrid` makes it: in functional form it multiplied
    by nothing, and infinity became NaN."""

    def program(x):
        grid = torch.meshgrid(x, x, indexing="xy")[0]
        grid.tensor_split(2, 1)[1].mul_(2)
        return grid

    compiled = tracer_core.compile(program, backend=backend)
    for value in (float("inf"), 2.0):
        x, y = (torch.tensor(value) for _ in range(2))
        torch.testing.assert_close(compiled(x), program(y))
        torch.testing.assert_close(x, y)


# -- reductions of booleans that torch.distributions checks arguments with --


@pytest.mark.parametrize("dynamic", [None, True])
def test_all_and_any_true(dynamic):
    def f(x):
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)

    compiled = tracer_core.compile(f, backend="aten_eager", fullgraph=True, dynamic=dynamic)
    for x in (torch.ones(3, 4), torch.tensor([[1.0, -1.0]]), -torch.ones(5, 2)):
        assert [bool(item) for item in compiled(x)] == [bool(item) for item in f(x)]


# -- tensors of which torch makes no fake --


@pytest.mark.filterwarnings("ignore")
def test_the_values_of_a_sparse_input():
    def f(s):
        return s.values() * 2

    indices = torch.tensor([[0, 1, 1], [2, 0, 3]])
    eager = torch.sparse_coo_tensor(indices, torch.randn(3), (4, 5)).coalesce().requires_grad_()
    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(2):
        want, got = f(eager), compiled(eager)
        torch.testing.assert_close(got, want)
        (item,), (other,) = (torch.autograd.grad(r.pow(2).sum(), eager) for r in (want, got))
        torch.testing.assert_close(other.to_dense(), item.to_dense())
