"""Programs made from the native effects table: calls of its rows with arguments of many types.

In: a seed. Out: a `Program` whose function calls a few rows, each in a try block, with arguments
that are parameters, globals or made in place. Rows that break the graph, and those of modules that
act on the machine, are called with a keyword that no function takes: the trace meets the row, the
real call raises before it does anything. What always holds: no row runs that could end the process
or touch a file; programs of consecutive seeds go through the whole table, so that a run of
`ALL_ROWS_AFTER` programs has met every row.
"""

from __future__ import annotations

import ast
import fnmatch
import random
import types
from dataclasses import dataclass
from typing import Any

import torch

from tests.random_programs.program import Program
from tests.random_programs.table_arguments import (
    ARGUMENTS,
    HINTS,
    LEFT_OUT,
    ONLY_HINTS,
    ONLY_TYPE,
    RECEIVERS,
    REFUSED_MODULES,
)
from tests.support.effect_rows import row_name
from tracer_core.native_effects.effects import EFFECTS, EffectKind


@dataclass(frozen=True, slots=True)
class Row:
    """name: as the table names it; callable; receiver: name of the type whose method it is, or an
    empty string; refused: it is called without arguments, or (breaks: the row ends the graph) with
    a keyword that it does not take."""

    name: str
    callable: Any
    receiver: str
    refused: bool
    breaks: bool


def _row(function: Any, kind: EffectKind) -> Row:
    name = row_name(function)
    owner = getattr(function, "__objclass__", None)
    is_method = isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType))
    receiver = owner.__name__ if is_method and owner is not None else ""
    refused = (
        kind is EffectKind.BREAKS
        or name.split(".")[0] in REFUSED_MODULES
        or (bool(receiver) and receiver not in RECEIVERS and not hints(name))
    )
    return Row(name, function, receiver, refused, kind is EffectKind.BREAKS)


def hints(name: str) -> tuple[str, ...]:
    """Texts of arguments known for a row: by its name, else by the longest pattern that fits."""
    if name in HINTS:
        return HINTS[name]
    fitting = [
        pattern for pattern in HINTS if "*" in pattern and fnmatch.fnmatchcase(name, pattern)
    ]
    return HINTS[max(fitting, key=len)] if fitting else ()


