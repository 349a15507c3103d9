"""Compiled objects go to other processes: pickle, cloudpickle (Ray, Dask, joblib), pools.

A module arrives as what it is, a function compiled with the same settings.
"""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core import markers
from tracer_core.errors import GraphBreakError

X = torch.arange(6.0).reshape(2, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).tanh()

    @classmethod
    def make(cls) -> Net:
        return cls()


@tracer_core.compile
def step(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def call(function: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return function(x)


def objects() -> dict[str, Any]:
    net = tracer_core.compile(Net())
    net(X)
    return {
        "module": net,
        "forward": net.forward,
        "method": net.encode,
        "compiled method": tracer_core.compile(Net().encode),
        "function": step,
        "partial function": functools.partial(step),
        "partial module": functools.partial(net),
        "disabled module": tracer_core.disable(net),
    }


@pytest.mark.parametrize("name", objects())
def test_pickle(name: str) -> None:
    target = objects()[name]
    loaded = pickle.loads(pickle.dumps(target))
    torch.testing.assert_close(call(loaded, X), call(target, X))


def test_pickle_of_the_class_and_its_methods() -> None:
    net = tracer_core.compile(Net())
    assert pickle.loads(pickle.dumps(type(net))) is Net
    assert type(pickle.loads(pickle.dumps(net.make))()) is Net


@pytest.mark.full
@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_pool(how: str) -> None:
    with multiprocessing.get_context(how).Pool(1) as pool:
        for target in objects().values():
            torch.testing.assert_close(pool.apply(call, (target, X)), call(target, X))
        net = tracer_core.compile(Net())
        assert type(pool.apply(net.make)) is type(pool.apply(type(net))) is Net


def closures() -> dict[str, Any]:
    k = 3.0

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * k

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = tracer_core.compile(lambda x: x + k, backend="eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(x) * k

    return {
        "closure": tracer_core.compile(scaled),
        "lambda": tracer_core.compile(lambda x: x - k, backend="eager"),
        "options": tracer_core.compile(scaled, options={"fuse": False}, dynamic=True),
        "callable backend": tracer_core.compile(scaled, backend=lambda gm, inputs: gm.forward),
        "several backends": tracer_core.compile(scaled, backend=["eager", "inductor"]),
        "callable object": tracer_core.compile(functools.partial(scaled), backend="eager"),
        "disabled": tracer_core.disable(scaled),
        "allowed": tracer_core.allow_in_graph(lambda x: x / k),
        "local module": tracer_core.compile(Local(), backend="eager"),
        "part of a module": Local(),
        "frozen": tracer_core.compile(Net().eval(), options={"freeze": True}),
    }


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("name", closures())
def test_cloudpickle(name: str, called: bool) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    target = closures()[name]
    want = call(closures()[name], X)
    if called:
        call(target, X)
    loaded = pickle.loads(cloudpickle.dumps(target))
    for _ in range(2):
        torch.testing.assert_close(call(loaded, X), want)
    if not isinstance(target, nn.Module):
        assert (markers.compiled(loaded) is None) == (markers.compiled(target) is None)


def test_settings_arrive() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")

    def broken(x: torch.Tensor) -> torch.Tensor:
        tracer_core.graph_break()
        return x + 1

    loaded = pickle.loads(cloudpickle.dumps(tracer_core.compile(broken, fullgraph=True)))
    with pytest.raises(GraphBreakError):
        loaded(X)


LOADS = """
import pickle, sys
import torch
loaded, want = pickle.load(open(sys.argv[1], "rb"))
for _ in range(2):
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.arange(6.0).reshape(2, 3)), want)
print("it arrived")
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["closure", "several backends", "callable object", "local module"])
def test_cloudpickle_to_another_process(name: str, tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    target = closures()[name]
    file = tmp_path / "sent"
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        file.write_bytes(cloudpickle.dumps((target, call(target, X))))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    run = [sys.executable, "-c", LOADS, str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.stdout == "it arrived\n", done.stderr
