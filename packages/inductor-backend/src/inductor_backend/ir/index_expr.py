"""Integer index expressions over loop variables and sizes.

Sizes are plain ints (static) or sympy expressions (symbolic). An `Index` is an immutable linear
combination of atoms: loop variables, floor divisions, remainders and indirect values (loaded from
memory). An atom is never negative; two affine `Index` of the same value over the same variables
compare equal; division and remainder are simplified whenever the ranges of the variables prove it.
The classes are not sympy's because a model makes tens of thousands of them: sympy is imported (30
MiB, 0.4 seconds) only where a size is symbolic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import sympy

#: A size, stride or offset: an int where it is static, else a sympy expression over positive
#: integers.
Expr = Union[int, "sympy.Expr"]

#: Memoized answers of each question about expressions. They depend on the expressions alone:
#: what is assumed of a symbol is part of it.
CACHED_ANSWERS = 4096


def simplify(expr: Expr) -> Expr:
    """Simplifies an expression, to an int where sympy proves that it is one."""
    if isinstance(expr, int):
        return expr
    return int(expr) if expr.is_Integer else expr


def product(sizes: Iterable[Expr]) -> Expr:
    """Returns the product of sizes; 1 for none."""
    result: Expr = 1
    for size in sizes:
        result = result * size
    return simplify(result)


def exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """Returns a / b where it is provably an integer, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b != 0 and a % b == 0 else None
    if isinstance(b, int) and b == 1:
        return a
    return _symbolic_quotient(a, b)


@functools.lru_cache(CACHED_ANSWERS)
def _symbolic_quotient(a: Expr, b: Expr) -> Expr | None:
    import sympy

    quotient = sympy.cancel(sympy.sympify(a) / b)
    return simplify(quotient) if quotient.is_integer and quotient.is_polynomial() else None


def known_le(a: Expr, b: Expr) -> bool:
    """Tells whether a <= b is provable from the assumptions on the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return _symbolic_le(a, b)


@functools.lru_cache(CACHED_ANSWERS)
def _symbolic_le(a: Expr, b: Expr) -> bool:
    import sympy

    return bool(sympy.expand(b - a).is_nonnegative)


@dataclass(frozen=True, slots=True)
class Var:
    """Loop variable number `position` of a domain; it runs over ``range(size)``."""

    position: int
    size: Expr


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """``base // divisor`` that could not be simplified."""

    base: Index
    divisor: Expr


@dataclass(frozen=True, slots=True)
class Mod:
    """``base % divisor`` that could not be simplified."""

    base: Index
    divisor: Expr


@dataclass(frozen=True, slots=True)
class Indirect:
    """An int64 `values.Value` computed by the loop body, known to lie in ``range(size)``."""

    value: Any
    size: Expr


Atom = Union[Var, FloorDiv, Mod, Indirect]


