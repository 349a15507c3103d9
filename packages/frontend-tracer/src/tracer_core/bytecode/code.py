"""Decodes code objects into parallel lists of opcode handlers and arguments, indexed by
instruction.

Jump targets are instruction numbers, not offsets. Decoding also resolves the exception table and,
on demand, the live locals. The result is cached per code object and never refers to a frame.
"""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.instructions import Instruction, instructions
from tracer_core.bytecode.versions import RUNNING, OpcodeStep
from tracer_core.graph_breaks import Break

use_own_builtins(globals())

Handler = Callable[[Any, Any, Any], Any]

#: opname -> handler(machine, frame, argument). Filled by the modules of `opcodes/`.
HANDLERS: dict[str, Handler] = {}


def _why_unsupported(name: str, arg: Any) -> str:
    """Returns which instruction the tracer does not run and why; of the others, an empty string."""
    if name not in HANDLERS:
        return f"{name}: {RUNNING.unsupported.get(name, 'no handler')}"
    reasons = RUNNING.unsupported_intrinsics.get(name)
    return f"{name} {arg}: {reasons[arg]}" if reasons and arg in reasons else ""


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler for opcodes. Raises an error for an opcode that has one."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"two handlers for {name}")
            HANDLERS[name] = handler
        return handler

    return register


