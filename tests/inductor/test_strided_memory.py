"""Operators that name places of memory by an offset: their operand lies anywhere in an arena."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core

SCATTER = torch.as_strided_scatter


def base(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


PROGRAMS = {
    "an offset": (lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (5, 2), 3) + 1, base(40), base(2, 3)),
    "no offset": (lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (5, 2)) + 1, base(40), base(2, 3)),
    "channels last": (
        lambda b, s: SCATTER(b * 1, s * 2, (2, 3), (7, 2), 4) + 1,
        base(2, 4, 3, 3).to(memory_format=torch.channels_last),
        base(2, 3),
    ),
    "an input that begins later": (
        lambda b, s: SCATTER(b, s * 2, (2, 3), (7, 2), 12) + 1,
        base(60)[10:50],
        base(2, 3),
    ),
    "a copy": (
        lambda b, s: torch.as_strided_copy(b * 1 + s, (2, 3), (7, 2), 12) + 1,
        base(60),
        base(1),
    ),
}


ROUND = {
    "a copy": lambda b: torch.as_strided_copy(b, (2, 2), (1, 2), 1) * 2,
    "a view": lambda b: torch.as_strided(b, (3, 2), (1, 2), 5) * 2 + b.sum(),
    "a view of a view": lambda b: b.view(-1, 5).as_strided((3, 2), (1, 2), 5) * 2,
    "a view from its beginning": lambda b: b.as_strided((3, 2), (2, 1)).cos(),
    "scattered": lambda b: SCATTER(b, b.cos()[:2], (2,), (1,), 9) + 1,
    "a view of a window": lambda b: b.as_strided((2, 2), (2, 1), 3).as_strided((6,), (1,)) * 2,
    "a view of a part of a window": lambda b: (
        b.as_strided((2, 2), (2, 1), 3).split(1)[1].as_strided((6,), (1,)) * 2
    ),
    "a clone": lambda b: b.clone().as_strided((2,), (1,), 1) * 2,
    "scattered into a clone": lambda b: SCATTER(b.clone(), b[1:3] * 1, (2,), (1,), 1) + 1,
}


#: Views of a part of what the program itself has made: what lies round that part is there too.
WITHIN = {
    "a slice": lambda b: (
        (b * 2)[1:].as_strided((2, 3), (4, 1)) + (b * 2)[1:].as_strided((2, 3), (4, 1), 0)
    ),
    "a column": lambda b: (b + 1)[:, 2].as_strided((3, 4), (4, 1), 0).sum(0),
    "part of a concatenation": lambda b: (
        torch.cat([b, b * 2], 1)[:, 1:].as_strided((2, 3), (8, 1), 0) + 1
    ),
    "one of several": lambda b: b.exp().split(2)[1].as_strided((4, 2), (4, 1), 0) * 2,
    "windows of what was padded": lambda b: (
        nn.functional.pad(b, (1, 1)).as_strided((6, 4, 3), (6, 1, 1)).mean(-1)
    ),
    "a window of windows": lambda b: (
        b.as_strided((3, 4), (4, 1), 1).as_strided((2, 2), (4, 1), 2) * 2
    ),
}


@pytest.mark.parametrize("name", WITHIN)
def test_memory_round_a_part_of_what_was_made(name):
    program, x = WITHIN[name], base(6, 4)
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    for value in (x, x + 1):
        expected, actual = program(value), fast(value)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", ROUND)
def test_memory_round_an_input(name):
    """Elements that only the input's storage has; the place counts from where that begins, wherever
    the input does.
    """
    program = ROUND[name]
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    for start, step in ((8, 4), (8, 4), (10, 4), (2, 4), (8, 1), (10, 1), (4, 1)):
        x = base(60)[start : start + 20 : step]
        expected = program(x)
        actual = fast(x)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_windows_are_returned_and_pass_gradients_on_wherever_the_input_begins(backend):
    def program(x):
        window = x.detach().as_strided((2, 2), (2, 1), 3)
        return window, window[1:], x.as_strided((2, 3), (3, 1), 3).cos().sum(0)

    fast = tracer_core.compile(program, backend=backend, fullgraph=True)
    for start in (0, 2, 0, 5):
        results = []
        for run in (program, fast):
            x = base(40)[start : start + 20].requires_grad_()
            *windows, value = run(x)
            value.sum().backward()
            results.append((*windows, value, x.grad))
        for result, expected in zip(*results, strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


def test_memory_of_an_input_that_is_written_to():
    def program(x):
        before = x.as_strided((2,), (3,), 12) * 2
        x.add_(1)
        return before, x.cos()

    fast = tracer_core.compile(program, backend="inductor")
    for start in (10, 10, 12):
        ours, eager = base(40), base(40)
        for item, other in zip(
            fast(ours[start : start + 8]), program(eager[start : start + 8]), strict=True
        ):
            torch.testing.assert_close(item, other)
        assert torch.equal(ours, eager)


def test_a_place_beyond_what_was_written_is_eagers():
    """The new values of x are a tensor of their own, in which the place of the input's memory does
    not exist.
    """

    def program(x):
        x.add_(1)
        return x.as_strided((2,), (1,), 12) + 1

    fast = tracer_core.compile(program, backend="inductor")
    for start in (10, 10, 8):
        ours, eager = base(40), base(40)
        torch.testing.assert_close(fast(ours[start : start + 8]), program(eager[start : start + 8]))
        assert torch.equal(ours, eager)


def test_memory_round_an_input_beside_a_write():
    def program(x, y):
        y.add_(1)
        return x.as_strided((4,), (1,)) * 2

    fast = tracer_core.compile(program, backend="inductor")
    ours, eager = base(20), base(20)
    try:
        actual = fast(ours[::2], ours[1::2])
    except tracer_core.errors.BackendError as error:
        assert "as_strided of a tensor that is not dense" in str(error)
    else:
        torch.testing.assert_close(actual, program(eager[::2], eager[1::2]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_places_count_from_where_the_operand_begins(name):
    program, *inputs = PROGRAMS[name]
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    expected = program(*inputs)
    for _ in range(2):
        actual = fast(*inputs)
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_channels_last_net_with_a_pool_before_its_classifier_learns():
    """ATen's pool to one pixel ends in as_strided, whose gradient is as_strided_scatter."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(module)
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True)
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    for _ in range(2):
        for function in (module, fast):
            function(x).square().sum().backward()
    for parameter, other in zip(module.parameters(), ours.parameters(), strict=True):
        assert parameter.grad.abs().max() > 0
        torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-4, atol=1e-5)
