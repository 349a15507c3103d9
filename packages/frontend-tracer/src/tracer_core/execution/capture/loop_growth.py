"""Sizes that a loop changes in each iteration, known when its first iteration was traced.

A code region in a loop ends where the next one begins. What a variable's tensor has there in place of
the size it began with, the next iteration begins with. Such sizes get symbols at once: the region is
traced again before its graph with constant sizes is compiled, which the next iteration could not use.

So do the numbers that the program compares with such a size, which bound the loop
(``input_ids.shape[1] >= self.max_length``): other calls have others.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.bytecode.code import Code
from tracer_core.bytecode.frame import LazyValue
from tracer_core.graph_breaks import Retry
from tracer_core.guards.source import Source, SourceKind
from tracer_core.trace.tracer import Tracer

#: Steps of paths that are followed in the state at the end, and the types that they lead through.
_STEPS: dict[SourceKind, tuple[type, ...]] = {
    SourceKind.CELL: (types.FunctionType,),
    SourceKind.CONTENTS: (types.CellType,),
    SourceKind.DICT: (object,),
    SourceKind.KEY: (dict,),
    SourceKind.ITEM: (list, tuple),
    SourceKind.OWN_KEY: (dict,),
    SourceKind.OWN_ITEM: (list, tuple),
}
_ABSENT = object()


def retry_with_symbols(tracer: Tracer) -> None:
    """Notes the sizes and numbers that the loop around a finished trace changes as if an earlier
    entry had seen others, and raises Retry; returns where no constant size changes."""
    shapes = tracer.shapes
    if not shapes.allowed or not _loops(tracer):
        return
    end = _End(tracer)
    grown = {
        source: size
        for source, dims in shapes.tensors.items()
        if (size := _changed(shapes.shapes[source.expression], dims, end.value(source)))
    }
    if not grown:
        return
    changed = {
        source: value
        for source, number in shapes.sources_of_numbers.items()
        if type(value := end.value(source)) is type(number) and value != number
    }
    sizes = {size for shape in grown.values() for size in shape}
    sizes |= {size for source in grown for size in shapes.shapes[source.expression]}
    bounds = set(_bounds(tracer, sizes))
    for source, number in shapes.sources_of_numbers.items():
        if source in changed or type(number) is not int or number not in bounds:
            continue
        if not _is_configuration(source, end):
            changed[source] = number + 1  # another one
    shapes.specializations.add(
        {source.expression: shape for source, shape in grown.items()},
        {source.expression: number for source, number in changed.items()},
    )
    reason = "a loop changes sizes: " + ", ".join(source.name for source in grown)
    raise Retry(0, "data_dependent_shape", reason, knows_growth=True)


def _loops(tracer: Tracer) -> bool:
    """Returns whether the program comes from the end of the trace to where it began by nothing but a
    loop's jump back: no other region lies between."""
    if tracer.begun is None:
        return False
    for layout, frame in zip(tracer.begun, tracer.frames, strict=False):
        if frame.code.raw is not layout.code or frame.ip < layout.ip:
            return True
        is_innermost = frame is tracer.frames[-1]
        if frame.ip > layout.ip and not _comes_back(frame.code, frame.ip + is_innermost, layout.ip):
            return False
    return True


def _comes_back(code: Code, end: int, begin: int) -> bool:
    """Returns whether a loop leads from one instruction to another one before it without a call."""
    return any(
        first <= begin <= end <= last
        and not any("CALL" in name for name in (*code.names[end:last], *code.names[first:begin]))
        for first, last in code.loops
    )


class _End:
    """The state at the end of a trace: what the next iteration finds where this one found what it
    began with."""

    def __init__(self, tracer: Tracer) -> None:
        self._values: dict[Source, Any] = {}
        #: Element of the state -> the variable of which frame it was.
        self._variables: dict[int, Any] = {}
        position = 0
        for layout, frame in zip(tracer.begun or (), tracer.frames, strict=False):
            if frame.code.raw is not layout.code:
                break
            for i, index in enumerate(layout.locals, position + 1):
                self._variables[i] = frame.locals[index]
            position += layout.size

    def value(self, source: Source) -> Any:
        """Returns what is at a source at the end; `_ABSENT` where that is not known."""
        if source not in self._values:
            self._values[source] = self._read(source)
        return self._values[source]

    def _read(self, source: Source) -> Any:
        if source.base is None:
            known = source.kind is SourceKind.STATE
            value = self._variables.get(source.key[0], _ABSENT) if known else _ABSENT
            return value.value if type(value) is LazyValue else value
        base = self.value(source.base)
        through = _STEPS.get(source.kind)
        if base is _ABSENT or through is None or not isinstance(base, through):
            return _ABSENT
        assert source.kind.follow is not None
        try:
            return source.kind.follow(base, source.key)
        except (AttributeError, LookupError, ValueError):
            return _ABSENT


def _changed(
    before: tuple[int, ...], dims: tuple[int | None, ...] | None, value: Any
) -> tuple[int, ...] | None:
    """Returns the shape at the end if it differs in a size that is no symbol and could be one. dims:
    the sizes that the trace began with, None for symbols."""
    if not isinstance(value, torch.Tensor) or value.dim() != len(before):
        return None
    after = tuple(map(_now, value.shape))
    differ = any(
        old != new and old > 1 and new is not None and (dims is None or dims[i] is not None)
        for i, (old, new) in enumerate(zip(before, after, strict=True))
    )
    return after if differ and None not in after else None  # type: ignore[return-value]


def _now(size: int | torch.SymInt) -> int | None:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _bounds(tracer: Tracer, sizes: set[int]) -> Iterator[int]:
    """Yields the numbers that the trace compared with one of these sizes."""
    for left, right in tracer.operators.compared:
        if left in sizes and right not in sizes:
            yield right
        elif right in sizes and left not in sizes:
            yield left


def _is_configuration(source: Source, end: _End) -> bool:
    """Returns whether a number is a module's, or of an object that a module has."""
    at: Source | None = source
    while at is not None:
        if isinstance(end.value(at), torch.nn.Module):
            return True
        at = at.base
    return False