#: Every row of the table that programs call, by name.
ROWS: dict[str, Row] = {
    row.name: row
    for row in sorted(
        (_row(f, e.kind) for f, e in EFFECTS.items() if not row_name(f).endswith(tuple(LEFT_OUT))),
        key=lambda r: r.name,
    )
}
#: The order in which seeds go through the table.
_ORDER = random.Random(0).sample(list(ROWS), len(ROWS))
_A_PROGRAM = 5
#: So many programs, from whatever seed, have called every row.
ALL_ROWS_AFTER = 5 * (len(ROWS) // _A_PROGRAM + 1)


def row(name: str) -> Any:
    """The callable of a row, for programs."""
    return ROWS[name].callable


def generate_calls(seed: int) -> Program:
    rng = random.Random(seed)
    first_row = seed // 5 * _A_PROGRAM
    chosen = [ROWS[_ORDER[(first_row + i) % len(_ORDER)]] for i in range(_A_PROGRAM)]
    lines = [f"R{i} = row({r.name!r})" for i, r in enumerate(chosen)]
    lines = ["from tests.random_programs.table_programs import row", *lines]
    parameters: list[str] = []
    body = ["found = [p1 + 1]"]
    for i, item in enumerate(chosen):
        body += _call(rng, i, item, parameters)
    signature = ", ".join(["p1", *(f"q{i}" for i in range(len(parameters)))])
    lines += ["", "", f"def f({signature}):", *(f"    {line}" for line in body), "    return found"]
    first = [rng.choice(("torch.ones(2, 3)", "torch.arange(3.)")), *parameters]
    steps = [(True, _arguments(first)), (True, _arguments(first))]
    for _ in range(2):
        changed = [
            rng.choice(ARGUMENTS) if rng.random() < 0.3 and text != "p1" else text
            for text in first[1:]
        ]
        steps.append((True, _arguments([first[0], *changed])))
    return Program(seed, "\n".join(lines) + "\n", "f", tuple(steps))


def _arguments(texts: list[str]) -> str:
    return f"(({''.join(text + ', ' for text in texts)}), {{}})".replace("p1, ", "1, ")


def _call(rng: random.Random, i: int, row: Row, parameters: list[str]) -> list[str]:
    """One row called in a try block."""
    texts: list[str] = []
    if not row.refused:
        known = hints(row.name)
        if known and (row.name in ONLY_HINTS or rng.random() < 0.7):
            texts = _split(rng.choice(known))
        else:
            texts = [rng.choice(RECEIVERS[row.receiver])] if row.receiver in RECEIVERS else []
            texts += _likely(rng, row, texts)
    for at, text in enumerate(texts):
        if "p1" not in text and "=" not in text.partition("(")[0] and rng.random() < 0.5:
            texts[at] = f"q{len(parameters)}"
            parameters.append(text)
    if row.refused and row.breaks:
        texts.append("no_such_argument=1")
    elif row.refused and row.receiver:  # with nothing at all CPython 3.12.1 reads beyond the stack
        texts.append("None")
    result = (
        f"type(R{i}({', '.join(texts)}))"
        if row.name.endswith(ONLY_TYPE)
        else f"R{i}({', '.join(texts)})"
    )
    mutated = [text for text in texts if text.startswith("q")]
    lines = ["try:", f"    found.append({result})"]
    if (
        not row.refused
        and row.receiver in ("list", "dict", "set", "deque", "bytearray")
        and texts
        and not texts[0].startswith("q")
    ):
        lines = [
            "try:",
            f"    made = {texts[0]}",
            f"    found.append(R{i}({', '.join(['made', *texts[1:]])}))",
            "    found.append(made)",
        ]
    lines += ["except Exception as error:", "    found.append((type(error), str(error)))"]
    return [*lines, *([f"found.append({mutated[0]})"] if mutated else [])]


def _split(texts: str) -> list[str]:
    """The arguments in the text of a call."""
    call: Any = ast.parse(f"f({texts})", mode="eval").body
    return [
        *map(ast.unparse, call.args),
        *(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords),
    ]


def _likely(rng: random.Random, row: Row, before: list[str]) -> list[str]:
    """Arguments that the row accepts, where a few tries find some."""
    texts: list[str] = []
    for _ in range(12):
        count = rng.choice((0, 1, 1, 2, 2, 3) if not before else (0, 0, 1, 1, 2))
        texts = [rng.choice(ARGUMENTS) for _ in range(count)]
        if _accepts(row, before + texts):
            break
    return texts


def _accepts(one: Row, texts: list[str]) -> bool:
    world = _world()
    try:
        one.callable(*(eval(text, world) for text in texts))
    except Exception:
        return False
    finally:
        end_modes()
    return True


def end_modes() -> int:
    """Takes what a program left on torch's stack of function modes from it, and returns how much it
    was: any object can be there, and torch's functions fail in the comparison then."""
    left = torch._C._len_torch_function_stack()
    for _ in range(left):
        torch._C._pop_torch_function_stack()
    return left


def _world() -> dict[str, Any]:
    """A scope in which the argument texts can be evaluated; made anew where they may have been
    changed.
    """
    from tests.random_programs.prelude import needed

    world: dict[str, Any] = {"p1": 1}
    if not _COMPILED:
        text = needed("Obj Sub VEC Color Level OBJ G_LIST G_DICT count_up keywords fact")
        _COMPILED.append(compile(text, "<arguments>", "exec"))
    exec(_COMPILED[0], world)
    return world


_COMPILED: list[Any] = []
