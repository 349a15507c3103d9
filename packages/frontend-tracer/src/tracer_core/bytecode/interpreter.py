"""The interpreter loop: runs a chain of frames until the outermost one returns.

`Machine` knows bytecode but not the meaning of a call, an attribute or a bool: it delegates
those to its components (bytecode/semantics.py). `RealMachine` (trace/eager_interpreter.py) has
CPython's semantics; `Tracer` (trace/tracer.py) traces. An instruction that raises `Break` leaves
the frame's stack unchanged, and the tracer's side effects can undo any other change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tracer_core.bytecode import semantics
from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame, LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.graph_breaks import Break, Restart, RunEagerly

use_own_builtins(globals())


class Leave(BaseException):
    """Ends `Machine.run` between two instructions."""


class Machine:
    """Runs `frames`, a stack of frames; the last one is active."""

    #: Whether instructions may raise Break, before which the stack is put back.
    may_break = True
    frames: list[Frame]
    names: semantics.NameSemantics
    exceptions: semantics.ExceptionSemantics
    attribute_writes: semantics.AttributeWriteSemantics
    attributes: semantics.AttributeSemantics
    operators: semantics.OperatorSemantics
    containers: semantics.ContainerSemantics

    if TYPE_CHECKING:  # an attribute of the tracer, a property of `RealMachine`

        @property
        def calls(self) -> semantics.CallSemantics: ...

    def __init__(self) -> None:
        self.frames = []
        #: The exception that the program's own instruction raised last.
        self.raising: BaseException | None = None

    # -- the loop ---------------------------------------------------------------------------------

    def run(self, base: int) -> Any:
        """Runs until the frame at position `base` of the chain returns; returns its value."""
        frames = self.frames
        while True:
            frame = frames[-1]
            ip = frame.last = frame.ip
            if self.may_break:
                frame.saved = frame.stack.copy()
            try:
                self.before_step(base)
                frame.ip = ip + 1
                done = frame.code.handlers[ip](self, frame, frame.code.args[ip])
            except Break:
                frame.stack, frame.ip = frame.saved, ip
                raise
            except (Restart, RunEagerly, Leave):
                raise
            except KeyboardInterrupt as error:
                if error is not self.raising:
                    raise  # from outside: it ends the interpreter, not the program's frames
                self.unwind(error, base)
                continue
            except BaseException as error:
                self.unwind(error, base)
                continue
            if done is not None and self.leave(done[0], base):
                return done[0]

    def before_step(self, base: int) -> None:
        """Called before each instruction; may raise Break."""

    def leave(self, value: Any, base: int) -> bool:
        """Handles the return of the active frame; returns True if it was the frame at `base`."""
        frame = self.frames.pop()
        if len(self.frames) == base:
            return True
        try:
            self.resume_caller(self.frames[-1], frame, value)
        except TypeError as error:  # an __init__ returned a value
            self.unwind(error, base)
        return False

    def resume_caller(self, caller: Frame, callee: Frame, value: Any) -> None:
        rule = callee.on_return
        if rule is None:
            caller.stack.append(value)
        else:
            if type(value) is LazyValue:
                value = self.open(value)
            self.require_none(value)
            caller.stack.append(rule[1])

    def require_none(self, value: Any) -> None:
        """Raises CPython's error for a result of ``__init__`` that is not None."""
        if value is not None:
            kind = self.exceptions.type_name(value)
            raise TypeError(f"__init__() should return None, not '{kind}'")

    def unwind(self, error: BaseException, base: int) -> None:
        """Unwinds the chain to the handler of an exception; re-raises it if there is none."""
        self._set_context(error)
        self.raising = None
        while True:
            frame = self.frames[-1]
            self.exceptions.passed(frame, error)
            target = self.find_handler(frame)
            if target is not None:
                del frame.stack[target.depth :]
                if target.lasti:
                    frame.stack.append(frame.last)
                frame.stack.append(error)
                frame.ip = target.target
                frame.kw_names = ()  # of the call that raised
                return
            self.frames.pop()
            if len(self.frames) == base:
                context = error.__context__
                try:
                    raise error
                finally:
                    error.__context__ = context  # see RERAISE
                    # Its traceback keeps this frame alive, and all callers and their results.
                    del error
            self.frames[-1].last = self.frames[-1].ip - 1

    def handled(self) -> BaseException | None:
        """Returns the exception being handled by the innermost frame that handles one."""
        for frame in reversed(self.frames):
            if frame.exceptions:
                error = frame.exceptions[-1]
                if type(error) is LazyValue:
                    error = frame.exceptions[-1] = self.open(error)
                return error  # type: ignore[no-any-return]
        return None

    def raise_error(self, error: BaseException) -> NoReturn:
        """Raises for an instruction of the program, which replaces an earlier ``__context__``."""
        self.exceptions.raises(error)
        self.raising = error
        handled = self.handled()
        if handled is not None:
            chain_context(error, handled)
        raise error

    def _set_context(self, error: BaseException) -> None:
        """Sets ``__context__`` of an exception that C code raised while another is handled."""
        if error is self.raising:
            return
        self.exceptions.drop_host_context(error)
        handled = self.handled()
        if handled is not None and error.__context__ is None:
            chain_context(error, handled)

    @staticmethod
    def find_handler(frame: Frame) -> Any:
        for entry in frame.code.exceptions:
            if entry.start <= frame.last < entry.end:
                return entry
        return None

    # -- used by opcode handlers
    # ----------------------------------------------------------------------

    def pop(self, frame: Frame) -> Any:
        value = frame.stack.pop()
        return self.open(value) if type(value) is LazyValue else value

    def called(self, value: Any) -> Any:
        """Returns what an instruction took from the stack to call, or to compare with None."""
        return self.open_called(value) if type(value) is LazyValue else value

    def pop_n(self, frame: Frame, n: int) -> list[Any]:
        if n == 0:
            return []
        values = frame.stack[-n:]
        del frame.stack[-n:]
        return [self.open(value) if type(value) is LazyValue else value for value in values]

    def peek(self, frame: Frame, n: int = 1) -> Any:
        value = frame.stack[-n]
        if type(value) is LazyValue:
            value = frame.stack[-n] = self.open(value)
        return value

    def load(self, frame: Frame, index: int) -> Any:
        value = frame.locals[index]
        if type(value) is LazyValue:
            value = frame.locals[index] = self.open(value)
        elif value is NULL:
            raise UnboundLocalError(
                f"cannot access local variable '{frame.code.locals_names[index]}' where it is not"
                " associated with a value"
            )
        return value

    def open(self, unread: LazyValue) -> Any:
        return unread.value

    def open_called(self, unread: LazyValue) -> Any:
        """Returns a value of which an instruction needs no more than what a call of it does."""
        return self.open(unread)

    def break_graph(self, kind: str, reason: str) -> NoReturn:
        raise Break(kind, reason)


def handlers(table: dict[str, Callable[[Machine, Frame, Any], object]]) -> None:
    """Registers the handlers of opcodes that are one expression each."""
    for name, handler in table.items():
        opcode(name)(handler)


def chain_context(error: BaseException, handled: BaseException) -> None:
    """Sets ``__context__`` to the exception that is being handled, as ``PyErr_SetObject`` does: a
    link back to `error` is cut, and a circle that was there before is left alone."""
    if error is handled:
        return
    link = slow = handled
    steps = 0
    while (context := link.__context__) is not None:
        if context is error:
            link.__context__ = None
            break
        link = context
        if link is slow:
            break
        if steps % 2 and slow.__context__ is not None:
            slow = slow.__context__
        steps += 1
    error.__context__ = handled
