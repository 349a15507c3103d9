"""Locks, threads, attributes of threads, and context variables."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager

X = torch.arange(6.0).reshape(2, 3) - 2.0


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock, threading.Condition])
def test_a_lock_around_a_change(kind: Any) -> None:
    def make() -> Any:
        world = types.SimpleNamespace(lock=kind(), calls=0)

        def fn(x: torch.Tensor) -> Any:
            with world.lock:
                world.calls += 1
                y = x * world.calls
            return y + 1

        def free(world: Any) -> None:
            assert world.lock.acquire(blocking=False)
            world.lock.release()

        return fn, world, free

    compare_with_eager(lambda: make()[0], (X,), (X,), (X,), breaks=0)
    fn, world, free = make()
    compiled = tracer_core.compile(fn, backend="eager")
    for calls in range(1, 5):
        assert torch.equal(compiled(X), X * calls + 1)
        free(world)
    assert tracer_core.explain(fn)(X).graph_break_count == 0


def test_a_lock_is_held_until_the_change_is_made() -> None:
    lock, world = threading.Lock(), types.SimpleNamespace(calls=0)

    def fn(x: torch.Tensor) -> torch.Tensor:
        with lock:
            world.calls += 1
        return x + 1

    compiled = tracer_core.compile(fn, backend=lambda gm, inputs: _sleepy(gm))
    compiled(X)
    compiled(X)
    start = world.calls
    threads = [threading.Thread(target=lambda: [compiled(X) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.calls == start + 80 and not lock.locked()


def _sleepy(gm: Any) -> Any:
    """A graph that lets other threads run in its middle."""

    def run(*inputs: Any) -> Any:
        threading.Event().wait(0.0005)
        return gm(*inputs)

    return run


def test_a_lock_that_somebody_holds_is_waited_for() -> None:
    lock = threading.Lock()

    def fn(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x + 1

    compiled = tracer_core.compile(fn, backend="eager")
    compiled(X)
    results: list[torch.Tensor] = []
    with lock:
        thread = threading.Thread(target=lambda: results.append(compiled(X)))
        thread.start()
        thread.join(0.3)
        assert not results
    thread.join()
    assert torch.equal(results[0], X + 1) and not lock.locked()


def test_a_graph_break_inside_a_lock() -> None:
    def make() -> Any:
        lock, seen = threading.Lock(), []

        def fn(x: torch.Tensor) -> Any:
            with lock:
                seen.append(1)
                tracer_core.graph_break()
                seen.append(lock.locked())
                y = x + len(seen)
            return y, lock.acquire(False), lock.release()

        return fn, seen

    compare_with_eager(make, (X,), (X,))


def test_an_exception_inside_a_lock_releases_it() -> None:
    def make() -> Any:
        lock = threading.Lock()

        def fn(x: torch.Tensor, fails: bool) -> Any:
            try:
                with lock:
                    if fails:
                        raise ValueError("no")
                    return x + 1
            except ValueError:
                return x - 1

        return fn

    compare_with_eager(make, (X, False), (X, True), (X, False), breaks=0)


def test_a_lock_made_inside() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            lock = threading.Lock()
            with lock:
                y = x + lock.locked()
            return y, lock.acquire(blocking=False), lock.release(), lock.locked()

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)


def test_a_lock_made_inside_leaves_as_a_lock() -> None:
    def fn(x: torch.Tensor) -> Any:
        lock = threading.Lock()
        with lock:
            return x + 1, lock

    compiled = tracer_core.compile(fn, backend="eager")
    (_, first), (_, second) = compiled(X), compiled(X)
    assert first is not second and type(first) is type(threading.Lock()) and not first.locked()


def test_the_thread_of_the_call() -> None:
    def fn(x: torch.Tensor) -> Any:
        thread = threading.current_thread()
        is_main = thread is threading.main_thread()
        return x + 1, thread.name, is_main, threading.get_ident() == thread.ident

    compiled = tracer_core.compile(fn, backend="eager")
    assert compiled(X)[1:] == compiled(X)[1:] == ("MainThread", True, True)
    messages: list[Any] = []
    other = threading.Thread(target=lambda: messages.append(compiled(X)[1:]), name="other")
    other.start()
    other.join()
    assert messages == [("other", False, True)]
    assert tracer_core.explain(fn)(X).graph_break_count == 0


class Stacked(threading.local):
    scale = 3.0

    def __init__(self) -> None:
        self.stack: list[int] = []

    def depth(self) -> int:
        return len(self.stack)


def test_a_thread_local_with_an_init_and_methods() -> None:
    def make() -> Any:
        local = Stacked()

        def fn(x: torch.Tensor) -> Any:
            local.stack.append(1)
            local.calls = getattr(local, "calls", 0) + 1
            return x * local.scale + local.depth(), local.calls

        return fn

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)
    fn = make()
    compiled = tracer_core.compile(fn, backend="eager")
    compiled(X)
    messages: list[Any] = []
    other = threading.Thread(target=lambda: messages.append(compiled(X)))
    other.start()
    other.join()
    assert torch.equal(messages[0][0], X * 3 + 1) and messages[0][1] == 1
    assert torch.equal(compiled(X)[0], X * 3 + 2)


def test_the_dictionary_of_a_thread_local() -> None:
    def make() -> Any:
        local = threading.local()
        local.scale = 2.0

        def fn(x: torch.Tensor) -> Any:
            return x * local.__dict__.get("scale", 1.0), local.__dict__.get("other", 5)

        return fn, local

    steps = ((X,), (X,), lambda local: setattr(local, "scale", 4.0), (X,))
    compare_with_eager(make, *steps, breaks=0, recompiles=1)


def test_context_variables() -> None:
    def make() -> Any:
        variable: Any = contextvars.ContextVar("variable")
        other: Any = contextvars.ContextVar("other", default=1.0)

        def fn(x: torch.Tensor) -> Any:
            x = x * other.get() + variable.get(7.0)
            token = variable.set(2.0)
            x = x * variable.get()
            variable.reset(token)
            other.set(other.get() + 1)
            return x, variable.get(None)

        def look(value: Any) -> Any:
            return variable.get("unset"), other.get()

        fn.look = look  # type: ignore[attr-defined]
        return fn

    context = contextvars.copy_context()
    eager, fn = make(), make()
    compiled = tracer_core.compile(fn, backend="eager")
    for _ in range(4):
        want, got = context.run(eager, X), context.run(compiled, X)
        assert torch.equal(want[0], got[0]) and want[1] == got[1] is None
        assert context.run(eager.look, X) == context.run(fn.look, X)
    assert eager.look(X) == fn.look(X) == ("unset", 1.0)  # this context has its own
    assert context.run(tracer_core.explain(fn), X).graph_break_count == 0


def test_a_context_variable_without_a_value() -> None:
    def make() -> Any:
        variable: Any = contextvars.ContextVar("variable")

        def fn(x: torch.Tensor) -> Any:
            try:
                return x + variable.get()
            except LookupError:
                return x - 1

        return fn, variable

    fn, variable = make()
    compiled = tracer_core.compile(fn, backend="eager")
    assert torch.equal(compiled(X), X - 1) and torch.equal(compiled(X), X - 1)
    token = variable.set(3.0)
    assert torch.equal(compiled(X), X + 3)
    variable.reset(token)
    assert torch.equal(compiled(X), X - 1)


def test_a_context_variable_that_was_set_and_reset_has_the_value_of_the_call() -> None:
    mode: Any = contextvars.ContextVar("mode", default="default")

    @contextlib.contextmanager
    def switched_to(value: str) -> Iterator[None]:
        token = mode.set(value)
        try:
            yield
        finally:
            mode.reset(token)

    def fn(x: torch.Tensor) -> Any:
        with switched_to("inner"):
            x = x + 1 if mode.get() == "inner" else x - 1
        return x, mode.get()

    def calls(run: Any) -> list[str]:
        seen = [run(X)[1]]
        for value in ("outer", "other"):
            token = mode.set(value)
            seen += [run(X)[1], mode.get()]
            mode.reset(token)
        return [*seen, run(X)[1]]

    compiled = tracer_core.compile(fn, backend="eager")
    want = ["default", "outer", "outer", "other", "other", "default"]
    assert calls(compiled) == calls(fn) == want


def test_a_context_variable_that_is_set_to_what_it_was_is_set_in_each_call() -> None:
    def make() -> Any:
        mode: Any = contextvars.ContextVar("mode", default="plain")
        mode.set("fast")

        def fn(x: torch.Tensor, resets: bool) -> Any:
            first, second = mode.set("fast"), mode.set("slow")
            mode.reset(second)
            if resets:
                mode.reset(first)
            return x + 1, mode.get()

        fn.mode = mode  # type: ignore[attr-defined]
        return fn

    eager, fn = make(), make()
    compiled = tracer_core.compile(fn, backend="eager")
    for resets in (False, True):
        for value in ("fast", "safe", "fast", "other"):
            for run, variable in ((eager, eager.mode), (compiled, fn.mode)):
                variable.set(value)
                want = value if resets else "fast"
                assert run(X, resets)[1] == variable.get() == want


def test_an_attribute_of_a_thread_that_is_set_and_deleted() -> None:
    def make() -> Any:
        local = threading.local()

        def fn(x: torch.Tensor) -> Any:
            local.scale = 3.0
            x = x * local.scale
            del local.scale
            return x

        return fn, local

    def put(local: Any) -> None:
        local.scale = 2.0

    def look(local: Any) -> None:
        assert not hasattr(local, "scale")

    compare_with_eager(make, (X,), look, put, (X,), look, (X,), look, put, (X,), look)


def test_the_old_value_of_a_token_is_the_one_of_the_call() -> None:
    mode: Any = contextvars.ContextVar("mode")

    def fn(x: torch.Tensor) -> Any:
        token = mode.set(1)
        old = token.old_value
        mode.reset(token)
        return x + 1, 0 if old is contextvars.Token.MISSING else old

    compiled = tracer_core.compile(fn, backend="eager")
    assert compiled(X)[1] == 0
    for value in (2, 3):
        mode.set(value)
        assert compiled(X)[1] == fn(X)[1] == value
