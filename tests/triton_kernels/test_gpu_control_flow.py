"""On a real GPU: torch's scan, associative_scan, cond and while_loop beside Python's loops and branches,
values and gradients. ``python -m pytest -m gpu``.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.inductor import test_branches as branches
from tests.inductor import test_scan_loops as scans
from tests.inductor.test_scan_loops import R, run
from tests.support.comparison import assert_same_sums
from tracer_core.torch_private.releases import is_before

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _no_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def on_gpu(*inputs):
    return tuple(value.detach().cuda().requires_grad_(value.requires_grad) for value in inputs)


@pytest.mark.skipif(is_before("2.13"), reason="a scan breaks the graph before torch 2.13")
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("steps", [40, 300], ids=["unrolled", "a loop"])
@pytest.mark.parametrize("name", ["rnn", "lstm", "learned", "two scans", "matrices"])
def test_scans(name, steps, grad):
    make, args, _ = scans.PROGRAMS[name]
    owner = make()
    if isinstance(owner, torch.nn.Module):
        owner.cuda()
    xs = max(range(len(args)), key=lambda k: args[k].dim())
    longer = [R(steps, *arg.shape[1:]) if k == xs else arg for k, arg in enumerate(args)]
    args = on_gpu(*longer)
    compiled = tracer_core.compile(owner, backend="inductor", fullgraph=True)
    for _ in range(3):
        for got, want in zip(run(compiled, owner, args, grad), run(owner, owner, args, grad)):
            assert_same_sums(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(4096, 64), (1000,), (77, 3, 5), (20_000, 2)], ids=str)
def test_a_linear_recurrence(sizes, dtype):
    def in_float64(a, b):
        actual = [b[0].double()]
        for x, y in zip(a[1:].double().sigmoid(), b[1:].double(), strict=True):
            actual.append(actual[-1] * x + y)
        return torch.stack(actual)

    a, b = on_gpu(R(*sizes, dtype=dtype, grad=False), R(*sizes, dtype=dtype, grad=False))
    compiled = tracer_core.compile(scans.recurrence, backend="inductor", fullgraph=True)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 0.2}[dtype]
    for _ in range(3):
        got = compiled(a, b)[1]
        torch.testing.assert_close(got.double(), in_float64(a, b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", branches.CONDS)
def test_conds(name, grad):
    owner = branches.CONDS[name]()
    if isinstance(owner, torch.nn.Module):
        owner.cuda()
    compiled = tracer_core.compile(owner, backend="inductor", fullgraph=True)
    for sign in (1, -1, 0.01, 1):
        args = on_gpu(*branches.inputs(sign))
        got, want = run(compiled, owner, args, grad), run(owner, owner, args, grad)
        assert_same_sums(got[0], want[0])
        for item, other in zip(got[1], want[1], strict=True):
            torch.testing.assert_close(item, torch.zeros_like(item) if other is None else other,
                                       rtol=1e-4, atol=1e-5)  # fmt: skip


def looped(x, w, n):
    return branches.loop(
        lambda v, n: v.norm() < 50, lambda v, n: (v @ w * 2, n + 1), (x, n)
    )  # fmt: skip


@pytest.mark.parametrize("counter", ["cuda", "cpu"])
def test_while_loops(counter):
    compiled = tracer_core.compile(looped, backend="inductor", fullgraph=True)
    for rows in (4, 4, 6):
        args = on_gpu(R(rows, 3, grad=False), R(3, 3, grad=False))
        n = torch.zeros((), dtype=torch.int32, device=counter)
        got, want = compiled(*args, n), looped(*args, n)
        torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-4)
        assert int(got[1]) == int(want[1]) and got[1].device == want[1].device
