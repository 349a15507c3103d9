"""Describes the loop over the elements of a row that a phase of a C++ kernel is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inductor_backend.codegen.cpp.scanners import Scanner
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import Phase

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PhaseLoop(Generic[R]):
    """What the loop over a row computes for each element. R: the reducers' type."""

    phase: Phase
    #: Operands first.
    values: list[Value]
    reducers: list[tuple[Store, R]]
    scanners: list[tuple[Store, Scanner]]
    #: What each column has one of: a value computed before the loop -> the array of it.
    held: dict[Value, str] = field(default_factory=dict)
    #: Where a few rows of what lies across the columns are, transposed: a load, or a stored buffer, -> the
    #: place of the current row in an array.
    transposed: dict[Value | str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Texts of where a loop over elements starts and stops, and of its length."""

    start: str
    stop: str
    length: str


def row_values(phase: Phase) -> list[Value]:
    """Returns the values that are computed before the loop, operands first."""
    return topological(value for store in phase.row for value in store.roots)


def loop_values(phase: Phase, known: Iterable[Value] = ()) -> list[Value]:
    """Returns the values of the loop over a row, operands first, but for known ones."""
    return topological((value for store in phase.loop for value in store.roots), known)