@dataclass(frozen=True, slots=True)
class ExceptionRange:
    """Exceptions of instructions start..end (exclusive) go to `target`, with the stack cut to
    `depth`."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def ranges_around(code: Code, index: int) -> Iterator[ExceptionRange]:
    """Yields the ranges that an exception of an instruction goes through, if each handler raises it
    again, from the innermost."""
    at: int | None = index
    while at is not None:
        exception = next((item for item in code.exceptions if item.start <= at < item.end), None)
        at = None
        if exception is not None:
            yield exception
            at = exception.target


def is_with(code: Code, handler: ExceptionRange) -> bool:
    """Returns whether a handler belongs to a ``with`` statement, or only ends another handler."""
    names = code.names[handler.target : handler.target + 2]
    return names[0] != "PUSH_EXC_INFO" or "WITH_EXCEPT_START" in names


@dataclass(frozen=True)
class Code:
    """A decoded code object. names, handlers, args, lines: one per instruction. locals_names:
    localsplus names. live[i] (used only by graph breaks): indices of fast locals read at or after
    instruction i before being written (cells and free variables are always live)."""

    raw: types.CodeType
    names: tuple[str, ...]
    args: tuple[Any, ...]
    lines: tuple[int, ...]
    offsets: tuple[int, ...]
    exceptions: tuple[ExceptionRange, ...]
    locals_names: tuple[str, ...]
    first_free: int
    is_generator: bool

    @functools.cached_property
    def handlers(self) -> tuple[Handler, ...]:
        """Returns the handlers, of which there are none before an interpreter is imported."""
        return tuple(HANDLERS.get(name) or _no_handler(name) for name in self.names)

    @functools.cached_property
    def unsupported(self) -> str:
        """Returns the first instruction that the tracer does not run with the reason, or an empty
        string."""
        return next(filter(None, map(_why_unsupported, self.names, self.args)), "")

    @functools.cached_property
    def live(self) -> tuple[frozenset[int], ...]:
        return _liveness(self.names, self.args, self.exceptions, len(self.locals_names), self.raw)

    @functools.cached_property
    def only_raises(self) -> frozenset[int]:
        """Returns the instructions from which every way leads to a ``raise``."""
        return _only_raises(self.names, self.args)

    @functools.cached_property
    def loops(self) -> tuple[tuple[int, int], ...]:
        """Returns the first and last instruction of each loop, inner ones first; a loop with several
        jumps back has a row for each."""
        jumps = [i for i, name in enumerate(self.names) if name in _JUMPS_BACK]
        loops = [(self.args[i], i) for i in jumps if self.args[i] <= i]
        return tuple(sorted(loops, key=lambda loop: loop[1] - loop[0]))

    @functools.cached_property
    def conditions(self) -> Mapping[int, int]:
        """Returns, of each branch with more of the same condition behind it, which nothing but reads
        and comparisons belong to and which leads to the same place (``not done and n > most``): the
        instruction behind the condition."""
        result = {}
        for at, name in enumerate(self.names):
            if name not in BRANCHES or self.args[at] <= at:
                continue
            for end in range(at + 1, len(self.names)):
                if self.names[end] in BRANCHES and self.args[end] == self.args[at]:
                    result[at] = end + 1
                elif self.names[end] not in _IN_CONDITIONS:
                    break
        return result

    def in_while(self, at: int) -> bool:
        """Returns whether the innermost loop around an instruction is a ``while`` statement, which
        may end by the value of a tensor."""
        first = next((first for first, last in self.loops if first <= at <= last), None)
        return first is not None and self.names[first] not in ("FOR_ITER", "SEND")


_READS = frozenset(
    {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "DELETE_FAST"}
)
#: Names of functions that read the variables of their caller's frame.
_LOCALS_QUERIES = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint"}
)
#: Those that give the dictionary of the variables, or may put names into it.
_KEEPS_LOCALS = frozenset({"locals", "vars", "exec"})
#: Names of functions whose answer only eager Python has: frames, references to objects.
_EAGER_ONLY = frozenset(
    {"_getframe", "currentframe", "extract_stack", "format_stack", "print_stack", "tb_frame",
     "excepthook", "__excepthook__", "getrefcount", "get_referrers", "get_objects", "breakpoint",
     "set_trace"}
)  # fmt: skip
#: What a condition is made of, beside its branches.
_IN_CONDITIONS = frozenset(
    {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR",
     "COMPARE_OP", "IS_OP", "TO_BOOL"}
)  # fmt: skip
#: Instructions behind which a function does not go on.
ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
#: Flags of generator functions, coroutine functions and asynchronous generators.
NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Jumps that may lead back.
_JUMPS_BACK = frozenset(
    {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
     "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"}
)  # fmt: skip
#: Jumps by the truth of a value.
BRANCHES = frozenset(
    f"POP_JUMP_{way}IF_{what}"
    for way in ("FORWARD_", "BACKWARD_", "")
    for what in ("TRUE", "FALSE")
)


def _no_handler(name: str) -> Handler:
    def handler(machine: object, frame: object, arg: Any) -> Any:
        raise Break("unsupported_opcode", _why_unsupported(name, arg))

    return handler


#: Decoded code objects in the cache. A weak table would keep all: each refers to its code object.
_MAX_DECODED = 4096


@functools.lru_cache(maxsize=_MAX_DECODED)
def decode(raw: types.CodeType) -> Code:
    """Returns the decoded form of a code object."""
    result = instructions(raw)
    origins: list[Instruction] = []
    steps: list[OpcodeStep] = []
    starts: list[int] = []
    index_of: dict[int, int] = {}
    for number, instruction in enumerate(result):
        index_of[instruction.begin] = index_of[instruction.offset] = len(steps)
        rewrite = RUNNING.rewrites.get(instruction.name)
        meant = rewrite(result, number, raw) if rewrite else (
            OpcodeStep(instruction.name, argument_meaning(instruction, raw)),)  # fmt: skip
        steps += meant
        origins += [instruction] * len(meant)
        raises = number - 1 if number and RUNNING.leaves_bool(result, number - 1) else number
        starts += [result[raises].offset] * len(meant)
    names = tuple(step.name for step in steps)
    args = tuple(
        step.arg if item.target is None else _target(item, index_of[item.target], origins)
        for step, item in zip(steps, origins, strict=True)
    )
    locals_names = _localsplus(raw)
    return Code(
        raw=raw,
        names=names,
        args=args,
        lines=tuple(i.line for i in origins),
        offsets=tuple(i.offset for i in origins),
        exceptions=tuple(_ranges(raw, starts, index_of)),
        locals_names=locals_names,
        first_free=len(locals_names) - len(raw.co_freevars),
        is_generator=bool(raw.co_flags & 0x20),
    )


def _localsplus(raw: types.CodeType) -> tuple[str, ...]:
    cells = tuple(name for name in raw.co_cellvars if name not in raw.co_varnames)
    return raw.co_varnames + cells + raw.co_freevars


_CONSTANTS, _NAMES = frozenset(dis.hasconst), frozenset(dis.hasname)


def argument_meaning(instruction: Instruction, raw: types.CodeType) -> Any:
    """Returns the constant, name, flags or number that an argument stands for; None for a jump's."""
    arg = instruction.arg
    if arg is None or instruction.target is not None:
        return None
    special = RUNNING.arguments.get(instruction.name)
    if special is not None:
        return special(arg, raw)
    if instruction.opcode in _CONSTANTS:
        return raw.co_consts[arg]
    return raw.co_names[arg] if instruction.opcode in _NAMES else arg


def _target(jump: Instruction, index: int, origins: list[Instruction]) -> int:
    """Returns where a jump goes on. FOR_ITER pops a finished iterator itself, and goes on behind the
    instructions that would."""
    if jump.name != "FOR_ITER":
        return index
    ends = RUNNING.loop_end
    behind = index + len(ends)
    return behind if tuple(item.name for item in origins[index:behind]) == ends else index


