"""Side effects on the outside or on hidden process state: clocks, random numbers, files, threads,
hooks."""

from __future__ import annotations

import _thread
import builtins
import gc
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import time
import types
import typing
from functools import partial
from typing import Any

from tracer_core.graph_breaks import RunEagerly
from tracer_core.native_effects.effects import (
    CALLED_PACKAGES,
    PURE,
    SHALLOW,
    breaks,
    declare,
    functions_in_c,
    special,
    special_each,
)
from tracer_core.native_effects.inline_policy import decide
from tracer_core.trace.guarded_calls import query
from tracer_core.trace.library_calls import guard_function
from tracer_core.trace.tracer import Tracer

_OS = importlib.import_module(os.name)  # posix, or nt
#: C functions of that module that compute with the string of a path.
_OF_TEXT = ("_path_normpath", "_path_splitroot", "_path_splitroot_ex")
declare(
    PURE,
    [sys.intern, sys.getdefaultencoding, sys.getfilesystemencoding, sys.is_finalizing, os.fspath,
     *(vars(_OS)[name] for name in _OF_TEXT if hasattr(_OS, name))],
)  # fmt: skip
declare(SHALLOW, [types.MethodType, types.SimpleNamespace])


@special(types.FunctionType)
def make_function(tracer: Tracer, code: Any, globals: Any, *args: Any, **kwargs: Any) -> Any:
    if tracer.provenance.is_fresh(globals):
        tracer.break_graph("native_python", "a function is made with globals of its own")
    return types.FunctionType(code, globals, *args, **kwargs)


@special_each(
    sys.getrecursionlimit, sys.getswitchinterval, sys.gettrace, sys.getprofile,
    gc.isenabled, gc.get_threshold,
)  # fmt: skip
def read_setting(tracer: Tracer, function: Any) -> Any:
    return query(tracer, function)


@special(sys.exc_info)
def exc_info(tracer: Tracer) -> Any:
    error = tracer.handled()
    if error is None:
        return None, None, None
    return type(error), error, tracer.attributes.getattr(error, "__traceback__")


special(sys.exception)(lambda tracer: tracer.handled())


@special_each(sys.__excepthook__, sys.__unraisablehook__)
def show_exception(tracer: Tracer, function: Any, *args: Any) -> None:
    tracer.exceptions.look_into_traceback()
    tracer.break_graph("side_effect_native", f"sys.{function.__name__}() shows an exception")


def _call_traceback(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.exceptions.look_into_traceback()
    _, kind, reason = decide(function)
    tracer.break_graph(kind, reason)


CALLED_PACKAGES["traceback"] = _call_traceback


def _frame_module_name(tracer: Tracer, depth: Any = 0) -> Any:
    depth = tracer.scalars.concrete(depth)
    if type(depth) is not int or depth >= len(tracer.frames):
        raise RunEagerly("the caller of the compiled function is asked for its module", True)
    return tracer.frames[-1 - max(depth, 0)].function.__module__


if hasattr(sys, "_getframemodulename"):
    special(sys._getframemodulename)(_frame_module_name)


@special(typing._caller)  # type: ignore[attr-defined]
def caller(tracer: Tracer, depth: Any = 1, default: Any = "__main__") -> Any:
    """Names the module of the frame `depth` calls above the function of typing that asks."""
    return _frame_module_name(tracer, depth) or default


@special_each(builtins.breakpoint, sys.__breakpointhook__)
def stop(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> None:
    """Runs the program in CPython, so that a debugger stops in its own frames."""
    what = f"{function.__qualname__}() at {tracer.where()}"
    raise RunEagerly(f"{what} stops in the program's own frames; remove it to compile", True)


def _call_debugger(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return stop(tracer, function)


CALLED_PACKAGES |= dict.fromkeys(("pdb", "ipdb", "pudb", "debugpy"), _call_debugger)


@special_each(sys.settrace, sys.setprofile, *functions_in_c(getattr(sys, "monitoring", types)))
def set_hook(tracer: Tracer, function: Any, *args: Any) -> None:
    """Runs the program in CPython, so that its hook sees its own lines and calls."""
    raise RunEagerly(f"{function.__name__}() sees every line or call of the program", True)


for _reason, _module in {
    "the clock is read": time,
    "the operating system is asked": _OS,
    "state of the interpreter is read or set": sys,
    "the garbage collector is asked": gc,
    "signals are handled": signal,
    "threads are started or asked": _thread,
}.items():
    breaks("side_effect_native", _reason, functions_in_c(_module), rest=True)


# -- imports --


@special(importlib.import_module)
def import_module(tracer: Tracer, name: Any, package: Any = None) -> Any:
    """Returns a module that is imported already."""
    if type(name) is not str or name.startswith("."):
        tracer.break_graph("native_python", "importlib.import_module() of a relative name")
    return tracer.names.import_name(tracer.frames[-1], name, ("",), 0)


@special(importlib.util.find_spec)
def find_spec(tracer: Tracer, name: Any, package: Any = None) -> Any:
    if type(name) is not str or name.startswith(".") or package is not None:
        tracer.break_graph("native_python", "importlib.util.find_spec() of a relative name")
    module = sys.modules.get(name)
    if module is None or getattr(module, "__spec__", None) is None:
        tracer.break_graph("native_python", f"{name} is looked for on the disk")
    held = tracer.names.import_name(tracer.frames[-1], name, ("",), 0)
    return tracer.attributes.getattr(held, "__spec__")


# -- environment and callers --


@special(os.getenv)
def getenv(tracer: Tracer, key: Any, default: Any = None) -> Any:
    value = query(tracer, partial(os.environ.get, key))
    return default if value is None else value


@special(inspect.signature)
def signature(tracer: Tracer, obj: Any) -> Any:
    """Returns the signature of a function with guarded code and defaults, also of one that others
    wrap (functools.wraps); not traced into for other objects."""
    function, passed = obj, set[int]()
    while id(function) not in passed:
        passed.add(id(function))
        function = function.__func__ if type(function) is types.MethodType else function
        if type(function) is not types.FunctionType or tracer.names.made_here(function):
            break
        if any(tracer.attributes.has_attribute(function, name) for name in _SIGNATURES):
            break
        if not tracer.attributes.has_attribute(function, "__wrapped__"):
            if guard_function(tracer, function):
                return tracer.native_calls.note_allocation(inspect.signature(obj))
            break
        function = tracer.attributes.getattr(function, "__wrapped__")
    tracer.break_graph(
        "native_python", "the signature of something that is no plain function is read"
    )


#: Attributes of a function in which inspect.signature() looks for another signature.
_SIGNATURES = ("__signature__", "_partialmethod", "__partialmethod__")
