"""The quick check of input tensors says yes only where the guards would."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.guards.learned_tensors import watch_tensors
from tracer_core.guards.object_layout import layout
from tracer_core.testing import CaptureCounter, compare

X = torch.randn(3, 4)


def changed(change):
    tensor = torch.zeros(3, 4)
    change(tensor)
    return tensor


OTHERS = {
    "sizes": lambda: torch.zeros(4, 3),
    "fewer dimensions": lambda: torch.zeros(12),
    "more dimensions": lambda: torch.zeros(3, 4, 1),
    "strides": lambda: torch.zeros(4, 3).t(),
    "expanded": lambda: torch.zeros(4).expand(3, 4),
    "dtype": lambda: torch.zeros(3, 4, dtype=torch.float64),
    "integers": lambda: torch.zeros(3, 4, dtype=torch.int32),
    "device": lambda: torch.zeros(3, 4, device="meta"),
    "parameter": lambda: nn.Parameter(torch.zeros(3, 4), requires_grad=False),
    "requires_grad": lambda: torch.zeros(3, 4, requires_grad=True),
    "in a graph": lambda: torch.zeros(3, 4, requires_grad=True) * 2,
    "conjugated": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(),
    "negated": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.zeros(3, 4).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(4)] * 3),
    "no tensor": lambda: [0.0] * 4,
    "None": lambda: None,
    "inference": lambda: inference(),
    "resized": lambda: changed(lambda t: t.resize_(4, 3)),
    "other data": lambda: changed(
        lambda t: setattr(t, "data", torch.zeros(3, 4, dtype=torch.float64))
    ),
    "transposed in place": lambda: changed(lambda t: t.t_()),
}


def inference():
    with torch.inference_mode():
        return torch.zeros(3, 4)


def learnt():
    hold, learn = watch_tensors((0, 2))
    learn((torch.zeros(3, 4), 1, torch.zeros(3, 4)))
    if layout() is None or not hasattr(hold, "watched"):
        pytest.skip("no C compiler, or another layout")
    assert hold((torch.ones(3, 4), None, X))
    return hold


@pytest.mark.parametrize("name", OTHERS)
def test_another_tensor_is_not_taken(name):
    hold, other = learnt(), OTHERS[name]()
    assert not hold((other, 1, torch.zeros(3, 4)))
    assert not hold((torch.zeros(3, 4), 1, other))
    assert hold((X, "anything", X.clone()))


@pytest.mark.parametrize("value", [0x00, 0xFF, 0xAA])
def test_what_memory_held_before_does_not_count(value):
    """A tensor's constructor leaves bits between its fields as it found them."""
    hold = learnt()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    for size in range(128, 320, 16):
        blocks = [libc.malloc(size) for _ in range(256)]
        for block in blocks:
            ctypes.memset(block, value, size)
        for block in blocks:
            libc.free(block)
    tensors = [torch.zeros(3, 4) for _ in range(64)]
    assert all(hold((tensor, None, X)) for tensor in tensors)


def test_a_state_of_another_length_is_not_taken():
    hold = learnt()
    assert not hold((X, 1)) and not hold((X, 1, X, X))


def test_nothing_is_taken_before_it_was_learnt():
    hold, learn = watch_tensors((0,))
    assert not hold((X,))
    learn((torch.zeros(3, 4, requires_grad=True),))
    assert not hold((X,))
    learn((torch.zeros(1, 1, 1, 1, 1, 1),))
    assert not hold((torch.zeros(1, 1, 1, 1, 1, 1),))


def test_what_is_learnt_is_bounded():
    hold, learn = watch_tensors((0,))
    for n in range(1, 30):
        learn((torch.zeros(n),))
    assert not hold((torch.zeros(29),))


@pytest.mark.parametrize("name", OTHERS)
def test_a_function_called_with_both(name):
    """Whatever the quick check says, results and recompiles are those of the guards."""

    def fn(x, y):
        return (
            [x, y]
            if not isinstance(y, torch.Tensor) or y.layout is not torch.strided
            else x.sum() + y.sum()
        )

    other = OTHERS[name]()
    compiled = tracer_core.compile(fn, backend="eager")
    for y in (X, X, other, X, other, torch.ones(3, 4)):
        if name == "nested" and y is other:
            continue
        compare(fn(X, y), compiled(X, y))


def test_a_tensor_changed_between_calls():
    y = torch.zeros(3, 4)

    def fn(x):
        return x + y.sum() * x.sum()

    compiled = tracer_core.compile(fn, backend="eager")
    with CaptureCounter() as counter:
        x = X.clone()
        for change in (
            lambda: None,
            lambda: x.t_(),
            lambda: x.resize_(2, 6),
            lambda: x.requires_grad_(True),
        ):
            change()
            compare(fn(x), compiled(x))
    assert len(counter.recompiles) == 3


def test_the_variant_that_fits_is_tried_first():
    """Variants that take turns, and one that is used again and again."""

    def fn(x, flag):
        return x * 2 if flag else x + 1

    same(
        fn,
        (X, True),
        (X, False),
        (X, False),
        (X, False),
        (X, True),
        (X, False),
        (X, True),
        (X, True),
        recompiles=1,
    )


def test_loops_with_numbers_and_branches():
    def fn(x, n):
        log = []
        for i in range(n):
            x = x + i * 0.5
            if i % 3 == 0:
                log.append(x.sum().item())
        return x, log

    compare_with_eager(
        lambda: fn,
        (X, 10),
        (X, 10),
        (X.double(), 10),
        (X, 7),
        kinds=("data_dependent_value", "live_iterator"),
    )
