"""Every opcode of the supported Pythons is handled, or is listed with the reason why not."""

from __future__ import annotations

import dis
import functools
import importlib.util
import opcode
import operator
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import tracer_core
from tracer_core.bytecode import opcodes
from tracer_core.bytecode.code import HANDLERS, argument_meaning, decode
from tracer_core.bytecode.instructions import Instruction, instructions
from tracer_core.bytecode.opcodes.containers import INTRINSICS_1, INTRINSICS_2
from tracer_core.bytecode.opcodes.operators import BINARY, COMPARE, INPLACE, SYMBOLS
from tracer_core.bytecode.semantics import (
    AttributeSemantics,
    AttributeWriteSemantics,
    CallSemantics,
    ContainerSemantics,
    ExceptionSemantics,
    NameSemantics,
    OperatorSemantics,
)
from tracer_core.bytecode.versions import RUNNING, VERSIONS, OpcodeStep, Version
from tracer_core.trace.eager_interpreter import RealMachine
from tracer_core.trace.tracer import Tracer

#: What dis.opmap of each version names, without the forms that the interpreter specialises at
#: run time.
OPCODES: dict[str, frozenset[str]] = {
    version: frozenset(names.split())
    for version, names in {
        "3.11": """
            ASYNC_GEN_WRAP BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST
            BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CHECK_EG_MATCH
            CHECK_EXC_MATCH COMPARE_OP CONTAINS_OP COPY COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST
            DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR DICT_MERGE DICT_UPDATE END_ASYNC_FOR EXTENDED_ARG FORMAT_VALUE
            FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN GET_YIELD_FROM_ITER IMPORT_FROM IMPORT_NAME
            IMPORT_STAR IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_IF_FALSE_OR_POP
            JUMP_IF_TRUE_OR_POP KW_NAMES LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ASSERTION_ERROR LOAD_ATTR
            LOAD_BUILD_CLASS LOAD_CLASSDEREF LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_GLOBAL LOAD_METHOD
            LOAD_NAME MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP
            POP_EXCEPT POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE
            POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE
            POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE POP_TOP PRECALL PREP_RERAISE_STAR PRINT_EXPR
            PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_GENERATOR RETURN_VALUE SEND
            SETUP_ANNOTATIONS SET_ADD SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_GLOBAL STORE_NAME
            STORE_SUBSCR SWAP UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE
            WITH_EXCEPT_START YIELD_VALUE
        """,
        "3.12": """
            BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST
            BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1
            CALL_INTRINSIC_2 CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP CONTAINS_OP COPY COPY_FREE_VARS
            DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR DICT_MERGE DICT_UPDATE
            END_ASYNC_FOR END_FOR END_SEND EXTENDED_ARG FORMAT_VALUE FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE
            GET_ITER GET_LEN GET_YIELD_FROM_ITER IMPORT_FROM IMPORT_NAME INTERPRETER_EXIT IS_OP JUMP_BACKWARD
            JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD KW_NAMES LIST_APPEND LIST_EXTEND LOAD_ASSERTION_ERROR LOAD_ATTR
            LOAD_BUILD_CLASS LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK
            LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_GLOBAL LOAD_LOCALS LOAD_NAME LOAD_SUPER_ATTR
            MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE NOP POP_EXCEPT
            POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL
            RAISE_VARARGS RERAISE RESERVED RESUME RETURN_CONST RETURN_GENERATOR RETURN_VALUE SEND SETUP_ANNOTATIONS
            SET_ADD SET_UPDATE STORE_ATTR STORE_DEREF STORE_FAST STORE_GLOBAL STORE_NAME STORE_SLICE STORE_SUBSCR
            SWAP UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
        """,
        "3.13": """
            BEFORE_ASYNC_WITH BEFORE_WITH BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP
            BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2
            CALL_KW CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP CONTAINS_OP CONVERT_VALUE COPY
            COPY_FREE_VARS DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR DICT_MERGE
            DICT_UPDATE END_ASYNC_FOR END_FOR END_SEND ENTER_EXECUTOR EXIT_INIT_CHECK EXTENDED_ARG FORMAT_SIMPLE
            FORMAT_WITH_SPEC FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN GET_YIELD_FROM_ITER IMPORT_FROM
            IMPORT_NAME INTERPRETER_EXIT IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD LIST_APPEND
            LIST_EXTEND LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_BUILD_CLASS LOAD_CONST LOAD_DEREF LOAD_FAST
            LOAD_FAST_AND_CLEAR LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS
            LOAD_GLOBAL LOAD_LOCALS LOAD_NAME LOAD_SUPER_ATTR MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS
            MATCH_MAPPING MATCH_SEQUENCE NOP POP_EXCEPT POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
            POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESERVED RESUME RETURN_CONST
            RETURN_GENERATOR RETURN_VALUE SEND SETUP_ANNOTATIONS SET_ADD SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_ATTR
            STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_GLOBAL STORE_NAME STORE_SLICE
            STORE_SUBSCR SWAP TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START
            YIELD_VALUE
        """,
        "3.14": """
            BINARY_OP BINARY_SLICE BUILD_INTERPOLATION BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING
            BUILD_TEMPLATE BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX CALL_INTRINSIC_1 CALL_INTRINSIC_2 CALL_KW
            CHECK_EG_MATCH CHECK_EXC_MATCH CLEANUP_THROW COMPARE_OP CONTAINS_OP CONVERT_VALUE COPY COPY_FREE_VARS
            DELETE_ATTR DELETE_DEREF DELETE_FAST DELETE_GLOBAL DELETE_NAME DELETE_SUBSCR DICT_MERGE DICT_UPDATE
            END_ASYNC_FOR END_FOR END_SEND ENTER_EXECUTOR EXIT_INIT_CHECK EXTENDED_ARG FORMAT_SIMPLE FORMAT_WITH_SPEC
            FOR_ITER GET_AITER GET_ANEXT GET_AWAITABLE GET_ITER GET_LEN GET_YIELD_FROM_ITER IMPORT_FROM IMPORT_NAME
            INTERPRETER_EXIT IS_OP JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD LIST_APPEND LIST_EXTEND
            LOAD_ATTR LOAD_BUILD_CLASS LOAD_COMMON_CONSTANT LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR
            LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST
            LOAD_FROM_DICT_OR_DEREF LOAD_FROM_DICT_OR_GLOBALS LOAD_GLOBAL LOAD_LOCALS LOAD_NAME LOAD_SMALL_INT
            LOAD_SPECIAL LOAD_SUPER_ATTR MAKE_CELL MAKE_FUNCTION MAP_ADD MATCH_CLASS MATCH_KEYS MATCH_MAPPING
            MATCH_SEQUENCE NOP NOT_TAKEN POP_EXCEPT POP_ITER POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
            POP_JUMP_IF_TRUE POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESERVED RESUME RETURN_GENERATOR
            RETURN_VALUE SEND SETUP_ANNOTATIONS SET_ADD SET_FUNCTION_ATTRIBUTE SET_UPDATE STORE_ATTR STORE_DEREF
            STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_GLOBAL STORE_NAME STORE_SLICE STORE_SUBSCR SWAP
            TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
        """,
    }.items()
}
#: Never seen by a handler: decoding drops them or merges them into the next instruction.
DECODED_AWAY = frozenset({"CACHE", "EXTENDED_ARG"})
#: Tools and CPython's own optimizers add these at run time.
AT_RUN_TIME = {"INSTRUMENTED_LINE", "ANNOTATIONS_PLACEHOLDER"}
#: From 3.12 on the compiler's own names for what a code object holds as something else, and those of
#: tracing tools.
PSEUDO_FROM = 256


