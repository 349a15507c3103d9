"""Writes at indices into inputs: inductor writes the rows, not a new tensor that it copies back."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.lowering.in_place import in_place_writes
from tests.support.eager_reference import compare_with_eager
from tracer_core.plugin_api import lower

ROWS, POSITION, CACHE = torch.tensor([3, 0]), torch.tensor(2), (2, 3, 8, 4)
#: As many as a program writes, each of them eight times what may be copied ahead of every run.
LARGE = (2, 8, 1024, 128)


def at_its_position(cache, new, position):
    """A static key-value cache."""
    where = torch.arange(1) + position
    position.add_(1)
    cache.index_copy_(2, where, new)
    return (new @ cache.mT).softmax(-1) @ cache


def read_before(cache, new, position):
    before = cache.sum()
    cache.index_copy_(2, position[None], new)
    return before, cache * 2


def cloned_result(cache, new, position):
    cache.index_copy_(2, position[None], new)
    return cache.clone(), cache, cache[0]


def written_twice(cache, new, position):
    cache.index_copy_(2, position[None], new)
    cache.index_copy_(2, position[None] + 1, new * 2)
    return cache + 1


def read_between(cache, new, position):
    cache.index_copy_(2, position[None], new)
    between = cache + 1
    cache.index_copy_(2, position[None] + 1, new * 2)
    return between, cache + 2


def from_itself(cache, new, position):
    cache.index_copy_(2, position[None], cache[:, :, :1] + new)
    return cache + 1


def put(cache, new, position):
    cache[:, :, position[None]] = new
    return cache.sum(2)


def added(cache, new, position):
    cache.index_add_(2, position[None], new)
    return cache.sum(2)


def through_a_view(cache, new, position):
    cache.transpose(1, 2).index_copy_(1, position[None], new.transpose(1, 2))
    return cache + 1


#: program, how many writes of its graph go straight into an input.
PROGRAMS = {
    "a cache": (at_its_position, 1), "read before": (read_before, 0),
    "a clone of the result": (cloned_result, 1),
    "twice": (written_twice, 2), "read between": (read_between, 0), "from itself": (from_itself,
    0), "put": (put, 1),
    "added": (added, 1), "through a view": (through_a_view, 0),
}  # fmt: skip


def arguments(start=2, transposed=False):
    cache = torch.randn(CACHE)
    return (
        (cache.transpose(1, 2).contiguous().transpose(1, 2) if transposed else cache),
        torch.randn(2, 3, 1, 4),
        (torch.tensor(start)),
    )


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_an_input(name):
    program, count = PROGRAMS[name]
    calls = [arguments(), arguments(5), arguments(0, transposed=True), arguments(1)]
    compare_with_eager(lambda: program, *calls, graphs=2, breaks=0, backend="inductor")
    graph = captured(program, calls[0])
    assert len(in_place_writes(graph)) == count


def captured(program, call):
    (item,) = tracer_core.explain(program)(*(value.clone() for value in call)).graphs
    return lower(item, [value.clone() for value in call], "inductor").graph.graph


def test_an_index_out_of_range_in_a_large_cache():
    """The first run is undone and runs anew; a later one raises the error of the operator."""
    compiled = tracer_core.compile(at_its_position)
    cache, new, position = torch.zeros(LARGE), torch.randn(2, 8, 1, 128), torch.tensor(LARGE[2] - 1)
    compiled(cache, new, position)
    assert position == LARGE[2]
    torch.testing.assert_close(cache[:, :, -1:], new)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(cache, new, position)
    torch.testing.assert_close(cache[:, :, -1:], new)
    assert cache[:, :, :-1].count_nonzero() == 0
