"""Idioms of transformers, timm and torchvision, each reduced to a few lines."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from .twin import same, twin

X = torch.arange(6.0).reshape(2, 3) - 2.0


# -- tables of activations ----------------------------------------------------------------------------


class Instantiating(collections.OrderedDict):  # type: ignore[type-arg]
    """transformers.activations.ClassInstantier: looking a class up makes an instance."""

    def __getitem__(self, key: str) -> Any:
        content = super().__getitem__(key)
        cls, arguments = content if isinstance(content, tuple) else (content, {})
        return cls(**arguments)


ACTIVATIONS = Instantiating(
    relu=torch.nn.ReLU, leaky=(torch.nn.LeakyReLU, {"negative_slope": 0.5}), tanh=torch.nn.Tanh
)


@pytest.mark.parametrize("name", ["relu", "leaky", "tanh"])
def test_a_table_whose_subscript_makes_the_activation(name: str) -> None:
    def make() -> Any:
        return lambda x: ACTIVATIONS[name](x) + 1

    twin(make, (X,), (X * 2,), graphs=1, breaks=0, recompiles=0)


class Reversed(list):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> Any:
        return list.__getitem__(self, len(self) - 1 - index)


def test_a_list_with_a_subscript_of_its_own() -> None:
    def make() -> Any:
        scales = Reversed([1.0, 2.0, 3.0])

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * scales[0] + list.__getitem__(scales, 0)

        return fn, scales

    twin(
        make,
        (X,),
        (X,),
        lambda scales: list.__setitem__(scales, 2, 5.0),
        (X,),
        graphs=2,
        breaks=0,
        recompiles=1,
    )


class Filling(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> float:
        self[key] = 10.0
        return 10.0


def test_guards_make_no_missing_entry() -> None:
    def make() -> Any:
        table = Filling(a=2.0)
        other = collections.defaultdict(lambda: 7.0, b=3.0)

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * table["a"] if "a" in table else x - other.get("b", 0.0)

        return fn, [table, other]

    def forget(world: Any) -> None:
        world[0].clear()

    twin(make, (X,), (X,), forget, (X,), lambda world: world[1].clear(), (X,), graphs=3, breaks=0)


# -- super() below a break ----------------------------------------------------------------------------


class Layers:
    def __init__(self, layers: list[float]) -> None:
        self.layers = layers


class Cache(Layers):
    def __init__(self, number: int, x: torch.Tensor) -> None:
        layers = [float(i) for i in range(number)]
        print("", end="")
        super().__init__(layers=layers)


def test_the_first_argument_of_super_lives_across_a_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        cache = Cache(3, x)
        return y * cache.layers[2]

    same(fn, (X,), (X + 1,), graphs=2, kinds=("side_effect_native",), recompiles=0)


def test_locals_live_across_a_break_when_they_are_asked_for() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        scale = 3.0
        y = x + 1
        print("", end="")
        return y * locals()["scale"]

    same(fn, (X,), (X + 1,), kinds=("side_effect_native", "native_python"))
