"""Memory that a functional graph cannot show (inputs that share it, views as another dtype or of
repeated memory) makes no graph eager: the operators that write to it or make such views run eagerly,
all others are compiled."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core import limits
from tracer_core.testing import compare, compare_aliasing

W = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
BACKENDS = ["aten_eager", "inductor"]


def rows_of_a_table():
    table = torch.arange(24.0).view(4, 6) / 10
    return table, table[1]


def write_to_the_table(table, row):
    """Row is a part of the table."""
    y = torch.tanh(table @ W)
    table[0] = y[0]
    return (row @ W).sin() + y.sum(0)


def write_to_both(table, row):
    y = torch.tanh(table @ W)
    table[1] += y[0]
    row.mul_(2)
    z = (table @ W).cos()
    row.add_(1)
    return z + row, table.sum(0)


def write_to_the_row_again_and_again(table, row):
    for _ in range(12):
        row.add_(torch.tanh(table @ W).mean(0))
    return table.sum(0)


def integers():
    return (torch.arange(12).view(3, 4) - 5,)


def halves_of_numbers(x):
    y = (x * 3 + 1).float() @ torch.ones(4, 2)
    halves = x.view(torch.int32)
    return halves, y.relu() + 1, halves[..., ::2] * 2


def halves_of_a_result(x):
    result = x * 3 + 1
    return result, result.view(torch.int16), (result.float() / 3).exp()


def write_to_halves(x):
    y = (x.float() @ torch.ones(4, 2)).relu()
    halves = x.view(torch.int32)
    halves.mul_(2)
    return halves, y, x + 1


def repeated():
    return (torch.arange(3.0).expand(4, 3),)


def write_to_an_element_of_repeated(x):
    y = (x @ W[:3, :3]).sin()
    corner = x[0, 0]
    corner.fill_(7)
    return y + x.sum(), x * 2


def spaced():
    return (torch.arange(20.0),)


def write_beside_windows(x):
    windows = x.unfold(0, 3, 4)
    y = windows.sin().sum(-1)
    x.mul_(2)
    return y, windows.cos()


PROGRAMS = [
    (write_to_the_table, rows_of_a_table),
    (write_to_both, rows_of_a_table),
    (halves_of_numbers, integers),
    (halves_of_a_result, integers),
    (write_to_halves, integers),
    (write_to_an_element_of_repeated, repeated),
    (write_beside_windows, spaced),
]


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def calls_of_both(program, make, compiled, times=3):
    """Compares results, arguments, and which of them share memory."""
    for number in range(times):
        mine, theirs = make(), make()
        expected, actual = program(*mine), compiled(*theirs)
        compare(expected, actual, path=f"call {number}")
        compare(mine, theirs, path=f"arguments of call {number}")
        compare_aliasing([mine, expected], [theirs, actual], f"call {number}")


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program, make", PROGRAMS)
def test_all_else_is_compiled(program, make, backend):
    compiled = tracer_core.compile(program, backend=backend)
    with torch.no_grad():
        calls_of_both(program, make, compiled)
    records = tracer_core.last_compile(compiled)
    assert any(record.name == "compile" for record in records)
    assert all("the graph is cut around it" in fallback for fallback in fallbacks_of(compiled))
    assert fallbacks_of(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_beyond_the_limit_the_graph_runs_eagerly(backend):
    assert limits.MAX_CUTS < 12
    compiled = tracer_core.compile(write_to_the_row_again_and_again, backend=backend)
    with torch.no_grad():
        calls_of_both(write_to_the_row_again_and_again, rows_of_a_table, compiled)
    assert any("the captured graph runs eagerly" in fallback for fallback in fallbacks_of(compiled))


def views_of_what_repeats(x, w):
    y = torch.tanh(x @ w)
    return x.transpose(0, 1), (y @ w).sin().sum()


def a_part_of_what_repeats(x, w):
    y = torch.tanh(x @ w)
    return x[1:, ::2], y.mean(0), x.unbind(0)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [views_of_what_repeats, a_part_of_what_repeats])
def test_gradients_of_views_of_repeated_memory(program, backend):
    """Each place in memory has the gradients of all elements that lie there."""
    compiled = tracer_core.compile(program, backend=backend)
    row = torch.randn(6, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        gradients = []
        for run in (program, compiled):
            leaf, w = row.clone().requires_grad_(), W.clone().requires_grad_()
            results = run(leaf.expand(4, 6), w)
            assert [result._is_view() for result in results][0]
            sum((result * (number + 2)).sum() for number, result in enumerate(results)).backward()
            gradients.append([results, leaf.grad, w.grad])
        compare(*gradients)
    assert all("the graph is cut around it" in fallback for fallback in fallbacks_of(compiled))
    assert fallbacks_of(compiled)


def place_of_a_part(x, part):
    actual = x.as_strided((2,), (1,), 3)
    actual.add_(1)
    part.mul_(2)
    return x.sum(), part.sin()


def place_before_noise(x, part):
    actual = x.as_strided((2,), (1,), 3)
    noise = torch.zeros(4, 4)[:, ::2]
    noise.normal_()
    return actual.sin() + noise.sum(), part * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [place_of_a_part, place_before_noise])
def test_places_in_memory_are_counted_from_its_beginning(program, backend):
    compiled = tracer_core.compile(program, backend=backend)
    with torch.no_grad():
        for start in (2, 2, 1, 0, 2):
            actual = []
            for run in (program, compiled):
                torch.manual_seed(0)
                memory = torch.arange(8.0)
                x = memory[start : start + 4]
                actual.append((run(x, x[1:]), memory))
            compare(*actual, path=f"from {start}")


def attend_globally(x):
    """As Longformer does with its global attention."""
    mask = x > 0.5
    most = mask.long().sum(dim=1).max()
    where = mask.nonzero(as_tuple=True)
    is_global = mask.flatten().any().item()
    out = x.cumsum(1)
    if is_global:
        out[where] = most.item()
    return out


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_may_begin_at_a_size_that_nothing_else_has(backend):
    """The second column of the places begins behind as many rows as there are places."""
    compiled = tracer_core.compile(attend_globally, backend=backend)
    for seed in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        compare(attend_globally(x), compiled(x))
    assert not fallbacks_of(compiled)
