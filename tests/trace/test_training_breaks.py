"""Training programs with graph breaks in them, errors of autograd, optimizers of the program's own,
nested compiles.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from tests.support.eager_training import Side, X, Y, mlp, trained

CALLS = ((X, Y), (X.flip(0), Y.flip(0)), (X * 2, Y), (X, Y))


def _program(body: Any, optimizer: Any = torch.optim.Adam, **options: Any) -> Any:
    """body(model, optimizer, x, y, log) is the step."""

    def make() -> Side:
        model, log = mlp(), []
        used = optimizer(model.parameters(), **{"lr": 0.05, **options})
        return Side(lambda x, y: body(model, used, x, y, log), [model, used, log])

    return make


def _before_backward(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    tracer_core.graph_break()
    loss.backward()
    optimizer.step()
    return loss


def _after_backward(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    tracer_core.graph_break()
    optimizer.step()
    return loss


def _before_forward(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    tracer_core.graph_break()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def _loss_read_in_the_middle(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    log.append(loss.item())
    if log[-1] > 0.5:
        optimizer.step()
    return loss


def _gradient_norm_decides(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm):
        optimizer.step()
    return norm


def _loss_before_and_after(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    first = F.cross_entropy(model(x), y)
    tracer_core.graph_break()
    second = F.cross_entropy(model(x * 2), y)
    (first + second).backward()
    optimizer.step()
    return first, second


def _gradient_through_the_break(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    hidden = model[0](x)
    tracer_core.graph_break()
    (g,) = torch.autograd.grad(model[2](hidden.tanh()).sum(), model[0].bias, retain_graph=True)
    return g


def _accumulated_with_breaks(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    for part, wanted in zip(x.split(2), y.split(2), strict=True):
        loss = F.cross_entropy(model(part), wanted)
        loss.backward()
        log.append(float(loss))
    optimizer.step()
    return loss


def _gradients_printed(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    log.append({name: p.grad.abs().max().item() for name, p in model.named_parameters()})
    optimizer.step()


BREAKING = [
    _before_backward, _after_backward, _before_forward, _loss_read_in_the_middle,
    _gradient_norm_decides,
    _loss_before_and_after, _gradient_through_the_break, _accumulated_with_breaks,
    _gradients_printed,
]  # fmt: skip


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
@pytest.mark.parametrize("body", BREAKING, ids=lambda body: body.__name__.strip("_"))
@pytest.mark.sweep(keep=9)
def test_break_in_a_step(body: Any, optimizer: Any) -> None:
    trained(_program(body, optimizer), *CALLS, breaks=None)


def _not_a_scalar(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    model(x).backward()


def _no_gradient_needed(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    model(x).sum().detach().backward()


def _twice(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    log.append("once")
    loss.backward()


def _unused_input(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    other = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(model(x).sum(), [other])


def _wrong_shape(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    model(x).backward(torch.ones(2))


def _changed_in_place(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    hidden = model[0](x).exp()
    loss = hidden.sum()
    hidden.add_(1)
    loss.backward()


def _parameter_updated_before_backward(
    model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]
) -> Any:
    loss = model(x).pow(2).sum()
    with torch.no_grad():
        model[2].weight.add_(1)
    loss.backward()


def _caught(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        log.append(str(error)[:20])
    optimizer.step()
    return loss


def _label_out_of_range(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    log.append("begun")
    loss = F.cross_entropy(model(x), y + 2)
    loss.backward()
    optimizer.step()


ERRORS = [_not_a_scalar, _no_gradient_needed, _twice, _unused_input, _wrong_shape,
_changed_in_place,
          _parameter_updated_before_backward, _caught, _label_out_of_range]  # fmt: skip


@pytest.mark.parametrize("body", ERRORS, ids=lambda body: body.__name__.strip("_"))
@pytest.mark.sweep(keep=5)
def test_error(body: Any) -> None:
    trained(_program(body, torch.optim.SGD), *CALLS, breaks=None)


# -- optimizers of the program's own --


class Lion(torch.optim.Optimizer):
    def __init__(
        self, params: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg, (beta1, beta2) = state["exp_avg"], group["betas"]
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)
        return loss


class CountingAdam(torch.optim.Optimizer):
    """Adam whose counter is an int of Python."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                scale = math.sqrt(1 - 0.999 ** state["step"]) / (1 - 0.9 ** state["step"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-group["lr"] * scale)


def _plain(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def test_lion() -> None:
    trained(_program(_plain, Lion), *CALLS, graphs=2)


def test_counter_in_python() -> None:
    counter = trained(_program(_plain, CountingAdam), *CALLS, *CALLS)
    assert len(counter.graphs) <= 3, counter.recompiles


def test_adafactor_of_torch() -> None:
    trained(_program(_plain, torch.optim.Adafactor), *CALLS, breaks=None)


def test_adafactor_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    trained(_program(_plain, transformers.Adafactor, relative_step=False), *CALLS, breaks=None)


def test_lbfgs() -> None:
    """It decides by values: its step runs for real, with the program's closure."""

    def body(model: Any, optimizer: Any, x: Any, y: Any, log: list[Any]) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    trained(_program(body, torch.optim.LBFGS, max_iter=3), *CALLS, breaks=None)


def test_averaged_model() -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

        def step(x: Any, y: Any) -> Any:
            loss = _plain(model, optimizer, x, y, [])
            average.update_parameters(model)
            return loss

        return Side(step, [model, optimizer, average])

    trained(make, *CALLS, breaks=None)


def test_compiled_model_in_a_compiled_step() -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        inner = tracer_core.compile(model, backend="eager")

        def step(x: Any, y: Any) -> Any:
            return _plain(inner, optimizer, x, y, [])

        return Side(step, [model, optimizer])

    trained(
        make, *CALLS, graphs=3
    )  # one of them is the inner model's, compiled alone on the eager side


def test_complex_parameters() -> None:
    def make() -> Side:
        weight = nn.Parameter(
            torch.randn(4, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(5))
        )
        optimizer = torch.optim.Adam([weight], lr=0.05)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy((x.to(torch.complex64) @ weight).abs(), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [[weight.data], optimizer])

    trained(make, *CALLS, breaks=None)


def test_dynamic_false() -> None:
    """Counters of steps are no sizes: they need not compile anything there either."""
    trained(_program(_plain, torch.optim.Adam), *CALLS, graphs=2, dynamic=False)


def test_fullgraph() -> None:
    trained(_program(_plain, torch.optim.AdamW), *CALLS, graphs=2, fullgraph=True)


def test_many_steps_without_recompiling() -> None:
    trained(_program(_plain, torch.optim.Adam), *((X, Y),) * 60, graphs=2, recompiles=1)
