"""What overwrites an input in the kernel that reads it: whatever the program computed before reads
what was there before.
"""

from __future__ import annotations

import copy

import pytest
import torch

import tracer_core


class Dense(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            torch.nn.Linear(32, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 4),
        )
        self.shape = (16, 32)


class Image(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            *(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
            *(torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.BatchNorm2d(8)),
            *(torch.nn.Flatten(), torch.nn.Linear(128, 4)),
        )
        self.shape = (4, 3, 8, 8)


class Rows(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            *(torch.nn.Linear(24, 32), torch.nn.LayerNorm(32), torch.nn.GELU()),
            *(torch.nn.GroupNorm(4, 32), torch.nn.PReLU(32), torch.nn.Linear(32, 4)),
        )
        self.shape = (8, 24)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
}


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [Dense, Image, Rows])
def test_gradients_of_a_step_are_of_the_parameters_before_it(kind, optimizer):
    torch.manual_seed(0)
    model = kind()
    ours = copy.deepcopy(model)
    targets = torch.randint(0, 4, (model.shape[0],))

    def step_of(model):
        steps = OPTIMIZERS[optimizer](model.parameters())

        def step(x):
            steps.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), targets)
            loss.backward()
            steps.step()
            return loss.detach()

        return step

    eager, fast = step_of(model), tracer_core.compile(step_of(ours), backend="inductor")
    for _ in range(3):
        ours.load_state_dict(model.state_dict())  # so that rounding does not grow from step to step
        x = torch.randn(model.shape)
        torch.testing.assert_close(fast(x), eager(x))
        largest = max(float(parameter.grad.norm()) for parameter in model.parameters())
        for (name, parameter), own in zip(model.named_parameters(), ours.parameters(), strict=True):
            error = float((own.grad - parameter.grad).norm())
            assert error <= 1e-4 * max(float(parameter.grad.norm()), 1e-2 * largest), (name, error)


def moving_average(x, average):
    centre = x.mean(0)
    result = (x - centre) * average
    average.lerp_(centre, 0.5)
    return result


def early_value(x, average):
    scaled = torch.tanh(average) * x.mean(0)  # after the reduction
    result = x * torch.tanh(average) + x.sum(1, keepdim=True)
    average.copy_(torch.tanh(average))  # could be stored before it
    return scaled, result


def swapped(x, average):
    other = average.flip(0).clone()
    mean = x.mean(0) + average
    average.copy_(other * 2)
    return mean, x - x.sum(0) * average


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("program", [moving_average, early_value, swapped])
@pytest.mark.parametrize("shape", [(33, 70), (5, 1000)])
def test_a_state_is_read_before_it_is_overwritten(program, shape):
    fast = tracer_core.compile(program, backend="inductor")
    for _ in range(2):
        x, average = torch.randn(shape), torch.randn(shape[1])
        own = average.clone()
        torch.testing.assert_close(fast(x, own), program(x, average), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own, average, rtol=1e-4, atol=1e-4)
