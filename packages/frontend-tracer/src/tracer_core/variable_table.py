"""The type of an environment variable, and the table of all variables.

In: ``FUEL = Variable("TRACER_FUEL", count, ...)`` in a package's ``environment.py`` (the core's are in
`options`). Out: ``FUEL.read()``, the value as it is now, and a row for ``tracer-core env``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tracer_core.errors import OptionError

PREFIX = "TRACER_"

#: The variables of all packages that were imported, by name.
VARIABLES: dict[str, Variable[Any]] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One environment variable, which stands in `VARIABLES` once it is made.

    Raises:
        ValueError: The name does not begin with ``TRACER_``, or belongs to another variable.
    """

    #: Its name, which begins with ``TRACER_``.
    name: str
    #: Returns the value that a text stands for: `flag`, `size`, `seconds`, `count`, ``str`` or
    #: another function that raises ValueError for a text that stands for none.
    parse: Callable[[str], T]
    #: What the text may be.
    takes: str
    #: What the variable does, as sentences.
    effect: str
    #: The text that is parsed where the variable is unset or empty.
    default: str = ""
    #: Whether its value is never shown.
    is_secret: bool = False

    def __post_init__(self) -> None:
        if not self.name.startswith(PREFIX) or self.name in VARIABLES:
            raise ValueError(f"{self.name} must begin with {PREFIX}, and be the only one")
        VARIABLES[self.name] = self

    @property
    def text(self) -> str:
        """The text in the environment; "" where the variable is unset."""
        return os.environ.get(self.name, "").strip()

    def read(self) -> T:
        """Returns the value as it is now.

        Raises:
            OptionError: The text stands for no value. The message names the variable, the text and
                what it may be.
        """
        text = self.text
        try:
            return self.parse(text or self.default)
        except ValueError as error:
            raise OptionError(f"{self.name}={text!r}: {self.takes}") from error


#: What `flag` takes, for messages and tables.
FLAG = "1 or 0"
FLAGS = {
    text: text in ("1", "true", "yes", "on")
    for text in ["1", "true", "yes", "on", "0", "false", "no", "off"]
}


def flag(text: str) -> bool:
    """Returns whether a text switches something on: 1, true, yes or on; 0, false, no or off.

    Args:
        text: In capitals or not.

    Raises:
        ValueError: It is another text.
    """
    if text.lower() not in FLAGS:
        raise ValueError(text)
    return FLAGS[text.lower()]


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(text: str) -> int:
    """Returns the bytes in a text such as ``500MB``.

    Args:
        text: A number, and B, KB, MB, GB, TB or nothing.

    Raises:
        ValueError: It is another text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B|)", text.upper())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2]])


def seconds(text: str) -> float:
    """Returns the seconds in a text.

    Args:
        text: A number above 0.

    Raises:
        ValueError: It is another text.
    """
    result = float(text)
    if not 0 < result < 1e6:
        raise ValueError(text)
    return result


def count(text: str) -> int | None:
    """Returns the integer in a text, or None for "".

    Args:
        text: An int as Python writes it, or "".

    Raises:
        ValueError: It is another text.
    """
    return int(text) if text else None
