"""Every opcode of Python 3.11 and 3.12 is handled, or is listed with the reason why not."""

from __future__ import annotations

import dis
import sys
from typing import get_type_hints

import pytest

from tracer_core.bytecode import opcodes
from tracer_core.bytecode.code import HANDLERS, UNSUPPORTED
from tracer_core.bytecode.semantics import (
    AttributeSemantics,
    AttributeWriteSemantics,
    CallSemantics,
    ContainerSemantics,
    ExceptionSemantics,
    NameSemantics,
    OperatorSemantics,
)
from tracer_core.trace.eager_interpreter import RealMachine
from tracer_core.trace.tracer import Tracer

#: What dis.opmap of the two versions names, without the forms that the interpreter specialises at
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
    }.items()
}
#: Never seen by a handler: decoding drops them or merges them into the next instruction.
DECODED_AWAY = frozenset({"CACHE", "EXTENDED_ARG"})
#: In 3.12 the compiler's own names for what a code object holds as something else, and those of
#: tracing tools.
PSEUDO_FROM = 256


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
    assert (name in HANDLERS) != (name in UNSUPPORTED)


def test_the_list_is_that_of_this_python():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in OPCODES:
        pytest.skip(f"no list for Python {version}")
    assert _instructions() == OPCODES[version]


def test_every_opcode_of_this_python_has_a_handler_or_a_reason():
    missing = [
        name
        for name in _instructions()
        if name not in DECODED_AWAY and name not in HANDLERS and name not in UNSUPPORTED
    ]
    assert missing == []


def test_reasons_are_sentences_and_needed():
    assert all(len(reason.split()) > 2 for reason in UNSUPPORTED.values())
    known = OPCODES["3.11"] | OPCODES["3.12"]
    assert {name for name in UNSUPPORTED if name not in known} <= {"INSTRUMENTED_LINE"}


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
