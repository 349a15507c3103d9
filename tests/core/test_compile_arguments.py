"""Arguments of `compile`: names, limits, sizes by name of the argument, and the default backend."""

from __future__ import annotations

import logging
import types

import pytest
import torch

import tracer_core
from tests.support.counting_backend import CountingBackend
from tracer_core.errors import BackendNotFoundError, OptionError


def test_a_name_is_in_the_messages(caplog):
    def program(x):
        tracer_core.graph_break()
        return x + 1

    fast = tracer_core.compile(program, backend="eager", name="decoder step")
    with caplog.at_level(logging.INFO, "tracer_core"):
        fast(torch.ones(2))
    assert any("decoder step: " in record.getMessage() for record in caplog.records)
    with (
        tracer_core.set_stance("fail_on_recompile"),
        pytest.raises(Exception, match="^decoder step"),
    ):
        fast(torch.ones(3, 3))


def test_a_limit_of_one_function():
    counts = []
    for limit in (2, None):
        counter = CountingBackend()
        fast = tracer_core.compile(
            lambda x, k: x + k.v, backend=counter, dynamic=False, recompile_limit=limit
        )
        for size in range(2, 7):
            assert fast(torch.ones(size), types.SimpleNamespace(v=1)).sum() == 2 * size
        counts.append(counter.n_graphs)
    assert counts == [2, 5]


def test_instances_never_share_a_limit():
    class Net(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = "a" * k

        def forward(self, x):
            return x * len(self.k)

    counter = CountingBackend()
    for k in range(12):
        fast = tracer_core.compile(Net(k), backend=counter, isolate_recompiles=True)
        assert fast(torch.ones(2)).tolist() == [k, k]
    assert counter.n_graphs == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recompile_limit": 0}, "recompile_limit must be at least 1, not 0"),
        ({"recompile_limit": "2"}, "recompile_limit must be int or None, not '2'"),
        ({"isolate_recompiles": False}, "isolate_recompiles must be one of True or None"),
        ({"name": 3}, "name must be str or None"),
        ({"dynamic_shapes": {"x": {0: 3}}}, "dynamic_shapes must be"),
        ({"dynamic_shapes": {"xs": {0: None}}}, r"no argument 'xs' \(did you mean 'x'"),
        ({"verify": "raise"}, "verify must be one of 'report', 'warn', 'fallback'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(OptionError, match=message):
        tracer_core.compile(lambda x: x, backend="eager", **arguments)


class Scale(torch.nn.Module):
    def forward(self, x, k=None):
        return x * 2


@pytest.mark.parametrize("make", [lambda: lambda x, k=None: x * 2, Scale, lambda: Scale().forward])
def test_sizes_by_the_name_of_the_argument(make):
    counter = CountingBackend()
    fast = tracer_core.compile(make(), backend=counter, dynamic_shapes={"x": {0: (1, 8), 1: None}})
    for shape in [(4, 3), (8, 5), (1, 7)]:
        x = torch.randn(shape)
        assert torch.equal(fast(x), x * 2)
    assert counter.n_graphs == 1
    fast(x=torch.randn(5, 3)), fast(x=torch.randn(6, 4))
    assert counter.n_graphs == 2
    with pytest.raises(OptionError, match=r"dynamic_shapes of 'x': .*size 9 .* outside 1\.\.8"):
        fast(torch.randn(9, 3))


def test_a_default_backend():
    counter = CountingBackend()
    assert tracer_core.get_default_backend() == "inductor"
    try:
        tracer_core.set_default_backend(counter)
        assert tracer_core.get_default_backend() is counter
        tracer_core.compile(lambda x: x + 1)(torch.ones(2))
        assert counter.n_graphs == 1
        with pytest.raises(BackendNotFoundError):
            tracer_core.set_default_backend("nope")
    finally:
        tracer_core.set_default_backend()
    assert tracer_core.get_default_backend() == "inductor"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x).relu()


def test_repeated_blocks_of_a_model():
    shared = Block()
    model = torch.nn.Sequential(Block(), torch.nn.Sequential(Block(), shared), shared)
    keys, x, counter = list(model.state_dict()), torch.randn(2, 4), CountingBackend()
    expected = model(x)
    assert tracer_core.compile_repeated(model, Block, backend=counter, fullgraph=True) == 3
    assert torch.equal(model(x), expected) and torch.equal(model(x), expected)
    assert counter.n_graphs == 3 and list(model.state_dict()) == keys
    assert type(model[0]) is Block and model[1][1] is model[2]
    assert tracer_core.original(model[2]) is shared
    with pytest.raises(OptionError, match="Sequential has no Conv2d"):
        tracer_core.compile_repeated(model, torch.nn.Conv2d)
