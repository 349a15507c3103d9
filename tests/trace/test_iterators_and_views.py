"""Iterators, views and read-only views of dictionaries that existed before the call."""

from __future__ import annotations

import collections
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager

X = torch.arange(6.0).reshape(2, 3) - 2.0
TABLE = {"a": torch.ones(3), "b": torch.full((3,), 2.0), "c": torch.full((3,), 3.0)}

ITERATORS: dict[str, Callable[[], Any]] = {
    "keys": lambda: iter(dict(TABLE)),
    "values": lambda: iter(dict(TABLE).values()),
    "items": lambda: iter(dict(TABLE).items()),
    "reversed keys": lambda: reversed(dict(TABLE)),
    "ordered items": lambda: iter(collections.OrderedDict(TABLE).items()),
    "ordered keys": lambda: iter(collections.OrderedDict(TABLE)),
    "texts": lambda: iter(["a", "b", "c"]),
    "objects": lambda: iter([torch.nn.ReLU, None, "c"]),
    "enumerate": lambda: enumerate(["a", "b", "c"]),
    "zip": lambda: zip(["a", "b", "c"], [1, 2, 3], strict=False),
    "zip of views": lambda: zip(TABLE, TABLE.values(), strict=False),
    "reversed list": lambda: reversed(["a", "b", "c"]),
    "set": lambda: iter({1, 2, 3}),
    "text": lambda: iter("abc"),
    "bytes": lambda: iter(b"abc"),
}


def _reading(make_iterator: Callable[[], Any], read: Callable[[Any, Any], Any]) -> Any:
    """A function that reads an attribute of its object, an iterator, and the object."""

    def make() -> Any:
        world = types.SimpleNamespace(source=make_iterator())

        def fn(x: torch.Tensor) -> Any:
            return read(x + 1, world.source)

        return fn

    return make


@pytest.mark.parametrize("kind", ITERATORS)
def test_next_of_an_iterator_from_before(kind: str) -> None:
    def read(x: torch.Tensor, items: Any) -> Any:
        return x * 2, next(items), next(items, "none")

    compare_with_eager(
        _reading(ITERATORS[kind], read), (X,), (X,), breaks=0
    )  # the second call reaches the end


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_loop_over_an_iterator_from_before(kind: str) -> None:
    def read(x: torch.Tensor, items: Any) -> Any:
        seen = []
        for item in items:
            x = x + 1
            seen.append(item)
        return x, seen, list(items)

    compare_with_eager(_reading(ITERATORS[kind], read), (X,), (X,), graphs=2, breaks=0)


@pytest.mark.parametrize("kind", ["values", "ordered items", "set", "text", "zip"])
def test_functions_that_take_an_iterator_from_before(kind: str) -> None:
    def read(x: torch.Tensor, items: Any) -> Any:
        first = next(items, None)
        return x * 2, first, list(zip(items, itertools.count(), strict=False)), tuple(items)

    compare_with_eager(_reading(ITERATORS[kind], read), (X,), (X,), breaks=0)


def test_an_iterator_is_left_where_the_program_left_it() -> None:
    def make() -> Any:
        items = iter(dict(TABLE).items())

        def fn(x: torch.Tensor) -> Any:
            for _, value in items:
                return x * value
            return x

        return fn, lambda: list(items)

    for calls in range(4):
        fn, rest = make()
        eager, plain_rest = make()
        compiled = tracer_core.compile(fn, backend="eager")
        for _ in range(calls):
            assert torch.equal(compiled(X), eager(X))
        left, wanted = rest(), plain_rest()
        assert [name for name, _ in left] == [name for name, _ in wanted]


def test_a_dictionary_that_changes_under_its_iterator() -> None:
    def make() -> Any:
        table = dict(TABLE)
        world = types.SimpleNamespace(table=table, items=iter(table))

        def fn(x: torch.Tensor) -> Any:
            return x + 1, next(world.items)

        return fn, world

    compare_with_eager(make, (X,), lambda world: world.table.update(d=1), (X,))


