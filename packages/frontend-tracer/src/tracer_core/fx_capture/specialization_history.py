"""What the cache entries of a code region were specialized on, and what the next capture goes by."""

from __future__ import annotations

import types
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one question about a tensor's value was answered with. code, at: the instruction."""

    code: types.CodeType
    at: int
    answer: bool


@dataclass(slots=True)
class Speculation:
    """Whether a trace may go on, at a branch on a tensor, the way that the call being captured goes.
    Mutable. n_answers: of branches that it did so at. met_long_loop: it stopped at a ``while`` loop
    with a large body, which ends when data say so."""

    wanted: bool = False
    n_answers: int = 0
    met_long_loop: bool = False


@dataclass(slots=True)
class SpecializationHistory:
    """What the cache entries of one code region were specialized on. Mutable. shapes, numbers:
    source expression -> the values of each entry. refused: symbols that the backend or later calls
    turned out not to support. outcomes: what the next trace expects of the branches that follow
    data, in order. speculates: whether it may expect what the call being captured answers."""

    shapes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    numbers: dict[str, list[int | float]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    outcomes: tuple[Outcome, ...] = ()
    speculates: bool = True

    def __bool__(self) -> bool:
        return bool(self.shapes or self.numbers or self.refused)

    def add(self, shapes: dict[str, tuple[int, ...]], numbers: dict[str, int | float]) -> None:
        """Records the shapes and numbers of one more cache entry."""
        for expression, shape in shapes.items():
            self.shapes.setdefault(expression, []).append(shape)
        for expression, number in numbers.items():
            self.numbers.setdefault(expression, []).append(number)
