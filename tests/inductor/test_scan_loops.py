"""torch's scan of many slices on the CPU: one C++ loop over the kernels of its step, forward and
backward, with the values and gradients of a loop in Python."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import tracer_core
from tests.support.comparison import assert_same_sums
from tracer_core.torch_private.releases import is_before

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(is_before("2.13"), reason="a scan breaks the graph before torch 2.13"),
]


def scan(step, init, xs, reverse=False):
    """A scan for the tracer, and the loop that it means for eager mode."""
    if tracer_core.is_compiling():
        from torch._higher_order_ops import scan as torch_scan

        return torch_scan(step, init, xs, reverse=reverse)
    leaves, structure = pytree.tree_flatten(xs)
    length, parts = len(leaves[0]), []
    for k in reversed(range(length)) if reverse else range(length):
        init, part = step(init, pytree.tree_unflatten([leaf[k] for leaf in leaves], structure))
        parts.append(part)
    parts = parts[::-1] if reverse else parts
    return init, pytree.tree_map(lambda *leaf: torch.stack(leaf), *parts)


def R(*sizes, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(sum(sizes))
    return (
        torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    )


def associative_scan(combine, xs, reverse=False):
    """The same for an associative scan."""
    if tracer_core.is_compiling():
        from torch._higher_order_ops import associative_scan as torch_scan

        return torch_scan(combine, xs, 0, reverse=reverse, combine_mode="generic")
    leaves, structure = pytree.tree_flatten(xs)
    rows = [pytree.tree_unflatten(list(pair), structure) for pair in zip(*leaves, strict=True)]
    actual = [rows.pop() if reverse else rows.pop(0)]
    for row in rows[::-1] if reverse else rows:
        actual.append(combine(actual[-1], row))
    return pytree.tree_map(lambda *leaf: torch.stack(leaf), *(actual[::-1] if reverse else actual))


class Rnn(nn.Module):
    def __init__(self, kind=nn.RNNCell, sizes=(5, 16)):
        super().__init__()
        torch.manual_seed(0)
        self.cell = kind(*sizes)

    def forward(self, xs, h):
        def step(h, x):
            h = self.cell(x, h)
            return h, h.clone()

        return scan(step, h, xs)


class Lstm(Rnn):
    def __init__(self):
        super().__init__(nn.LSTMCell)

    def forward(self, xs, h, c):
        def step(carry, x):
            h, c = self.cell(x, (carry["h"], carry["c"]))
            return {"h": h, "c": c}, (h * 2, c.sum())

        return scan(step, {"h": h, "c": c}, xs)


def cumulated(init, xs):
    return scan(lambda c, x: (c * 0.5 + x, (c * x).sin()), init, xs)


def reversed_(init, xs):
    return scan(lambda c, x: (c.tanh() + x, c * x), init, xs, reverse=True)


def learned(init, xs, weight, scale):
    def step(c, x):
        c = torch.softmax(c @ weight + x, -1) * scale
        return c, (c.cumsum(-1), c.max(-1).values)

    return scan(step, init, xs)


def counted(init, xs):
    """Carries a number that has no gradient, and returns one."""

    def step(carry, x):
        count, total = carry
        total = total + x * count
        return (count + 1, total), (total * 2, count * 3)

    return scan(step, (torch.zeros((), dtype=torch.int64), init), xs)


def first_gradient_inside(xs, weight):
    """What is carried requires a gradient after the first step only."""
    return scan(lambda c, x: (c * weight + x.detach(), c.sin()), torch.zeros(3), xs)


def looked_up(init, places, table):
    return scan(lambda c, at: (c * 0.9 + table[at[None]][0], c.exp()), init, places)


def two_scans(init, xs):
    last, parts = cumulated(init, xs.relu())
    return scan(lambda c, x: (torch.maximum(c, x), c - x), last.sum(0), parts.sum(1))


def of_matrices(init, xs):
    return scan(lambda c, x: (torch.bmm(c, x).tanh(), c.sum((1, 2))), init, xs)


def double(init, xs, weight):
    return scan(lambda c, x: ((c @ weight).tanh() + x, c @ weight[0]), init, xs)


def recurrence(a, b):
    def combine(x, y):
        return x[0] * y[0], x[1] * y[0] + y[1]

    return associative_scan(combine, (a.sigmoid(), b))


def products(matrices, scale):
    """Reads other elements than its own, and a tensor from outside."""
    return associative_scan(lambda x, y: (x @ y).tanh() * scale, matrices, reverse=True)


#: name -> (function or module, arguments, arguments of other sizes)
PROGRAMS = {
    "cumulated": (lambda: cumulated, (R(3), R(40, 3)), (R(3), R(50, 3))),
    "reversed": (lambda: reversed_, (R(2, 3), R(40, 2, 3)), (R(5, 3), R(40, 5, 3))),
    "rnn": (Rnn, (R(40, 4, 5), R(4, 16)), (R(50, 4, 5), R(4, 16))),
    "gru": (lambda: Rnn(nn.GRUCell), (R(40, 4, 5), R(4, 16)), (R(40, 7, 5), R(7, 16))),
    "wide rnn": (lambda: Rnn(sizes=(64, 128)), (R(30, 80, 64), R(80, 128)), None),
    "lstm": (Lstm, (R(40, 2, 5), R(2, 16), R(2, 16)), (R(41, 2, 5), R(2, 16), R(2, 16))),
    "learned": (
        lambda: learned,
        (R(2, 6), R(40, 2, 6), R(6, 6), R(6)),
        (R(2, 6), R(60, 2, 6), R(6, 6), R(6)),
    ),
    "counted": (lambda: counted, (R(3), R(40, 3)), (R(3), R(50, 3))),
    "first gradient inside": (lambda: first_gradient_inside, (R(40, 3, grad=False), R(3)), None),
    "looked up": (lambda: looked_up, (R(3), torch.arange(40) % 7, R(7, 3)), None),
    "two scans": (lambda: two_scans, (R(2, 3), R(40, 2, 3)), (R(2, 3), R(50, 2, 3))),
    "matrices": (lambda: of_matrices, (R(2, 3, 3), R(20, 2, 3, 3)), None),
    "recurrence": (lambda: recurrence, (R(50, 3), R(50, 3)), (R(71, 3), R(71, 3))),
    "products": (lambda: products, (R(20, 3, 3), R(3, 3)), (R(30, 3, 3), R(3, 3))),
    "float64": (
        lambda: double,
        (
            R(2, 4, dtype=torch.float64),
            R(20, 2, 4, dtype=torch.float64),
            R(4, 4, dtype=torch.float64),
        ),
        None,
    ),
}


def run(program, owner, args, grad):
    inputs = [arg.detach().clone().requires_grad_(arg.requires_grad and grad) for arg in args]
    with torch.set_grad_enabled(grad):
        results = pytree.tree_leaves(program(*inputs))
    wanted = [item for item in inputs if item.requires_grad]
    if isinstance(owner, nn.Module):
        wanted += list(owner.parameters())
    roots = [result for result in results if result.requires_grad]
    if not grad:
        return results, ()
    loss = sum((root * (k + 1)).cos().sum() for k, root in enumerate(roots))
    return results, torch.autograd.grad(loss, wanted, allow_unused=True)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_scan_is_a_loop(name, grad, texts):
    make, *calls = PROGRAMS[name]
    owner = make()
    compiled = tracer_core.compile(owner, backend="inductor", fullgraph=True)
    for args in [calls[0], *calls]:
        if args is not None:
            for got, want in zip(run(compiled, owner, args, grad), run(owner, owner, args, grad)):
                assert_same_sums(got, want)
    scans = [text for text in texts if "scan" in text or "loop_" in text]
    assert scans
    assert not any("ops.tracer_core.scan" in text for text in texts)
    assert all("library.function('loop_" in text for text in scans)


@pytest.fixture
def texts(monkeypatch):
    """The texts of the modules that are made."""
    from inductor_backend import stages

    result, original = [], stages.run_stages

    def watched(*args, **kwargs):
        c = original(*args, **kwargs)
        if c.text:
            result.append(c.text)
        return c

    monkeypatch.setattr(stages, "run_stages", watched)
    return result


def test_what_a_step_detaches_keeps_the_gradient_of_its_first_value():
    def forgetful(init, xs):
        return scan(lambda c, x: ((c * 0.5).detach() + x.detach(), c * x), init, xs)

    args = (R(3), R(40, 3))
    compiled = tracer_core.compile(forgetful, backend="inductor", fullgraph=True)
    for got, want in zip(run(compiled, None, args, True), run(forgetful, None, args, True)):
        assert_same_sums(got, want)


def test_a_map_is_a_loop(texts):
    def mapped(xs, w):
        from torch._higher_order_ops.map import map as torch_map

        def row(x):
            return (x @ w).sin(), x.sum()

        if tracer_core.is_compiling():
            return torch_map(row, xs)
        return tuple(map(torch.stack, zip(*map(row, xs), strict=True)))

    compiled = tracer_core.compile(mapped, backend="inductor", fullgraph=True)
    for n in (100, 100, 120, 130):
        args = (R(n, 2, 3), R(3, 4))
        for got, want in zip(run(compiled, None, args, True), run(mapped, None, args, True)):
            assert_same_sums(got, want)
    assert any("library.function('loop_" in text for text in texts)


# Steps that call ATen


def convolved(init, xs, weight):
    def step(c, x):
        c = torch.conv2d(c, weight * 0.3, padding=1).tanh() + x
        return c, c.amax((2, 3))

    return scan(step, init, xs)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_step_that_calls_an_operator_is_compiled(grad, texts):
    calls = [(R(2, 3, n, n), R(10, 2, 3, n, n), R(3, 3, 3, 3)) for n in (8, 8, 9, 10)]
    compiled = tracer_core.compile(convolved, backend="inductor", fullgraph=True)
    for args in calls:
        for got, want in zip(run(compiled, None, args, grad), run(convolved, None, args, grad)):
            assert_same_sums(got, want)
    assert any("loop_0 = steps_of(" in text for text in texts)


def test_a_bad_index_in_a_step_raises():
    args = (R(3), torch.tensor([0, 3, 9, 1, 2, 0]), R(7, 3))
    compiled = tracer_core.compile(looked_up, backend="inductor", fullgraph=True)
    with pytest.raises(IndexError):
        run(compiled, None, args, grad=False)
