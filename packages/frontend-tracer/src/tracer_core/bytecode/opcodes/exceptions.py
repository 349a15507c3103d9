"""raise, try, except, finally."""

from __future__ import annotations

import sys
from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine

use_own_builtins(globals())


@opcode("PUSH_EXC_INFO")
def push_exc_info(m: Machine, f: Frame, arg: Any) -> None:
    error = m.pop(f)
    f.stack.append(f.exceptions[-1] if f.exceptions else None)
    f.stack.append(error)
    f.exceptions.append(error)


@opcode("POP_EXCEPT")
def pop_except(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.pop()
    if f.exceptions:
        f.exceptions.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(m: Machine, f: Frame, arg: Any) -> None:
    kinds = _kinds(m.pop(f))
    error = m.peek(f)
    # By the MRO, as in CPython: __instancecheck__ is not called.
    f.stack.append(any(kind in type(error).__mro__ for kind in kinds))


def _kinds(written: Any) -> tuple[type[BaseException], ...]:
    """Returns the classes that an ``except`` clause names."""
    kinds = written if isinstance(written, tuple) else (written,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed"
            )
    return kinds


@opcode("CHECK_EG_MATCH")
def check_eg_match(m: Machine, f: Frame, arg: Any) -> None:
    """Runs one ``except*``: pushes (rest, matched or None) of the exception."""
    kinds = _kinds(m.pop(f))
    error = m.pop(f)
    if any(issubclass(kind, BaseExceptionGroup) for kind in kinds):
        raise TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")
    left, matched = _split(m, error, kinds)
    f.stack += [left, matched]
    if matched is not None:
        f.exceptions[-1] = matched


def _split(m: Machine, error: Any, kinds: tuple[type, ...]) -> tuple[Any, Any]:
    if error is None:
        return None, None
    if isinstance(error, BaseExceptionGroup):
        parts = m.calls.call_value(m.attributes.getattr(error, "split"), [kinds], {})
        if not isinstance(parts, tuple):
            kind, result = m.exceptions.type_name(error), m.exceptions.type_name(parts)
            raise TypeError(f"{kind}.split must return a tuple, not {result}")
        matched_and_left = m.containers.spread(parts)
        if len(matched_and_left) < 2:
            raise TypeError(
                f"{m.exceptions.type_name(error)}.split must return a 2-tuple, got tuple of size"
                f" {len(matched_and_left)}"
            )
        return matched_and_left[1], matched_and_left[0]
    if not isinstance(error, kinds):
        return error, None
    return None, BaseExceptionGroup("", (error,))


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(m: Machine, f: Frame, arg: Any) -> None:
    raised = m.pop(f)
    original = m.pop(f)
    f.stack.append(reraise_star(m, original, raised))


def reraise_star(m: Machine, original: Any, result: list[Any]) -> Any:
    """Returns the exception to raise after the ``except*`` clauses. result: for each clause what it
    raised, and the unmatched rest."""
    if not result:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return result[0]
    for error in (original, *result):
        if error is not None:
            m.exceptions.look_into(error)
    raised = [e for e in result if e is not None and not _is_part(m, e, original)]
    again = [e for e in result if e is not None and _is_part(m, e, original)]
    reraised = {id(leaf) for e in again for leaf in _leaves(e)}
    rest = original.subgroup(lambda error: id(error) in reraised) if reraised else None
    if rest is not None:
        m.exceptions.same_history(original, rest)
    if not raised:
        return rest
    if rest is not None:
        raised.append(rest)
    return BaseExceptionGroup("", raised) if len(raised) > 1 else raised[0]


def _is_part(m: Machine, error: BaseException, original: BaseException) -> bool:
    """Returns whether an exception was split from the original and re-raised unchanged."""
    return (
        getattr(error, "__notes__", None) == getattr(original, "__notes__", None)
        and m.exceptions.history(error) == m.exceptions.history(original)
        and error.__cause__ is original.__cause__
        and error.__context__ is original.__context__
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for exception in error.exceptions for leaf in _leaves(exception)]
    return [error]


@opcode("RAISE_VARARGS")
def raise_varargs(m: Machine, f: Frame, arg: int) -> None:
    if arg == 0:
        handled = m.handled()
        if handled is None:
            raise RuntimeError("No active exception to reraise")
        m.raising = handled
        raise handled
    values = m.pop_n(f, arg)
    error = values[0]
    if isinstance(error, type):
        error = _instance(m, error, True)
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if arg == 2:
        cause = values[1]
        if isinstance(cause, type) and issubclass(cause, BaseException):
            cause = _instance(m, cause, sys.version_info >= (3, 13))
        if not (cause is None or isinstance(cause, BaseException)):
            raise TypeError("exception causes must derive from BaseException")
        error.__cause__ = cause
    m.raise_error(error)


def _instance(m: Machine, kind: type, checked: bool) -> Any:
    """Returns what a class that is raised, or the cause of what is raised, makes. checked: whether
    CPython refuses what is no exception."""
    error = m.calls.call_value(kind, [], {})
    if checked and issubclass(kind, BaseException) and not isinstance(error, BaseException):
        raise TypeError(
            f"calling {kind!r} should have returned an instance of BaseException, not"
            f" {type(error)!r}"
        )
    return error


@opcode("RERAISE")
def reraise(m: Machine, f: Frame, arg: int) -> None:
    # The offset below (lasti) is for tracebacks only: the handler is looked up from this
    # instruction.
    error = m.raising = m.pop(f)
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # Python would chain what the interpreter's callers handle
