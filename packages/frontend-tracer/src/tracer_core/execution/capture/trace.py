"""Captures a cache entry at a place in the program: trace, lower, generate code.

In: the frames of an activation and its state. Out, by `EntryBuilder`: a `Captured` (an ``cache entry``
function and its records), or a reason why nothing was captured. Every object that the trace changed
has its old contents again when `capture` returns or raises.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol, TypeVar

import tracer_core.native_functions  # noqa: F401  (fills the native effects table)
from tracer_core import torch_private
from tracer_core.aot import scalar_recording
from tracer_core.bytecode.code import is_eager_only
from tracer_core.bytecode.frame import Frame
from tracer_core.debug.crossed_limits import crossed, located
from tracer_core.debug.logs import logger
from tracer_core.debug.stages import stage, wants_text
from tracer_core.errors import Location
from tracer_core.execution.capture import loop_growth
from tracer_core.execution.capture.request import RETRIED, Fails, TraceOptions
from tracer_core.execution.capture.result import Abandoned, Answers, UserError
from tracer_core.fx_capture.data_errors import ASSERTIONS
from tracer_core.fx_capture.dynamic_shapes import ShapePolicy
from tracer_core.fx_capture.may_raise import communicates
from tracer_core.fx_capture.specialization_history import SpecializationHistory, Speculation
from tracer_core.graph_breaks import NOWHERE, Break, Restart, RunEagerly
from tracer_core.guards.own_reference import OwnReference
from tracer_core.limits import MAX_CAPTURE_RESTARTS
from tracer_core.native_effects.effects import add_rows_of_imported
from tracer_core.options import CompileConfig
from tracer_core.registry.torch_style import TorchStyle
from tracer_core.trace.tracer import Tracer

StartFrames = Callable[[Tracer], list[Frame]]
Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)


class Writer(Protocol[Made_co]):
    """Makes something of a finished trace: `EntryBuilder` makes a cache entry."""

    def write(self, value: Any, broken: Break | None) -> None: ...

    def finish(self, broken: Break | None, where: Location) -> Made_co: ...

    def forget(self) -> None: ...


WriterType = Callable[[Tracer, Any, CompileConfig, torch_private.TorchState, str], Writer[Made]]


def _follows_data(config: CompileConfig) -> bool:
    """Returns whether sizes that depend on data may be symbols. A callable of torch.compile's
    convention may be unable to take them, so it gets them only where a break is an error."""
    style = config.backend.compile
    takes = isinstance(style, TorchStyle) and not style.functional
    return config.backend.data_sizes == "symbols" or (takes and config.fullgraph)


def _takes_numbers(config: CompileConfig) -> bool:
    """Returns whether numbers that change from call to call may be inputs. A callable of the user's
    gets 0-d tensors; a published backend of torch.compile's convention may not take them."""
    style = config.backend.compile
    if isinstance(style, TorchStyle):
        return style.is_callable_of_user
    return config.backend.ir == "torch" or config.backend.numbers == "inputs"


def capture(
    writer: WriterType[Made],
    start: StartFrames,
    state: Any,
    config: CompileConfig,
    specializations: SpecializationHistory,
    name: str,
    natives: Mapping[types.CodeType, str],
    answers: Answers,
    speculation: Speculation | None = None,
) -> Made:
    """Traces from `start` until the program returns or breaks, and returns what `writer` makes of
    the trace.

    start: puts the frames into a tracer. state: the values of the code region. natives: code that
    is not followed -> the kind of break. answers: changed where the program fails only because
    is_compiling() says True. speculation: of branches on tensors, for an entry that may be left
    where they go another way.
    Raises UserError, Abandoned, GraphBreakError (by the caller, from `break_`), BackendError.
    """
    add_rows_of_imported()
    settings = torch_private.torch_state()
    options = TraceOptions(
        is_compiling=not answers.as_eager,
        doubts_is_compiling=not answers.as_eager,
        assertions=ASSERTIONS not in specializations.refused,
        refused=frozenset(specializations.refused),
    )
    for _ in range(MAX_CAPTURE_RESTARTS):
        shapes = _shape_policy(options, config, specializations, speculation)
        shapes.look(list(state))
        tracer = Tracer(
            shapes, dict(options.breaks), set(options.unbuildable), natives, scalar_recording.record,
            not options.is_compiling, config.fullgraph,
        )  # fmt: skip
        tracer.doubts = options.doubts_is_compiling
        try:
            with (
                closing(tracer),
                closing(tracer),
                located(tracer.where),
            ):  # twice: an interrupt may skip the first call
                captured = _trace(
                    writer, tracer, start, state, config, settings, name, options.knows_growth
                )
        except RETRIED as error:
            options = options.after(error)
            specializations.refused |= (
                options.refused
            )  # later traces of this place guard them by value
        else:
            if not options.is_compiling and not answers.as_eager:
                answers.as_eager = True
                logger().warning("%s: is_compiling() says False from here on, because the program fails where it says "
                                 "True at %s: %s", name, *options.failure)  # fmt: skip
            return captured
        finally:
            result = [OwnReference(cls.cls) for cls in tracer.entries.classes.values()]
            tracer.forget()
            _collect_classes(result)
    crossed("MAX_CAPTURE_RESTARTS")
    raise Abandoned("the trace was restarted too often")


