"""Python state that changes by a rule from call to call: functions settle after a few captures, and
what they leave is eager's after each call."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tracer_core.testing import compare
from tracer_core.testing.counting import CaptureCounter

CALLS = 12


def list_item():
    counts = [0]

    def step(x):
        counts[0] += 1
        return x * counts[0]

    return step, lambda call: (torch.ones(3),), lambda: counts


def list_items_by_turns():
    counts = [5, 7, 9]

    def step(x):
        counts[0], counts[-1] = counts[-1] + 1, counts[0]
        counts[1] += counts[0]
        return x * 2

    return step, lambda call: (torch.ones(3),), lambda: counts


def list_that_is_read_as_a_whole():
    counts = [0, 10]

    def step(x):
        counts[0] += 1
        return x * sum(counts), len(counts), list(counts)

    return step, lambda call: (torch.ones(3),), lambda: counts


def list_that_grows_too():
    log = [0]

    def step(x):
        log[0] += 1
        log.append(x.sum())
        return x * 2

    return step, lambda call: (torch.full((3,), float(call)),), lambda: log


def list_in_a_dictionary():
    state = {"of": [0, {"step": 0}]}

    def step(x):
        state["of"][0] += 2
        state["of"][1]["step"] += 1
        return x * state["of"][1]["step"]

    return step, lambda call: (torch.ones(3),), lambda: state


def cumulative_average():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=None), nn.ReLU())
    return net, lambda call: (torch.randn(2, 3, 5, 5),), net.state_dict


def cumulative_average_of_half_precision():
    torch.manual_seed(0)
    net = nn.BatchNorm1d(4, momentum=None)
    return net, lambda call: (torch.randn(8, 4).bfloat16(),), net.state_dict


def momentum_that_decays():
    torch.manual_seed(0)
    net = nn.BatchNorm1d(4)

    def step(x):
        net.momentum *= 0.9
        return net(x)

    return step, lambda call: (torch.randn(8, 4),), lambda: (net.momentum, net.state_dict())


def cache_that_is_filled():
    torch.manual_seed(0)
    layers, cache = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), {}

    def step(x):
        for layer in layers:
            if layer not in cache:
                cache[layer] = layer(x)
            x = x + cache[layer]
        return x

    def arguments(call):
        if call % 4 == 0:
            cache.clear()
        return (torch.ones(2, 4) * call,)

    return step, arguments, lambda: list(cache.values())


def adversaries():
    torch.manual_seed(0)
    makes, judges = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.Adam(makes.parameters(), 1e-2)
    second = torch.optim.AdamW(judges.parameters(), 1e-2)

    def step(x, noise):
        second.zero_grad()
        result = makes(noise)
        loss = F.softplus(-judges(x)).mean() + F.softplus(judges(result.detach())).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = F.softplus(-judges(result)).mean()
        other.backward()
        first.step()
        return loss.detach(), other.detach()

    return (
        step,
        lambda call: (torch.randn(8, 4), torch.randn(8, 4)),
        lambda: (makes.state_dict(), judges.state_dict(), first.state_dict()),
    )


def checkpoint():
    torch.manual_seed(0)
    net, saved = nn.Linear(4, 4), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def arguments(call):
        if call == 3:
            saved[:] = copy.deepcopy([net.state_dict(), optimizer.state_dict()])
        if call in (6, 9):
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))
        return (torch.randn(8, 4),)

    return step, arguments, lambda: (net.state_dict(), optimizer.state_dict())


class Accuracy(nn.Module):
    """A metric as torchmetrics has them: a counter, sums, and a result that is remembered."""

    def __init__(self):
        super().__init__()
        self.correct, self.total = torch.tensor(0.0), torch.tensor(0.0)
        self.updates, self.computed = 0, None

    def forward(self, scores, target):
        self.computed = None
        self.updates += 1
        self.correct = self.correct + (scores.argmax(1) == target).sum()
        self.total = self.total + target.numel()
        if self.computed is None:
            self.computed = self.correct / self.total
        return self.computed


def metric():
    torch.manual_seed(0)
    net, accuracy = nn.Linear(4, 3), Accuracy()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, target):
        optimizer.zero_grad()
        scores = net(x)
        loss = F.cross_entropy(scores, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), accuracy(scores.detach(), target)

    return (
        step,
        lambda call: (torch.randn(8, 4), torch.randint(0, 3, (8,))),
        lambda: (accuracy.updates, accuracy.correct, accuracy.total, accuracy.computed),
    )


SCENES = [
    list_item, list_items_by_turns, list_that_is_read_as_a_whole, list_that_grows_too,
    list_in_a_dictionary, cumulative_average, cumulative_average_of_half_precision,
    momentum_that_decays, cache_that_is_filled, adversaries, checkpoint, metric,
]  # fmt: skip
#: The items of a list that is handed on as a whole are guarded one by one, and the length of one
#: whose items are replaced.
NEVER = {"list_that_is_read_as_a_whole", "list_that_grows_too"}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("scene", SCENES, ids=lambda value: value.__name__)
def test_a_scene_settles(scene):
    (eager, arguments, look), (program, own_arguments, own_look) = scene(), scene()
    fast = tracer_core.compile(program)
    with CaptureCounter() as counter:
        for call in range(CALLS):
            torch.manual_seed(call)
            expected = eager(*arguments(call))
            torch.manual_seed(call)
            compare(expected, fast(*own_arguments(call)), path=f"call {call}")
            compare(look(), own_look(), path=f"state after call {call}")
    if scene.__name__ not in NEVER:
        assert len(counter.graphs) <= 3, counter.graphs
