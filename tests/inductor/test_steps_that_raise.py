"""Whole training steps whose kernels find a bad index: what the user catches, and goes on from, is
what eager leaves.
"""

from __future__ import annotations

import copy
import typing

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tests.support.copied_tensors import copied_tensors
from tests.support.threads import together
from tracer_core.testing import compare


class Words(nn.Module):
    """Statistics that are written before the target is looked at; a table of more than 1 MiB, which
    is not copied.
    """

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(40_000, 8), nn.BatchNorm1d(8)
        self.drop, self.head = nn.Dropout(0.25), nn.Linear(8, 5)

    def forward(self, words, target):
        return F.cross_entropy(self.head(self.drop(self.norm(self.table(words).mean(1)))), target)


class Parts(nn.Module):
    """Kernels look at the rows that are read: the gradient's scatter is the first to look at all of
    them.
    """

    def __init__(self):
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.randn(4))

    def forward(self, words, target):
        return (self.table[words][:, 0] * self.scale).sum() + self.table[target].mean()


class Chances(nn.Module):
    """A loss whose kernel looks at probabilities, behind statistics that are written."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(9, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, words, target):
        chance = self.head(self.norm(self.table(words).mean(1))).sigmoid().squeeze(1)
        return F.binary_cross_entropy(chance, target / 5)


OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01),
}


def session(make, optimizer, bad, every, compiled):
    """What a user sees after each of six calls. bad: calls with an index out of range. every: calls
    to an update.
    """
    torch.manual_seed(0)
    net = make()
    optimizer, log, seen = OPTIMIZERS[optimizer](net), [], []

    def step(words, target):
        log.append("begun")
        loss = net(words, target)
        (loss / every).backward()
        log.append("backward")
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def gather(words, target):
        log.append("gather")
        loss = net(words, target)
        (loss / every).backward()
        return loss.detach()

    if compiled:
        step, gather = (tracer_core.compile(value, backend="inductor") for value in (step, gather))
    for call in range(6):
        torch.manual_seed(call)
        words, target = torch.randint(0, 9, (3, 4)), torch.randint(0, 5, (3,))
        if call in bad:
            target[1] = 50
        try:
            result = (step if call % every == every - 1 else gather)(words, target)
        except (IndexError, RuntimeError) as error:
            result = str(error)
        gradients = [None if item.grad is None else item.grad.clone() for item in net.parameters()]
        state = {name: value.clone() for name, value in net.state_dict().items()}
        seen.append(
            (
                result,
                list(log),
                gradients,
                state,
                copy.deepcopy(optimizer.state_dict()),
                torch.get_rng_state(),
            )
        )
    return seen


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("make", "optimizer", "bad", "every"),
    [
        (Words, "sgd", {0, 4}, 1),
        (Words, "adamw", {3}, 2),
        (Parts, "adamw", {2, 3}, 1),
        (Chances, "sgd", {0, 4}, 1),
    ],
    ids=["first_call", "accumulation", "rows_not_read", "probabilities"],
)
def test_a_step_that_raises(make, optimizer, bad, every):
    expected, actual = (
        session(make, optimizer, bad, every, compiled) for compiled in (False, True)
    )
    assert {call for call, item in enumerate(expected) if isinstance(item[0], str)} == bad
    for theirs, ours in zip(expected, actual, strict=True):
        compare(theirs, ours)


def test_only_what_is_written_early_is_copied(monkeypatch):
    """One graph a step, also of the first optimizer in a process (typing's caches are empty):
    parameters, momenta, and the three statistics of the batch norm, which alone are copied after
    the first run."""
    for forget in typing._cleanups:
        forget()
    result = copied_tensors(monkeypatch)
    session(Words, "sgd", set(), 1, True)
    assert result[-1] == (13, 3), result


def test_kernels_after_a_bad_index_do_not_run():
    """In one run of kernels: what follows a check writes nothing."""

    def fn(weight, index, scale):
        picked = weight[index].sum(1)
        weight.mul_(scale)
        return picked.softmax(0)

    weight, scale = torch.ones(6, 4), torch.tensor(2.0)
    right, wrong = torch.tensor([0, 5, 1]), torch.tensor([0, 6, 1])
    compiled = tracer_core.compile(fn, backend="inductor")
    for index in (right, wrong, right, wrong):
        ours, theirs = weight.clone(), weight.clone()
        for run, inputs in ((compiled, ours), (fn, theirs)):
            if index is wrong:
                with pytest.raises(IndexError):
                    run(inputs, index, scale)
            else:
                run(inputs, index, scale)
        compare(theirs, ours)


def test_threads_see_their_own_errors():
    """No thread's bad index is lost, nor taken for a good one's."""

    def fn(weight, index):
        return weight[index] * 2

    weight = torch.randn(5, 4)
    compiled = tracer_core.compile(fn, backend="inductor")
    compiled(weight, torch.tensor([0, 1]))
    wrong: list[str] = []

    def work(number):
        at = (1, 7, 2, 9)[number]
        index, bad = torch.tensor([0, at]), at > 4
        for _ in range(300):
            try:
                result = compiled(weight, index)
            except IndexError:
                if not bad:
                    wrong.append("raised for a good index")
            else:
                if bad or not torch.equal(result, weight[index] * 2):
                    wrong.append("a bad index went unseen")

    together(work, threads=4)
    assert not wrong, wrong[:3]
