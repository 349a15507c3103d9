"""Calls that read their callers' frames: eval, exec, locals, sys._getframe and the like.

A call that needs only its caller's variables breaks the graph (`RealMachine` provides them); the
others run the whole activation as plain Python. A program never sees a frame of the interpreter,
nor variables that a resume point has dropped.
"""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import asks_for_locals
from tracer_core.fx_capture.graph_breaks import RunNatively
from tracer_core.natives.effects import breaks, special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace.eager_interpreter import FRAME_ASKERS

breaks("native_python", "code is compiled at run time", [compile])
breaks("native_python", "the caller's variables are read", [globals])


def break_for_variables(tracer: Tracing, function: Any) -> None:
    """Breaks the graph before a call that reads all variables of its caller's frame."""
    if not asks_for_locals(
        tracer.frames[-1].code.raw
    ):  # through an alias: dead variables may be dropped before
        raise RunNatively(f"{function.__name__}() is called under another name", True)
    tracer.break_graph("native_python", f"{function.__name__}: the caller's variables are read")


@special(locals)
def locals_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    break_for_variables(tracer, locals)


def _runs_text(function: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) < 2 or args[1] is None:
            break_for_variables(tracer, function)
        tracer.break_graph("native_python", f"{function.__name__}: code is compiled at run time")

    return handler


for _runner in (eval, exec):
    special(_runner)(_runs_text(_runner))


def _asks_for_frames(function: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise RunNatively(
            f"{function.__name__}() gives frames of the program, which only plain Python has", True
        )

    return handler


for _asker in FRAME_ASKERS:
    special(_asker)(_asks_for_frames(_asker))
