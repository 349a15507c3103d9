"""The C helper that compares a frozen graph's constants: it sees every change that freeze promises
to see.
"""

from __future__ import annotations

import pytest
import torch

from tracer_core.guards.constant_check import never, watch_constants


def swap(tensor):
    torch.utils.swap_tensors(tensor, tensor.clone())


def other_memory(tensor):
    tensor.data = tensor.data.clone()


CHANGES = {
    "write": lambda t: t.add_(1),
    "write_into_a_view": lambda t: t[1].zero_(),
    "write_into_detached": lambda t: t.detach().copy_(torch.ones(4, 6)),
    "other_memory": other_memory,
    "set": lambda t: t.set_(torch.zeros(4, 6)),
    "other_part": lambda t: t.set_(t.untyped_storage(), 6, (3, 6), (6, 1)),
    "swap": swap,
    "grown": lambda t: t.resize_(400, 6),
}


def constants():
    torch.manual_seed(0)
    return [torch.randn(4, 6) for _ in range(5)]


def watch(tensors, **value):
    """Constants stand at 1, 3, 5, ... of a list."""
    n = len(tensors)
    hold = watch_constants(tensors, range(1, 2 * n, 2), 2 * n, value.get("watched", range(n)))
    if hold is never:
        pytest.skip("no C compiler, or another torch")
    return hold


def inputs_of(tensors):
    return [value for tensor in tensors for value in (object(), tensor)]


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    tensors = constants()
    hold = watch(tensors)
    inputs = inputs_of(tensors)
    assert hold(inputs)
    CHANGES[name](tensors[3])
    assert not hold(inputs)
    assert watch(tensors)(inputs)


@torch.no_grad()
def test_reading_is_no_change():
    tensors = constants()
    hold = watch(tensors)
    kept = [
        (t[1:], t.detach(), t.t(), t.clone(), t.numpy(), t.view(-1), t.requires_grad_())
        for t in tensors
    ]
    assert hold(inputs_of(tensors)) and len(kept) == 5


def test_other_objects_and_other_lists_are_not_taken():
    tensors = constants()
    hold = watch(tensors)
    assert not hold(inputs_of([*tensors[:4], tensors[4].view_as(tensors[4])]))
    assert not hold(inputs_of([*tensors[:3], tensors[4], tensors[3]]))
    assert not hold(inputs_of(tensors)[:-1])
    assert not hold(tuple(inputs_of(tensors)))


@torch.no_grad()
def test_what_is_not_watched_is_compared_by_identity_alone():
    tensors = constants()
    hold = watch(tensors, watched=[0, 1, 2, 4])
    tensors[3].add_(1)
    assert hold(inputs_of(tensors))
    tensors[2].add_(1)
    assert not hold(inputs_of(tensors))


def test_without_the_helper_python_decides(monkeypatch):
    monkeypatch.setenv("TRACER_PYTHON_GUARDS", "1")
    from tracer_core.options import env

    reset = getattr(env, "cache_clear", None)
    if reset is not None:
        reset()
    try:
        assert watch_constants(constants(), range(5), 5, range(5)) is never
    finally:
        monkeypatch.undo()
        if reset is not None:
            reset()
