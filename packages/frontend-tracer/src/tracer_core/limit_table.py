"""The type of a limit, and the table in which each package registers its limits.

In: ``MAX_REGIONS = LIMITS.add("MAX_REGIONS", 256, unit=..., beyond=..., seen=...)`` in a package's
``limits.py``. Out: the number in force, which is the default or what ``TRACER_LIMITS`` sets, and a row
for ``tracer-core limits``. ``TRACER_LIMITS="MAX_REGIONS=16,MAX_CACHE_ENTRIES=64"`` is read once, at
import, so that code binds plain numbers; `check_overrides` raises for what is wrong with it.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tracer_core.errors import OptionError

VARIABLE = "TRACER_LIMITS"

#: How a user sees a limit that code reports to `tracer_core.debug.crossed_limits`.
SHOWN = "`explain`, `last_compile`"

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit."""

    #: The name in ``TRACER_LIMITS``.
    name: str
    #: The value in force.
    value: int | float
    #: The value without ``TRACER_LIMITS``.
    default: int | float
    #: What the value counts.
    unit: str
    #: What happens beyond it.
    beyond: str
    #: How a user sees that it was reached.
    seen: str
    #: How a user changes it.
    changed: str
    #: Whether nobody can change it.
    is_fixed: bool = False


#: The limits of all tables, by name.
_rows: dict[str, Limit] = {}


def row(name: str) -> Limit:
    """Returns a limit of any imported package. Raises KeyError for an unknown name."""
    return _rows[name]


def shown(value: float) -> str:
    """Returns a limit's number as people read it."""
    if isinstance(value, float):
        return f"{value:g}"
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= 4 * size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,}"


class LimitTable(Mapping[str, Limit]):
    """The limits of one package, by name.

    Args:
        package: Its import name.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._rows: dict[str, Limit] = {}

    def add(
        self,
        name: str,
        value: Number,
        *,
        unit: str,
        beyond: str,
        seen: str = SHOWN,
        changed: str = VARIABLE,
        fixed: str = "",
    ) -> Number:
        """Registers a limit; returns its value in force.

        Args:
            name: The name of the constant that the result is assigned to.
            value: The default.
            unit: What the number counts, in the plural.
            beyond: What happens beyond it, as one sentence.
            seen: How a user sees that it was reached.
            changed: How a user changes it.
            fixed: Why nobody can change it, or "".

        Raises:
            ValueError: The package has another limit of that name.
        """
        if name in self._rows:
            raise ValueError(f"{self.package} has two limits {name}")
        changed = f"no way: {fixed}" if fixed else changed
        result = None if fixed else _number(_overrides.get(name, ""), value)
        used = value if result is None else result
        limit = Limit(name, used, value, unit, beyond, seen, changed, bool(fixed))
        self._rows[name] = _rows[name] = limit
        return used

    def __getitem__(self, name: str) -> Limit:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and values in a text such as ``a=1,b=2``."""
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, value = item.partition("=")
        yield name.strip().upper(), value.strip()


_overrides: Mapping[str, str] = dict(_parts(os.environ.get(VARIABLE, "")))


def overrides() -> str:
    """Returns the limits that this process changes, as a text for keys; "" where there are none."""
    return ",".join(f"{name}={value}" for name, value in sorted(_overrides.items()))


def _number(text: str, default: Number) -> Number | None:
    """Returns the number in a text, of the default's type; None where there is none that may be."""
    try:
        result = type(default)(text)
    except ValueError:
        return None
    least = 1 if isinstance(default, int) else 0
    return result if result >= least and math.isfinite(result) else None


def check_overrides(limits: Mapping[str, Limit]) -> None:
    """Raises OptionError for the first mistake in ``TRACER_LIMITS``.

    Args:
        limits: The limits of all installed packages, by name.
    """
    for name, text in _overrides.items():
        row = limits.get(name)
        if row is None:
            close = difflib.get_close_matches(name, limits, n=1, cutoff=0.0)
            raise OptionError(
                f"{VARIABLE}: there is no limit {name!r}; the nearest name is {close[0]}"
                " (`tracer-core limits` lists all)"
            )
        if row.is_fixed:
            raise OptionError(f"{VARIABLE}: {name} cannot be changed ({row.changed})")
        if _number(text, row.default) is None:
            kind = "an integer of at least 1" if isinstance(row.default, int) else "a number"
            raise OptionError(f"{VARIABLE}: {name}={text!r}: {kind} ({row.unit})")
