"""What asks for the frames of its callers: their variables, or the frames themselves.

In: calls of eval, exec, locals, sys._getframe and the like. Out: breaks before those that one
frame's variables are enough for (`RealMachine` gives them); the others run the whole activation as
plain Python. What always holds: a program never sees a frame of the interpreter's own, nor
variables that a segment has dropped.
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
    """Ends the graph before a call that reads all variables of the frame that calls it."""
    if not asks_for_locals(
        tracer.frames[-1].code.raw
    ):  # under another name: unread ones may be dropped before
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
