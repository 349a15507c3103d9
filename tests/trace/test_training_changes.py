"""What changes between steps: learning rates, parameters, gradients, flags, optimizers' state. No
change may be missed, and what changes on every step must not compile anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules

from tests.support.eager_training import Side, X, Y, mlp, trained

CALLS = ((X, Y),) * 6


def _step(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


SCHEDULES = {
    "StepLR": lambda o: schedules.StepLR(o, 2, gamma=0.5),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5),
    "LinearLR": lambda o: schedules.LinearLR(o, total_iters=4),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda n: 1 / (n + 1)),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, total_iters=8, power=2.0),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o, 0.1, 2), schedules.ExponentialLR(o, 0.9)], [2]),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler([schedules.StepLR(o, 3),
    schedules.ExponentialLR(o, 0.9)]),
}  # fmt: skip


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_between_steps(name: str, optimizer: Any) -> None:
    """The rate changes after every call: from the third variant on it is an input."""

    def make() -> Side:
        model = mlp()
        used = optimizer(model.parameters(), lr=0.05)
        schedule = SCHEDULES[name](used)
        return Side(
            _step(model, used), [model, used, schedule], dict.fromkeys(range(1, 7), schedule.step)
        )

    counter = trained(make, *CALLS)
    assert len(counter.graphs) <= 3, counter.recompiles


@pytest.mark.parametrize("foreach", [False, True])
def test_rate_set_by_hand(foreach: bool) -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, foreach=foreach)

        def slower() -> None:
            for group in optimizer.param_groups:
                group["lr"] *= 0.7

        return Side(_step(model, optimizer), [model, optimizer], dict.fromkeys(range(2, 6), slower))

    trained(make, *CALLS, graphs=3)


def test_tensor_rate_filled() -> None:
    def make() -> Side:
        model, rate = mlp(), torch.tensor(0.05)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return Side(
            _step(model, optimizer),
            [model, optimizer],
            {i: lambda: rate.mul_(0.5) for i in range(2, 6)},
        )

    trained(make, *CALLS, graphs=2)


def _changed(change: Any, optimizer: Any = torch.optim.SGD, **options: Any) -> Any:
    """A program that `change(model, optimizer)` is applied to before steps 2 and 4."""

    def make() -> Side:
        model = mlp()
        used = optimizer(model.parameters(), **{"lr": 0.05, **options})
        return Side(
            _step(model, used), [model, used], {i: lambda: change(model, used) for i in (2, 4)}
        )

    return make


def _load(model: Any, optimizer: Any) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def _load_assign(model: Any, optimizer: Any) -> None:
    model.load_state_dict(
        {name: value * 0.5 for name, value in model.state_dict().items()}, assign=True
    )


def _load_optimizer(model: Any, optimizer: Any) -> None:
    state = optimizer.state_dict()
    state["param_groups"][0]["weight_decay"] = 0.01
    optimizer.load_state_dict(state)


def _freeze(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(not model[0].weight.requires_grad)


def _data(model: Any, optimizer: Any) -> None:
    model[2].weight.data = model[2].weight.data.flip(0).clone()


def _written(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[2].weight.mul_(0.5)


def _gradients(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)


def _some_gradients(model: Any, optimizer: Any) -> None:
    model[0].weight.grad = None


def _no_state(model: Any, optimizer: Any) -> None:
    optimizer.state.clear()


def _new_group(model: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1.0})


def _replaced(model: Any, optimizer: Any) -> None:
    optimizer.state.pop(model[2].bias, None)
    model[2].bias = torch.nn.Parameter(torch.zeros(3))
    optimizer.param_groups[0]["params"][3] = model[2].bias


def _option(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["maximize"] = not optimizer.param_groups[0]["maximize"]


def _eval(model: Any, optimizer: Any) -> None:
    model.train(not model.training)


CHANGES = {
    "load_state_dict": _load, "load_state_dict_assign": _load_assign,
    "optimizer_load_state_dict": _load_optimizer,
    "requires_grad_flipped": _freeze, "data_replaced": _data, "parameter_written": _written,
    "gradients_set": _gradients,
    "a_gradient_removed": _some_gradients, "state_cleared": _no_state, "group_added": _new_group,
    "parameter_replaced": _replaced, "option_changed": _option, "training_flag": _eval,
}  # fmt: skip


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
@pytest.mark.parametrize("name", CHANGES)
def test_change_between_steps(name: str, optimizer: Any) -> None:
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    trained(_changed(CHANGES[name], optimizer, **options), *CALLS)


@pytest.mark.parametrize("name", ["gradients_set", "a_gradient_removed"])
def test_gradients_changed_before_an_accumulating_step(name: str) -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(
            step, [model, optimizer], {i: lambda: CHANGES[name](model, optimizer) for i in (2, 4)}
        )

    trained(make, *CALLS)


def test_two_parameters_become_one() -> None:
    """The gradient of a tied parameter is the sum; the graph for two parameters must not run."""

    def make() -> Side:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        )

        def step(x: Any) -> Any:
            model.zero_grad()
            model(x).pow(2).mean().backward()

        def tie() -> None:
            model[1].weight = model[0].weight

        return Side(step, model, {2: tie})

    trained(make, *((X,),) * 4)


def test_gradients_of_two_parameters_become_one_tensor() -> None:
    def make() -> Side:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        )

        def step(x: Any) -> Any:
            model(x).pow(2).mean().backward()

        def share() -> None:
            model[0].weight.grad = model[1].weight.grad = torch.zeros(4, 4)

        return Side(step, model, {2: share})

    trained(make, *((X,),) * 4)


def test_counters_that_share_memory_with_what_the_program_counts() -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        counter = torch.zeros(4)
        for i, p in enumerate(model.parameters()):
            optimizer.state[p] = {
                "step": counter[i],
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
        full = _step(model, optimizer)

        def step(x: Any, y: Any) -> Any:
            counter.add_(1)
            return full(x, y)

        return Side(step, [model, optimizer, counter])

    trained(make, *CALLS, breaks=None)


def test_batch_size_changes() -> None:
    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        return Side(_step(model, optimizer), [model, optimizer])

    trained(make, (X, Y), (X, Y), *((X[:n], Y[:n]) for n in (4, 5, 3, 2, 6)), graphs=3)