class Index:
    """``const + sum(coefficient * atom)``; immutable, hashable, compared by value."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, const: Expr = 0, terms: Mapping[Atom, Expr] | None = None) -> None:
        self.const = const
        self.terms: Mapping[Atom, Expr] = terms if terms is not None else {}
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Index) and self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.const, frozenset(self.terms.items())))
        return self._hash

    def __add__(self, other: Index | Expr) -> Index:
        if not isinstance(other, Index):
            return Index(simplify(self.const + other), self.terms)
        if not other.terms:
            return Index(simplify(self.const + other.const), self.terms)
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = simplify(terms.get(atom, 0) + coefficient)
            if total == 0:
                del terms[atom]
            else:
                terms[atom] = total
        return Index(simplify(self.const + other.const), terms)

    def __sub__(self, other: Index | Expr) -> Index:
        return self + (other * -1)

    def __mul__(self, factor: Expr) -> Index:
        if isinstance(factor, int) and factor == 1:
            return self
        if isinstance(factor, int) and factor == 0:
            return Index()
        return Index(
            simplify(self.const * factor), {a: simplify(c * factor) for a, c in self.terms.items()}
        )

    def __repr__(self) -> str:
        return render(self)

    @property
    def constant(self) -> Expr | None:
        """Returns the value of an index without atoms, else None."""
        return self.const if not self.terms else None

    @property
    def loop(self) -> int | None:
        """Returns the position of the loop variable that the index is, up to a shift, else None."""
        if len(self.terms) != 1:
            return None
        ((atom, coefficient),) = self.terms.items()
        return atom.position if isinstance(atom, Var) and coefficient == 1 else None

    def coefficient(self, position: int) -> Expr:
        """Returns the coefficient of the loop variable at that position (outside divisions and
        remainders).
        """
        for atom, coefficient in self.terms.items():
            if isinstance(atom, Var) and atom.position == position:
                return coefficient
        return 0

    def step(self, position: int) -> Expr:
        """Returns how far the second iteration of a loop is from its first one, the other loops at
        theirs: the coefficient of its variable, and what divisions and remainders of it add.
        """
        result: Expr = 0
        for atom, coefficient in self.terms.items():
            if isinstance(atom, Var):
                result = result + coefficient if atom.position == position else result
            elif isinstance(atom, (FloorDiv, Mod)):
                first = atom.base.origin()
                ends = (first, first + atom.base.step(position), atom.divisor)
                if all(isinstance(number, int) for number in ends):
                    first, second, divisor = ends
                    divided = isinstance(atom, FloorDiv)
                    a, b = (n // divisor if divided else n % divisor for n in (first, second))
                    result = result + (b - a) * coefficient
        return simplify(result)

    def origin(self) -> Expr:
        """Returns the index where all loops are at their first iteration, indirect values at 0."""
        result = self.const
        for atom, coefficient in self.terms.items():
            if isinstance(atom, (FloorDiv, Mod)):
                first = atom.base.origin()
                if isinstance(first, int) and isinstance(atom.divisor, int):
                    divided = isinstance(atom, FloorDiv)
                    value = first // atom.divisor if divided else first % atom.divisor
                    result = result + value * coefficient
        return simplify(result)

    @property
    def affine(self) -> bool:
        """Tells whether the atoms are loop variables only."""
        return all(isinstance(atom, Var) for atom in self.terms)

    def variables(self) -> frozenset[int]:
        """Returns the positions of all loop variables, those inside divisions and indirect values
        included.
        """
        numbers: set[int] = set()
        for atom in self.terms:
            if isinstance(atom, Var):
                numbers.add(atom.position)
            elif isinstance(atom, Indirect):
                numbers |= atom.value.variables
            else:
                numbers |= atom.base.variables()
        return frozenset(numbers)

    def indirect_values(self) -> Iterator[Any]:
        """Yields the body values that the index reads."""
        for atom in self.terms:
            if isinstance(atom, Indirect):
                yield atom.value
            elif not isinstance(atom, Var):
                yield from atom.base.indirect_values()


#: One index for each dimension.
At = Sequence[Index]


def variable(position: int, size: Expr) -> Index:
    """Returns the loop variable as an Index; 0 where its only value is 0."""
    return Index() if isinstance(size, int) and size == 1 else Index(0, {Var(position, size): 1})


def variables(sizes: Sequence[Expr]) -> tuple[Index, ...]:
    """Returns one loop variable for each size, numbered from 0."""
    return tuple(variable(position, size) for position, size in enumerate(sizes))


def constant(value: Expr) -> Index:
    return Index(value)


def largest_atom(atom: Atom) -> Expr | None:
    """Returns the largest value of an atom (the least is 0), or None where it is unbounded."""
    if isinstance(atom, (Var, Indirect)):
        return atom.size - 1
    if isinstance(atom, Mod):
        return atom.divisor - 1
    bounds = range_of(atom.base)
    if bounds is None or not isinstance(bounds[1], int) or not isinstance(atom.divisor, int):
        return None
    return bounds[1] // atom.divisor


def range_of(index: Index) -> tuple[Expr, Expr] | None:
    """Returns inclusive bounds from the ranges of the atoms, or None where an atom is unbounded."""
    low: Expr = index.const
    high: Expr = index.const
    for atom, coefficient in index.terms.items():
        largest = largest_atom(atom)
        if largest is None:
            return None
        if known_le(0, coefficient):
            high = high + coefficient * largest
        elif known_le(coefficient, 0):
            low = low + coefficient * largest
        else:
            return None
    return simplify(low), simplify(high)


def within(index: Index, size: Expr) -> bool:
    """Tells whether ``0 <= index < size`` is provable."""
    bounds = range_of(index)
    return bounds is not None and known_le(0, bounds[0]) and known_le(bounds[1], size - 1)


def _split(index: Index, divisor: Expr) -> tuple[Index, Index]:
    """Returns (q, r) with index == q * divisor + r, where r holds the atoms whose coefficients are
    no multiples of the divisor.
    """
    quotient: dict[Atom, Expr] = {}
    rest: dict[Atom, Expr] = {}
    for atom, coefficient in index.terms.items():
        q = exact_quotient(coefficient, divisor)
        if q is None:
            rest[atom] = coefficient
        else:
            quotient[atom] = q
    if isinstance(index.const, int) and isinstance(divisor, int):
        q_const, r_const = divmod(index.const, divisor)
        bounds = range_of(Index(r_const, rest))
        if bounds is not None and isinstance(bounds[0], int) and bounds[0] < 0:
            # C++ division truncates, so the dividend must not be negative (a flipped dimension).
            moved = -(bounds[0] // divisor)
            q_const, r_const = q_const - moved, r_const + moved * divisor
        return Index(q_const, quotient), Index(r_const, rest)
    q = exact_quotient(index.const, divisor)
    return (
        (Index(q, quotient), Index(0, rest))
        if q is not None
        else (Index(0, quotient), Index(index.const, rest))
    )


def _inner_factor(rest: Index, divisor: Expr) -> tuple[Expr, Index, Index] | None:
    """Returns (c, k, r) with rest == c * k + r, c > 1, c | divisor and 0 <= r < c, or None."""
    for candidate in set(rest.terms.values()):
        if (isinstance(candidate, int) and candidate <= 1) or exact_quotient(
            divisor, candidate
        ) is None:
            continue
        k, r = _split(rest, candidate)
        if k.terms and within(r, candidate):
            return candidate, k, r
    return None


def floordiv(index: Index, divisor: Expr) -> Index:
    """Returns ``index // divisor`` for a positive divisor and a nonnegative index."""
    if isinstance(divisor, int) and divisor == 1:
        return index
    quotient, rest = _split(index, divisor)
    if within(rest, divisor):
        return quotient
    factor = _inner_factor(rest, divisor)
    if factor is not None:
        smaller = exact_quotient(divisor, factor[0])
        assert smaller is not None
        return quotient + floordiv(factor[1], smaller)
    if len(rest.terms) == 1 and rest.const == 0:
        ((atom, coefficient),) = rest.terms.items()
        if isinstance(atom, FloorDiv) and coefficient == 1:
            return quotient + Index(0, {FloorDiv(atom.base, simplify(atom.divisor * divisor)): 1})
    return quotient + Index(0, {FloorDiv(rest, divisor): 1})


