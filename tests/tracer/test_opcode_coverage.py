"""Every opcode of this Python is handled, or is listed with the reason why not."""

from __future__ import annotations

import asyncio.streams
import dis
import inspect
import types
import typing
import unittest.mock
from collections.abc import Iterator

import pytest
import torch

from tracer_core.interpreter import opcodes
from tracer_core.interpreter.bytecode import instructions
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


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@pytest.mark.parametrize(
    "module", [dis, inspect, typing, unittest.mock, asyncio.streams, torch.nn.modules.rnn]
)
def test_instructions_are_those_that_dis_lists(module: types.ModuleType) -> None:
    source = inspect.getsource(module)
    for code in _codes(compile(source, module.__name__, "exec")):
        want, begin, line = [], None, code.co_firstlineno
        for one in dis.get_instructions(code):
            begin = one.offset if begin is None else begin
            if one.opname == "EXTENDED_ARG":
                continue
            if one.positions is not None and one.positions.lineno is not None:
                line = one.positions.lineno
            target = one.argval if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs else None
            want.append((one.opname, one.opcode, one.arg, begin, one.offset, target, line))
            begin = None
        assert list(map(tuple, instructions(code))) == want