def _ranges(raw: types.CodeType, starts: list[int], index_of: dict[int, int]) -> Any:
    """Yields the ranges of the exception table. starts: of each step, the offset of the instruction
    that raises what it raises in CPython."""
    for entry in dis._parse_exception_table(raw):  # type: ignore[attr-defined]
        first, end = bisect.bisect_left(starts, entry.start), bisect.bisect_left(starts, entry.end)
        if first < end:
            yield ExceptionRange(first, end, index_of[entry.target], entry.depth, entry.lasti)


def queries_locals(raw: types.CodeType) -> bool:
    """Returns whether a function names a function that reads all variables of its caller."""
    return not _LOCALS_QUERIES.isdisjoint(raw.co_names)


def sees_variables_again(code: Code) -> bool:
    """Returns whether a function may get the dictionary of its variables, or put names into it, and
    read it once more. Since Python 3.13 each reading makes another one."""
    loads = zip(code.names, code.args, strict=True)
    asked = [
        (i, arg[0])
        for i, (name, arg) in enumerate(loads)
        if name == "LOAD_GLOBAL" and arg[0] in _LOCALS_QUERIES
    ]
    keeps = [i for i, function in asked if function in _KEEPS_LOCALS]
    loops = [(arg, i) for i, arg in enumerate(code.args) if "JUMP_BACKWARD" in code.names[i]]
    return bool(keeps) and (len(asked) > 1 or any(start <= keeps[0] < end for start, end in loops))


def is_eager_only(raw: types.CodeType) -> bool:
    """Returns whether only CPython can run a function that has a graph break: it names a function
    that reads the frames of its callers, or who refers to an object, or sees the one dictionary of
    its variables again."""
    if not _EAGER_ONLY.isdisjoint(raw.co_names) or {"inspect", "stack"}.issubset(raw.co_names):
        return True
    shared = sys.version_info < (3, 13) and queries_locals(raw)
    return shared and sees_variables_again(decode(raw))


def _liveness(
    names: tuple[str, ...],
    args: tuple[Any, ...],
    exceptions: tuple[ExceptionRange, ...],
    n_locals: int,
    raw: Any,
) -> tuple[frozenset[int], ...]:
    """Backward data flow over fast locals. The handler of an exception range is a successor of
    every instruction in the range."""
    if queries_locals(raw):
        return (frozenset(range(n_locals)),) * len(names)  # it may read its variables by name
    jumps = [name in JUMPS for name in names]
    has_target = _have_targets(names)
    handlers: list[list[int]] = [[] for _ in names]
    for entry in exceptions:
        for i in range(entry.start, entry.end):
            handlers[i].append(entry.target)
    live: list[set[int]] = [set() for _ in range(len(names) + 1)]
    changed = True
    while changed:
        changed = False
        for i in range(len(names) - 1, -1, -1):
            out: set[int] = set()
            if names[i] not in ENDS and not jumps[i]:
                out |= live[i + 1]
            if has_target[i]:
                out |= live[args[i]]
            for target in handlers[i]:
                out |= live[target]
            if names[i] == "STORE_FAST":
                out.discard(args[i])
                # A handler may see the value from before the write.
                for target in handlers[i]:
                    out |= live[target]
            elif names[i] in _READS:
                out.add(args[i])
            if out != live[i]:
                live[i] = out
                changed = True
    always = set(range(len(raw.co_varnames), n_locals))
    always.update(n for n, name in enumerate(raw.co_varnames) if name in raw.co_cellvars)
    if "__class__" in raw.co_freevars and raw.co_argcount:
        always.add(0)  # super() reads it
    return tuple(frozenset(entry | always) for entry in live[: len(names)])


def _have_targets(names: tuple[str, ...]) -> list[bool]:
    return [
        dis.opmap.get(name) in dis.hasjrel or dis.opmap.get(name) in dis.hasjabs for name in names
    ]


def _only_raises(names: tuple[str, ...], args: tuple[Any, ...]) -> frozenset[int]:
    """Does `Code.only_raises`: the least fixed point of "it raises, or all its successors do"."""
    has_target, result = _have_targets(names), set[int]()
    changed = True
    while changed:
        changed = False
        for i in range(len(names) - 1, -1, -1):
            after = [] if names[i] in ENDS or names[i] in JUMPS else [i + 1]
            after += [args[i]] if has_target[i] else []
            raises = names[i] == "RAISE_VARARGS" or (bool(after) and result.issuperset(after))
            if raises and i not in result:
                result.add(i)
                changed = True
    return frozenset(result)
