"""The traceable forms of torch's fused optimizers beside the kernels, step after step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core

FORMS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}),
    "Adam-decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW-amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "AdamW-maximize": (torch.optim.AdamW, {"maximize": True}),
    "AdamW-betas": (torch.optim.AdamW, {"betas": (0.0, 0.5), "eps": 1e-3}),
    "AdamW-tensor_lr": (torch.optim.AdamW, {"lr": torch.tensor(0.02)}),
    "SGD": (torch.optim.SGD, {}),
    "SGD-momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    "SGD-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
}
#: How far a parameter may be from the kernel's after the steps, by dtype: a rounding a step.
CLOSE = {torch.float64: 1e-7, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def _left(optimizer: Any, parameters: list[Any]) -> list[Any]:
    """Returns the parameters, their gradients and their states after some steps."""
    states = [
        value for p in parameters for value in optimizer.state[p].values()
        if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    return [*(p.detach() for p in parameters), *(p.grad for p in parameters), *states]


def _trained(name: str, dtype: torch.dtype, compile: Any, skipped: int | None = None) -> Any:
    torch.manual_seed(0)
    kind, options = FORMS[name]
    shapes = ((3, 5), (7,), (), (2, 2, 2))
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    optimizer = kind(parameters, **{"lr": 0.01, **options}, fused=True)
    scale, found_inf = torch.tensor(4.0), torch.tensor(0.0)
    scaled = skipped is not None

    def step() -> Any:
        optimizer.zero_grad()
        loss = sum((p * p).sum() + (p * 0.3).sin().sum() for p in parameters)
        (loss * scale if scaled else loss).backward()
        if scaled:  # as GradScaler hands them to fused optimizers
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
        optimizer.step()
        return loss.detach()

    run = compile(step)
    for number in range(5):
        found_inf.fill_(float(number == skipped))
        run()
    return _left(optimizer, parameters)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_steps_equal_the_kernels(name: str, dtype: torch.dtype, backend: str) -> None:
    eager = _trained(name, dtype, lambda f: f)
    ours = _trained(name, dtype, lambda f: tracer_core.compile(f, backend=backend))
    for mine, theirs in zip(ours, eager, strict=True):
        assert mine.dtype is theirs.dtype and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("name", ["AdamW", "SGD-momentum", "Adagrad"])
def test_a_step_with_an_infinity_changes_nothing(name: str) -> None:
    # the kernel leaves the momentum of a skipped first step uninitialized
    for skipped in (2,) if name == "SGD-momentum" else (0, 2):
        eager = _trained(name, torch.float32, lambda f: f, skipped)
        ours = _trained(name, torch.float32, tracer_core.compile, skipped)
        for mine, theirs in zip(ours, eager, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)


def test_the_step_is_one_graph_that_runs_no_operator_eagerly() -> None:
    from tracer_core.testing import CaptureCounter

    with CaptureCounter() as counter:
        _trained("AdamW", torch.float32, tracer_core.compile)
    assert len(counter.graphs) == 2 and not counter.breaks


ADAFACTOR: dict[str, dict[str, Any]] = {
    "plain": {},
    "lists": {"foreach": True},
    "decay": {"weight_decay": 0.1, "lr": 0.5, "d": 2.0},
    "maximize": {"maximize": True, "eps": (1e-20, 0.2), "beta2_decay": -0.5},
    "maximize-lists": {"maximize": True, "foreach": True, "weight_decay": 0.1},
}


def _adafactor(options: dict[str, Any], dtype: torch.dtype, compile: Any) -> Any:
    torch.manual_seed(0)
    shapes = ((3, 5), (7,), (), (2, 3, 2))
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]
    optimizer = torch.optim.Adafactor(parameters, **options)

    def step() -> Any:
        optimizer.zero_grad()
        loss = sum((p * p).sum() + (p * 0.3).sin().sum() for p in parameters)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    for number in range(6):
        if number == 4:
            optimizer.param_groups[0]["lr"] *= 0.5
        run()
    return _left(optimizer, parameters)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", ADAFACTOR)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_adafactor_is_one_graph(name: str, dtype: torch.dtype, backend: str) -> None:
    from tracer_core.testing import CaptureCounter

    eager = _adafactor(ADAFACTOR[name], dtype, lambda f: f)
    with CaptureCounter() as counter:
        ours = _adafactor(ADAFACTOR[name], dtype, lambda f: tracer_core.compile(f, backend=backend))
    assert len(counter.graphs) == 3 and not counter.breaks  # another rate is one more
    close = 0.0 if backend == "eager" else CLOSE[dtype]
    for mine, theirs in zip(ours, eager, strict=True):
        assert mine.dtype is theirs.dtype and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=close, atol=close)
