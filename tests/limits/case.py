"""A program on both sides of a limit."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import outcome
from tracer_core.execution import capture_lock
from tracer_core.execution.capture import trace as capture  # noqa: F401  (imported late)
from tracer_core.execution.entry import resume_hot_codegen  # noqa: F401  (imported late)
from tracer_core.testing import CaptureCounter, compare

PACKAGES = ("tracer_core", "inductor_backend", "onnxrt_backend")


@dataclass(frozen=True)
class Case:
    """make: builds the function from a size. under, over: the sizes on the two sides of the limit.
    calls: the arguments of the calls, from a size. limit: the value of the limit in this test; None:
    its own. It is lowered where the real value would take long (instructions, elements) or where the
    program is easier to read. limits: values under and beyond, of a program of one size. says: beyond
    the limit, a kind of graph break, or a text in the log or among the warnings. settles: the call
    after which nothing is captured. raises: the error of the compiled function beyond the limit, which
    eager mode does not raise. is_compared: the limit is compared in Python, and not by C code or
    as the default of an argument: then the test sees that the program meets it. release: of torch, from
    which on the limit is met. options: of compile()."""

    make: Callable[[int], Callable[..., Any]]
    calls: Callable[[int], list[tuple[Any, ...]]]
    under: int = 0
    over: int = 0
    limit: float | None = None
    limits: tuple[float, float] | None = None
    says: str = ""
    settles: int = 3
    raises: str = ""
    is_compared: bool = True
    release: str = ""
    options: dict[str, Any] = field(default_factory=lambda: {"backend": "eager"})


@dataclass
class Run:
    """What a run did. captures: after each call. said: log records, warnings and breaks. reached: the
    limits that `last_compile` names."""

    captures: list[int]
    said: str
    reached: set[str]


class Watched(int):
    """A limit that notes that it was compared, or computed with."""

    asked = False


def _watching(name: str) -> Any:
    def method(self: Watched, *others: Any) -> Any:
        self.asked = True
        return getattr(int, name)(self, *others)

    return method


for _name in "lt le gt ge eq sub add mul rmul floordiv".split():
    setattr(Watched, f"__{_name}__", _watching(f"__{_name}__"))
Watched.__hash__ = int.__hash__  # type: ignore[method-assign]


def change(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Changes a limit wherever a module has bound it."""
    actual = 0
    for module in list(sys.modules.values()):
        package = getattr(module, "__name__", "").partition(".")[0]
        if package in PACKAGES and name in vars(module):
            monkeypatch.setattr(module, name, value)
            actual += not module.__name__.endswith(".limits")
    assert actual, f"no module has bound {name}"


def run(case: Case, size: int) -> Run:
    """Runs a program eagerly and compiled; raises Mismatch where a result differs."""
    eager, target = case.make(size), case.make(size)
    compiled = tracer_core.compile(target, **case.options)
    start, captures = capture_lock.captures_so_far(), []
    with CaptureCounter() as counter, listening() as said:
        for args in case.calls(size):
            want, got = outcome(eager, args), outcome(compiled, args)
            captures.append(capture_lock.captures_so_far() - start)
            if case.raises and type(got[0]).__name__ == case.raises:
                said.append(str(got[0]))
                continue
            assert type(want[0]) is type(got[0]), (want[0], got[0])
            if isinstance(want[0], Exception):
                assert str(want[0]) == str(got[0])
            else:
                _close(want[0], got[0]) if case.options["backend"] == "inductor" else compare(
                    want[0], got[0]
                )
            if not any(isinstance(arg, Iterator) for arg in args):
                compare(want[1], got[1])  # what it wrote to its arguments
    said += [f"[{kind}] {reason}" for kind, reason, _ in counter.breaks]
    rows = [record.text for record in tracer_core.last_compile(compiled) if record.name == "limit"]
    return Run(captures, "\n".join(said), {re.match(r"\w+", text).group() for text in rows})  # type: ignore[union-attr]


def _close(want: Any, got: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collects warnings and records of the log."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("tracer_core")
    log.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield said
    finally:
        log.removeHandler(handler)
        said += [str(item.message) for item in warned]
