"""Compiles a resume function to Python source: follows its bytecode with names in place of values.

The resulting function maps the state at the break to the next exit and the state there. It does
what `RealMachine` would, and leaves opcodes without a row here to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tracer_core.bytecode.code import BRANCHES, JUMPS, Code, decode, queries_locals
from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.generated_code import define
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.opcodes.operators import SYMBOLS
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.bytecode.tracebacks import call_from, calling_code, calling_line
from tracer_core.contract.branch_prediction import is_awaited
from tracer_core.guards.object_lifetime import end_is_seen, must_outlive_variable
from tracer_core.limits import MAX_RESUMED_INSTRUCTIONS
from tracer_core.trace.eager_interpreter import SAFE_ITERATORS, SCALARS, WEAK_REFERENCES

use_own_builtins(globals())

#: Types whose objects a dead variable need not keep alive: their finalization cannot be observed,
#: or nobody observes it.
_DROPPED = SCALARS | {bytes, torch.Size, torch.Tensor, torch.nn.Parameter}
_CONTAINERS = frozenset({list, tuple, dict})
_END: Any = object()
#: These read the calling frame: some without arguments, eval and exec also with a text.
_FRAME_QUERIES = {
    value.__name__: value for value in (super, globals, locals, vars, dir, compile, eval, exec)
}
_REFERENCE_QUERIES = {reference.__name__: reference for reference in WEAK_REFERENCES}


class ResumeWriter:
    """Writes the source of one resume function. Used once. layouts: of the frames at the break.
    exit_at(layouts): the exit there. dropping(layouts): see `ResumeFunction.dropping`. named:
    functions that the text calls. predicts: the function takes the values and the outcome of a
    branch on a tensor, and returns (exit, state) and the tensor; None where it is another branch, or
    where more than that would be done."""

    def __init__(
        self,
        layouts: tuple[FrameLayout, ...],
        exit_at: Callable[[tuple[FrameLayout, ...]], Any],
        dropping: Callable[[tuple[FrameLayout, ...]], Any],
        named: Sequence[Callable[..., Any]],
        predicts: bool = False,
    ) -> None:
        self.predicts = predicts
        self.layouts, self.exit_at, self.layout = layouts, exit_at, layouts[-1]
        self.dropping = dropping
        self.code: Code = decode(self.layout.code)
        self.lines: list[str] = []
        #: Name of the tensor whose truth is predicted.
        self.condition = ""
        self.names: dict[str, Any] = {
            **{method.__name__: method for method in named}, **_FRAME_QUERIES, **_REFERENCE_QUERIES,
            "END": _END, "next": next, "type": type, "tuple": tuple, "len": len,
            "SCALARS": SCALARS, "SAFE": SAFE_ITERATORS, "NULL": NULL, "DROPPED": _DROPPED,
            "seen": end_is_seen, "CONTAINERS": _CONTAINERS, "must_outlive": must_outlive_variable,
            "call_from": call_from, "bool": bool, "is_awaited": is_awaited,
        }  # fmt: skip
        self.count = 0
        #: Whether the frame is the outermost one, whose value is the activation's.
        self.returns = (
            len(layouts) == 1 and self.layout.on_return is None and not self.code.is_generator
        )
        #: Names of values that are plain on every path.
        self.scalars: set[str] = set()

    def function(self) -> Callable[[Any], tuple[Any, Any]] | None:
        """Returns the compiled resume function, or None if its instruction is left to the machine."""
        if any(layout.n_exceptions for layout in self.layouts):
            return None  # a callee could ask for the exception being handled
        write = _FIRST.get(self.code.names[self.layout.ip])
        if write is None:
            return None
        n = sum(layout.size for layout in self.layouts)
        names = [f"a{i}" for i in range(n)]
        inner = n - self.layout.size
        self.before, own = names[:inner], names[inner:]
        self.function_name = own[0]
        position = 1
        local: dict[int, str] = {}
        for index in self.layout.locals:
            local[index] = own[position]
            position += 1
        stack: list[str | None] = []
        for present in self.layout.stack:
            stack.append(own[position] if present else None)
            position += present
        self.after = own[position:]
        path = _Path(self.layout.ip, stack, local, 1)
        inputs, values = (
            ("values, outcome", "values") if self.predicts else ("suspended", "suspended.values")
        )
        self.lines += [f"def run({inputs}):", f"    {', '.join(names)}, = {values}"]
        watched = [f"seen({name})" for name in self._dead_names(names)]
        if watched:  # the object must die when its variable is set, not when this returns
            self.interpreted_if(" or ".join(watched), names)
        if self.predicts:
            if not _predicted_branch(self, path):
                return None
        else:
            if write is _first_call and (asks := _queries_machine(self, path)):
                self.interpreted_if(asks, names)
            self.lines.append("    suspended.values = ()")
            write(self, path)
        text = "\n".join(self.lines) + "\n"
        title = f"resume {self.layout.code.co_qualname}:{self.layout.ip}"
        return define("run", text, dict(self.names), title)

    def interpreted_if(self, condition: str, names: list[str]) -> None:
        """Leaves the instruction to the machine if a condition holds; the variables then hold
        nothing."""
        if self.predicts:
            self.lines.append(f"    if {condition}: return None")
            return
        self.lines += [f"    if {condition}:", f"        del {', '.join(names)}",
                       "        return interpret(suspended)"]  # fmt: skip

    # -- pieces of text --

    def add(self, path: _Path, text: str) -> None:
        self.lines.append("    " * path.depth + text)

    def fresh(self) -> str:
        self.count += 1
        return f"r{self.count}"

    def constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def is_scalar(self, name: Any) -> bool:
        """Returns whether the value behind a name (or a constant) is certainly plain."""
        text = str(name)
        return text in self.scalars or (text in self.names and type(self.names[text]) in SCALARS)

    def _dead_names(self, names: list[str]) -> list[str]:
        """Returns the names of the dead variables of the state."""
        match, position = [], 0
        for layout in self.layouts:
            live = decode(layout.code).live[layout.ip]
            match += [names[position + 1 + n] for n, i in enumerate(layout.locals) if i not in live]
            position += layout.size
        return match

    def _at(self, path: _Path, bound: tuple[int, ...]) -> tuple[tuple[FrameLayout, ...], str]:
        """Returns (layouts, text of the state) at a path's instruction, with these variables."""
        # Names for calls with keywords belong to the instruction at which the activation stands.
        kw_names = self.layout.kw_names if path.ip == self.layout.ip else ()
        layout = replace(
            self.layout,
            ip=path.ip,
            locals=bound,
            stack=tuple(v is not None for v in path.stack),
            kw_names=kw_names,
        )
        values = [*(path.local[i] for i in bound), *(v for v in path.stack if v is not None)]
        state = ", ".join([*self.before, self.function_name, *values, *self.after])
        return (*self.layouts[:-1], layout), f"({state},)"

    def at(self, path: _Path) -> str:
        """Returns the text of (exit, state) at a path's instruction; of a predicted branch, with the
        condition after them."""
        text = self._at_live(path)
        return f"({text}), {self.condition}" if self.predicts else text

    def _at_live(self, path: _Path) -> str:
        live = self.code.live[path.ip]
        layouts, state = self._at(path, tuple(i for i in sorted(path.local) if i in live))
        simple = f"{self.constant(self.exit_at(layouts))}, {state}"
        dead = [path.local[i] for i in sorted(path.local) if i not in live]
        if not dead:
            return simple
        layouts, state = self._at(path, tuple(sorted(path.local)))
        droppable = " and ".join(
            f"(type({name}) in DROPPED or type({name}) in CONTAINERS and not must_outlive({name}))"
            for name in dict.fromkeys(dead)
        )
        return f"({simple}) if {droppable} else {self.constant(self.dropping(layouts))}({state})"

    def leave(self, path: _Path) -> None:
        """Ends the resume function here; the next code region repeats loads whose value is unused."""
        self.add(path, f"return {self.at(path.rewound())}")

    def risky(self, path: _Path, text: str) -> str:
        """Emits the statement `name = text`, whose exception continues where the bytecode says."""
        name = self.fresh()
        layouts, state = self._at(path, tuple(sorted(path.local)))
        self.add(path, "try:")
        self.add(path, f"    {name} = {text}")
        if self.predicts:
            self.add(path, "except Exception: return None")
            return name
        self.add(path, "except BaseException as error:")
        self.add(path, f"    return failed(error, {self.constant(layouts)}, {state})")
        return name

    def callers(self) -> str:
        """Returns the text of the frames below a callee: see `call_from`."""
        text, position = "", 0
        for layout in self.layouts:
            ip = layout.ip if layout is self.layout else layout.ip - 1
            code = self.constant(calling_code(*calling_line(decode(layout.code), ip)))
            text += f"({code}, a{position}.__globals__), "
            position += layout.size
        return text

    # -- following the bytecode --

    def follow(self, path: _Path) -> None:
        """Emits instructions from `path` on, up to one that belongs to a code region."""
        while True:
            name = self.code.names[path.ip]
            write = _FOLLOWING.get(name)
            if write is None or path.length >= MAX_RESUMED_INSTRUCTIONS or path.ip in path.seen:
                self.leave(path)
                return
            path.length, path.advance = path.length + 1, 1
            if name in _LOADS:
                path.mark()
            if write(self, path, self.code.args[path.ip]):
                return
            path.ip += path.advance


