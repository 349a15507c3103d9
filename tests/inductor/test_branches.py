"""torch.cond and torch.while_loop with inductor on the CPU: in the graph, with compiled branches and
steps; values and gradients are those of Python's own branches and loops."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import tracer_core
from tests.inductor.test_scan_loops import R, run, scan
from tests.inductor.test_scan_loops import texts as texts
from tests.support.comparison import assert_same_sums

pytestmark = pytest.mark.filterwarnings("ignore")


def cond(predicate, if_true, if_false, operands):
    """A cond for the tracer, and the branch that it means for eager mode."""
    if tracer_core.is_compiling():
        return torch.cond(predicate, if_true, if_false, operands)
    return (if_true if predicate else if_false)(*operands)


def loop(condition, body, carried):
    if tracer_core.is_compiling():
        return while_loop(condition, body, carried)
    while condition(*carried):
        carried = body(*carried)
    return carried


def two_results(x, w):
    y = (x @ w).relu()
    return cond(x.sum() > 0, lambda v: (v * w.sum(), v.sin()), lambda v: (v - 1, v.cos()), (y,))


def read_by_one_branch(x, w):
    """The other branch has gradients of zeros."""
    return cond(x.sum() > 0, lambda v: v * w, lambda v: v * v.sum(), (x,)) * 2


def itself(x, w):
    return cond(x.sum() > 0, lambda v: v.clone(), lambda v: v * w, (x,))


def nested(x, w):
    def inner(v):
        return cond(v.max() > 1, lambda u: u.exp(), lambda u: u * w, (v,))

    return cond(x.sum() > 0, inner, lambda v: v.tanh(), (x,))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, w):
        return cond(x.sum() > 0, lambda v: self.one(v), lambda v: self.other(v) * w, (x,)).sin()


CONDS = {
    "two results": lambda: two_results,
    "read by one branch": lambda: read_by_one_branch,
    "itself": lambda: itself,
    "nested": lambda: nested,
    "layers": Layer,
}


def inputs(sign, n=3):
    return (R(n, 3).detach().abs() * sign).requires_grad_(), R(3, 3) if n == 3 else R(1, 3)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", CONDS)
def test_branches_are_compiled(name, grad, texts):
    owner = CONDS[name]()
    compiled = tracer_core.compile(owner, backend="inductor", fullgraph=True)
    for args in (inputs(1), inputs(-1), inputs(0.01), inputs(1)):
        got, want = run(compiled, owner, args, grad), run(owner, owner, args, grad)
        assert_same_sums(got[0], want[0])
        for item, other in zip(got[1], want[1], strict=True):
            torch.testing.assert_close(item, torch.zeros_like(item) if other is None else other,
                                       rtol=1e-4, atol=1e-5)  # fmt: skip
    assert any("= branches_of(" in text for text in texts)
    assert not any("ops.tracer_core" in text for text in texts)


def test_results_of_other_strides():
    def program(x):
        return cond(x.sum() > 0, lambda v: v.t().contiguous().t(), lambda v: v * 2, (x,))

    compiled = tracer_core.compile(program, backend="inductor", fullgraph=True)
    for sign in (1, -1, 1):
        (x,) = (R(3, 4).detach().abs() * sign,)
        torch.testing.assert_close(compiled(x), program(x))


def recurrent(x, w):
    """A cond in a scan, and a scan in a branch."""

    def step(c, row):
        c = cond(row.sum() > 0, lambda a: (a @ w).tanh(), lambda a: a * 0.5, (c + row,))
        return c, c.sin()

    last, parts = scan(step, torch.zeros_like(x[0]), x)
    return cond(last.sum() > 0, lambda v: scan(step, v, x)[0], lambda v: v * 2, (last,)), parts


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_control_flow_in_control_flow(grad):
    compiled = tracer_core.compile(recurrent, backend="inductor", fullgraph=True)
    for seed in (1, 2, 3):
        args = (R(30 + seed, 2, 3), R(3, 3))
        for got, want in zip(run(compiled, None, args, grad), run(recurrent, None, args, grad),
                             strict=True):  # fmt: skip
            assert_same_sums(got, want)
    assert not [item for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def test_other_sizes_are_symbols(texts):
    compiled = tracer_core.compile(two_results, backend="inductor", fullgraph=True)
    for n in (3, 5, 7, 9):
        for sign in (1, -1):
            args = (R(n, 3).detach() * sign, R(3, 4).detach())
            for got, want in zip(run(compiled, None, args, False), run(two_results, None, args, False),
                                 strict=True):  # fmt: skip
                assert_same_sums(got, want)
    assert len([text for text in texts if "= branches_of(" in text]) == 2


def newton(x):
    """As many steps as the values ask for."""

    def more(step, guess):
        return ((guess * guess - x).abs().max() > 1e-6) & (step < 100)

    return loop(more, lambda step, guess: (step + 1, (guess + x / guess) / 2),
                (torch.zeros((), dtype=torch.int64), torch.ones_like(x)))  # fmt: skip


def powers(x, w):
    return loop(lambda v, n: v.norm() < 50, lambda v, n: (v @ w * 2, n + 1),
                (x, torch.zeros((), dtype=torch.int32)))  # fmt: skip


def sorted_once(x, w):
    """A step that calls ATen."""
    return loop(lambda v, n: n < 3, lambda v, n: (v.sort().values * w, n + 1),
                (x, torch.zeros((), dtype=torch.int32)))  # fmt: skip


@pytest.mark.parametrize(
    ("function", "calls", "native"),
    [
        (newton, [(R(n, grad=False).abs() + 0.1,) for n in (4, 4, 7, 9)], True),
        (powers, [(R(n, 3, grad=False), R(3, 3, grad=False)) for n in (4, 4, 6, 8)], True),
        (powers, [(R(4, 3, grad=False) * 100, R(3, 3, grad=False))], True),  # no step at all
        (sorted_once, [(R(n, 3, grad=False), R(3, grad=False)) for n in (4, 4, 6)], False),
    ],
    ids=["newton", "products", "no step", "sorts"],
)
def test_a_while_loop_is_compiled(function, calls, native, texts):
    compiled = tracer_core.compile(function, backend="inductor", fullgraph=True)
    for args in calls:
        assert_same_sums(compiled(*args), function(*args))
    actual = [text for text in texts if "library.function('loop_" in text]
    python = [text for text in texts if "= while_of(" in text]
    assert bool(actual) == native and bool(python) != native


def test_a_while_loop_leaves_its_inputs():
    x, w = R(2, 3, grad=False), R(3, 3, grad=False)
    kept = x.clone()
    compiled = tracer_core.compile(powers, backend="inductor", fullgraph=True)
    result = compiled(x, w)[0]
    result.zero_()
    torch.testing.assert_close(x, kept, rtol=0, atol=0)
    assert_same_sums(compiled(x, w), powers(x, w))


def test_a_while_loop_with_gradients_runs_as_captured():
    x, w = R(2, 3), R(3, 3)
    compiled = tracer_core.compile(powers, backend="inductor", fullgraph=True)
    for got, want in zip(run(compiled, None, (x, w), True), run(powers, None, (x, w), True),
                         strict=True):  # fmt: skip
        assert_same_sums(got, want)
