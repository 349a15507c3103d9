"""On real GPUs: programs on the CPU and a GPU, on the second GPU, and over two GPUs, against eager;
what is cut is said.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tracer_core.debug import fallbacks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
MODES = ["default", "reduce-overhead"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(fallbacks, "_said", set())
    tracer_core.reset()
    yield
    tracer_core.reset()


def compared(fn, *inputs, mode="default", calls=6):
    """Values and gradients over some calls, with other numbers each time."""
    fast = tracer_core.compile(fn, mode=mode)
    for _ in range(calls):
        inputs = [torch.randn_like(x).requires_grad_(x.requires_grad) for x in inputs]
        both = []
        for program in (fast, fn):
            arguments = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            results = program(*arguments)
            results = results if isinstance(results, tuple) else (results,)
            if any(r.requires_grad for r in results):
                sum(r.square().sum().to("cuda:0") for r in results if r.requires_grad).backward()
            both.append(([r.detach() for r in results], [x.grad for x in arguments]))
        (ours, gradients), (eager, expected) = both
        assert [r.device for r in ours] == [r.device for r in eager]
        torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-4)
        for mine, theirs in zip(gradients, expected, strict=True):
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
    return fast


def through_the_cpu(x):
    y = torch.tanh(x) * 2
    order = F.softmax(y.cpu() + 1, 1)
    return torch.sin(order.cuda()) + y, order


@pytest.mark.parametrize("mode", MODES)
def test_a_part_on_the_cpu(mode, caplog):
    x = torch.randn(40, 30, device="cuda")
    with torch.no_grad():
        compared(through_the_cpu, x, mode=mode)
    assert "a result on cpu in a graph of cuda:0" in caplog.text
    compared(through_the_cpu, x.requires_grad_(), mode=mode)


class Halves(nn.Module):
    """The first layers on one device, the others on another."""

    def __init__(self, first, second):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64)).to(first)
        self.second = nn.Sequential(
            nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)
        ).to(second)

    def forward(self, x):
        x = self.first(x)
        return self.second(x.to(self.second[0].weight.device))


@two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_all_on_the_second_gpu(mode):
    """While the first one is the current one."""

    def program(x, y):
        return F.layer_norm(torch.cos(x) + torch.sin(y), (48,)).softmax(-1), (x * y).sum(0)

    x, y = (torch.randn(64, 48, device="cuda:1", requires_grad=True) for _ in range(2))
    assert torch.cuda.current_device() == 0
    compared(program, x, y, mode=mode)
    assert torch.cuda.current_device() == 0


@two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_a_model_over_two_gpus(mode, caplog):
    torch.manual_seed(0)
    model = Halves("cuda:0", "cuda:1")
    ours = copy.deepcopy(model)
    fast = tracer_core.compile(ours, mode=mode)
    for _ in range(6):
        x = torch.randn(16, 32, device="cuda:0")
        results = [net(x) for net in (fast, model)]
        assert results[0].device == torch.device("cuda:1")
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
        for net, result in zip((ours, model), results, strict=True):
            net.zero_grad()
            result.square().mean().backward()
        for a, b in zip(ours.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)
    assert (
        "from cuda:0 to cuda:1" in caplog.text
        and "compiled apart for cuda:0 and cuda:1" in caplog.text
    )
    modules = [
        record.text for record in tracer_core.last_compile(fast) if record.name == "inductor_module"
    ]
    assert len(modules) >= 4 and all("fused kernels" in text for text in modules), (
        modules
    )  # two parts, two directions


@two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_to_the_other_gpu_and_back(mode):
    """Twice, with a reduction on the CPU in the end; other sizes come in between."""

    def program(x, w, v):
        y = torch.tanh(x @ w).to("cuda:1")
        z = (F.layer_norm(y @ v, (32,)) * 2).to("cuda:0") + x.sum(1, keepdim=True)
        return z.softmax(-1), (z.to("cuda:1") * y).sum(1), z.mean().cpu()

    w, v = torch.randn(48, 32, device="cuda:0"), torch.randn(32, 32, device="cuda:1")
    for rows in (16, 16, 7, 30):
        compared(
            program,
            torch.randn(rows, 48, device="cuda:0", requires_grad=True),
            w,
            v,
            mode=mode,
            calls=4,
        )
