"""Generators in a trace: a host object that drives an interpreted frame.

In: the frame of a generator function and the machine. Out: an iterator with send, throw and close.
What always holds: the frame runs on the machine's chain only while it is advanced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer_core.interpreter.frame import Frame


class TracedGenerator:
    """A generator whose frame the tracer interprets. Mutable."""

    __slots__ = ("machine", "frame", "started", "finished", "yielded", "running", "code_name", "born")

    def __init__(self, machine: Any, frame: Frame) -> None:
        self.machine, self.frame = machine, frame
        self.started = self.finished = self.yielded = self.running = False
        self.code_name = frame.code.raw.co_qualname
        self.born = machine.outer_step
        frame.generator = self

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self.finished:
            raise StopIteration
        if not self.started:
            if value is not None:
                raise TypeError("can't send non-None value to a just-started generator")
            self.started = True
        else:
            self.frame.stack.append(value)
        return self._resume(None)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        if isinstance(error, type):
            error = error() if value is None else (value if isinstance(value, error) else error(value))
        if self.finished or not self.started:
            self.finished = True
            raise error
        return self._resume(error)

    def close(self) -> None:
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self._resume(GeneratorExit())
        except (GeneratorExit, StopIteration):
            self.finished = True
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def _resume(self, error: BaseException | None) -> Any:
        if self.running:
            raise ValueError("generator already executing")
        self.running, self.yielded = True, False
        try:
            value = self.machine.resume_generator(self.frame, error)
        except StopIteration as stop:
            self.finished = True
            raise RuntimeError("generator raised StopIteration") from stop
        except Exception:
            self.finished = True
            raise
        finally:
            self.running = False
        if self.yielded:
            return value
        self.finished = True
        raise StopIteration(value)


class LazyIterator:
    """An iterator of a native kind (map, filter, a user's ``__next__``) whose items the tracer computes when
    they are asked for. Mutable. step(): the next item, or StopIteration."""

    __slots__ = ("step", "born", "code_name", "finished")

    def __init__(self, machine: Any, name: str, step: Callable[[], Any]) -> None:
        self.step, self.born, self.code_name, self.finished = step, machine.outer_step, name, False

    def __iter__(self) -> LazyIterator:
        return self

    def __next__(self) -> Any:
        if self.finished:
            raise StopIteration
        try:
            return self.step()
        except StopIteration:
            self.finished = True
            raise


#: Host objects whose methods run by themselves: they stand for Python's own iterators.
HOST_ITERATORS = (TracedGenerator, LazyIterator)
