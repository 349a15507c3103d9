"""Runs a generated module with a row of the profile for each kernel and each operator call.

A run of several kernels is one call from Python; its library calls `tc_row` before each kernel. Where
no profiler is active this pointer is null, and the module's `call` makes one lookup.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inductor_backend.runtime.cpp.build import Library
from tracer_core.plugin_api import PROFILING, profile_row

#: Name of a generated module's dictionary: callable -> the labels of the kernels of each of its calls.
ROWS = "ROWS"


class _Kernels(threading.local):
    """The kernels of the run under way on this thread."""

    labels: Sequence[str] = ()
    row: Any = None


_RUNNING = _Kernels()


def begin_kernel(number: int) -> None:
    """Begins the row of a kernel of the run under way, which ends that of the one before."""
    if number < len(_RUNNING.labels):
        end_kernel()
        _RUNNING.row = profile_row(_RUNNING.labels[number])
        _RUNNING.row.__enter__()


def end_kernel() -> None:
    """Ends the row of the kernel that began last."""
    if _RUNNING.row is not None:
        _RUNNING.row.__exit__(None, None, None)
        _RUNNING.row = None


#: `begin_kernel` for C++.
_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_int64)(begin_kernel)


def call_with_rows(
    namespace: dict[str, Any], name: str, args: list[Any], library: Library | None
) -> Any:
    """Calls a function of a generated module with rows.

    Args:
        namespace: The module's globals.
        name: The function.
        args: Its argument.
        library: That of the runs; None where there are none.
    """
    address = None if library is None else library.image.address("tc_row")
    hook = None if address is None else ctypes.c_void_p.from_address(address)
    space = {**namespace, "profiler_state": {PROFILING: False}}
    for function, calls in namespace[ROWS].items():
        space[function] = functools.partial(_call, namespace[function], iter(calls), hook)
    return types.FunctionType(namespace[name].__code__, space)(args)


def _call(
    function: Callable[..., Any],
    calls: Iterator[Sequence[str]],
    hook: ctypes.c_void_p | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    labels = next(calls)
    if hook is None or len(labels) == 1:
        with profile_row("; ".join(labels)):
            return function(*args, **kwargs)
    _RUNNING.labels, hook.value = labels, ctypes.cast(_BEGIN, ctypes.c_void_p).value
    try:
        return function(*args, **kwargs)
    finally:
        end_kernel()
        _RUNNING.labels, hook.value = (), None