def mod(index: Index, divisor: Expr) -> Index:
    """Returns ``index % divisor`` for a positive divisor and a nonnegative index."""
    if isinstance(divisor, int) and divisor == 1:
        return Index()
    _, rest = _split(index, divisor)
    if within(rest, divisor):
        return rest
    factor = _inner_factor(rest, divisor)
    if factor is not None:
        smaller = exact_quotient(divisor, factor[0])
        assert smaller is not None
        return mod(factor[1], smaller) * factor[0] + factor[2]
    return Index(0, {Mod(rest, divisor): 1})


def substitute(index: Index, by: Sequence[Index] | None, value_map: Any = None) -> Index:
    """Replaces each loop variable p by ``by[p]`` (None: kept); value_map maps body values."""
    if not index.terms:
        return index
    result = Index(index.const)
    for atom, coefficient in index.terms.items():
        if isinstance(atom, Var):
            image = by[atom.position] if by is not None else Index(0, {atom: 1})
        elif isinstance(atom, FloorDiv):
            image = floordiv(substitute(atom.base, by, value_map), atom.divisor)
        elif isinstance(atom, Mod):
            image = mod(substitute(atom.base, by, value_map), atom.divisor)
        else:
            image = Index(0, {Indirect(value_map(atom.value), atom.size): 1})
        result = result + image * coefficient
    return result


