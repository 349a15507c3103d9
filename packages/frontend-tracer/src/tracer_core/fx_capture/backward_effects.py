"""What the backward of an autograd.Function reads and changes outside of itself.

Lowering runs such a backward once, on fake values; the compiled graph runs its operators alone. So
the numbers and strings that it reads are guarded, and what it has changed meanwhile (a list of
norms, a counter, lines printed, numbers drawn) is put back: the graph is then cut around the
function, which runs in eager mode in each call.
"""

from __future__ import annotations

import dis
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from tracer_core.contract.lowering_errors import LoweringUnsupported, first_line
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.object_mutations import (
    MISSING,
    SNAPSHOTTERS,
    Change,
    Effects,
    same_contents,
)
from tracer_core.guards.object_layout import namespace
from tracer_core.limits import MAX_BACKWARD_DEPTH, MAX_BACKWARD_OBJECTS

_VALUES = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.device})
_LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy"}
_STORES = frozenset({"STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR"})


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
    its class and these hold. Mutable.

    reads: (get, name) of the values that the function may read, where get(name) returns one.
    stored: names that it gives values to.
    """

    def __init__(self, function: Any, *others: Any) -> None:
        self.changes = Effects(lambda change: None)
        self.named: list[_Names] = []
        self.random = random.getstate()
        self.reads: list[tuple[Callable[[Any], Any], Any]] = []
        self.stored: set[str] = set()
        self._seen: set[int] = set()
        for reached in (function, *others):
            self._follow(reached, frozenset(), 0)

    def _follow(self, value: Any, names: frozenset[str], depth: int) -> None:
        if id(value) in self._seen or type(value) in _VALUES:
            return
        if isinstance(value, torch.Tensor) or (depth and is_library(value)):
            return
        if depth > MAX_BACKWARD_DEPTH:
            crossed("MAX_BACKWARD_DEPTH", reached=depth)
        elif len(self._seen) >= MAX_BACKWARD_OBJECTS:
            crossed("MAX_BACKWARD_OBJECTS")
        else:
            self._seen.add(id(value))
            for item, known in self._parts(value, names):
                self._follow(item, known, depth + 1)

    def _parts(self, value: Any, names: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
        """Saves an object, and yields what it holds with the names that code has for it."""
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            yield value.__func__, names
            yield getattr(value, "__self__", None), names
        elif isinstance(value, FunctionType):
            names |= _names_in(value.__code__, self.stored)
            yield from self._entries(value.__globals__, names)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                self.reads.append((_reader(cell), name))
                yield cell, names
            yield getattr(value, "__wrapped__", None), names
        elif isinstance(value, ModuleType):
            yield from self._entries(vars(value), names)
        elif isinstance(value, type):
            for name in names.intersection(namespace(value)):
                self.reads.append((namespace(value).get, name))
                yield self.changes.begin_attribute(value, name).before, names
        elif (change := self.changes.begin(value)) is not None:
            change.all_contents = True
            if isinstance(change.before, dict):
                keys = names.intersection(key for key in change.before if type(key) is str)
                self.reads += [(value.get, key) for key in keys]
            yield from ((item, names) for item in _items(change))
        elif type(value).__module__ != "builtins":
            yield getattr(value, "__dict__", None), names
            yield type(value), names

    def _entries(
        self, entries: dict[str, Any], names: frozenset[str]
    ) -> Iterator[tuple[Any, frozenset[str]]]:
        self.named.append(_Names(entries, names))
        for name, value in self.named[-1].before.items():
            self.reads.append((entries.get, name))
            yield value, names

    def restore(self) -> str | None:
        """Restores what has changed; returns what that was, None if nothing has."""
        changed = None
        for named in self.named:
            changed = "a global variable" if named.restore() else changed
        for change in self.changes.changes.values():
            saver = SNAPSHOTTERS[change.kind]
            if not same_contents(change.before, saver.save(change.obj, change.where)):
                changed = f"a {type(change.obj).__name__} that existed before it"
                saver.restore(change)
        if self.random != random.getstate():
            changed = "the state of random"
            random.setstate(self.random)
        return changed


def _reader(cell: CellType) -> Callable[[str], Any]:
    """Returns what reads a variable of a closure, as the ``get`` of a dictionary reads an entry."""
    return lambda name: SNAPSHOTTERS[CellType].save(cell, None)


def _items(change: Change) -> list[Any]:
    if change.kind is CellType:
        return [] if change.before is MISSING else [change.before]
    if isinstance(change.before, dict):
        return [*change.before.values()]
    return [*change.before] if isinstance(change.before, list) else []


def is_library(value: Any) -> bool:
    """Whether an object is a module, function or class of PyTorch or Python, which has no state of
    the program in it."""
    name = getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None)
    return isinstance(value, (ModuleType, FunctionType, type)) and (
        str(name).partition(".")[0] in _LIBRARIES
    )


def _names_in(code: CodeType, stored: set[str]) -> frozenset[str]:
    """Returns the names of globals, attributes and keys in code and the functions inside it, and adds
    those that it gives values to."""
    stored.update(item.argval for item in dis.get_instructions(code) if item.opname in _STORES)
    keys = (item for item in code.co_consts if type(item) is str)
    inside = [item for item in code.co_consts if isinstance(item, CodeType)]
    return frozenset(code.co_names).union(keys, *(_names_in(item, stored) for item in inside))


class Reads:
    """Calling it returns what values a function reads outside of itself, as a string."""

    def __init__(self, function: Any, *reached: Any) -> None:
        state = State(function, *reached)
        self._reads = [(get, name) for get, name in state.reads if name not in state.stored]
        values = (get(name) for get, name in self._reads)
        self.any = any(
            type(value) in _VALUES or isinstance(value, torch.Tensor) for value in values
        )

    def __call__(self) -> str:
        values = [get(name) for get, name in self._reads]
        return "".join(
            f"{value!r};" if type(value) in _VALUES else f"{id(value)};" for value in values
        )


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
        sys.stdout = printed
        error: Exception | None = None
        try:
            result = function(*arguments)
        except Exception as raised:
            error = raised
        finally:
            sys.stdout = printed.real
            changed = state.restore()
        if changed is not None or printed.used:
            effect = "prints" if changed is None else f"changes {changed}"
            raise LoweringUnsupported(f"the backward of {what} {effect}") from error
        if isinstance(error, (RuntimeError, ArithmeticError, LoweringUnsupported)):
            raise error
        if error is not None:
            reason = f"the backward of {what} raises {type(error).__name__}: {first_line(error)}"
            raise LoweringUnsupported(reason) from error
        return result

    return backward