def _table(version: str) -> Version:
    return VERSIONS[tuple(map(int, version.split(".")))]


def _instructions() -> frozenset[str]:
    """The opcodes of this Python: without pseudo-instructions and instrumented forms."""
    return frozenset(
        name
        for name, number in dis.opmap.items()
        if number < PSEUDO_FROM and not name.startswith(("<", "INSTRUMENTED_"))
    )


@pytest.mark.parametrize(
    ("version", "name"), [(v, n) for v in OPCODES for n in sorted(OPCODES[v] - DECODED_AWAY)]
)
def test_opcode_has_a_handler_or_a_reason(version, name):
    assert opcodes.__all__
    known = _table(version)
    assert (name in HANDLERS or name in known.rewrites) != (name in known.unsupported)


@pytest.mark.parametrize("version", OPCODES)
def test_a_table_names_no_opcode_that_its_python_lacks(version):
    known = _table(version)
    named = {*known.arguments, *known.rewrites, *known.loop_end, *known.unsupported}
    named |= set(known.unsupported_intrinsics)
    assert named - AT_RUN_TIME <= OPCODES[version]


@pytest.mark.parametrize("version", OPCODES)
def test_the_steps_that_stand_for_an_opcode_have_handlers(version):
    """The decoder's own instructions are those of some Python that it knows."""
    known = _table(version)
    assert set(HANDLERS) <= frozenset().union(*OPCODES.values())
    ends = {name for name in known.loop_end if name not in known.rewrites}
    assert ends <= set(HANDLERS)


