"""Programs around backward(): accumulation, clipping, schedules, several optimizers, gradients that
are read and set.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.eager_training import Side, X, Y, mlp, trained

CALLS = ((X, Y), (X.flip(0), Y.flip(0)), (X * 2, Y), (X - 1, Y))


def sgd(model: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def adam(model: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), **{"lr": 0.05, **options})


PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {}


def program(**expected: Any) -> Any:
    """Registers ``make(model) -> (step, what is watched beside the model)``."""

    def register(make: Any) -> Any:
        PROGRAMS[make.__name__] = make, {"breaks": 0, **expected}
        return make

    return register


@program(graphs=2)
def zero_grad_sets_zeros(model: Any) -> Any:
    optimizer = sgd(model, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


@program(graphs=2)
def zero_grad_sets_zeros_foreach(model: Any) -> Any:
    optimizer = sgd(model, foreach=True)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def zero_grad_of_the_module(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


@program(graphs=2)
def zero_grad_last(model: Any) -> Any:
    optimizer = adam(model)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer


@program(graphs=2)
def never_zeroed(model: Any) -> Any:
    optimizer = sgd(model, lr=0.01)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


@program(graphs=2)
def accumulated_over_micro_batches(model: Any) -> Any:
    optimizer = adam(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for part, wanted in zip(x.split(2), y.split(2), strict=True):
            loss = F.cross_entropy(model(part), wanted) / 3
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return step, optimizer


@program(graphs=3)
def step_every_second_call(model: Any) -> Any:
    optimizer, state = sgd(model), {"calls": 0}

    def step(x: Any, y: Any) -> Any:
        F.cross_entropy(model(x), y).backward()
        state["calls"] += 1
        if state["calls"] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step, [optimizer, state]


@program(graphs=2)
def clipped_by_norm(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return norm

    return step, optimizer


@program(graphs=2)
def clipped_by_value(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def gradients_scaled_by_hand(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad *= 0.5
            p.grad.add_(p.detach(), alpha=0.01)
        optimizer.step()
        return [p.grad.norm() for p in model.parameters()]

    return step, optimizer


@program(graphs=2)
def gradients_replaced(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad = p.grad.sign()
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def gradient_noise(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
        optimizer.step()

    return step, optimizer


@program(graphs=1)
def update_by_hand(model: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss

    return step, None


@program(graphs=2)
def update_by_hand_through_data(model: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-0.1)
            p.grad.data.zero_()
        return loss

    return step, None


@program(graphs=1)
def update_from_autograd_grad(model: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        parameters = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g, alpha=0.1)
        return loss

    return step, None


@program(graphs=2)
def gradient_penalty(model: Any) -> Any:
    optimizer = adam(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        penalty = (g.norm(2, dim=1) - 1).pow(2).mean()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
        return penalty

    return step, optimizer


@program(graphs=2)
def double_backward_by_create_graph(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = sum(g.pow(2).sum() for g in gradients)
        norm.backward()
        optimizer.step()
        return norm

    return step, optimizer


@program(graphs=1)
def backward_that_makes_a_graph(model: Any) -> Any:
    optimizer = sgd(model, lr=0.01)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        model(x).mean().backward()
        held = model[0].weight.grad
        model(x).pow(2).mean().backward(create_graph=True)
        assert held is not model[0].weight.grad
        first = [p.grad.detach().clone() for p in model.parameters()]
        sum(p.grad.pow(2).sum() for p in model.parameters()).backward()
        optimizer.step()
        gradients = [p.grad.detach().clone() for p in model.parameters()]
        model.zero_grad()
        return first, gradients

    return step, optimizer


@program(graphs=2)
def gradients_laid_out_in_another_way(model: Any) -> Any:
    weight = nn.Parameter(torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).t())
    expanded = nn.Parameter(torch.ones(3, 1))

    def step(x: Any, y: Any) -> Any:
        (
            (x @ weight.t()).sum() + (expanded * torch.ones(3, 6)).sum() + model[0].bias.sum()
        ).backward()

    return step, [weight, expanded]


@program(graphs=2)
def backward_twice_with_retain_graph(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer


@program(graphs=2)
def two_losses_one_graph(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        hidden = model[0](x)
        item, other = hidden.tanh().mean(), model[2](hidden.tanh()).pow(2).mean()
        item.backward(retain_graph=True)
        other.backward()
        optimizer.step()
        return item, other

    return step, optimizer


@program(graphs=2)
def two_forwards_before_one_backward(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + F.cross_entropy(model(x * 2), y)).backward()
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def backward_of_a_vector(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x)
        out.backward(torch.ones_like(out) * 0.1)
        optimizer.step()
        return out

    return step, optimizer


@program(graphs=2)
def backward_of_two_tensors(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x)
        torch.autograd.backward([out.mean(), out], [None, torch.full_like(out, 0.1)])
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def backward_into_some_inputs(model: Any) -> Any:
    optimizer = sgd(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward(inputs=list(model[2].parameters()))
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def two_optimizers(model: Any) -> Any:
    first, second = (
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        torch.optim.Adam(model[2].parameters(), lr=0.1),
    )

    def step(x: Any, y: Any) -> Any:
        first.zero_grad()
        second.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
        second.step()

    return step, [first, second]


@program(graphs=2)
def two_steps_in_one_call(model: Any) -> Any:
    optimizer = adam(model)

    def step(x: Any, y: Any) -> Any:
        losses = []
        for scale in (1.0, 0.5):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x * scale), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return step, optimizer


@program(graphs=2)
def parameter_groups(model: Any) -> Any:
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 0.01}, {"params": [model[2].weight],
        "weight_decay": 0.1},
         {"params": [model[2].bias], "betas": (0.5, 0.9)}], lr=0.05)  # fmt: skip

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, optimizer


@program(graphs=2)
def gan(model: Any) -> Any:
    torch.manual_seed(7)
    critic = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    first, second = adam(model), adam(critic)

    def step(x: Any, y: Any) -> Any:
        real = F.one_hot(y, 3).float()
        fake = model(x)
        second.zero_grad()
        loss_critic = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        loss_critic.backward()
        second.step()
        first.zero_grad()
        loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        first.step()
        return loss, loss_critic

    return step, [first, second, critic]


@program(graphs=2)
def averaged_weights(model: Any) -> Any:
    optimizer = sgd(model)
    average = [p.detach().clone() for p in model.parameters()]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, p in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9).add_(p, alpha=0.1)

    return step, [optimizer, average]


@program(graphs=2)
def closure(model: Any) -> Any:
    optimizer = sgd(model, momentum=0.5)

    def step(x: Any, y: Any) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, optimizer


@program(graphs=2)
def loss_as_a_number_at_the_end(model: Any) -> Any:
    optimizer = sgd(model)
    log: list[Any] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.append(loss.detach())

    return step, [optimizer, log]


@program(graphs=2, breaks=1)
def gradient_of_the_input(model: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        x.requires_grad_(True)
        F.cross_entropy(model(x), y).backward()
        return x.grad

    return step, None


@program(graphs=1)
def adversarial_example(model: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        x = x.clone().detach().requires_grad_(True)
        F.cross_entropy(model(x), y).backward(inputs=[x])
        return (x + 0.1 * x.grad.sign()).detach()

    return step, None


def _case(name: str) -> tuple[Any, dict[str, Any]]:
    result, expected = PROGRAMS[name]

    def make() -> Side:
        model = mlp()
        step, watched = result(model)
        return Side(step, [model, watched])

    return make, expected


@pytest.mark.sweep(keep=24)
@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_step(name: str, backend: str) -> None:
    """At ATen level too: there the whole step is one graph without autograd in it, and the bits are
    the same.
    """
    make, expected = _case(name)
    trained(make, *CALLS, backend=backend, **expected)
