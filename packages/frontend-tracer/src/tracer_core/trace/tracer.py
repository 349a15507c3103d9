"""The tracer: runs the program's bytecode symbolically and records an FX graph.

In: a chain of frames whose values are `LazyValue` state. Out: the value they return, or a `Break`;
provenance, effects and recorder hold what the trace found. After `run_chain` torch's own modes and
settings are as before; `effects.restore()` restores every object's old contents.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode import opcodes  # fills the handler table
from tracer_core.bytecode.code import NOT_PLAIN, decode, is_with, ranges_around
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.interpreter import Machine
from tracer_core.bytecode.resume_points import FrameLayout, frames_of
from tracer_core.debug.user_lines import is_own, users_line
from tracer_core.errors import Location
from tracer_core.fx_capture.dynamic_shapes import ShapePolicy
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.graph_breaks import NOWHERE, Break, Restart, RunEagerly
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import Source
from tracer_core.native_effects import inline_policy
from tracer_core.ops.higher_order.scalar_program import ScalarLowering
from tracer_core.torch_private import settings
from tracer_core.torch_private.module_calls import call_implementation
from tracer_core.torch_private.modules import FAKES_LOG
from tracer_core.torch_private.needed import function_modes
from tracer_core.trace import torch_function
from tracer_core.trace.assertions import (
    Assumptions,
    CallSpeculation,
    speculated_answer,
    speculated_scalar,
)
from tracer_core.trace.attribute_lookup import Entries
from tracer_core.trace.attribute_writes import AttributeWrites
from tracer_core.trace.attributes import Attributes
from tracer_core.trace.calls import Calls
from tracer_core.trace.component import Component
from tracer_core.trace.containers import Containers
from tracer_core.trace.finalization import Finalization
from tracer_core.trace.generators import is_left_inside
from tracer_core.trace.guarded_reads import GuardedReads
from tracer_core.trace.live_generators import LiveGenerators
from tracer_core.trace.names import Names
from tracer_core.trace.native_calls import NativeCalls
from tracer_core.trace.operators import Operators
from tracer_core.trace.optimizer_scalars import number_in
from tracer_core.trace.python_rng import PythonRng
from tracer_core.trace.raised_exceptions import RaisedExceptions, may_name_polyfill
from tracer_core.trace.save_before_mutation import SideEffects
from tracer_core.trace.state_values import index_in
from tracer_core.trace.symbolic_scalars import SymbolicScalars
from tracer_core.trace.tensor_subclasses import TensorSubclasses
from tracer_core.trace.undecided_branches import UndecidedBranches
from tracer_core.trace.unrolled_loops import UnrolledLoops

__all__ = ["Tracer", "opcodes"]

_MODULE_CALL = torch.nn.Module.__call__
_TORCH = torch.__path__[0]
_FAKES_LOG = logging.getLogger(FAKES_LOG)


class Tracer(Machine):
    """One trace of one code region. Mutable.

    forced: step -> (kind, reason, location) of breaks that an earlier trace asked for. unbuildable:
    types of values that no call could make again. shapes: decides which dimensions are symbolic.
    natives: code that is not inlined -> the kind of break. lower_scalars: makes the programs of
    flex_attention's functions. unrolls: loops of eager Python may be long. as_eager: is_compiling()
    answers as in eager mode. is_compiling_used: the first line that read the other answer. doubts: a
    failing program may be traced again with the other answer. steps: the number of instructions
    run. outer_step: that at the outermost frame's current instruction. advanced_at: that of the last
    one that took an item of an iterator. nesting: the number of running calls below native code.
    """

    names: Names
    exceptions: RaisedExceptions
    attributes: Attributes
    attribute_writes: AttributeWrites
    operators: Operators
    containers: Containers
    calls: Calls

    def __init__(
        self,
        shapes: ShapePolicy,
        forced: dict[int, tuple[str, str, Location]],
        unbuildable: set[type],
        natives: Mapping[types.CodeType, str],
        lower_scalars: ScalarLowering,
        as_eager: bool = False,
        unrolls: bool = False,
    ) -> None:
        super().__init__()
        self.shapes, self.forced, self.unbuildable = shapes, forced, unbuildable
        self.lower_scalars = lower_scalars
        self.as_eager, self.is_compiling_used, self.doubts = as_eager, "", False
        #: Why what the trace found hangs on what neither guards nor the code that was followed tell:
        #: a later process could not know that it no longer holds.
        self.unguarded: dict[str, None] = {}
        #: What the graph assumes of tensors' values, as `explain` shows it.
        self.speculated: dict[str, None] = {}
        self.steps = self.outer_step = self._step_before = self.advanced_at = 0
        self.nesting = self._mutations_at_step = 0
        #: The frames that the trace began in; None where a call begins.
        self.begun: tuple[FrameLayout, ...] | None = None
        self.live_generators = LiveGenerators(self)
        self.provenance = Provenance(
            shapes.dims_of,
            self._number,
            shapes.varies,
            self.live_generators.generator,
            self._subclass,
            lambda: self.where() if self.frames else "",
        )
        self.fakes = Fakes(shapes.symbolic or shapes.counts, self.where, shapes.follows_data)
        self.recorder = Recorder(
            self.fakes, self.provenance.source_of, self._dims, self.where, lambda: self.outer_step,
            number_in=lambda tensor: number_in(self, tensor),
            index_in=self._index_in,
            concrete=None if shapes.takes_numbers else self._concrete,
            may_follow_data=shapes.takes_data_sizes and not shapes.follows_data,
            floats=shapes.takes_data_floats,
            copies_elements=shapes.copies_elements,
        )  # fmt: skip
        self.recorder.alike = self._alike
        self.recorder.asks = partial(torch_function.by_mode, self)
        self.recorder.catches = self._catches
        self.recorder.handles = self._handles
        self.recorder.identify = partial(self.provenance.guard, GuardKind.IS)
        if shapes.follows_data:
            self.recorder.follow_data(partial(speculated_answer, self))
        self.side_effects = SideEffects(self)
        self.effects = self.side_effects.effects
        self.scalars = SymbolicScalars(self, self.fakes.shape_env is not None)
        self.python_rng = PythonRng(self)
        self.reads = GuardedReads(self)
        self.exceptions = RaisedExceptions(self)
        self.entries = Entries(self)
        self.attributes = Attributes(self, self.entries)
        self.attribute_writes = AttributeWrites(self, self.entries)
        self.operators = Operators(self)
        self.containers = Containers(self, self.live_generators)
        self.names = Names(self)
        self.native_calls = NativeCalls(self)
        self.calls = Calls(self, natives)
        self.subclasses = TensorSubclasses(self)
        self.recorder.subclasses = self.subclasses
        self.fakes.mode.by_class = self.subclasses.dispatch
        self.finalization = Finalization(self, self.live_generators)
        self.loops = UnrolledLoops(self, unrolls)
        self.undecided = UndecidedBranches(self)
        self.assumptions = Assumptions(shapes.specializations.outcomes, self.recorder)
        self.speculation = CallSpeculation(shapes.speculation, self.recorder)
        self.closed = False
        self._settings, self._function_modes = settings.snapshot(), function_modes()
        self._log_disabled = _FAKES_LOG.disabled
        #: Values that the program gave to settings, at the end of the trace.
        self.settings_after: dict[str, Any] = {}

    def where(self) -> str:
        """Returns ``file:line in function`` of the innermost frame of the user's code."""
        shown = None
        for frame in reversed(self.frames):
            file = frame.code.raw.co_filename
            if not is_own(file):
                if not file.startswith(_TORCH):
                    return frame.where
                shown = shown or frame
        shown = shown or (self.frames[-1] if self.frames else None)
        return "?" if shown is None else shown.where

    def users_line(self) -> Location:
        """Returns the innermost line that the user wrote, where the graph breaks now."""
        return (
            users_line([frame.where for frame in reversed(self.frames)]) if self.frames else NOWHERE
        )

    def open(self, unread: LazyValue) -> Any:
        if unread.is_read or self.scalars.read(unread):
            return unread.value
        if not unread.tail:
            return self.provenance.read_varying(unread.value, unread.source)
        begin = unread.value[: -len(unread.tail)]
        unread.value = self.provenance.read_varying(begin, unread.source) + unread.tail
        unread.is_read = True
        return unread.value

    def open_called(self, unread: LazyValue) -> Any:
        value, source = unread.value, unread.source
        is_read = type(value) is types.FunctionType and self.calls.read_by_code(value, source)
        return value if is_read else self.open(unread)

    def _catches(self) -> bool:
        handled = any(self.find_handler(frame) is not None for frame in self.frames)
        return handled and not self.nesting and not self.recorder.open_regions

    def _handles(self) -> bool:
        """Returns whether a frame stands inside of a ``try`` statement that it has entered in the
        trace."""
        return any(
            not is_with(frame.code, item) and (id(frame), item.target) not in self._entered
            for frame in self.frames
            if frame.code.exceptions
            for item in ranges_around(frame.code, frame.last)
        )

    def _index_in(self, tensor: torch.Tensor, speculates: bool) -> Any:
        known = index_in(self, tensor)
        if known is None and speculates:
            return speculated_scalar(self, self.fakes.current(tensor))
        return known

    def _concrete(self, leaf: Any) -> Any:
        return self.scalars.concrete(leaf) if id(leaf) in self.scalars.numbers else leaf

    def _subclass(self, value: torch.Tensor, source: Source) -> None:
        self.subclasses.read(value, source)

    def is_compiling(self) -> bool:
        """The answer for programs that query whether they are being compiled."""
        if any(inline_policy.is_answered_as_eager(frame.function) for frame in self.frames):
            return False
        if not self.as_eager and not self.is_compiling_used:
            self.is_compiling_used = self.where()
        return not self.as_eager

    def _dims(self, tensor: torch.Tensor) -> Any:
        source = self.provenance.source_of(tensor)
        return None if source is None else self.shapes.dims_of(tensor, source)

    def _alike(self, tensor: torch.Tensor) -> Any:
        source = self.provenance.source_of(tensor)
        return None if source is None else self.shapes.alike(tensor, source)

    def _number(self, value: Any, source: Source, always: bool) -> Any:
        if always or self.shapes.varies(value, source):
            return self.scalars.number(value, source, source.name)
        return value

    def before_step(self, base: int) -> None:
        self.steps += 1
        if self.nesting == 0:
            self._step_before, self.outer_step = self.outer_step, self.steps
            self._mutations_at_step = self.side_effects.mutations
            wanted = self.forced.get(self.steps)
            if wanted is not None:
                raise Break(*wanted)
        if self.undecided.condition is not None:
            self.undecided.look()
        if self.unbuildable:
            self._break_before_unbuildable()
        if self.nesting == 0:
            self.finalization.check(self._step_before)
        if self.steps >= self.loops.look_at:
            self.loops.look()

    def check_generators(
        self, is_live_across_break: Callable[[Any], bool] = lambda _: False
    ) -> None:
        """Restarts with a break before each generator that the program left inside ``try`` or
        ``with``: its handlers run when its last reference goes, which a trace does not see.
        is_live_across_break(generator): the generator is live across the graph break."""
        for generator in self.calls.generators:
            if is_left_inside(generator) and not is_live_across_break(generator):
                raise Restart(
                    generator.allocation_step,
                    "unsupported_value",
                    f"{generator.code_name} is left inside try or with",
                )

    def _break_before_unbuildable(self) -> None:
        """Restarts with a break before the instruction that made a value that no later call could
        make again."""
        stack = self.frames[-1].stack
        if stack and type(stack[-1]) in self.unbuildable and self.provenance.is_fresh(stack[-1]):
            cls = type(stack[-1])
            step = self._step_before if self.nesting == 0 else self.outer_step
            if step not in self.forced:
                raise Restart(
                    step, "unsupported_value", f"a {cls.__module__}.{cls.__qualname__} is made"
                )

    def close(self) -> None:
        """Restores the old contents of every object and torch's state. May be called again."""
        try:
            self._put_back()
        except BaseException:  # an interrupt: restore again what is half restored
            self._put_back()
            raise

    def _put_back(self) -> None:
        if not self.closed:
            # An interrupt can come between entering a mode and the code that leaves it.
            torch_private.leave_modes(self.fakes.mode, self._function_modes)
            self.fakes.mode.by_class = None
            _FAKES_LOG.disabled = self._log_disabled
            settings.restore(self._settings)
            self.side_effects.release_locks()
            self.effects.restore()
            self.closed = True

    def unwind(self, error: BaseException, base: int) -> None:
        """Unwinds the chain to the handler of an exception; re-raises it if there is none."""
        self.undecided.decide()
        if self.exceptions.was_raised(error):
            self.raising = error  # it comes out of a nested run, and has its context
        else:
            if isinstance(error, self.recorder.values_needed):
                broken = self.recorder.broken or Break(
                    "data_dependent_value", str(error).partition("\n")[0]
                )
                raise Restart(self.outer_step, broken.kind, broken.reason)
            if type(error) is RecursionError and error is not self.raising:
                raise RunEagerly("the interpreter's recursion is deeper than the program's")
            if may_name_polyfill(error):
                raise Restart(self.outer_step, "native_python", f"{type(error).__name__} is raised")
            self.exceptions.note(error)
        try:
            super().unwind(error, base)
        finally:
            del error  # see there

    def forget(self) -> None:
        """Breaks the reference cycles of a finished trace, so that the program's objects die
        without the garbage collector."""
        self.exceptions.forget_frames()
        components = [var for var in vars(self).values() if isinstance(var, Component)]
        others = (self.recorder.mode, self.recorder, self.fakes, self.provenance, self.effects,
                  self.speculation)  # fmt: skip
        for part in (*components, *others, self.side_effects, self):
            vars(part).clear()

    def run_chain(self, frames: list[Frame]) -> Any:
        """Runs the chain to its end or to a break (which leaves `frames` as they are there)."""
        self.frames = frames
        self._entered = {
            (id(frame), item.target)
            for frame in frames
            for item in ranges_around(frame.code, frame.last)
        }
        self.loops.begin(frames)
        before = settings.snapshot()
        depth = function_modes()
        # An operator that fails on fakes may fail in eager mode too: only that error is reported.
        _FAKES_LOG.disabled = True
        try:
            with torch_private.saved_tensors_unseen():
                return self.run(0)
        except Break as broken:
            if (
                self.steps == self.outer_step
                and self.side_effects.mutations == self._mutations_at_step
            ):
                raise
            # A part of the instruction was interpreted already, and fresh objects may have changed.
            raise Restart(self.outer_step, broken.kind, broken.reason) from None
        finally:
            self.undecided.decide()
            _FAKES_LOG.disabled = self._log_disabled
            self.recorder.close_contexts()
            self.settings_after = self._settings_after(before)
            settings.restore(before)
            assert function_modes() == depth

    def _settings_after(self, before: dict[str, Any]) -> dict[str, Any]:
        after = {
            name: settings.SETTINGS[name].get() for name in sorted(self.recorder.settings_written)
        }
        return {
            name: value
            for name, value in after.items()
            if name not in settings.ALWAYS_GUARDED or value != before[name]
        }

    def start(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Frame]:
        """Returns the frames of a call of `function` with lazy arguments."""
        if function in (_MODULE_CALL, call_implementation) and args:
            calls = self.calls
            call = calls.call_object if function is _MODULE_CALL else calls.call_past_slot
            frame = call(self.open(args[0]), args[1:], kwargs)
        else:
            basic = type(function.__globals__) is dict and not decode(function.__code__).unsupported
            if function.__code__.co_flags & NOT_PLAIN or not basic:
                self.provenance.constant(function)
                function, args = _called_from_outside(function), [function, *args]
            frame = self.calls.frame_of(function, args, kwargs)
        if type(frame) is not Frame:
            raise Break("native_python", "a module without a Python forward")
        return [frame]

    def start_inside(self, layouts: tuple[FrameLayout, ...], state: tuple[Any, ...]) -> list[Frame]:
        """Returns the frames of an activation at a break."""
        unread: list[Any] = []
        self.begun = layouts
        self.finalization.start(state)
        position = 0
        for layout in layouts:
            for i in range(position, position + layout.size):
                source = self.provenance.sources.state(i, f"state[{i}]")
                unread.append(LazyValue(state[i], source))
            self.start_function(state[position], unread[position].source)
            unread[position] = state[position]
            self._name_locals(layout, unread, position)
            position += layout.size
        return frames_of(layouts, unread)

    def start_function(self, function: types.FunctionType, source: Source) -> None:
        """Registers a function of a frame that existed before the trace."""
        if self.provenance.source_of(function) is None:
            self.provenance.register(function, source)
        self.calls.interpreted[function.__code__] = function
        self.names.guard_namespace(function, source)

    def _name_locals(self, layout: FrameLayout, unread: list[Any], position: int) -> None:
        """Names locals as the user does."""
        names = layout.code.co_varnames
        for offset, index in enumerate(layout.locals, 1):
            if index < len(names):
                i = position + offset
                source = self.provenance.sources.state(i, names[index])
                unread[i] = LazyValue(unread[i].value, source)


def _called_from_outside(function: types.FunctionType) -> types.FunctionType:
    """Returns a function that calls its first argument with the others, so that a call that cannot
    be inlined has an instruction to break at. Its location is that of the called function."""

    def call(function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        return function(*args, **kwargs)

    raw = function.__code__
    code = call.__code__.replace(
        co_filename=raw.co_filename, co_firstlineno=raw.co_firstlineno - 1, co_name=raw.co_name
    )
    return types.FunctionType(code, {"__name__": __name__})
