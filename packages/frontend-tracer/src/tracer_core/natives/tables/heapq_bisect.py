"""heapq and bisect: native where comparisons are, else polyfills with interpreted comparisons."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Any

from tracer_core.natives.effects import special
from tracer_core.natives.reading import is_plain
from tracer_core.natives.tracing import Tracing
from tracer_core.trace.host_objects import SortKey as Ordered

_HEAP = [function for name, function in vars(heapq).items() if name in (
    "heappush", "heappop", "heapify", "heapreplace", "heappushpop", "_heappop_max",
    "_heapreplace_max",
    "_heapify_max")]  # fmt: skip


def _on_heap(function: Any) -> Callable[..., Any]:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        heap, *rest = args
        if not isinstance(heap, list):
            tracer.break_graph("native_python", f"{function.__name__}() of a {type(heap).__name__}")
        tracer.native_calls.native_reads(heap, *rest)
        tracer.side_effects.before_change(heap)
        if is_plain(tracer, heap) and all(is_plain(tracer, item) for item in rest):
            return function(heap, *rest)
        wrapped = [Ordered(tracer, item) for item in heap]
        try:
            result = function(wrapped, *(Ordered(tracer, item) for item in rest))
        finally:
            heap[:] = [item.key for item in wrapped]
        return result.key if isinstance(result, Ordered) else result

    return handler


for _function in _HEAP:
    special(_function)(_on_heap(_function))


def _search(function: Any, inserts: bool) -> Callable[..., Any]:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        named = dict(zip(("a", "x", "lo", "hi"), args, strict=False)) | kwargs
        items, value, key = named.pop("a"), named.pop("x"), named.pop("key", None)
        if type(items) not in (list, tuple):
            tracer.break_graph(
                "unknown_native", f"{function.__name__}() of a {type(items).__name__}"
            )
        tracer.native_calls.native_reads(items)
        wrapped = [Ordered(tracer, item) for item in items]
        target = Ordered(tracer, value)
        if inserts and key is not None:
            target = Ordered(tracer, tracer.calls.call_value(key, [value], {}))
        ranked = (
            None
            if key is None
            else lambda item: Ordered(tracer, tracer.calls.call_value(key, [item.key], {}))
        )
        at = function(wrapped, target, key=ranked, **named)
        if inserts:
            tracer.side_effects.before_change(items)
            items.insert(at, value)
            return None
        return at

    return handler


for _function in (bisect.bisect_left, bisect.bisect_right):
    special(_function)(_search(_function, inserts=False))
special(bisect.insort_left)(_search(bisect.bisect_left, inserts=True))
special(bisect.insort_right)(_search(bisect.bisect_right, inserts=True))