def _shape_policy(
    options: TraceOptions,
    config: CompileConfig,
    specializations: SpecializationHistory,
    speculation: Speculation | None,
) -> ShapePolicy:
    """Returns how a trace treats sizes and numbers."""
    refused = options.refused
    return ShapePolicy(
        False if "sizes" in refused else config.dynamic,
        specializations,
        config.backend.shapes == "symbolic" or config.backend.ir == "torch",
        _takes_numbers(config) and refused.isdisjoint(("numbers", "sizes")),
        _follows_data(config) and refused <= {ASSERTIONS},
        options.unbacked_symints,
        options.random_numbers,
        # elsewhere a break costs less than a graph that is cut
        takes_data_floats=config.fullgraph,
        takes_assertions=options.assertions,
        speculation=speculation if options.speculates else None,
        copies_elements=options.copies_elements,
    )


def _collect_classes(references: list[OwnReference]) -> None:
    """Ends the classes that a trace made, which are cycles: the ``__subclasses__`` of their bases
    would name them."""
    for generation in (1, 2):
        if any(item() is not None for item in references):
            gc.collect(generation)


def _doubt(tracer: Tracer, reason: str) -> None:
    """Raises Fails where the program may need another answer of is_compiling()."""
    if tracer.doubts and (tracer.is_compiling_used or tracer.as_eager):
        raise Fails(tracer.is_compiling_used, reason[:200]) from None


def _trace(
    writer: WriterType[Made],
    tracer: Tracer,
    start: StartFrames,
    state: Any,
    config: CompileConfig,
    settings: torch_private.TorchState,
    name: str,
    knows_growth: bool,
) -> Made:
    broken: Break | None = None
    value: Any = None
    with stage("trace", graph=name) as record:
        try:
            try:
                frames = start(tracer)
                value = tracer.run_chain(frames)
            except Break as error:
                error.reason = tracer.recorder.sizes.named(error.reason)
                if tracer.advanced_at == tracer.outer_step:
                    # Iterators cannot be set back: break before the instruction begins.
                    raise Restart(
                        tracer.outer_step, error.kind, error.reason, error.location
                    ) from None
                broken = error.with_traceback(None)
                if error.kind == "operator_failed":
                    _doubt(tracer, error.reason)
                if not tracer.frames:
                    raise Abandoned(f"{error.kind}: {error.reason}") from None
                if any(is_eager_only(frame.code.raw) for frame in tracer.frames):
                    raise RunEagerly(
                        f"a function with a graph break stops in a debugger, reads frames or counts references ({error.reason})",
                        True,
                    ) from None
            if tracer.recorder.program_modes:
                _, step = tracer.recorder.program_modes[0]
                reason = "the graph ends inside a mode" if broken is None else broken.reason
                raise Restart(step, "torch_mode", reason)
            if tracer.recorder.asserted is not None and (
                tracer.fakes.any_was_written() or communicates(tracer.recorder.graph)
            ):
                tracer.recorder.refuse_assertions()
            for _, step in tracer.subclasses.entered():
                reason = "the graph ends inside a mode" if broken is None else broken.reason
                raise Restart(step, "torch_mode", reason)
            if tracer.side_effects.held:
                reason = "the graph ends while a lock is held" if broken is None else broken.reason
                raise Restart(tracer.side_effects.held[0].step, "side_effect_native", reason)
            if broken is None:
                tracer.check_generators()
        except (Restart, Abandoned, Fails, KeyboardInterrupt):
            raise
        except BaseException as error:
            _doubt(tracer, f"{type(error).__qualname__}: {error}")
            step = tracer.exceptions.first_raised(error)
            if step:
                # Captured up to the instruction that raises; it then raises in eager mode, on every
                # call.
                raise Restart(
                    step, "raises", f"{type(error).__qualname__}: {error}"[:200]
                ) from error
            raise UserError() from error
        where = NOWHERE if broken is None else broken.location or tracer.users_line()
        if wants_text():
            record.text = str(tracer.recorder.graph)
        if broken is not None and broken.kind != "raises" and not knows_growth:
            loop_growth.retry_with_symbols(tracer)
    result = writer(tracer, state, config, settings, name)
    try:
        # Values are written down as the trace left them: iterators inspect their containers.
        tracer.effects.look()
        try:
            result.write(value, broken)
        except Break as error:  # no instruction is left that a break could precede
            raise Abandoned(f"{error.kind}: {error.reason}") from error
        except RunEagerly as error:
            raise UserError() from error
        except RecursionError:
            deep = RunEagerly("values are nested too deep to be made again")
            raise UserError() from deep
        except Restart as restart:
            if broken is None or broken.kind == "raises" or restart.location:
                raise
            # The user can act on the graph break, but not on the eager instruction that it forces.
            reason = f"{broken.reason}; {restart.reason}"
            raise Restart(restart.step, broken.kind, reason, where) from None
        tracer.close()
        return result.finish(broken, where)
    finally:
        result.forget()
