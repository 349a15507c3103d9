"""Reads the instructions of a code object of the running CPython, without the strings of `dis`.

Caches and EXTENDED_ARG prefixes are folded into their instruction. `dis.get_instructions` gives the
same, several times slower (a test compares them).
"""

from __future__ import annotations

import dis
import types
from typing import Any, NamedTuple

from tracer_core.bytecode.host_builtins import use_own_builtins

use_own_builtins(globals())

_EXTENDED, _CACHE = dis.opmap["EXTENDED_ARG"], 0
_ENTRIES: Any = dis._inline_cache_entries  # type: ignore[attr-defined]
#: Opcode -> cache entries behind an instruction; dis has them by name since 3.13.
_CACHES: tuple[int, ...] = tuple(
    _ENTRIES.get(name, 0) if isinstance(_ENTRIES, dict) else _ENTRIES[code]
    for code, name in enumerate(dis.opname[:256])
)
#: Opcodes with an argument; dis has the list since 3.12.
_HAS_ARGUMENT = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))
_RELATIVE, _ABSOLUTE = frozenset(dis.hasjrel), frozenset(dis.hasjabs)
#: Jumps whose argument counts backwards; END_ASYNC_FOR is a jump since 3.14.
_BACKWARD = frozenset(
    code
    for name, code in dis.opmap.items()
    if "JUMP_BACKWARD" in name or name.endswith("END_ASYNC_FOR")
)


class Instruction(NamedTuple):
    """begin: offset of the first prefix, the target of jumps. offset: of the instruction itself.
    arg: None for operations without one. target: offset that it may jump to, or None. line: of the
    source."""

    name: str
    opcode: int
    arg: int | None
    begin: int
    offset: int
    target: int | None
    line: int


def instructions(raw: types.CodeType) -> list[Instruction]:
    """Returns the instructions in order."""
    result: list[Instruction] = []
    code, names, line = raw.co_code, dis.opname, raw.co_firstlineno
    prefix, begin = 0, -1
    lines = [position[0] for position in raw.co_positions()]
    for offset in range(0, len(code), 2):
        opcode = code[offset]
        if opcode == _CACHE:
            continue
        if begin < 0:
            begin = offset
        arg = code[offset + 1] | prefix
        if opcode == _EXTENDED:
            prefix = arg << 8
            continue
        target: int | None = None
        if opcode in _RELATIVE:
            step = -arg if opcode in _BACKWARD else arg
            target = offset + 2 + 2 * (step + _CACHES[opcode])
        elif opcode in _ABSOLUTE:
            target = arg * 2
        known = lines[offset // 2]
        line = line if known is None else known
        result.append(
            Instruction(
                names[opcode],
                opcode,
                arg if opcode in _HAS_ARGUMENT else None,
                begin,
                offset,
                target,
                line,
            )
        )
        prefix, begin = 0, -1
    return result