def test_the_list_is_that_of_this_python():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in OPCODES:
        pytest.skip(f"no list for Python {version}")
    assert _instructions() == OPCODES[version]
    assert {name for name in RUNNING.unsupported if name not in OPCODES[version]} <= set(dis.opmap)


def test_every_opcode_of_this_python_has_a_handler_or_a_reason():
    missing = [
        name
        for name in _instructions()
        if name not in DECODED_AWAY
        and not any(name in known for known in (HANDLERS, RUNNING.unsupported, RUNNING.rewrites))
    ]
    assert missing == []


@pytest.mark.parametrize("version", OPCODES)
def test_reasons_are_sentences(version):
    known = _table(version)
    reasons = [*known.unsupported.values()]
    reasons += [why for item in known.unsupported_intrinsics.values() for why in item.values()]
    assert all(len(reason.split()) > 2 for reason in reasons)


def _intrinsics():
    """(opcode, argument, name in CPython) of each intrinsic of this Python."""
    tables = {
        "CALL_INTRINSIC_1": getattr(opcode, "_intrinsic_1_descs", ()),
        "CALL_INTRINSIC_2": getattr(opcode, "_intrinsic_2_descs", ()),
    }
    return [
        (name, arg, described)
        for name, names in tables.items()
        for arg, described in enumerate(names)
        if arg  # 0 is no intrinsic
    ]


MEANT_INTRINSICS = {"CALL_INTRINSIC_1": INTRINSICS_1, "CALL_INTRINSIC_2": INTRINSICS_2}


def test_every_intrinsic_of_this_python_is_meant_or_has_a_reason():
    wrong = [
        (name, described)
        for name, arg, described in _intrinsics()
        if (arg in MEANT_INTRINSICS[name]) == (arg in RUNNING.unsupported_intrinsics.get(name, {}))
    ]
    assert wrong == []


def test_no_intrinsic_is_named_that_this_python_lacks():
    known = {(name, arg) for name, arg, _ in _intrinsics()}
    named = {
        (name, arg)
        for table in (RUNNING.unsupported_intrinsics, MEANT_INTRINSICS if known else {})
        for name, args in table.items()
        for arg in args
    }
    assert named <= known


