"""Resume points: the key and the flat state of an activation, from which its frames are rebuilt.

`flatten` gives a key (where execution stands) and a tuple of values (the state); `frames_of` is its
inverse. Two activations with equal keys have state tuples of equal layout.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tracer_core.bytecode.code import decode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.guards.object_lifetime import must_outlive_variable

use_own_builtins(globals())

#: Returned by a cache entry whose guards fail.
MISS: Any = type("Miss", (), {"__repr__": lambda self: "MISS"})()


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The position of one frame. code, ip; locals: indices of the bound live locals; stack: True
    for a value, False for NULL; on_return: the rule's kind; n_exceptions: handled exceptions."""

    code: types.CodeType
    ip: int
    locals: tuple[int, ...]
    stack: tuple[bool, ...]
    on_return: str | None
    kw_names: tuple[str, ...]
    n_exceptions: int

    @property
    def size(self) -> int:
        """The number of state values of the frame."""
        return (
            1
            + len(self.locals)
            + sum(self.stack)
            + self.n_exceptions
            + (self.on_return == "instance")
        )


@dataclass(frozen=True, slots=True)
class GeneratorPosition:
    """Where the frame of a generator stands that is live across a graph break. layout: None once
    the frame has ended; started: whether it has begun."""

    code: types.CodeType
    layout: FrameLayout | None
    started: bool

    def interned(self) -> GeneratorPosition:
        """Returns the one object of all equal ones: guards compare identities."""
        return _POSITIONS.setdefault(self, self)


_POSITIONS: dict[GeneratorPosition, GeneratorPosition] = {}


def layout_of(
    frame: Frame, keeps: Callable[[Any], bool] = must_outlive_variable
) -> tuple[FrameLayout, list[Any]]:
    """Returns the layout of a frame and its values in state order. keeps(value): whether a dead
    variable still holds its object until it is set, deleted or out of scope."""
    live = frame.code.live[frame.ip] if frame.ip < len(frame.code.live) else frozenset()
    bound = tuple(
        i
        for i, value in enumerate(frame.locals)
        if value is not NULL and (i in live or keeps(value))
    )
    rule = frame.on_return
    kind = None if rule is None else rule[0]
    values = [frame.function, *(frame.locals[i] for i in bound)]
    values += [value for value in frame.stack if value is not NULL]
    values += frame.exceptions
    if kind == "instance":
        values.append(rule[1])
    layout = FrameLayout(
        frame.code.raw, frame.ip, bound, tuple(value is not NULL for value in frame.stack), kind,
        frame.kw_names,
        len(frame.exceptions),
    )  # fmt: skip
    return layout, values


def flatten(
    frames: list[Frame], keeps: Callable[[Any], bool] = must_outlive_variable
) -> tuple[tuple[FrameLayout, ...], list[Any]]:
    """Returns the key and the state of an activation. keeps: see `layout_of`."""
    layouts, state = [], []
    for frame in frames:
        layout, values = layout_of(frame, keeps)
        layouts.append(layout)
        state += values
    return tuple(layouts), state


def dead_variables(layouts: tuple[FrameLayout, ...]) -> list[int]:
    """Returns the places in the state of the bound variables that are dead."""
    places, start = [], 0
    for layout in layouts:
        live = decode(layout.code).live
        alive = live[layout.ip] if layout.ip < len(live) else frozenset()
        places += [start + 1 + n for n, i in enumerate(layout.locals) if i not in alive]
        start += layout.size
    return places


def without(layouts: tuple[FrameLayout, ...], dropped: Collection[int]) -> tuple[FrameLayout, ...]:
    """Returns the layouts without the variables at these places in the state."""
    result, start = [], 0
    for layout in layouts:
        bound = tuple(i for n, i in enumerate(layout.locals) if start + 1 + n not in dropped)
        result.append(replace(layout, locals=bound))
        start += layout.size
    return tuple(result)


def frames_of(layouts: tuple[FrameLayout, ...], values: Any) -> list[Frame]:
    """Rebuilds the frames that `flatten` took apart. The function of a frame must be a real
    function."""
    frames, position = [], 0
    for layout in layouts:
        frame = Frame(values[position], decode(layout.code))
        position += 1
        for i in layout.locals:
            frame.locals[i] = values[position]
            position += 1
        for present in layout.stack:
            frame.stack.append(values[position] if present else NULL)
            position += present
        frame.exceptions = list(values[position : position + layout.n_exceptions])
        position += layout.n_exceptions
        if layout.on_return == "instance":
            frame.on_return = ("instance", values[position])
            position += 1
        frame.ip, frame.kw_names = layout.ip, layout.kw_names
        frame.last = max(0, layout.ip - 1)
        frames.append(frame)
    return frames