def flatten(indices: Sequence[Index], strides: Sequence[Expr], offset: Expr = 0) -> Index:
    """Returns ``offset + sum(index * stride)``."""
    result = Index(offset)
    for index, stride in zip(indices, strides, strict=True):
        if not (isinstance(stride, int) and stride == 0) and (index.terms or index.const != 0):
            result = result + index * stride
    return result


def recombine(index: Index) -> Index:
    """Rewrites ``n * (b // n) + b % n`` to ``b``, which undoes a reshape followed by its own
    strides.
    """
    for atom, coefficient in index.terms.items():
        if not isinstance(atom, Mod):
            continue
        base, partner = atom.base, FloorDiv(atom.base, atom.divisor)
        if len(base.terms) == 1 and base.const == 0:
            ((inner, scale),) = base.terms.items()
            if isinstance(inner, FloorDiv) and scale == 1:
                partner = FloorDiv(inner.base, simplify(inner.divisor * atom.divisor))
        if index.terms.get(partner) == simplify(coefficient * atom.divisor):
            rest = {a: c for a, c in index.terms.items() if a is not atom and a != partner}
            return recombine(Index(index.const, rest) + base * coefficient)
    return index


def contiguous_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Returns row-major strides, as torch does (a dimension of size 0 counts as 1)."""
    strides: list[Expr] = []
    running: Expr = 1
    for size in reversed(sizes):
        strides.append(running)
        running = simplify(running * (1 if isinstance(size, int) and size == 0 else size))
    return tuple(reversed(strides))


def reshape_groups(
    old: Sequence[Expr], new: Sequence[Expr]
) -> list[tuple[list[int], list[int]]] | None:
    """Pairs the runs of old and new dimensions whose products are equal; None where they
    interleave.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(left), j + len(right)
        a, b = product(old[k] for k in left), product(new[k] for k in right)
        while a != b:
            smaller_left = known_le(a, b) if exact_quotient(b, a) is None else True
            if smaller_left and i < len(old):
                left.append(i)
                a, i = simplify(a * old[i]), i + 1
            elif j < len(new):
                right.append(j)
                b, j = simplify(b * new[j]), j + 1
            elif i < len(old):
                left.append(i)
                a, i = simplify(a * old[i]), i + 1
            else:
                return None
        groups.append((left, right))
    return groups


def reshape(
    old: Sequence[Expr], new: Sequence[Expr], position: Sequence[Index]
) -> tuple[Index, ...]:
    """Returns the index into `old` of the element at `position` in `new` (row-major order kept).

    Raises ValueError where the two shapes cannot hold the same number of elements.
    """
    if any(isinstance(size, int) and size == 0 for size in (*old, *new)):
        return (Index(),) * len(old)  # no element exists, so no index is ever evaluated
    groups = reshape_groups(old, new)
    if groups is None:
        if all(isinstance(size, int) for size in (*old, *new)):
            raise ValueError(f"cannot reshape {tuple(old)} to {tuple(new)}")
        # Guards ensure that the two element counts are equal (a size is a multiple of six, say);
        # the expressions need not prove it.
        groups = [(list(range(len(old))), list(range(len(new))))]
    result: list[Index] = [Index()] * len(old)
    for left, right in groups:
        flat = flatten([position[k] for k in right], contiguous_strides([new[k] for k in right]))
        strides = contiguous_strides([old[k] for k in left])
        for place, (k, stride) in enumerate(zip(left, strides, strict=True)):
            quotient = floordiv(flat, stride)
            # The first dimension needs no remainder: the flat index is below the element count.
            result[k] = quotient if place == 0 else mod(quotient, old[k])
    return tuple(result)


def render(index: Index, names: str = "i") -> str:
    """Prints an index, as in ``64*i0 + i1 + (i2 // 7)``."""
    parts: list[str] = []
    for atom, coefficient in index.terms.items():
        if isinstance(atom, Var):
            text = f"{names}{atom.position}"
        elif isinstance(atom, Indirect):
            text = f"[{atom.value!r}]"
        else:
            sign = "//" if isinstance(atom, FloorDiv) else "%"
            text = f"({render(atom.base, names)} {sign} {atom.divisor})"
        parts.append(text if coefficient == 1 else f"{coefficient}*{text}")
    if index.const != 0 or not parts:
        parts.append(str(index.const))
    return " + ".join(parts)