class _Path:
    """One path through the bytecode. Mutable. ip; stack and local hold names (None: NULL); depth:
    of indentation; advance: 1, or 0 after a jump. checkpoint: before the loads that are still
    unused."""

    __slots__ = ("ip", "stack", "local", "depth", "length", "seen", "advance", "checkpoint")

    def __init__(self, ip: int, stack: list[str | None], local: dict[int, str], depth: int) -> None:
        self.ip, self.stack, self.local, self.depth = ip, stack, local, depth
        self.length, self.advance = 0, 1
        self.seen: set[int] = set()
        self.checkpoint: tuple[int, list[str | None]] | None = None

    def split(self, ip: int, stack: list[str | None], deeper: int = 0) -> _Path:
        other = _Path(ip, stack, dict(self.local), self.depth + deeper)
        other.length, other.seen = self.length, set(self.seen)
        return other

    def mark(self) -> None:
        if self.checkpoint is None:
            self.checkpoint = self.ip, list(self.stack)

    def used(self) -> None:
        self.checkpoint = None

    def rewound(self) -> _Path:
        if self.checkpoint is None:
            return self
        return self.split(*self.checkpoint)


# -- the breaking instruction
# -------------------------------------------------------------------------


def _first_call(w: ResumeWriter, path: _Path) -> None:
    n = w.code.args[path.ip]
    names = w.layout.kw_names
    function, values = _called(w, path)
    split = len(values) - len(names)
    arguments = [str(v) for v in values[:split]]
    named = list(zip(names, values[split:], strict=True))
    text = "".join(f"{argument}, " for argument in arguments)
    keywords = ", ".join(f"{name!r}: {value}" for name, value in named)
    result = w.risky(path, f"call_from(({w.callers()}), {function}, ({text}), {{{keywords}}})")
    if len(values) == 1 and not names:
        w.add(path, f"if {function} is bool: note({result})")
    w.follow(path.split(path.ip + 1, [*path.stack[: -n - 2], result]))