def _decoded(name: str, arg: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    """Returns what an instruction of this Python with an argument is decoded to."""
    actual = [Instruction(name, dis.opmap[name], arg, 0, 0, None, 1)]
    rewrite = RUNNING.rewrites.get(name)
    return (
        rewrite(actual, 0, raw)
        if rewrite
        else (OpcodeStep(name, argument_meaning(actual[0], raw)),)
    )


def test_every_binary_operator_of_this_python_is_meant():
    raw = _decoded.__code__
    for arg, (described, symbol) in enumerate(opcode._nb_ops):
        (step,) = _decoded("BINARY_OP", arg, raw)
        if step.name == "BINARY_OP":
            table = INPLACE if described.startswith("NB_INPLACE_") else BINARY
            assert step.arg == arg and SYMBOLS[arg] == symbol
            assert symbol.removesuffix("=") in table, described
        else:
            assert (symbol, step) == ("[]", OpcodeStep("BINARY_SUBSCR", None))


def test_every_comparison_of_this_python_is_meant():
    assert set(COMPARE) == set(dis.cmp_op)
    for symbol in dis.cmp_op:
        raw = compile(f"a {symbol} b", "", "eval")
        assert OpcodeStep("COMPARE_OP", symbol) in _steps(raw)


NEW_IN_314 = pytest.mark.skipif(sys.version_info < (3, 14), reason="an opcode of Python 3.14")


@NEW_IN_314
def test_every_special_method_of_this_python_is_meant():
    for arg, name in enumerate(opcode._special_method_names):
        assert _decoded("LOAD_SPECIAL", arg, _decoded.__code__) == (
            OpcodeStep("LOAD_SPECIAL", name),
        )


@NEW_IN_314
def test_every_common_constant_of_this_python_is_meant():
    assert opcode._common_constants
    for arg, value in enumerate(opcode._common_constants):
        (step,) = _decoded("LOAD_COMMON_CONSTANT", arg, _decoded.__code__)
        assert step.name == "LOAD_CONST" and step.arg is value


#: Parts of a function statement, each a flag of MAKE_FUNCTION or SET_FUNCTION_ATTRIBUTE.
PARTS = {
    "defaults": ("a=x", ""), "keyword_defaults": ("*, b=x", ""), "annotations": ("c: int = 1", ""),
    "closure": ("", "x"), "all": ("a=x, *, b=x, c: int = 1", "x"),
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_function_statement_keeps_its_parts(part):
    parameters, free = PARTS[part]
    names: dict[str, Any] = {}
    source = f"""
def fn(x):
    def made({parameters}):
        return {free or 0}
    return made, x + 1
"""
    exec(source, names)
    x = torch.ones(2)
    want, got = names["fn"](x)[0], tracer_core.compile(names["fn"], backend="eager")(x)[0]
    for read in (
        "__defaults__",
        "__kwdefaults__",
        "__annotations__",
        "__closure__",
        "__qualname__",
    ):
        assert _plain(getattr(got, read)) == _plain(getattr(want, read))
    assert got.__code__ is want.__code__
    torch.testing.assert_close(torch.as_tensor(got()), torch.as_tensor(want()))


def _plain(value):
    """Returns something to compare: of cells their contents, of tensors their numbers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, types.CellType):
        return _plain(value.cell_contents)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _steps(raw: types.CodeType) -> list[OpcodeStep]:
    code = decode(raw)
    return [OpcodeStep(name, arg) for name, arg in zip(code.names, code.args, strict=True)]


def _nested(raw: types.CodeType) -> Iterator[types.CodeType]:
    yield raw
    for constant in raw.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


@pytest.mark.parametrize("name", ("argparse", "asyncio.base_events", "contextlib", "typing"))
def test_instructions_are_those_of_dis(name):
    source = Path(importlib.util.find_spec(name).origin).read_text()
    source += "\nasync def every(them):\n    async for one in them:\n        print(one)\n"
    for raw in _nested(compile(source, name, "exec")):
        want = [
            (item.opname, item.arg, item.offset, item.argval if item.opcode in JUMPS else None)
            for item in dis.get_instructions(raw)
            if item.opname not in DECODED_AWAY
        ]
        got = [(item.name, item.arg, item.offset, item.target) for item in instructions(raw)]
        assert got == want
        decode(raw)


def busy(numbers):
    total = {}
    for number in numbers:
        total[str(number)] = number + 1 if number > 2 else super(int, number).__hash__()
    return [*total, len(total), *(n for n in total)]


def test_specialised_code_is_decoded_as_before():
    """CPython replaces instructions of code that runs often."""
    want = instructions(busy.__code__.replace())
    for _ in range(100):
        busy([1, 2, 3, 4])
    assert instructions(busy.__code__) == want


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_code_that_a_tool_watches_is_decoded_as_before():
    """CPython replaces instructions where a tool wants to hear of events."""
    want = instructions(busy.__code__.replace())
    events, tool = sys.monitoring.events, sys.monitoring.DEBUGGER_ID
    every = [var for name, var in vars(events).items() if name.isupper() and var]
    sys.monitoring.use_tool_id(tool, "test")
    try:
        sys.monitoring.set_events(tool, functools.reduce(operator.or_, every))
        busy([1, 2, 3, 4])
        watched = instructions(busy.__code__)
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert watched == want


ROLES = {
    "attributes": AttributeSemantics,
    "attribute_writes": AttributeWriteSemantics,
    "calls": CallSemantics,
    "containers": ContainerSemantics,
    "exceptions": ExceptionSemantics,
    "names": NameSemantics,
    "operators": OperatorSemantics,
}


@pytest.mark.parametrize("role", ROLES)
def test_every_meaning_is_given(role):
    components = [get_type_hints(Tracer)[role], type(getattr(RealMachine(), role))]
    declared = [
        name
        for name, value in vars(ROLES[role]).items()
        if callable(value) and not name.startswith("_")
    ]
    missing = [
        (component, name)
        for component in components
        for name in declared
        if not hasattr(component, name)
    ]
    assert declared and missing == []
