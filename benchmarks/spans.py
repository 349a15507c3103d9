"""Where the seconds of one process go: spans of time that nest, and what each took itself.

In: imports (seen by `watch_imports`), stages of tracer_core, events of torch.compile. Out: seconds
by label that add up to the whole. What always holds: only the main thread is recorded, so spans
nest; times are `time.perf_counter_ns()`, the system's monotonic clock: two processes share it, and
nobody sets it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """start, end: nanoseconds. name."""

    start: int
    end: int
    name: str


class Recorder:
    """The spans of this process (mutable: they are added as they end)."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, start: int, end: int, name: str) -> None:
        """A span that has ended; those of other threads are left out, because they do not nest."""
        if threading.current_thread() is threading.main_thread():
            self.spans.append(Span(start, end, name))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Records the block."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(start, time.perf_counter_ns(), name)

    def watch_imports(self) -> None:
        """From now on each module that is loaded is a span ``import <module>``.

        Both ``import`` statements and importlib look `_find_and_load` up in importlib's frozen
        module, and only for modules that are not loaded yet.
        """
        machinery: Any = sys.modules["_frozen_importlib"]
        load: Callable[..., Any] = machinery._find_and_load

        def timed(name: str, importer: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return load(name, importer)
            finally:
                self.add(start, time.perf_counter_ns(), f"import {name}")

        machinery._find_and_load = timed

    def watch_tracer_core(self) -> None:
        """Stages of tracer_core become spans under their names.

        Not through `stages.observe`: where somebody observes, stages build their texts, which takes
        time.
        """
        from tracer_core.debug import stages

        module: Any = stages
        finish: Callable[..., None] = module._finish

        def finished(done: Any, seconds: float, suffix: str) -> None:
            end = time.perf_counter_ns()
            self.add(end - int(seconds * 1e9), end, done.name)
            finish(done, seconds, suffix)

        module._finish = finished

    def watch_torch_compile(self) -> None:
        """The events that torch.compile times by itself become spans under their names."""
        from torch._dynamo import utils

        logger_type: Any = utils.ChromiumEventLogger
        log_end = logger_type.log_event_end

        def finished(
            logger: Any,
            name: str,
            time_ns: int,
            metadata: Any,
            start_time_ns: int,
            *rest: Any,
            **named: Any,
        ) -> None:
            end = time.perf_counter_ns()
            self.add(
                end - (time_ns - start_time_ns), end, name
            )  # the event's own times are of the wall clock
            log_end(logger, name, time_ns, metadata, start_time_ns, *rest, **named)

        logger_type.log_event_end = finished


def own_seconds(spans: Iterable[Span], label: Callable[[str], str | None]) -> dict[str, float]:
    """Seconds by label, each span without the labelled spans inside it.

    label: a span's name -> its label, or None: the span is taken as a part of what is round it.
    """
    found: dict[str, float] = {}
    open_spans: list[tuple[int, str]] = []  # (end, label) of the spans round the present one
    # Outer spans first: earlier start, or the same start and a later end.
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        text = label(span.name)
        if text is None:
            continue
        while open_spans and open_spans[-1][0] <= span.start:
            open_spans.pop()
        end = min(span.end, open_spans[-1][0]) if open_spans else span.end
        seconds = (end - span.start) / 1e9
        found[text] = found.get(text, 0.0) + seconds
        if open_spans:
            outer = open_spans[-1][1]
            found[outer] -= seconds
        open_spans.append((end, text))
    return found
