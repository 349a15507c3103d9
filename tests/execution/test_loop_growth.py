"""Sizes that a loop changes in each iteration have symbols in the loop's first capture, and its last
iteration needs no capture of its own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tracer_core
from tracer_core.plugin_api import hookimpl
from tracer_core.registry.discovery import manager
from tracer_core.testing import CaptureCounter, compare


class Stop:
    """What transformers' MaxLengthCriteria does."""

    def __init__(self, length: int, most: int | None = 1000) -> None:
        self.length, self.most, self.warned = length, most, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[0]
        is_done = length >= self.length
        if self.most is not None and not is_done and length > self.most:
            self.warned += 1
        return torch.full((1,), is_done, dtype=torch.bool)


@tracer_core.disable
def ended(done: torch.Tensor) -> bool:
    return bool(done)


def in_a_dict(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    state = {"mask": torch.ones_like(x)}
    while True:
        state["mask"] = torch.cat([state["mask"], state["mask"].new_ones(1)])
        x = torch.cat([x, (x.sin().sum() + state["mask"].sum())[None]])
        if ended(stop(x)):
            return x


def in_a_cell(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    mask = torch.ones_like(x)

    def longer() -> torch.Tensor:
        return torch.cat([mask, mask.new_ones(1)])

    while True:
        mask = longer()
        x = torch.cat([x, (x.sin().sum() + mask.sum())[None]])
        if ended(stop(x)):
            return x


def in_an_object(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    layers = [types.SimpleNamespace(keys=torch.ones(2, len(x)))]
    while True:
        for layer in layers:
            layer.keys = torch.cat([layer.keys, layer.keys.new_ones(2, 1)], 1)
        x = torch.cat([x, (x.sin().sum() + layers[0].keys.sum())[None]])
        if ended(stop(x)):
            return x


def counted(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    step = 2
    while True:
        x = torch.cat([x, x[-1:] * step])
        step += 3
        if ended(stop(x)):
            return x


def in_one_region(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    going, is_done = torch.ones(1, dtype=torch.bool), False
    while not is_done:
        x = torch.cat([x, x.sin().sum()[None]])
        going = going & ~stop(x)
        is_done = ended(going.max() == 0)
    return x


def shrinking(x: torch.Tensor, stop: Stop) -> torch.Tensor:
    while True:
        x = x[1:] * 2
        if ended(x.sum() < 0) or len(x) < stop.length:
            return x


@pytest.mark.parametrize(
    ("loop", "graphs"),
    [
        (in_a_dict, [2, 1, 0, 0]),
        (in_a_cell, [2, 1, 0, 0]),
        (in_an_object, [2, 1, 0, 0]),
        (counted, [2, 1, 0, 0]),
        (in_one_region, [2, 1, 0, 0]),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_capture_for_all_iterations(
    loop: Callable[..., Any], graphs: list[int], backend: str
) -> None:
    fast = tracer_core.compile(loop, backend=backend)
    counts = []
    with torch.no_grad():
        for size, end in ((4, 9), (5, 13), (7, 9), (3, 30)):
            x = torch.linspace(0.1, 0.9, size)
            with CaptureCounter() as counter:
                compare(loop(x, Stop(end)), fast(x, Stop(end)), path="result")
            counts.append(len(counter.graphs))
    assert counts == graphs


def test_a_loop_that_shrinks_what_it_has() -> None:
    fast = tracer_core.compile(shrinking, backend="eager")
    counts = []
    for size, end in ((12, 5), (20, 3), (9, 8)):
        x = torch.linspace(0.1, 0.9, size)
        with CaptureCounter() as counter:
            compare(shrinking(x, Stop(end)), fast(x, Stop(end)), path="result")
        counts.append(len(counter.graphs))
    assert counts == [2, 1, 0]


class Symbols:
    """Collects the sizes of captured graphs' inputs that are symbols."""

    def __init__(self) -> None:
        self.sizes: list[Any] = []

    @hookimpl
    def tracer_graph_captured(self, gm: torch.fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            value = node.meta.get("val") if node.op == "placeholder" else None
            if isinstance(value, torch.Tensor):
                self.sizes += [n for n in value.shape if isinstance(n, torch.SymInt)]


@pytest.fixture
def symbols() -> Iterator[Symbols]:
    result = Symbols()
    manager().register(result)
    yield result
    manager().unregister(result)


def twice(x: torch.Tensor) -> torch.Tensor:
    """Each half changes the size, and neither leads back to where it began."""
    for _ in range(2):
        x = torch.cat([x, x]) + 1
        tracer_core.graph_break()
        x = x[: x.shape[0] // 2] * 3
        tracer_core.graph_break()
    return x


def test_sizes_that_differ_along_the_way_stay_constants(symbols: Symbols) -> None:
    x = torch.ones(4)
    fast = tracer_core.compile(twice, backend="eager")
    with CaptureCounter() as counter:
        torch.testing.assert_close(fast(x), twice(x))
    assert not symbols.sizes and len(counter.graphs) <= 4


def test_static_sizes_stay_constants(symbols: Symbols) -> None:
    fast = tracer_core.compile(in_a_dict, backend="eager", dynamic=False)
    x = torch.linspace(0.1, 0.9, 4)
    torch.testing.assert_close(fast(x, Stop(7)), in_a_dict(x, Stop(7)))
    assert not symbols.sizes


def ends(x: torch.Tensor, stop: Stop) -> tuple[torch.Tensor, int]:
    return stop(x) | (x[:1] > 2), stop.warned


def test_a_condition_that_decides_nothing_has_no_guard() -> None:
    fast = tracer_core.compile(ends, backend="eager", dynamic=True)
    captures = []
    for size, end, most in (
        (5, 9, 1000), (9, 9, 1000), (30, 9, 1000),  # one entry, whether it is done or not
        (30, 40, 20), (30, 29, 20), (31, 40, 20),  # warns where it is not done
        (6, 7, None), (8, 7, None), (8, 9, 8),
    ):  # fmt: skip
        x = torch.ones(size)
        with CaptureCounter() as counter:
            compare(fast(x, Stop(end, most)), ends(x, Stop(end, most)), path="result")
        captures.append(len(counter.graphs))
    assert captures[0] == 1 and captures[1:3] == [0, 0]


class Odd:
    """What a condition may do beside reading."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @property
    def most(self) -> int:
        self.log.append("read")
        return 1000

    def __lt__(self, other: int) -> bool:
        self.log.append("compared")
        return False


def reads(x: torch.Tensor, n: int, odd: Any) -> Any:
    done = x.shape[0] >= n
    if not done and x.shape[0] > odd.most:
        odd.log.append("long")
    return x + done, odd.log


def compares(x: torch.Tensor, n: int, odd: Any) -> Any:
    done = x.shape[0] >= n
    if not done and odd < 3:
        odd.log.append("long")
    return x + done, odd.log


def raises(x: torch.Tensor, n: int, odd: Any) -> Any:
    done = x.shape[0] >= n
    try:
        if not done and x.shape[0] > odd.nothing:
            odd.log.append("long")
    except AttributeError:
        odd.log.append("raised")
    return x + done, odd.log


def asks_a_tensor(x: torch.Tensor, n: int, odd: Any) -> Any:
    done, most = x.shape[0] >= n, x.sum()
    if not done and most > 7:
        odd.log.append("long")
    return x + done, odd.log


def has_an_end(x: torch.Tensor, n: int, odd: Any) -> Any:
    done = x.shape[0] >= n
    if not done and x.shape[0] > 1000 and x.shape[0] > 2000:
        odd.log.append("long")
    else:
        odd.log.append("short")
    while not done and x.shape[0] < 8:
        x = torch.cat([x, x[:1]])
        done = x.shape[0] >= n
    return x + done, odd.log


@pytest.mark.parametrize("program", [reads, compares, raises, asks_a_tensor, has_an_end])
@pytest.mark.parametrize("first", [9, 3])
def test_a_condition_whose_rest_does_something_is_guarded(
    program: Callable[..., Any], first: int
) -> None:
    fast = tracer_core.compile(program, backend="eager", dynamic=True)
    for size, n in ((5, first), (6, 3), (6, 9), (9, 9), (10, 12), (12, 10)):
        x, own = torch.ones(size), [Odd(), Odd()]
        compare(fast(x, n, own[0]), program(x, n, own[1]), path=f"{size}, {n}")


def attends(layers: list[Any], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = x + (layer.keys.mean(0) * layer.values.sum(0)).sum()
    return x


def test_what_the_items_of_a_list_hold_has_one_symbol(symbols: Symbols) -> None:
    """Equal sizes so far, as of a cache's layers; one that differs is captured once more."""
    fast = tracer_core.compile(attends, backend="eager")
    counts = []
    for sizes in ((3, 3, 3), (5, 5, 5), (7, 7, 7), (4, 4, 6), (5, 4, 3)):
        layers = [
            types.SimpleNamespace(keys=torch.ones(2, n), values=torch.full((3, n), 0.5))
            for n in sizes
        ]
        symbols.sizes.clear()
        with CaptureCounter() as counter:
            compare(fast(layers, torch.ones(1)), attends(layers, torch.ones(1)), path=str(sizes))
        counts.append((len(counter.graphs), len({n.node.expr for n in symbols.sizes})))
    assert counts[1] == (1, 1)  # keys and values are added, which makes them equal
    assert [n for n, _ in counts] == [1, 1, 0, 1, 0]