def _called(w: ResumeWriter, path: _Path) -> tuple[Any, list[Any]]:
    """Returns the names of the callee and of the arguments of a CALL."""
    n = w.code.args[path.ip]
    values = path.stack[len(path.stack) - n :]
    first, second = path.stack[-n - 2], path.stack[-n - 1]
    own = [] if first is None or second is None else [second]
    return second if first is None else first, [*own, *values]


def _queries_machine(w: ResumeWriter, path: _Path) -> str:
    """Returns the condition under which a callee asks for what only the machine knows."""
    function, values = _called(w, path)
    asks = _REFERENCE_QUERIES if len(values) == 1 else {}
    if not values or queries_locals(w.code.raw):
        asks = asks | _FRAME_QUERIES
    return " or ".join(f"{function} is {name}" for name in asks)


def _predicted_branch(w: ResumeWriter, path: _Path) -> bool:
    """Emits a jump by a tensor's truth, or its ``bool()``, with the outcome in place of the truth.
    Returns False for other instructions."""
    name = w.code.names[path.ip]
    if name in BRANCHES:
        w.condition = str(path.stack[-1])
        w.add(path, f"if not is_awaited({w.condition}): return None")
        _branch(w, path, "not outcome" if "FALSE" in name else "outcome")
        return True
    if name != "CALL" or w.layout.kw_names:
        return False
    function, values = _called(w, path)
    if len(values) != 1:
        return False
    w.condition = str(values[0])
    w.add(path, f"if {function} is not bool or not is_awaited({w.condition}): return None")
    w.follow(path.split(path.ip + 1, [*path.stack[: -w.code.args[path.ip] - 2], "outcome"]))
    return True


def _first_jump(w: ResumeWriter, path: _Path) -> None:
    is_false = w.risky(path, f"not {path.stack[-1]}")
    w.add(path, f"note(not {is_false})")
    _branch(w, path, f"{is_false}" if "FALSE" in w.code.names[path.ip] else f"not {is_false}")


# -- what may follow
# ----------------------------------------------------------------------------------


def _advance(w: ResumeWriter, path: _Path) -> None:
    """Emits FOR_ITER, which has two paths."""
    item = w.risky(path, f"next({path.stack[-1]}, END)")
    w.add(path, f"if {item} is END:")
    w.follow(path.split(w.code.args[path.ip], path.stack[:-1], 1))
    w.follow(path.split(path.ip + 1, [*path.stack, item]))


def _branch(w: ResumeWriter, path: _Path, condition: str) -> None:
    """Emits a conditional jump, taken if the text is true."""
    w.add(path, f"if {condition}:")
    w.follow(path.split(w.code.args[path.ip], path.stack[:-1], 1))
    w.follow(path.split(path.ip + 1, path.stack[:-1]))


def _nop(w: ResumeWriter, path: _Path, arg: Any) -> None:
    pass


