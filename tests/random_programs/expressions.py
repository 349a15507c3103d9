"""Random expressions: templates filled in, with the variables that are in scope.

In: a random source and a scope. Out: text of an expression of a wanted type. What always holds: the
same seed gives the same text on every Python version, so that a mismatch found on one machine is
reproduced on another.
"""

from __future__ import annotations

import random
import re

from tests.random_programs.grammar import EXPRESSIONS, LITERALS, STATEMENTS, Weighted

_SLOT = re.compile(r"\{([A-Z]+)\}")
_ATOM = re.compile(r"[\w.]+(\([^()]*\))?|'[^']*'|\[[^\[\]]*\]|\([^()]*\)")
_VARIABLE = re.compile(r"\{v:([A-Z]+)\}")
#: Types of which a program has variables, and how often a new variable gets each.
VARIABLE_TYPES: dict[str, float] = {
    "T": 8, "I": 5, "F": 1.5, "S": 1.5, "B": 1, "L": 3, "LT": 1.5, "D": 2, "DT": 1, "U": 1,
    "ST": 1, "Q": 0.7, "O": 1.5,
    "P": 0.7, "V": 0.8, "C": 0.4, "G": 0.8, "FN": 0.8, "FT": 0.8, "N": 0.5,
}  # fmt: skip
#: What stands in an f-string when no variable does: no quotes.
_IN_TEXT = {"AI": "7", "AF": "2.5", "AS": "G_STR", "AT": "G_TENSOR"}
_ANY = tuple(t for t in VARIABLE_TYPES if t not in ("G",))


class Scope:
    """Variables that are certainly bound, by name. Mutable. outer: the enclosing function's scope;
    its names can be read, and assigned after ``nonlocal`` (`borrowed`). kind: "function" or
    "generator"."""

    def __init__(self, outer: Scope | None = None, kind: str = "function") -> None:
        self.own: dict[str, str] = {}
        self.outer, self.kind = outer, kind
        self.borrowed: set[str] = set()

    def all(self) -> dict[str, str]:
        has_all = {} if self.outer is None else self.outer.all()
        return {**has_all, **self.own}

    def assignable(self) -> dict[str, str]:
        inherited = {} if self.outer is None else self.outer.all()
        return {**{n: inherited[n] for n in sorted(self.borrowed) if n in inherited}, **self.own}


class Expressions:
    """Mutable: draws from `rng`, reads `scope`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scope = Scope()
        self.counter = 0

    def pick(self, rows: tuple[Weighted, ...]) -> str:
        total = sum(weight for weight, _ in rows)
        at = self.rng.random() * total
        for weight, text in rows:
            at -= weight
            if at < 0:
                return text
        return rows[-1][1]

    def variable(self, kind: str, assignable: bool = False) -> str | None:
        """A variable of the type, newer ones preferred."""
        names = self.scope.assignable() if assignable else self.scope.all()
        actual = [name for name, t in names.items() if t == kind]
        if not actual:
            return None
        return actual[max(self.rng.randrange(len(actual)), self.rng.randrange(len(actual)))]

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem.lower()}{self.counter}"

    def expression(self, kind: str, depth: int = 2) -> str:
        if kind == "X":
            kind = self.rng.choice(_ANY)
        if kind in ("AI", "AF", "AS", "AT"):
            return self.variable(kind[1:]) or _IN_TEXT[kind]
        known = self.variable(kind)
        if known is not None and self.rng.random() < (0.45 if depth > 0 else 0.8):
            return known
        if depth <= 0 or not EXPRESSIONS[kind] or self.rng.random() < 0.12:
            return self.rng.choice(LITERALS[kind])
        return self.fill(self.pick(EXPRESSIONS[kind]), depth - 1)

    def fill(self, template: str, depth: int = 2) -> str:
        """A template with its slots filled; an operand that is no atom is put in parentheses."""

        def slot(match: re.Match[str]) -> str:
            text = self.expression(match.group(1), depth)
            before, after = template[: match.start()][-1:], template[match.end() :][:1]
            if match.group(1).startswith("A") or (before == "(" and after == ")"):
                return text
            if _ATOM.fullmatch(text) and not (
                after == "." and text[-1].isdigit() and not text[0].isalpha()
            ):
                return text
            return f"({text})"

        return _SLOT.sub(slot, template)

    def simple_statement(self) -> str | None:
        """A row of STATEMENTS whose variables exist; None when a few tries found none."""
        for _ in range(8):
            template = self.pick(STATEMENTS)
            names: dict[str, str] = {}
            for kind in _VARIABLE.findall(template):
                name = self.variable(kind, assignable=True)
                if name is None:
                    break
                names[kind] = name
            else:
                text = _VARIABLE.sub(lambda m: names[m.group(1)], template)
                return self.fill(text)
        return None
