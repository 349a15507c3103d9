"""Rows too long for registers give their maximum and their sum of exponentials in one pass; run by
the interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import online_softmax, split_reductions
from tests.inductor.compiling import compiled, flat

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def _few_rows_suffice(monkeypatch):
    """Rows are not split, as if there were 128: the interpreter walks them in Python."""
    monkeypatch.setattr(online_softmax, "ENOUGH_ROWS", 2)
    monkeypatch.setattr(split_reductions, "ENOUGH_ROWS", 2)


def statistics(x):
    greatest = x.amax(-1, keepdim=True)
    return greatest, (x - greatest).exp().sum(-1, keepdim=True).log()


def loss(x, target):
    return F.cross_entropy(15 * torch.tanh(x / 15), target, reduction="none")


def row_of(length, *special):
    torch.manual_seed(length)
    x = torch.randn(2, length) * 4
    for row, place, number in special:
        x[row, place] = number
    return x


every = slice(None)
ROWS = {
    "an odd length": row_of(8199),
    "blocks": row_of(10240),
    "a maximum in the last element": row_of(8199, (0, 8198, 300.0), (1, 8198, -300.0)),
    "masked": row_of(8199, (0, slice(100, None), -INF), (1, slice(0, 8100), -INF)),
    "nothing but -inf": row_of(8199, (0, every, -INF)),
    "inf": row_of(8199, (1, 5000, INF)),
    "both infinities": row_of(8199, (1, 5000, INF), (1, 6000, -INF)),
    "NaN": row_of(8199, (0, 8100, NAN), (1, 3, NAN)),
    "far below 0": row_of(8199) - 1e30,
}


def check(fn, *inputs, passes, dynamic=False):
    """Compares with eager. passes: how often the kernel walks over a row."""
    with interpreted():
        result = compiled(fn, *inputs, dynamic=dynamic)
    for _ in range(2):
        for ours, eager in zip(result(*inputs), flat(fn(*inputs)), strict=True):
            assert (ours.dtype, ours.stride()) == (eager.dtype, eager.stride())
            bounds = {"rtol": 1e-5, "atol": 1e-5} if eager.dtype.itemsize > 2 else {}
            torch.testing.assert_close(ours, eager, equal_nan=True, **bounds)
    assert result.source.count("for start in") == passes
    return result


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", ROWS)
def test_statistics_of_rows(name):
    check(statistics, ROWS[name], passes=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_and_its_logarithm(dtype):
    x = row_of(8199).to(dtype)
    check(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, passes=2)


def test_a_loss_reads_its_logits_once():
    x = row_of(9001)
    result = check(loss, x, torch.tensor([3, 9000]), passes=1)
    assert result.source.count("libdevice.tanh") == 2  # of each element, and of the target's
    written = {name for body in result.compilation.bodies if body for name in body.writes}
    buffers = result.compilation.program.buffers
    assert all(buffers[name].layout.numel <= 2 for name in written)


def test_a_size_that_changes():
    result = check(statistics, row_of(8199), passes=1, dynamic=True)
    for length in (9003, 40):
        x = row_of(length)
        for ours, eager in zip(result(x), statistics(x), strict=True):
            torch.testing.assert_close(ours, eager)


def different(x):
    greatest = x.amax(-1, keepdim=True)
    return greatest, (x * 0.5 - greatest).exp().sum(-1, keepdim=True)


def test_sums_of_other_exponentials_stay_reductions_of_their_own():
    check(different, row_of(8199), passes=2)


def test_an_input_that_is_overwritten_between_both():
    def program(x):
        greatest = x.amax(-1, keepdim=True)
        x.mul_(0.5)
        return greatest, (x - greatest).exp().sum(-1, keepdim=True)

    x = row_of(8199)
    with interpreted():
        result = compiled(program, x.clone())
    ours, eager = x.clone(), x.clone()
    for value, other in zip(result(ours)[:2], program(eager), strict=False):
        torch.testing.assert_close(value, other)


def test_the_backward_of_a_softcapped_loss_is_one_kernel():
    """tanh has two readers, which become one: it is computed there."""
    aten = torch.ops.aten

    def program(x, greatest, total, target):
        tanh = torch.tanh(x / 15)
        y = tanh * 15 - greatest - total
        of_loss = aten.nll_loss_backward(torch.ones(2), y, target, None, 0, -100, torch.ones(()))
        gradient = aten._log_softmax_backward_data(of_loss, y, 1, torch.float32)
        return aten.tanh_backward(gradient * 15, tanh) / 15

    x = row_of(300)
    greatest, total = statistics(15 * torch.tanh(x / 15))
    with interpreted():
        result = compiled(program, x, greatest, total, torch.tensor([3, -100]))
    arguments = x, greatest, total, torch.tensor([3, -100])
    (ours,), eager = result(*arguments), program(*arguments)
    torch.testing.assert_close(ours, eager)
    assert sum("tanh" in source for source in result.compilation.sources) == 1
    assert [body.writes for body in result.compilation.bodies if body] == [
        {result.compilation.program.outputs[0]}
    ]
