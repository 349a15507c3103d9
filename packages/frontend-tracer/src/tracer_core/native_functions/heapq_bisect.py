"""heapq and bisect: native where comparisons are, else polyfills with interpreted comparisons."""

from __future__ import annotations

import bisect
import heapq
from typing import Any

from tracer_core.native_effects.effects import special_each, special_rows
from tracer_core.trace.host_objects import SortKey as Ordered
from tracer_core.trace.native_reads import runs_no_user_code
from tracer_core.trace.tracer import Tracer

_ON_HEAPS = ("heappush", "heappop", "heapify", "heapreplace", "heappushpop")
#: Names of functions on heaps; of those with the largest item first, some are public (3.14).
_HEAP = [form.format(name) for form in ("{}", "_{}_max", "{}_max") for name in _ON_HEAPS]


@special_each(*(getattr(heapq, name) for name in _HEAP if hasattr(heapq, name)))
def on_heap(tracer: Tracer, function: Any, heap: Any, *rest: Any) -> Any:
    if not isinstance(heap, list):
        tracer.break_graph("native_python", f"{function.__name__}() of a {type(heap).__name__}")
    tracer.native_calls.native_reads(heap, *rest)
    tracer.side_effects.before_change(heap)
    if runs_no_user_code(tracer, heap) and all(runs_no_user_code(tracer, item) for item in rest):
        return function(heap, *rest)
    wrapped = [Ordered(tracer, item) for item in heap]
    try:
        result = function(wrapped, *(Ordered(tracer, item) for item in rest))
    finally:
        heap[:] = [item.key for item in wrapped]
    return result.key if isinstance(result, Ordered) else result


class _Searched:
    """A list or tuple as bisect sees it: an item is read, and guarded, when it is compared."""

    def __init__(self, tracer: Tracer, items: Any) -> None:
        self._tracer, self._items = tracer, items

    def __len__(self) -> int:
        return self._tracer.reads.length(self._items)

    def __getitem__(self, index: int) -> Ordered:
        return Ordered(self._tracer, self._tracer.reads.list_item(self._items, index))


@special_rows(
    {
        bisect.bisect_left: (bisect.bisect_left, False),
        bisect.bisect_right: (bisect.bisect_right, False),
        bisect.insort_left: (bisect.bisect_left, True),
        bisect.insort_right: (bisect.bisect_right, True),
    }
)
def search(
    tracer: Tracer,
    function: Any,
    inserts: bool,
    a: Any,
    x: Any,
    lo: Any = 0,
    hi: Any = None,
    key: Any = None,
) -> Any:
    if type(a) not in (list, tuple):
        tracer.break_graph("unknown_native", f"{function.__name__}() of a {type(a).__name__}")

    def ranked(value: Any) -> Ordered:
        return Ordered(tracer, tracer.calls.call_value(key, [value], {}))

    target = ranked(x) if inserts and key is not None else Ordered(tracer, x)
    by = None if key is None else lambda item: ranked(item.key)
    at = function(_Searched(tracer, a), target, lo, hi, key=by)
    if not inserts:
        return at
    tracer.side_effects.before_change(a)
    a.insert(at, x)
    return None
