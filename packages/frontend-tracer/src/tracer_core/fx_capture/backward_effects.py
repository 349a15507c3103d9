"""What the backward of an autograd.Function changes outside of itself while its graph is lowered.

Lowering runs such a backward once, on fake values; the compiled graph runs its operators alone. So
what the backward has changed (a list of norms, a counter, lines printed, numbers drawn) is put back,
and the graph is cut around the function, which then runs in eager mode in each call.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from tracer_core.contract.lowering_errors import LoweringUnsupported, first_line
from tracer_core.fx_capture.object_mutations import (
    MISSING,
    SNAPSHOTTERS,
    Change,
    Effects,
    same_contents,
)
from tracer_core.guards.object_layout import namespace

#: How far objects are followed from a backward, and how many of them.
MAX_DEPTH, MAX_OBJECTS = 6, 2_000


class _Names:
    """The entries of a namespace that code names, saved as one object would be."""

    def __init__(self, entries: dict[str, Any], names: frozenset[str]) -> None:
        self.entries, self.names = entries, names
        self.before = self._now()

    def _now(self) -> dict[str, Any]:
        return {name: self.entries[name] for name in self.names if name in self.entries}

    def restore(self) -> bool:
        now = self._now()
        if same_contents(self.before, now):
            return False
        for name in now:
            if name not in self.before:
                del self.entries[name]
        self.entries.update(self.before)
        return True


class State:
    """The contents of all objects that a function reaches: globals that it names, what its closure,
    its class and these hold. Mutable."""

    def __init__(self, *roots: Any) -> None:
        self.changes = Effects(lambda change: None)
        self.named: list[_Names] = []
        self.random = random.getstate()
        self._seen: set[int] = set()
        for root in roots:
            self._follow(root, frozenset(), 0)

    def _follow(self, value: Any, names: frozenset[str], depth: int) -> None:
        if id(value) in self._seen or depth > MAX_DEPTH or len(self._seen) >= MAX_OBJECTS:
            return
        self._seen.add(id(value))
        for item, known in self._parts(value, names):
            self._follow(item, known, depth + 1)

    def _parts(self, value: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
        """Saves an object, and yields what it holds with the names that code has for it."""
        if isinstance(value, torch.Tensor) or _is_torchs(value):
            return
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            yield value.__func__, names
            yield getattr(value, "__self__", None), names
        elif isinstance(value, FunctionType):
            names |= _names_in(value.__code__)
            self.named.append(_Names(value.__globals__, names))
            yield from ((item, names) for item in self.named[-1].before.values())
            yield from ((cell, names) for cell in value.__closure__ or ())
            yield getattr(value, "__wrapped__", None), names
        elif isinstance(value, ModuleType):
            self.named.append(_Names(vars(value), names))
            yield from ((item, names) for item in self.named[-1].before.values())
        elif isinstance(value, type):
            for name in names.intersection(namespace(value)):
                yield self.changes.begin_attribute(value, name).before, names
        elif (change := self.changes.begin(value)) is not None:
            change.all_contents = True
            yield from ((item, names) for item in _items(change))
        elif type(value).__module__ != "builtins":
            yield getattr(value, "__dict__", None), names
            yield type(value), names

    def restore(self) -> str | None:
        """Restores what has changed; returns what that was, None if nothing has."""
        found = None
        for named in self.named:
            found = "a global variable" if named.restore() else found
        for change in self.changes.changes.values():
            saver = SNAPSHOTTERS[change.kind]
            if not same_contents(change.before, saver.save(change.obj, change.where)):
                found = f"a {type(change.obj).__name__} that existed before it"
                saver.restore(change)
        if self.random != random.getstate():
            found = "the state of random"
            random.setstate(self.random)
        return found


def _items(change: Change) -> list[Any]:
    if change.kind is CellType:
        return [] if change.before is MISSING else [change.before]
    if isinstance(change.before, dict):
        return [*change.before.values()]
    return [*change.before] if isinstance(change.before, list) else []


def _is_torchs(value: Any) -> bool:
    """Whether an object is a module, function or class of PyTorch, which has no state of the program
    in it."""
    kind = (ModuleType, FunctionType, type)
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return isinstance(value, kind) and str(name).partition(".")[0] in ("torch", "builtins")


def _names_in(code: CodeType) -> frozenset[str]:
    """Returns the names of globals and attributes in code and the functions inside it."""
    inside = (item for item in code.co_consts if isinstance(item, CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inside))


class _Printed:
    """Stands for ``sys.stdout``. What this thread writes is dropped, and noticed."""

    def __init__(self) -> None:
        self.real, self.thread, self.used = sys.stdout, threading.get_ident(), False

    def write(self, text: str) -> int:
        if threading.get_ident() != self.thread:
            return self.real.write(text)
        self.used = True
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def without_effects(what: str, function: Callable[..., Any], *reached: Any) -> Callable[..., Any]:
    """Returns a backward that raises LoweringUnsupported where the given one, which runs on fake
    values, has effects or raises an exception of its own. reached: other objects that it holds."""

    def backward(*arguments: Any) -> Any:
        state, printed = State(function, *reached), _Printed()
        sys.stdout = printed  # type: ignore[assignment]
        error: Exception | None = None
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
        finally:
            sys.stdout = printed.real
            changed = state.restore()
        if changed is not None or printed.used:
            raise LoweringUnsupported(f"the backward of {what} " + (
                "prints" if changed is None else f"changes {changed}"
            )) from error  # fmt: skip
        if isinstance(error, (RuntimeError, ArithmeticError, LoweringUnsupported)):
            raise error
        if error is not None:
            reason = f"the backward of {what} raises {type(error).__name__}: {first_line(error)}"
            raise LoweringUnsupported(reason) from error
        return result

    return backward
