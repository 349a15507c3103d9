"""Cached functions (functools.cache, lru_cache) whose keys are objects: the answer is asked for again
in each call, so another key, or a cleared cache, has eager's answer."""

from __future__ import annotations

import functools
import io
import logging
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter


class Signature:
    """A key that is made in each call, compared by value."""

    def __init__(self, shape: Any, note: Any = None) -> None:
        self.shape, self.note = tuple(int(size) for size in shape), note

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signature) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash(self.shape)


class Frozen(dict[str, Any]):
    """An immutable dictionary, as frozendict's."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class Backend:
    """A key that exists before the call."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@functools.cache
def planned(pattern: str, *signatures: Any, options: Any = None) -> Any:
    scale = float(sum(signatures[0].shape)) + len(options["backend"].name)
    return lambda x: x * scale


@pytest.mark.parametrize("warm", [False, True])
def test_new_objects_as_keys(warm: bool) -> None:
    def make() -> Any:
        planned.cache_clear()
        world = {"backend": Backend("numpy")}

        def program(x: torch.Tensor) -> torch.Tensor:
            options = Frozen(backend=world["backend"])
            return planned("a b -> b a", Signature(x.shape), options=options)(x)

        if warm:
            program(torch.ones(2, 3))
        return program, world

    def other(world: Any) -> None:
        world["backend"] = Backend("a longer name")

    def renamed(world: Any) -> None:
        world["backend"].name = "short"

    x = torch.randn(2, 3)
    compare_with_eager(make, (x,), (x + 1,), other, (x,), renamed, (x,), breaks=0)


def test_a_cleared_cache_and_one_with_another_answer() -> None:
    factors = [2.0]

    @functools.lru_cache(maxsize=2)
    def factor(key: Any) -> float:
        return factors[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * factor(Signature(x.shape))

    def change(_: Any) -> None:
        factors[0] += 1
        factor.cache_clear()

    x = torch.randn(3)
    compare_with_eager(lambda: (program, factors), (x,), (x,), breaks=0)
    compiled = compare_with_eager(lambda: program, (x,), breaks=0).compiled
    for _ in range(3):
        change(None)
        torch.testing.assert_close(compiled(x), program(x))


def test_keywords_after_a_change_of_state() -> None:
    class Registry:
        state = 0

    @functools.cache
    def looked_up(name: str, *, scale: int) -> int:
        return len(name) * scale

    def make() -> Any:
        registry = Registry()

        def program(x: torch.Tensor) -> torch.Tensor:
            registry.state += 1
            return x * looked_up("name", scale=3) + registry.state

        return program, registry

    looked_up("name", scale=3)
    compare_with_eager(make, (torch.ones(2),), (torch.ones(2),), breaks=0)


def test_keys_that_hold_tensors_end_the_graph() -> None:
    @functools.cache
    def size(key: Any) -> int:
        return int(key.note.numel())

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * size(Signature(x.shape, x * 2))

    same(program, (torch.ones(2),), (torch.ones(3),), kinds=("native_python",))


class Lines(logging.Handler):
    """A handler of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _once() -> Any:
    @functools.lru_cache(None)
    def warning_once(self: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers has it."""
        self.warning(*args, **kwargs)

    return warning_once


@pytest.mark.parametrize("late", [False, True])
def test_a_message_that_is_logged_once_after_a_change(late: bool) -> None:
    """In a training step, whose gradients are gone by then: one graph, and the line appears once."""
    texts = []
    for compiles in (False, True):
        shown = io.StringIO()
        logger = logging.Logger("once")
        logger.addHandler(logging.StreamHandler(shown))
        weight, once = torch.nn.Parameter(torch.ones(3)), _once()
        seen: list[int] = []

        def step(x: Any) -> Any:
            weight.grad = None
            seen.append(len(seen))
            if late:
                logger.warning("a step")
            once(logger, "a message about %s", "losses")
            (weight * x).sum().backward()
            return weight.grad + 1

        with CaptureCounter() as counter:
            run = tracer_core.compile(step, backend="eager") if compiles else step
            for number in range(4):
                assert torch.equal(run(torch.ones(3) * number), torch.ones(3) * number + 1)
        assert seen == [0, 1, 2, 3]
        if compiles and not late:
            assert not counter.breaks
        texts.append(shown.getvalue())
    assert texts[0] == texts[1] and texts[0].count("about losses") == 1


def test_a_handler_of_the_program_sees_the_message_in_its_place() -> None:
    for compiles in (False, True):
        handler, logger, once = Lines(), logging.Logger("mine"), _once()
        logger.addHandler(handler)
        state = {"n": 0}

        def step(x: Any) -> Any:
            state["n"] += 1
            once(logger, "once")
            return x + state["n"]

        run = tracer_core.compile(step, backend="eager") if compiles else step
        for number in range(1, 4):
            assert torch.equal(run(torch.ones(3)), torch.ones(3) + number)
        assert handler.lines == ["once"]