def test_a_loop_with_a_break_in_it_over_an_iterator_from_before() -> None:
    def make() -> Any:
        world = types.SimpleNamespace(items=iter({1: 2.0, 3: 4.0, 5: 6.0}.items()))

        def fn(x: torch.Tensor) -> Any:
            for key, value in world.items:
                x = x * value
                if x.sum() > 1e9:
                    break
                x = x + key
            return x

        return fn

    compare_with_eager(make, (X,), (X,))


def test_a_counter_of_the_object() -> None:
    def make() -> Any:
        world = types.SimpleNamespace(ids=itertools.count(3), steps=itertools.count(5, -2))

        def fn(x: torch.Tensor) -> Any:
            return x * next(world.ids), next(world.ids) + next(world.steps)

        return fn

    compare_with_eager(make, (X,), (X,), (X,), (X,), graphs=2, breaks=0, recompiles=1)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "keys": lambda table: table.keys(),
    "values": lambda table: table.values(),
    "items": lambda table: table.items(),
    "proxy": types.MappingProxyType,
}


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("table", [dict, collections.OrderedDict])
def test_a_view_from_before_shows_its_dictionary(kind: str, table: Any) -> None:
    def make() -> Any:
        held = table(TABLE)
        world = types.SimpleNamespace(table=held, view=VIEWS[kind](held))

        def fn(x: torch.Tensor) -> Any:
            seen = [item for item in world.view]
            return x + len(world.view), seen, list(world.view), "b" in world.view

        return fn, world

    change = lambda world: world.table.update(d=torch.zeros(3))
    take = lambda world: world.table.pop("b")
    steps = ((X,), (X,), change, (X,), take, (X,))
    if kind == "values":

        def make_values() -> Any:
            held = table(TABLE)
            world = types.SimpleNamespace(table=held, view=held.values())
            return lambda x: (x + sum(world.view), len(world.view), list(world.view)), world

        compare_with_eager(make_values, *steps, graphs=3, breaks=0, recompiles=2)
        return
    compare_with_eager(make, *steps, graphs=3, breaks=0, recompiles=2)


def test_a_proxy_from_before_is_read_like_its_dictionary() -> None:
    def make() -> Any:
        held: dict[str, Any] = {"a": 2.0, "b": torch.ones(3)}
        proxy = types.MappingProxyType(held)

        def fn(x: torch.Tensor) -> Any:
            y = x * proxy["a"] + proxy["b"]
            return y, proxy.get("z", 3), proxy.get("a"), dict(proxy), list(proxy.items())[0]

        return fn, held

    compare_with_eager(
        make, (X,), (X,), lambda held: held.update(a=5.0), (X,), breaks=0, recompiles=1
    )


def test_a_proxy_made_of_a_dictionary_from_before() -> None:
    def make() -> Any:
        held = {"a": 2.0}

        def fn(x: torch.Tensor) -> Any:
            proxy = types.MappingProxyType(held)
            held["c"] = 1.0
            return x * proxy["a"], list(proxy), proxy == {"a": 2.0, "c": 1.0}, proxy

        return fn, held

    compare_with_eager(make, (X,), (X,), lambda held: held.update(a=3.0), (X,), breaks=0)


def test_a_signature_from_before_binds_arguments() -> None:
    def scaled(x: torch.Tensor, scale: float = 2.0, *rest: Any, **named: Any) -> torch.Tensor:
        return x * scale

    def make() -> Any:
        signature = inspect.signature(scaled)

        def fn(x: torch.Tensor) -> Any:
            bound = signature.bind(x, named=4)
            bound.apply_defaults()
            names = [name for name in signature.parameters if name != "x"]
            return scaled(*bound.args, **bound.kwargs), names, bound.arguments["rest"]

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)
