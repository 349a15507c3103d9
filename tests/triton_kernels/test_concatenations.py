"""Concatenations as Triton kernels: what they join is computed where it is stored."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir.nodes import ExternNode
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import compiled
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def messages(x, i, j, w):
    return torch.cat([x[i], x[j]], 1) @ w


def rotated(x, c, s):
    """As in nanogpt: halves that are sums of two products each."""
    a, b = x[..., :8], x[..., 8:]
    return F.rms_norm(torch.cat([a * c + b * s, a * -s + b * c], -1), (16,))


def test_gathers_are_stored_in_the_concatenation():
    result = checked(messages, R(7, 8), I(-7, 7, 30), I(0, 7, 30), R(16, 5))
    assert result.kernels == 1 and result.source.count("tl.store(") == 2
    assert result.source.count("tl.device_assert(") == 2


def test_gathers_that_others_read_too():
    def program(x, i, j, w):
        a, b = x[i], x[j]
        return torch.cat([a, b], 1) @ w, a * 2, b.sum(0)

    checked(program, R(7, 8), I(-7, 7, 30), I(0, 7, 30), R(16, 5))


def test_gathers_beside_rows_that_exist():
    for parts in (
        lambda x, i, y: [x[i], y],
        lambda x, i, y: [y, x[i], y, x[i.flip(0)]],
        lambda x, i, y: [x[i].double(), y],
        lambda x, i, y: [x[i][:, 2:], y[:, 2:]],
        lambda x, i, y: [F.embedding(i.abs() % 7, x), y.index_select(0, i.abs() % 7).t().t()],
    ):
        checked(lambda x, i, y, parts=parts: torch.cat(parts(x, i, y), 1), R(7, 8), I(-7, 7, 30),
                R(30, 8))  # fmt: skip


def test_an_index_out_of_range_is_checked_in_the_concatenation():
    """The interpreter knows no assertions: nothing outside is read."""
    with interpreted():
        created = compiled(messages, R(7, 8), I(0, 7, 4), I(0, 7, 4), R(16, 5))
    x, w = R(7, 8), torch.eye(16)
    (result,) = created(x, torch.tensor([0, 9_000_000_000, 1, -8]), I(0, 7, 4), w[:, :5])
    torch.testing.assert_close(result[[0, 2]], x[[0, 1], :5])


def test_rotated_halves_are_one_kernel_and_read_as_rows():
    result = checked(rotated, R(3, 5, 16), R(5, 8), R(5, 8))
    assert result.kernels == 2
    first, second = result.compilation.sources
    assert first.count("tl.store(") == 2 and "tl.where" not in second.replace("where(True", "")


def test_what_reads_half_of_a_concatenation():
    def program(x, c, s):
        a, b = x[..., :8], x[..., 8:]
        y = torch.cat([a * c + b * s, a * -s + b * c], -1)
        return y[..., 8:] * 2, y[..., :8].sin(), y.amax(-1)

    checked(program, R(3, 5, 16), R(5, 8), R(5, 8))


def test_stacked_gathers_and_symbolic_sizes():
    checked(lambda x, i, j: torch.stack([x[i], x[j]], -1), R(7, 8), I(0, 7, 30), I(0, 7, 30))
    result = checked(messages, R(7, 8), I(0, 7, 30), I(0, 7, 30), R(16, 5), dynamic=True)
    inputs = R(9, 8), I(0, 9, 40), I(0, 9, 40), R(16, 5)
    torch.testing.assert_close(result(*inputs)[0], messages(*inputs), atol=1e-4, rtol=1e-4)


def test_a_sum_is_computed_once_before_its_rows_are_gathered():
    """Not once for each index."""

    def program(x, y, i, j, w):
        z = x + y.relu()
        return torch.cat([z[i], z[j]], 1) @ w

    result = checked(program, R(300, 16), R(300, 16), I(0, 300, 900), I(0, 300, 900), R(32, 4))
    assert result.kernels == 2


def joined(a, b, w):
    return torch.cat([a, b], 1) @ w


def joined_and_read(a, b, w):
    both = torch.cat([a, b], 1)
    return both @ w, both.sin()


def joined_in_batches(a, b, w):
    return F.linear(torch.cat([a.view(8, 5, 20), b.view(8, 5, 5)], 2), w.t(), w[0])


def joined_along_rows(a, b, w):
    return torch.cat([a.view(8, 5, 20), b.view(8, 5, 5)], 2).view(40, 25) @ w


@pytest.mark.parametrize(
    "fn, copies",
    [(joined, 0), (joined_in_batches, 0), (joined_along_rows, 0), (joined_and_read, 1)],
)
def test_rows_of_a_concatenation_begin_where_a_matmul_wants_them(monkeypatch, fn, copies):
    """A copy with aligned rows reads and writes all of it; another reader expects dense rows."""
    monkeypatch.setattr(matmul, "MIN_COPIED_OPERAND", 64)
    a, b, w = R(40, 20).half(), R(40, 5).half(), R(25, 24).half()
    result = checked(fn, a, b, w)
    (call,) = [n for n in result.compilation.program.nodes if isinstance(n, ExternNode)]
    assert call.args[-2].layout.strides == (32, 1)
    assert sum(node.origin.op == "copy" for node in result.compilation.program.nodes) == copies
