"""Writes sequential updates in C++: scans and scatters.

`{l}` in a scanner's text selects the row where rows are lanes, and is empty elsewhere. Floats are
added and multiplied in double.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inductor_backend.codegen.cpp.expressions import C_TYPES, TO_MEMORY
from inductor_backend.ir.ops import compute_dtype


@dataclass(frozen=True, slots=True)
class Scanner:
    """state: (type, name, initial text) of loop-carried variables. step: for each element, with
    `{v}` its text and `{at}` its position. results: text for each output after the step."""

    state: tuple[tuple[str, str, str], ...]
    step: str
    results: tuple[str, ...]


def _accumulating(sign: str, start: str) -> Callable[[str, torch.dtype, torch.dtype], Scanner]:
    def make(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
        wide = "double" if value.is_floating_point else "int64_t"
        step = f"{n}{{l}} {sign}= {{v}};"
        return Scanner(((wide, n, start),), step, (f"({C_TYPES[compute_dtype(result)]}){n}{{l}}",))

    return make


def _extreme(name: str) -> Callable[[str, torch.dtype, torch.dtype], Scanner]:
    def make(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
        kind = C_TYPES[value]
        if value.is_floating_point:
            start = f"{'-' if name == 'max' else ''}std::numeric_limits<{kind}>::infinity()"
        else:
            start = f"std::numeric_limits<{kind}>::{'lowest' if name == 'max' else 'max'}()"
        return Scanner(
            ((kind, n, start),), f"{n}{{l}} = tc_{name}({n}{{l}}, {{v}});", (f"{n}{{l}}",)
        )

    return make


def _extreme_at(sign: str) -> Callable[[str, torch.dtype, torch.dtype], Scanner]:
    """Of equal elements the last one counts; NaN is only replaced by NaN."""

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
        better = (
            f"{n}_at{{l}} < 0 || {{v}} != {{v}} || ({n}{{l}} == {n}{{l}} && {{v}} {sign} {n}{{l}})"
            if value.is_floating_point
            else f"{n}_at{{l}} < 0 || {{v}} {sign} {n}{{l}}"
        )
        step = f"if ({better}) {{{{ {n}{{l}} = {{v}}; {n}_at{{l}} = {{at}}; }}}}"
        state = ((C_TYPES[value], n, "0"), ("int64_t", f"{n}_at", "-1"))
        return Scanner(state, step, (f"{n}{{l}}", f"{n}_at{{l}}"))

    return make


def _logsumexp(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
    start = "-std::numeric_limits<double>::infinity()"
    step = f"{n}{{l}} = ts_log_add_exp({n}{{l}}, (double){{v}});"
    return Scanner((("double", n, start),), step, (f"({C_TYPES[compute_dtype(result)]}){n}{{l}}",))


SCANNERS: dict[str, Callable[[str, torch.dtype, torch.dtype], Scanner]] = {
    "sum": _accumulating("+", "0"),
    "prod": _accumulating("*", "1"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "max_at": _extreme_at(">="),
    "min_at": _extreme_at("<="),
    "logsumexp": _logsumexp,
}

#: Scans that use a function of prelude_special.h.
SPECIAL_SCANS = frozenset({"logsumexp"})

#: Scatter -> text of the new content from (old content, value).
COMBINERS: dict[str, Callable[[str, str], str]] = {
    "set": lambda old, value: value,
    "add": lambda old, value: f"{old} + {value}",
    "mul": lambda old, value: f"{old} * {value}",
    "max": lambda old, value: f"tc_max({old}, {value})",
    "min": lambda old, value: f"tc_min({old}, {value})",
}

#: The same for bool, where addition is "or" and multiplication "and".
LOGICAL = {"add": "|", "max": "|", "mul": "&", "min": "&"}


def combined(kind: str, place: str, value: str, dtype: torch.dtype) -> str:
    """Returns the statement that combines a value (in its compute dtype) into the memory `place` of
    a dtype."""
    if kind == "set":
        return (
            f"{place} = {TO_MEMORY[dtype]}({value});"
            if dtype in TO_MEMORY
            else f"{place} = {value};"
        )
    if dtype == torch.bool:
        return f"{place} = (bool)({place} {LOGICAL[kind]} {value});"
    if dtype in TO_MEMORY:
        return f"{place} = {TO_MEMORY[dtype]}({COMBINERS[kind](f'tc_to_float({place})', value)});"
    return f"{place} = ({C_TYPES[dtype]})({COMBINERS[kind](place, value)});"
