"""What is counted by `benchmarks.fallbacks`: why graphs, operators or functions run without their
backend.

`install` makes the tracer's reports of this process arrive here; `noting` yields the counts of what
happens inside it. It takes what releases since 136efc2b have, so that two commits can be compared.
"""

from __future__ import annotations

import collections
import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: Category -> what its reasons say, in the order of tables.
CATEGORIES = {
    "error of ours": "the compiled program raises, eager does not",
    "differs": "the compiled program gives something else than eager",
    "hung": "a program that ran into its time limit",
    "died": "a program that ended its process",
    "backend failed": "a graph in eager mode, because a stage of its backend failed",
    "graph raised": "a compiled graph raised, and the program ran in eager mode in its place",
    "whole graph": "a graph in eager mode",
    "runs eagerly": "a function or region that is not captured any more",
    "part of a graph": "a part of a graph that is cut, in eager mode",
    "cut": "an operator in eager mode around which a graph is cut",
    "operator": "an operator in eager mode inside of a graph that its backend partitions",
    "extern": "an operator of a compiled graph that runs as ATen's",
    "no compiler": "a graph in eager mode, because the machine has no compiler",
    "graph break": "an instruction at which capture stops",
}
#: Kinds of the tracer's `Fallback`s, and their categories.
_KINDS = {
    "lowering": "whole graph", "training": "whole graph", "backend_failed": "backend failed",
    "unsupported": "operator", "toolchain": "no compiler",
}  # fmt: skip
_WHOLE = ("lowering", "training", "backend_failed")
_MAX_LENGTH = 240

Counts = dict[str, collections.Counter[str]]


class _Notes:
    """The counts of this process (mutable). graphs: captured. made: graph -> its `Fallback`, and those
    of its parts, until the tracer takes the entry. compiling: the `Fallback`s of the graphs that this
    thread compiles."""

    def __init__(self) -> None:
        self.counts: Counts = collections.defaultdict(collections.Counter)
        self.graphs = 0
        self.made: dict[str, tuple[Any, list[Any]]] = {}
        self.compiling = threading.local()

    def add(self, category: str, reason: str) -> None:
        self.counts[category][shortened(reason)] += 1

    def add_fallback(self, fallback: Any) -> None:
        if fallback.kind == "unsupported" and "the graph is cut around it" in fallback.reason:
            self.add("cut", ": ".join(fallback.refused[0]))
        elif fallback.kind == "unsupported" and fallback.refused:
            for operator, reason in fallback.refused:
                self.add("operator", f"{operator}: {reason}")
        else:
            self.add(_KINDS[fallback.kind], fallback.reason)

    def take(self, name: str) -> None:
        """Counts a graph that the tracer has made an entry of."""
        self.graphs += 1
        final, inside = self.made.pop(name, (None, []))
        if final is not None:
            self.add_fallback(final)
        if final is not None and final.kind in _WHOLE:
            return  # what became of its parts does not matter
        for item in inside:
            if item is final:
                continue
            if item.kind in _WHOLE:
                self.add("part of a graph", item.reason)
            else:
                self.add_fallback(item)


_notes = _Notes()


def shortened(reason: str) -> str:
    """A reason without what differs from program to program: places, numbers, addresses."""
    text = reason.splitlines()[0] if reason else ""
    text = re.sub(r" \(at [^()]*\)", "", text.removeprefix("the captured graph runs eagerly: "))
    text = re.sub(r"0x[0-9a-f]+|graph_\d+\w*", "_", text)
    text = re.sub(r"(?<![\w.])-?\d+(\.\d+)?(?![\w])", "N", text)
    text = re.sub(r"\[(N(, )?)*\]|\((N,? ?)+\)", "[..]", text)
    text = re.sub(r"\b(getitem|arg|i|t|s|u|tensor|add|mul|view|_to_copy)_?\d+\b", r"\1", text)
    return text[:_MAX_LENGTH]


@contextlib.contextmanager
def noting() -> Iterator[_Notes]:
    """Yields the counts of what happens inside."""
    _notes.counts, _notes.graphs, _notes.made = collections.defaultdict(collections.Counter), 0, {}
    from tracer_core.debug import fallbacks

    with fallbacks.failures() as raised:
        yield _notes
    for text in raised:
        _notes.add("graph raised", text.partition(" raised ")[2])


def install() -> None:
    """Makes what the tracer reports from now on arrive in `noting`; its log is switched off."""
    import tracer_core
    from tracer_core.contract.backend import hookimpl
    from tracer_core.debug import fallbacks, logs
    from tracer_core.dispatch import compile_graph
    from tracer_core.execution import compiled_function

    class Listener:
        @hookimpl
        def tracer_graph_break(self, kind: str, reason: str) -> None:
            _notes.add("graph break", f"{kind}: {reason}")

    tracer_core.register(Listener())
    logs.logger().disabled = True
    name = "record_only" if hasattr(fallbacks, "record_only") else "report"
    _replace(name, getattr(fallbacks, name), _noted_report)
    compile_graph.compile_graph = _noted_compile(compile_graph.compile_graph)
    function = compiled_function.CompiledFunction
    for method, note in (("_note", _note_entry), ("_give_up", _note_native), ("_skip", _note_skip)):
        setattr(function, method, _preceded(getattr(function, method), note))


def _replace(name: str, function: Any, by: Callable[[Any], Any]) -> None:
    """Replaces a function in all modules of the tracer that have imported it."""
    result = by(function)
    for module in list(sys.modules.values()):
        ours = getattr(module, "__name__", "").startswith("tracer_core")
        if ours and vars(module).get(name) is function:
            setattr(module, name, result)


def _noted_report(original: Any) -> Any:
    def report(fallback: Any, *more: Any) -> None:
        original(fallback, *more)
        inside = getattr(_notes.compiling, "fallbacks", None)
        if inside is None:  # a backward, which is compiled when it first runs
            _notes.add_fallback(fallback)
        else:
            inside.append(fallback)

    return report


def _noted_compile(original: Any) -> Any:
    def compile_graph(captured: Any, config: Any, **settings: Any) -> Any:
        if getattr(_notes.compiling, "fallbacks", None) is not None:
            return original(captured, config, **settings)
        inside = _notes.compiling.fallbacks = []
        try:
            result = original(captured, config, **settings)
        finally:
            _notes.compiling.fallbacks = None
        _notes.made[captured.name] = result.fallback, inside
        return result

    return compile_graph


def _preceded(method: Any, note: Callable[..., None]) -> Any:
    def noted(*arguments: Any, **settings: Any) -> Any:
        note(*arguments)
        return method(*arguments, **settings)

    return noted


def _note_entry(function: Any, record: Any) -> None:
    _notes.take(record.name)


def _note_native(function: Any, segment: Any, reason: str, *cause: Any) -> None:
    _notes.add("runs eagerly", reason)


def _note_skip(function: Any, reason: str) -> None:
    _notes.add("runs eagerly", reason)
