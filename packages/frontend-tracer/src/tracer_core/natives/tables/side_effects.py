"""Side effects on the outside or on hidden process state: clocks, random numbers, files, logs,
threads."""

from __future__ import annotations

import _random
import _thread
import gc
import importlib
import inspect
import logging
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives.effects import (
    CALLED_CODES,
    EFFECTS,
    PURE,
    SHALLOW,
    breaks,
    declare,
    special,
)
from tracer_core.natives.libraries import guard_function
from tracer_core.natives.queries import applied, query
from tracer_core.natives.tracing import Tracing

_OS = importlib.import_module(os.name)  # posix, or nt


def _natives(owner: Any) -> Iterable[Any]:
    kinds = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    return [f for f in vars(owner).values() if isinstance(f, kinds) and f not in EFFECTS]


declare(
    PURE,
    [sys.intern, sys.getdefaultencoding, sys.getfilesystemencoding, sys.is_finalizing, os.fspath],
)
declare(SHALLOW, [types.MethodType, types.SimpleNamespace, types.FunctionType])
for _query in (sys.getrecursionlimit, sys.getswitchinterval, gc.isenabled, gc.get_threshold):
    special(_query)(lambda tracer, args, kwargs, _query=_query: query(tracer, _query))


@special(sys.exc_info)
def exc_info(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    error = tracer.handled()
    return (
        (None, None, None)
        if error is None
        else (type(error), error, tracer.attributes.getattr(error, "__traceback__"))
    )


@special(sys.exception)
def exception(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.handled()


if hasattr(sys, "_getframemodulename"):

    @special(sys._getframemodulename)
    def getframemodulename(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        depth = tracer.scalars.concrete(args[0] if args else kwargs.get("depth", 0))
        if type(depth) is not int or depth >= len(tracer.frames):
            tracer.break_graph(
                "side_effect_native", "the caller of the compiled function is asked for its module"
            )
        return tracer.frames[-1 - max(depth, 0)].function.__module__


breaks("side_effect_native", "the clock is read", _natives(time))
breaks("side_effect_native", "a warning is shown", [warnings.warn, warnings.warn_explicit])
breaks("side_effect_native", "Python's random numbers are drawn", [
    f for f in _natives(_random.Random) if f.__name__ not in ("__new__", "__init__",
    "__getattribute__")])  # fmt: skip
breaks("side_effect_native", "the operating system is asked", _natives(_OS))
breaks("side_effect_native", "state of the interpreter is read or set", _natives(sys))
breaks("side_effect_native", "the garbage collector is asked", _natives(gc))
breaks("side_effect_native", "signals are handled", _natives(signal))
breaks("side_effect_native", "threads are started or asked", _natives(_thread))
breaks("side_effect_native", "Python's random numbers are drawn", [random.Random])


# -- logs
# -----------------------------------------------------------------------------------------------------

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40, "critical": 50}


class Enabled:
    """Returns whether a logger emits messages of a level."""

    __slots__ = ("level", "__qualname__")

    def __init__(self, level: int) -> None:
        self.level = level
        self.__qualname__ = "isEnabledFor"

    def __call__(self, logger: Any) -> bool:
        return bool(logger.isEnabledFor(self.level))


_QUESTIONS: dict[int, Enabled] = {}


def _logs(method: Any, level: int | None) -> Any:
    """Drops a disabled log message, which has no effect; guards that its level is disabled."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        logger = args[0]
        wanted = level if level is not None else args[1]
        known = type(logger) in (logging.Logger, logging.RootLogger) and type(wanted) is int
        if known and not _is_enabled(tracer, logger, wanted):
            return None
        tracer.break_graph("side_effect_native", f"a message is logged ({method.__name__})")

    return handler


def _is_logger(tracer: Tracing, logger: Any) -> None:
    if not isinstance(logger, logging.Logger):
        tracer.break_graph(
            "side_effect_native", f"a {type(logger).__name__} is asked for a logger's level"
        )


def _is_enabled(tracer: Tracing, logger: Any, level: int) -> bool:
    _is_logger(tracer, logger)
    if type(level) is not int:
        tracer.break_graph("side_effect_native", "a logger is asked in an unusual way")
    if tracer.provenance.is_fresh(logger):
        tracer.provenance.constant(logger)
    return bool(applied(tracer, _QUESTIONS.setdefault(level, Enabled(level)), logger))


for _name, _level in _LEVELS.items():
    special(vars(logging.Logger)[_name])(_logs(vars(logging.Logger)[_name], _level))
special(logging.Logger.log)(_logs(logging.Logger.log, None))


@special(logging.Logger.isEnabledFor)
def is_enabled_for(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return _is_enabled(tracer, args[0], args[1])


@special(logging.Logger.getEffectiveLevel)
def effective_level(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    _is_logger(tracer, args[0])
    if tracer.provenance.is_fresh(args[0]):
        tracer.provenance.constant(args[0])
    return applied(tracer, _effective_level, args[0])


def _effective_level(logger: Any) -> int:
    return int(logger.getEffectiveLevel())


@special(logging.getLogger)
def get_logger(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not all(map(is_constant, (*args, *kwargs.values()))):
        tracer.break_graph("side_effect_native", "a logger is made")
    return query(tracer, partial(logging.getLogger, *args, **kwargs))


# -- environment and callers
# --------------------------------------------------------------------------


@special(os.getenv)
def getenv(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    default = args[1] if len(args) > 1 else kwargs.get("default")
    value = query(tracer, partial(os.environ.get, args[0]))
    return default if value is None else value


@special(inspect.signature)
def signature(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Returns the signature of a function with guarded code and defaults; not traced into for other
    objects."""
    function = args[0].__func__ if type(args[0]) is types.MethodType else args[0]
    if type(function) is not types.FunctionType or kwargs or not guard_function(tracer, function):
        tracer.break_graph(
            "native_python", "the signature of something that is no plain function is read"
        )
    return tracer.native_calls.born(inspect.signature(args[0]))


def _current_thread(tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.break_graph("side_effect_native", "the current thread is asked")


CALLED_CODES[threading.current_thread.__code__] = _current_thread
