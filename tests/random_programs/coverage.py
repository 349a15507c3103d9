"""What of the tracer the programs reached: opcodes, rows of the native effects table, kinds of
guard.

In: a block of code under `watching()`. Out: counts by name, merged over processes, and a report
with what is missing. What always holds: watching changes no behaviour; an opcode counts when the
tracer itself has run it.
"""

from __future__ import annotations

import collections
import contextlib
import dis
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tests.support import effect_rows
from tracer_core.bytecode import code as code_module
from tracer_core.execution.entry.codegen import CacheEntry
from tracer_core.guards.guard import GuardKind
from tracer_core.trace.tracer import Tracer

Table = dict[str, dict[str, int]]
#: Opcodes that no function's bytecode holds, or that are another's prefix or leftover.
_NEVER = {
    "CACHE": "space for the specialising interpreter",
    "EXTENDED_ARG": "decoded as part of the next instruction",
    "INTERPRETER_EXIT": "of the interpreter's own trampoline", "RESERVED": "no instruction",
    "PRINT_EXPR": "only at the prompt", "IMPORT_STAR": "only in modules",
    "SETUP_ANNOTATIONS": "only in modules and class bodies",
    "LOAD_ASSERTION_ERROR": "", "GET_LEN": "",
}  # fmt: skip


class Seen:
    """Mutable. opcodes, rows, guards: name -> how often."""

    def __init__(self) -> None:
        self.opcodes: collections.Counter[str] = collections.Counter()
        self.rows: collections.Counter[str] = collections.Counter()
        self.guards: collections.Counter[str] = collections.Counter()

    def table(self) -> Table:
        return {"opcodes": dict(self.opcodes), "rows": dict(self.rows), "guards": dict(self.guards)}


@contextlib.contextmanager
def watching(opcodes: bool = True) -> Iterator[Seen]:
    """Counts what traces do meanwhile. opcodes: also each instruction, which makes tracing
    slower.
    """
    seen = Seen()
    plain_guard = CacheEntry.guard

    def guard(self: Any, guard: Any) -> None:
        seen.guards[guard.kind.name] += 1
        plain_guard(self, guard)

    watched = {
        name: _watched(name, handler, seen) for name, handler in code_module.HANDLERS.items()
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(CacheEntry, "guard", guard))
        seen.rows = stack.enter_context(effect_rows.counting())
        if opcodes:
            code_module.decode.cache_clear()
            stack.enter_context(mock.patch.dict(code_module.HANDLERS, watched))
            stack.callback(code_module.decode.cache_clear)
        yield seen


def _watched(name: str, handler: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    def counted(machine: Any, frame: Any, arg: Any) -> Any:
        if type(machine) is Tracer:
            seen.opcodes[name] += 1
        return handler(machine, frame, arg)

    return counted


def merge(total: Table, part: Table) -> None:
    for kind, counts in part.items():
        mine = total.setdefault(kind, {})
        for name, count in counts.items():
            mine[name] = mine.get(name, 0) + count


def wanted() -> dict[str, list[str]]:
    """Every name that could be reached, by kind."""
    opcodes = [
        name
        for name, number in dis.opmap.items()
        if number < 256 and not name.startswith(("INSTRUMENTED_", "<")) and not _NEVER.get(name)
        and name in code_module.HANDLERS
    ]  # fmt: skip
    return {
        "opcodes": opcodes,
        "rows": effect_rows.names(),
        "guards": [kind.name for kind in GuardKind],
    }


def shares(table: Table) -> dict[str, tuple[int, int, list[str]]]:
    """kind -> (reached, of how many, what is missing)."""
    actual = {}
    for kind, names in wanted().items():
        missing = sorted(name for name in names if not table.get(kind, {}).get(name))
        actual[kind] = len(names) - len(missing), len(names), missing
    return actual


def report(table: Table) -> str:
    lines = []
    for kind, (reached, total, missing) in shares(table).items():
        lines.append(
            f"coverage of {kind}: {reached} of {total} ({100 * reached / max(total, 1):.1f} %)"
        )
        if missing:
            lines.append(f"  missing: {', '.join(missing)}")
    return "\n".join(lines)