def _pop_top(w: ResumeWriter, path: _Path, arg: Any) -> None:
    path.stack.pop()
    path.used()


def _store_fast(w: ResumeWriter, path: _Path, arg: int) -> None:
    path.local[arg] = str(path.stack.pop())
    path.used()


def _load_const(w: ResumeWriter, path: _Path, arg: Any) -> None:
    if type(arg) in (int, bool, type(None)):
        text = f"({arg!r})"
        w.scalars.add(text)
    else:
        text = w.constant(arg)
    path.stack.append(text)


def _load_fast(w: ResumeWriter, path: _Path, arg: int) -> bool:
    name = path.local.get(arg)
    if name is None:
        w.leave(path)
        return True
    if w.code.names[path.ip + 1] != "RETURN_VALUE":
        w.add(path, f"if type({name}) not in SCALARS: return {w.at(path.rewound())}")
    path.stack.append(name)
    return False


def _jump(w: ResumeWriter, path: _Path, arg: int) -> None:
    path.seen.add(path.ip)
    path.ip, path.advance = arg, 0


def _unpack(w: ResumeWriter, path: _Path, arg: int) -> None:
    value = path.stack[-1]
    test = f"type({value}) is not tuple or len({value}) != {arg}"
    w.add(path, f"if {test}: return {w.at(path.rewound())}")
    items = [w.fresh() for _ in range(arg)]
    w.add(path, f"{', '.join(items)}, = {value}")
    path.stack[-1:] = items[::-1]
    path.used()


def _scalars_only(w: ResumeWriter, path: _Path, *values: Any) -> None:
    names = [name for name in dict.fromkeys(values) if not w.is_scalar(name)]
    if not names:
        return
    tests = " or ".join(f"type({name}) not in SCALARS" for name in names)
    w.add(path, f"if {tests}: return {w.at(path.rewound())}")


def _operate(w: ResumeWriter, path: _Path, symbol: str) -> None:
    left, right = path.stack[-2:]
    _scalars_only(w, path, left, right)
    result = w.risky(path, f"{left} {symbol} {right}")
    path.stack[-2:] = [result]
    path.used()


def _compare(w: ResumeWriter, path: _Path, arg: str) -> None:
    _operate(w, path, arg)
    w.scalars.add(str(path.stack[-1]))  # of two plain values


def _binary(w: ResumeWriter, path: _Path, arg: int) -> None:
    _operate(w, path, SYMBOLS[arg].rstrip("="))


def _for_iter(w: ResumeWriter, path: _Path, arg: int) -> bool:
    if w.predicts:  # a prediction takes nothing from an iterator
        w.leave(path)
        return True
    w.add(path, f"if type({path.stack[-1]}) not in SAFE: return {w.at(path.rewound())}")
    path.seen.add(path.ip)
    _advance(w, path)
    return True


def _pop_jump(w: ResumeWriter, path: _Path, arg: int) -> bool:
    value = path.stack[-1]
    _scalars_only(w, path, value)
    path.used()
    _branch(w, path, f"not {value}" if "FALSE" in w.code.names[path.ip] else f"{value}")
    return True


def _return_value(w: ResumeWriter, path: _Path, arg: Any) -> bool:
    if not w.returns:
        w.leave(path)
    else:
        w.add(path, "return None" if w.predicts else f"return None, {path.stack[-1]}")
    return True


def _return_const(w: ResumeWriter, path: _Path, arg: Any) -> bool:
    if not w.returns:
        w.leave(path)
        return True
    path.stack.append(w.constant(arg))
    return _return_value(w, path, arg)


_LOADS = frozenset({"LOAD_CONST", "LOAD_FAST"})
#: opcode -> function that emits the breaking instruction and what follows.
_FIRST: dict[str, Callable[[ResumeWriter, _Path], None]] = {
    "CALL": _first_call,
    "FOR_ITER": _advance,
    **dict.fromkeys(BRANCHES, _first_jump),
}
#: opcode -> function that emits it; True when the path ended. The same opcodes as
#: `RealMachine.realize` follows.
_FOLLOWING: dict[str, Callable[[ResumeWriter, _Path, Any], bool | None]] = {
    **dict.fromkeys(("NOP", "RESUME", "PRECALL"), _nop), **dict.fromkeys(JUMPS, _jump),
    **dict.fromkeys(BRANCHES, _pop_jump), "POP_TOP": _pop_top, "STORE_FAST": _store_fast,
    "LOAD_CONST": _load_const, "LOAD_FAST": _load_fast, "UNPACK_SEQUENCE": _unpack,
    "COMPARE_OP": _compare, "BINARY_OP": _binary, "FOR_ITER": _for_iter,
    "RETURN_VALUE": _return_value, "RETURN_CONST": _return_const,
}  # fmt: skip
