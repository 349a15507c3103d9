"""Long sums of few rows are cut into parts on GPUs, in line with the loops that make their terms;
run by the interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import split_reductions
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import I, R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

last = {"memory_format": torch.channels_last}


def gelu_gradient(g, x):
    t = torch.ops.aten.gelu_backward(g, x)
    return t, t.flatten(0, -2).sum(0)


def norm_gradients(g, x, mean, rstd):
    y = (x - mean) * rstd
    return (g * y).sum((0, 1)), g.sum((0, 1))


def statistics(x):
    return *torch.var_mean(x, (0, 2, 3)), x.mean((0, 2, 3)), x.amax((0, 2, 3))


def whole(x):
    return (
        x.sum(),
        x.amax(),
        (x - 20).amax(),
        x.amin(),
        (x > 8).any(),
        (x < 9).all(),
        (x + 30).amin(),
    )


def normalised(x, w, b):
    return F.batch_norm(x, None, None, w, b, True).relu()


def image_norm_gradients(g, x, w, mean, rstd):
    arguments = g, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(*arguments)


def channels_last(*sizes):
    return R(*sizes).to(**last)


#: name -> (program, inputs, kernels or None)
CASES = {
    "columns": (lambda x: x.sum(0), (R(1024, 24),), 2),
    "columns and what makes them": (gelu_gradient, (R(8, 128, 40), R(8, 128, 40)), 2),
    "two sums of the same rows": (norm_gradients, (R(8, 64, 48), R(8, 64, 48), R(8, 64, 1), R(8,
    64, 1)), 2),
    "images": (statistics, (R(4, 8, 16, 16),), None),
    "channels-last images": (statistics, (R(4, 8, 16, 16).to(**last),), None),
    "channels-last, odd": (statistics, (R(3, 5, 15, 17).to(**last),), None),
    "a prime": (lambda x: x.sum(0), (R(1009, 4),), 2),
    "a prime's statistics": (statistics, (R(1009, 3, 1, 1).to(**last),), None),
    "all of a prime": (lambda x: (x.sum(), x.var(), x.amax()), (R(4099),), 4),
    "a prime of integers": (whole, (I(-9, 9, 4099),), 2),
    "a prime of products": (lambda x: ((1 + x / 500).prod(0), (x / 500 - 1).prod(0)), (R(1009,
    3),), 2),
    "a prime looked up": (lambda x, i: (x[i].sum(0), (x[i] == x[0]).any(0)), (R(7, 3), I(1, 7,
    1009)), 2),
    "a prime that is padded": (lambda x: F.pad(x, (0, 0, 1, 0), value=3.0).sum(0), (R(1008, 3),),
    2),
    "few odd columns": (lambda x: (x.sum(0), x.var(0)), (R(301, 77),), 1),
    "a prime of twos": (lambda x: x.sum(1), (R(2, 8209),), 2),
    "images normalised": (normalised, (channels_last(4, 64, 8, 8), R(64), R(64)), 1),
    "odd images normalised": (normalised, (channels_last(3, 70, 5, 7), R(70), R(70)), 1),
    "larger images normalised": (normalised, (channels_last(4, 64, 16, 17), R(64), R(64)), 3),
    "few channels normalised": (normalised, (channels_last(4, 24, 16, 16), R(24), R(24)), 3),
    "planes normalised and added to pixels": (
        lambda y, x, w, b: (y + F.batch_norm(x, None, None, w, b, True)).relu(),
        (channels_last(4, 128, 17, 16), R(4, 128, 17, 16), R(128), R(128)), 2,
    ),
    "a norm's gradients": (
        image_norm_gradients,
        (channels_last(4, 64, 8, 8), channels_last(4, 64, 8, 8), R(64), R(64) / 9,
        R(64).abs() + 0.5), 1,
    ),
    "long rows": (lambda x: (x.sum(1), x.amax(1)), (R(2, 5000),), None),
    "all": (lambda x: x.sum(), (R(20_000),), 2),
    "products": (lambda x: (1 + x / 500).prod(0), (R(512, 3),), 2),
    "any": (lambda x: ((x > 9).any(0), (x < 9).all(0)), (R(512, 3),), None),
    "bfloat16": (lambda x: x.sum(0), (R(1024, 24).bfloat16(),), 2),
    "double": (lambda x: x.sum(0), (R(1024, 24).double(),), 2),
    "cross-entropy's input": (lambda x: F.log_softmax(x, 1).sum(0), (R(512, 20),), None),
}  # fmt: skip


@pytest.mark.sweep(keep=7)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_parts_give_the_whole(name, dynamic):
    fn, inputs, kernels = CASES[name]
    expected = flat(fn(*clones(inputs)))
    with interpreted():
        result = compiled(fn, *inputs, dynamic=dynamic)
    for ours, eager in zip(result(*clones(inputs)), expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        bounds = (
            {"atol": 2e-3, "rtol": 1e-4} if eager.dtype == torch.float32 else tolerance(eager.dtype)
        )
        torch.testing.assert_close(ours, eager, **bounds)
    if kernels is not None and not dynamic:
        assert result.kernels == kernels


def with_some(number):
    x = R(211)
    x[60:150:23] = number
    return x


places = lambda x: (x.argmax(), x.argmin())

#: name -> (program, input)
PLACES = {
    "several dimensions": (places, R(2, 3, 53)),
    "columns": (lambda x: (x.argmax(0), x.argmin(0, keepdim=True)), R(211, 2)),
    "many equal ones": (places, I(-3, 3, 211)),
    "NaN": (places, with_some(float("nan"))),
    "the last one": (places, torch.cat([R(210), torch.tensor([99.0])])),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_found_in_parts(name, monkeypatch):
    for limit in ("LONG_ROW", "MIN_ROW", "LONG_COLUMN", "MIN_COLUMN"):
        monkeypatch.setattr(split_reductions, limit, 64)
    for part in ("MIN_PART", "MIN_COLUMN_PART"):
        monkeypatch.setattr(split_reductions, part, 24)
    fn, x = PLACES[name]
    with interpreted():
        result = compiled(fn, x)
    assert "_extremes" in "".join(result.compilation.program.buffers), "nothing was cut"
    for ours, eager in zip(result(x.clone()), fn(x), strict=True):
        assert ours.dtype == eager.dtype and torch.equal(ours, eager)


def sums_of_two_results(x, w, v):
    """Sums of columns that share no operand; one kernel makes what they read."""
    y, z = x.softmax(1), x - x.amax(1, keepdim=True)
    return y, z, (y * w).sum(0), (z * v).sum(0)


@pytest.mark.parametrize("rows", [512, 4096])
def test_sums_that_share_no_operand_are_one_kernel_where_they_read_little(rows):
    inputs = R(rows, 512), R(512), R(512)
    with interpreted():
        result = compiled(sums_of_two_results, *inputs)
    bodies = [part for group in result.compilation.plan.groups for part in group.parts or [group]]
    parts = [group for group in bodies if group.domain.reduced == (False, True, False)]
    assert [len(group.nodes) for group in parts] == ([2] if rows == 512 else [1, 1])


def test_neighbours_read_neighbours():
    """A program's threads read along memory: the channels of channels-last images, not their
    parts.
    """
    with interpreted():
        result = compiled(lambda x: x.sum((0, 2, 3)), R(16, 64, 14, 14).to(**last))
    first = result.source.split("@triton.jit")[1]
    assert "x1 = xindex % 64" in first and "+ x1)" in first


GROWING = {
    "all": (lambda x: (x.sum(), x.amax()), lambda n: (R(n),)),
    "a variance": (lambda x: (x.var(), x.mean()), lambda n: (R(n) + 5,)),
    "columns": (lambda x: (x.sum(0), *torch.var_mean(x, 0)), lambda n: (R(n // 8, 3),)),
    "what makes them": (gelu_gradient, lambda n: (R(n // 8, 4), R(n // 8, 4))),
}


@pytest.mark.parametrize("name", GROWING)
def test_sizes_that_change(name):
    """Symbolic sizes have no divisors: parts of one length, as many as there are, the last one
    shorter.
    """
    fn, inputs = GROWING[name]
    with interpreted():
        result = compiled(fn, *inputs(4504), dynamic=True)
    assert "_parts" in repr(list(result.compilation.program.buffers))
    for n in (4504, 100, 16, 6007):
        arguments = inputs(n)
        for ours, eager in zip(result(*clones(arguments)), flat(fn(*arguments)), strict=True):
            torch.testing.assert_close(ours, eager, atol=2e-3, rtol=1e-4)
