"""Every opcode of this Python is handled, or is listed with the reason why not."""

from __future__ import annotations

import dis

from tracer_core.interpreter import opcodes
from tracer_core.interpreter.code import HANDLERS, UNSUPPORTED


def _instruction(name: str) -> bool:
    return not name.startswith(("<", "INSTRUMENTED_")) and dis.opmap[name] < 256


def test_every_opcode_has_a_handler_or_a_reason():
    assert opcodes.__all__
    missing = [
        name for name in dis.opmap if _instruction(name) and name not in HANDLERS and name not in UNSUPPORTED
    ]
    assert missing == []


def test_no_opcode_is_both():
    assert set(HANDLERS) & set(UNSUPPORTED) == set()


def test_reasons_are_sentences():
    assert all(len(reason.split()) > 2 for reason in UNSUPPORTED.values())
