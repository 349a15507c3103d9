"""Lines of Python that make objects, and the expressions of what they make.

Mutable objects are made empty first and filled when the expression that needed them is complete,
which allows cycles, and long chains without deep recursion.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from tracer_core.graph_breaks import Restart
from tracer_core.trace.tracer import Tracer


class CannotRebuild(Exception):
    """No way is known to reconstruct this object. kind: its type."""

    def __init__(self, reason: str, kind: type) -> None:
        super().__init__(reason)
        self.kind = kind


class Emitter:
    """Emits lines. Mutable. fetch(source), constant(object) and identical(object), for the very
    object, give text; output(tensor or SymInt)
    gives the text of a graph output; flush(obj) adds the lines that replay the changes of an object
    now. lines run after the graph, late_lines after the side effects."""

    def __init__(
        self,
        tracer: Tracer,
        *,
        fetch: Callable[[Any], str],
        constant: Callable[[Any], str],
        identical: Callable[[Any], str],
        output: Callable[[Any], str],
        flush: Callable[[Any], None],
    ) -> None:
        self.tracer, self.constant, self._identical = tracer, constant, identical
        self.lines: list[str] = []
        self.late_lines: list[str] = []
        self._fetch, self._output, self._flush = fetch, output, flush
        self._source_of = tracer.provenance.origin_of
        self._classes = tracer.entries.classes
        self._memo: dict[int, str] = {}
        #: id of the frames that an exception passed -> its traceback.
        self._tracebacks: dict[int, str] = {}
        self._alive: list[Any] = []
        self._pending: collections.deque[Callable[[], None]] = collections.deque()
        self._depth = 0

    def value(self, obj: Any) -> str:
        """Returns the expression of an object; adds the lines that it needs."""
        return self._complete(self._value, obj)

    def has_made(self, obj: Any) -> bool:
        """Returns whether the lines make this object, for the result or for an object that contains
        it."""
        return id(obj) in self._memo

    def _value(self, obj: Any) -> str:
        """Returns the expression of an object, some of whose contents may be pending."""
        raise NotImplementedError

    def _complete(self, emit: Callable[..., str], *args: Any) -> str:
        """Returns emit(*args); fills what is pending, unless inside another object."""
        self._depth += 1
        try:
            text = emit(*args)
        finally:
            self._depth -= 1
        if self._depth == 0:
            self._fill_pending()
        return text

    def _fill_pending(self) -> None:
        """Fills the objects that were made empty. Filling may make more of them."""
        self._depth += 1
        try:
            while self._pending:
                self._pending.popleft()()
        finally:
            self._depth -= 1

    def _made_meanwhile(self, obj: Any) -> str | None:
        """Fills what is pending; returns the expression of `obj` if what was filled holds it."""
        self._fill_pending()
        return self._memo.get(id(obj))

    def _remember(self, obj: Any, text: str) -> str:
        self._memo[id(obj)] = text
        self._alive.append(obj)
        return text

    def _new(self, obj: Any, text: str) -> str:
        name = f"n{len(self._alive)}"
        self.lines.append(f"{name} = {text}")
        return self._remember(obj, name)

    def _items(self, values: Any) -> str:
        return ", ".join([self._value(v) for v in values])

    def _call(self, obj: Any, function: Any, *args: Any) -> str:
        """Emits an object as the result of a call."""
        return self._new(obj, f"{self.constant(function)}({self._items(args)})")

    def _set_attributes(self, name: str, attributes: dict[str, Any]) -> None:
        if self.tracer.entries.is_given(attributes):
            self.lines.append(f"set_own({name}, {self._value(attributes)})")
        elif attributes:
            pairs = [f"{self._value(key)}: {self._value(v)}" for key, v in attributes.items()]
            self.lines.append(f"own({name}).update({{{', '.join(pairs)}}})")

    def _no_way(self, obj: Any) -> BaseException:
        """Returns the exception that ends this trace. A `Restart` breaks before the instruction
        that made the object, so that eager mode makes it."""
        kind = type(obj)
        step, allocation_step = self.tracer.native_calls.allocation_sites.get(id(obj), (0, None))
        if allocation_step is obj:
            return Restart(step, "unsupported_value", f"a {kind.__name__} outlives the segment")
        return CannotRebuild(f"a {kind.__module__}.{kind.__qualname__}", kind)
