"""Runs one program eagerly and compiled and compares the whole world after each call.

In: a `Program`. Out: a `Result`: "same", "mismatch", "crash" (the tracer failed), "late" (the
compiled side ran into the time limit), "harness" (the comparison failed) or "invalid" (no program,
or too much for eager itself). What always holds: both sides run in modules of their own, made from
the same text; TRACER_STRICT is on.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import re
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # torch imports it for symbolic sizes: not where the time limit may cut it in two

import tracer_core
from tests.random_programs.observable_state import describe, first_difference
from tests.random_programs.program import Program
from tests.random_programs.table_programs import end_modes
from tracer_core.errors import RecompileLimitWarning, TracerError

# A program may hand operators what they refuse; torch logs each refusal by a fake tensor as an
# error.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL + 1)
_SECONDS = 20.0
#: What eager may take: a program that doubles a list again and again is none.
EAGER_SECONDS = 5.0
#: Lines of a description; a global list that every call doubles has more in the end.
MAX_FACTS = 4000
#: A row of the native effects table that a program calls: a class of a library may hold what
#: changes by itself.
_ROW = re.compile(r"R\d+")
#: Exceptions that mean that the tracer itself failed, whatever eager does.
_CRASHES = (TracerError, AssertionError)


@dataclass(frozen=True, slots=True)
class Result:
    """status; where: the step and what differs."""

    seed: int
    status: str
    where: str = ""
    raised: bool = False


class Unusable(Exception):
    """The program does not get as far as its function."""


class OutOfTime(BaseException):
    """The time limit; a BaseException, so that no program catches it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, late)
    # Again and again: where it comes, the exception may be lost (a finaliser, a callback that
    # swallows everything).
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Side:
    """One side of the comparison. Mutable: its module is the program's world. left: seconds that it
    may still take.
    """

    def __init__(
        self, program: Program, compiled: bool, text: str, code: types.CodeType, seconds: float
    ) -> None:
        self.left = seconds
        # Both sides have one name, so that texts with it are the same: the side that runs is the
        # one in sys.modules.
        self.module = types.ModuleType(f"random_program_{program.seed}")
        sys.modules[self.module.__name__] = self.module
        self.module.__dict__["__name__"] = self.module.__name__
        with _seeded(0):
            exec(code, self.module.__dict__)
        # The annotated classes and namedtuples carry the module's name; both sides must look the
        # same.
        self.target = eval(program.target, self.module.__dict__)
        self.call = tracer_core.compile(self.target, backend="eager") if compiled else self.target
        self.grad = True
        self.result: Any = None

    def close(self) -> None:
        """Both sides' name is gone after the first of them is closed."""
        sys.modules.pop(self.module.__name__, None)

    def step(self, is_call: bool, text: str, number: int) -> list[str]:
        """Runs a step; gives the description of everything afterwards. Raises OutOfTime."""
        started = time.monotonic()
        with time_limit(max(self.left, 0.01)):
            messages = self._step(is_call, text, number)
        self.left -= time.monotonic() - started
        return messages

    def _step(self, is_call: bool, text: str, number: int) -> list[str]:
        world = self.module.__dict__
        sys.modules[self.module.__name__] = self.module
        out = io.StringIO()
        args: Any = None
        self.raised: BaseException | None = None
        with _seeded(number), torch.set_grad_enabled(self.grad), contextlib.redirect_stdout(out):
            if is_call:
                try:
                    args, kwargs = eval(text, world)
                except Exception as error:
                    raise Unusable(f"its arguments: {error!r}") from error
                try:
                    result = self.call(*args, **kwargs)
                except Exception as error:
                    self.raised = result = error
                args = (args, kwargs)
            else:
                try:
                    exec(text, world)
                    result = None
                except Exception as error:
                    result = error
            after = (
                end_modes(),
                torch.is_grad_enabled(),
                torch.get_default_dtype(),
                torch.get_rng_state().sum().item(),
                hash(random.getstate()),
            )
            if not is_call:
                self.grad = torch.is_grad_enabled()
        hidden = {
            "__builtins__",
            "__name__",
            "torch",
            "F",
            "nn",
            "__annotations__",
            "__warningregistry__",
        }
        globals_ = [
            (name, value)
            for name, value in world.items()
            if name not in hidden
            and not isinstance(value, types.ModuleType)
            and not _ROW.fullmatch(name)
        ]
        facts = describe(
            [
                ("settings", after),
                ("output", out.getvalue()),
                ("result", result),
                ("arguments", args),
                *globals_,
            ]
        )
        return [line.replace(self.module.__name__, "MODULE") for line in facts]


