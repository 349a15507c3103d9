"""Runs one program twice, eagerly and compiled, and compares everything after each step.

In: `make`, which builds the program anew for each side, and the steps: argument tuples are calls,
callables change the program's world between calls. Out: a `Comparison` with what capture did. A
difference is a Mismatch.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import tracer_core
from tracer_core.testing import CaptureCounter, Mismatch, compare, compare_aliasing


@dataclass(frozen=True, slots=True)
class Comparison:
    """compiled: for more calls. counter: graphs, breaks, recompiles. results: of the compiled
    side.
    """

    compiled: Any
    counter: CaptureCounter
    results: list[Any]

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.counter.recompiles]


def compare_with_eager(
    make: Callable[[], Any],
    *steps: Any,
    graphs: int | None = None,
    breaks: int | None = None,
    kinds: tuple[str, ...] | None = None,
    recompiles: int | None = None,
    aliasing: bool = True,
    **compile_arguments: Any,
) -> Comparison:
    """make() -> fn or (fn, world). steps: a tuple is a call with copies of these arguments; a
    callable gets the world (or fn, without one). world is compared after every call."""
    eager, plain_world = _pair(make())
    target, world = _pair(make())
    compile_arguments.setdefault("backend", "eager")
    compiled = tracer_core.compile(target, **compile_arguments)
    results = []
    with CaptureCounter() as counter:
        for number, step in enumerate(steps):
            if not isinstance(step, tuple):
                step(_target(eager, plain_world))
                step(_target(target, world))
                continue
            want = outcome(eager, step)
            got = outcome(compiled, step)
            where = f"step {number}: "
            _same_results(want, got, where, aliasing)
            compare(want[1], got[1], path=f"{where}arguments")
            compare(_look(plain_world), _look(world), path=f"{where}world")
            compare(want[2], got[2], path=f"{where}settings")
            results.append(got[0])
    messages = f"graphs {counter.graphs}, breaks {counter.breaks}, recompiles {counter.recompiles}"
    for what, wanted, actual in (
        ("graphs", graphs, len(counter.graphs)),
        ("breaks", breaks, len(counter.breaks)),
        ("kinds", kinds, tuple(dict.fromkeys(kind for kind, _, _ in counter.breaks))),
        ("recompiles", recompiles, len(counter.recompiles)),
    ):
        if wanted is not None and wanted != actual:
            raise Mismatch(what, f"{actual}, expected {wanted}; {messages}")
    return Comparison(compiled, counter, results)


@dataclass(frozen=True, slots=True)
class View:
    """A program's own view of its world. read(): what is compared after each call. target: what
    steps between calls are given."""

    read: Callable[[], Any]
    target: Any = None


def _target(fn: Any, world: Any) -> Any:
    if isinstance(world, View):
        return world.target
    return fn if world is None else world


def same(fn: Callable[..., Any], *calls: tuple[Any, ...], **arguments: Any) -> Comparison:
    """`compare_with_eager` for a program without a world of its own. Unless told otherwise it must not break."""
    if "kinds" not in arguments:
        arguments.setdefault("breaks", 0)
    return compare_with_eager(lambda: fn, *calls, **arguments)


def module(source: str, **names: Any) -> types.ModuleType:
    """A new imported module made of `source`."""
    new_module = types.ModuleType(f"tracer_test_module_{len(sys.modules)}_{id(names)}")
    sys.modules[new_module.__name__] = new_module
    new_module.__dict__.update(torch=torch, **names)
    exec(compile(source, f"<{new_module.__name__}>", "exec"), new_module.__dict__)
    return new_module


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """owner.name is `value` meanwhile."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def _pair(result: Any) -> tuple[Any, Any]:
    return result if isinstance(result, tuple) else (result, None)


def outcome(fn: Any, args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """(result or exception, arguments afterwards, torch settings afterwards) of one call."""
    kwargs: dict[str, Any] = {}
    args = copy.deepcopy(args)
    if args and isinstance(args[-1], Kw):
        kwargs, args = dict(args[-1]), args[:-1]
    torch.default_generator.manual_seed(
        0
    )  # torch.manual_seed notes the stack for three devices: 2 ms a call
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        result = error
    settings = (
        torch.is_grad_enabled(),
        torch._C._len_torch_function_stack(),
        torch.get_rng_state().sum().item(),
    )
    return result, (args, kwargs), settings


class Kw(dict[str, Any]):
    """Keyword arguments, as the last element of a call."""


def _look(world: Any) -> Any:
    if isinstance(world, View):
        return world.read()
    if isinstance(world, torch.nn.Module):
        return [dict(world.state_dict(keep_vars=True)), {k: v for k,
        v in vars(world).items() if not k.startswith("_")
                                                         and isinstance(v, _PLAIN)}]  # fmt: skip
    if isinstance(world, types.ModuleType):
        return {
            k: v for k, v in vars(world).items() if not k.startswith("_") and isinstance(v, _PLAIN)
        }
    if isinstance(world, tuple):
        return [_look(part) for part in world]
    if isinstance(world, (Mapping, list, set)) or world is None:
        return world
    if isinstance(world, (str, int, float)):
        return world
    return {k: v for k, v in vars(world).items() if isinstance(v, _PLAIN)}


_PLAIN = (int, float, str, list, dict, tuple, set, type(None), torch.Tensor)


def _told(error: Any) -> list[Any]:
    """What an exception says, and those that it was raised from or while handling."""
    actual: list[Any] = []
    while error is not None and len(actual) < 20:
        parts = repr(error) if isinstance(error, BaseExceptionGroup) else ""
        actual.append(
            (type(error), str(error), parts, type(error.__cause__), error.__suppress_context__)
        )
        error = error.__context__
    return actual


def _same_results(want: Any, got: Any, where: str, aliasing: bool) -> None:
    if isinstance(want[0], Exception) or isinstance(got[0], Exception):
        if type(want[0]) is not type(got[0]) or _told(want[0]) != _told(got[0]):
            error = Mismatch(f"{where}exception", f"{got[0]!r}, expected {want[0]!r}")
            raise error from (got[0] if isinstance(got[0], Exception) else None)
        return
    compare(want[0], got[0], path=f"{where}result")
    if aliasing:
        compare_aliasing([want[1], want[0]], [got[1], got[0]], f"{where}aliasing")
