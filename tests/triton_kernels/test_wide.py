"""Tensors of more than 2^31 elements, whose offsets need 64 bits: on a real GPU against eager, bit
for bit; their kernels' form for small tensors by Triton's interpreter."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.codegen.triton import addressing, block_sizes, index_writer
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import R
from tests.support.comparison import assert_equal
from tests.triton_kernels.test_interpreted import checked

MANY = 2**31 + 77
SIDE = 46_351  # its square is above 2^31

no_room = not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 30 * 2**30


def small_numbers(*sizes):
    x = torch.empty(sizes, dtype=torch.int8, device="cuda")
    x.random_(-3, 4)
    return x


def near_the_end(count, rows):
    return torch.tensor([0, 5, rows - 2, rows - 1, *range(rows - count, rows - 2)], device="cuda")[
        :count
    ]


def looked_up():
    rows = MANY // 1024 + 1
    return (lambda x, i: x[i] * 2), small_numbers(rows, 1024), near_the_end(9, rows)


def added_to():
    rows = 2**20 + 8
    y = torch.zeros(rows, 2048, device="cuda")  # 8 GiB: atomics are for 32 bits and more
    i = near_the_end(9, rows)
    source = torch.arange(9 * 2048, device="cuda", dtype=torch.float32).view(9, 2048)

    def program(y, i, source):
        y.index_add_(0, i, source)
        return y[i] + 1

    return program, y, i, source


PROGRAMS = {
    "pointwise": lambda: ((lambda x: x * 3 + 1), small_numbers(MANY)),
    "transposed": lambda: ((lambda x: x.t() + x), small_numbers(SIDE, SIDE)),
    "rows": lambda: ((lambda x: (x.sum(1), x.amax(1), x.argmin(1))), small_numbers(SIDE, SIDE)),
    "columns": lambda: ((lambda x: x.sum(0)), small_numbers(SIDE, SIDE)),
    "everything": lambda: ((lambda x: (x.sum(), x.amax())), small_numbers(MANY)),
    "an element far away": lambda: ((lambda x: x[-70:] * 2), small_numbers(MANY)),
    "joined": lambda: ((lambda x: torch.cat([x[1:], x[:5] * 2])), small_numbers(MANY)),
    "padded": lambda: ((lambda x: F.pad(x, (1, 2)) + 1), small_numbers(SIDE, SIDE)),
    "looked up": looked_up,
    "added to": added_to,
}


@pytest.fixture(autouse=True)
def memory():
    """One test at a time, of all processes that run tests on this machine."""
    if no_room:
        yield
        return
    with open(Path(tempfile.gettempdir()) / "tracer_core_wide.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        tracer_core.reset()
        torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.skipif(no_room, reason="no GPU with 30 GiB free")
@pytest.mark.parametrize("name", PROGRAMS)
def test_offsets_beyond_32_bits(name):
    torch.manual_seed(0)
    fn, *inputs = PROGRAMS[name]()
    actual = tracer_core.compile(fn)(*inputs)
    if name == "added to":
        inputs[0].zero_()
    assert_equal(actual, fn(*inputs))


@pytest.mark.gpu
@pytest.mark.skipif(no_room, reason="no GPU with 30 GiB free")
def test_a_size_that_grows_beyond_32_bits():
    fast = tracer_core.compile(lambda x: (x * 3 + 1, x.sum()), dynamic=True)
    for count in (1000, 4003, MANY):
        x = small_numbers(count)
        assert_equal(fast(x), (x * 3 + 1, x.sum()))


@pytest.mark.gpu
@pytest.mark.skipif(no_room, reason="no GPU with 30 GiB free")
def test_the_place_of_the_greatest_is_beyond_32_bits():
    x = small_numbers(MANY)
    x[MANY - 9] = 100
    assert tracer_core.compile(lambda x: x.argmax())(x).item() == MANY - 9


LOOPS = {
    "rows": (lambda x: F.layer_norm(x, (2053,)).softmax(-1), R(2, 2053)),
    "columns": (lambda x: (x.sum(0), x.var(0)), R(209, 3)),
    "running sums": (lambda x: x.cumsum(1), R(1, 2053)),
}


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_count_their_passes(name, monkeypatch):
    """As loops to an end that 32 bits do not hold are written: Triton would take that for a
    negative number.
    """
    for module in (addressing, index_writer):
        monkeypatch.setattr(module, "NARROW", 100)
    monkeypatch.setattr(block_sizes, "MAX_PERSISTENT", 64)
    fn, *inputs = LOOPS[name]
    result = checked(fn, *inputs)
    assert "for number in range(0, " in result.source and "for start in" not in result.source
    assert "pid = tl.program_id(0).to(tl.int64)" in result.source