@contextlib.contextmanager
def _seeded(number: int) -> Iterator[None]:
    torch.default_generator.manual_seed(
        number
    )  # torch.manual_seed notes the stack for three devices: 2 ms a call
    random.seed(number)
    torch.utils.hooks.RemovableHandle.next_id = 0
    yield


def run(program: Program, seconds: float = _SECONDS) -> Result:
    text = program.text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(text, f"<random program {program.seed}>", "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        return Result(program.seed, "invalid", repr(error))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(program, text, code, seconds)
    except Unusable as error:
        return Result(program.seed, "invalid", str(error))
    except Exception as error:  # the comparison itself failed
        return Result(program.seed, "harness", repr(error))
    finally:
        end_modes()
        torch.set_grad_enabled(True)
        tracer_core.reset()


def run_eagerly(program: Program, seconds: float) -> bool:
    """Whether eager alone comes to its end in time, whatever it gives."""
    code = compile(program.text, f"<random program {program.seed}>", "exec")
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        side = Side(program, False, program.text, code, seconds)
        try:
            for number, (is_call, step) in enumerate(program.steps):
                side.step(is_call, step, number)
        except OutOfTime:
            return False
        finally:
            side.close()
            end_modes()
            torch.set_grad_enabled(True)
    return True


def _run(program: Program, text: str, code: types.CodeType, seconds: float) -> Result:
    sides: list[Side] = []
    raised = False
    try:
        for compiled in (False, True):
            try:
                limit = seconds if compiled else min(seconds, EAGER_SECONDS)
                sides.append(Side(program, compiled, text, code, limit))
            except Exception as error:
                return Result(program.seed, "invalid", f"making it: {error!r}")
        eager, ours = sides
        for number, (is_call, step) in enumerate(program.steps):
            try:
                wanted = eager.step(is_call, step, number)
            except OutOfTime:
                return Result(program.seed, "invalid", f"step {number}: eager takes too long")
            except (
                RuntimeError,
                MemoryError,
            ) as error:  # a view that torch no longer lets anyone look at
                return Result(program.seed, "invalid", f"step {number}: {error!r}")
            if len(wanted) > MAX_FACTS:
                return Result(
                    program.seed, "invalid", f"step {number}: what eager makes grows without end"
                )
            if isinstance(eager.raised, MemoryError):
                return Result(
                    program.seed, "invalid", f"step {number}: eager needs too much memory"
                )
            raised = raised or eager.raised is not None
            try:
                got = ours.step(is_call, step, number)
            except OutOfTime:
                return Result(program.seed, "late", f"step {number}")
            if isinstance(ours.raised, MemoryError):
                return Result(program.seed, "invalid", f"step {number}: too much memory for two")
            if isinstance(ours.raised, TracerError) and OutOfTime.__name__ in str(ours.raised):
                return Result(program.seed, "late", f"step {number}")
            if ours.raised is not None and _is_crash(ours.raised, eager.raised):
                cause = (
                    f" from {ours.raised.__cause__!r}" if ours.raised.__cause__ is not None else ""
                )
                return Result(
                    program.seed, "crash", f"step {number}: {ours.raised!r}{cause}", raised
                )
            different = first_difference(wanted, got)
            if different is not None:
                return Result(program.seed, "mismatch", f"step {number}: {different}", raised)
        return Result(program.seed, "same", "", raised)
    finally:
        for side in sides:
            side.close()


def _is_crash(ours: BaseException, eager: BaseException | None) -> bool:
    return isinstance(ours, _CRASHES) and type(ours) is not type(eager)


__all__ = ["RecompileLimitWarning", "Result", "run"]
