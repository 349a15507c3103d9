"""Names of the native effects table's rows, and counts of those that traces look up."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tracer_core.native_functions  # noqa: F401  (fills the native effects table)
from tracer_core.native_effects import effects


class _Counted(dict[Any, effects.Effect]):
    """The native effects table with a count of the rows that are looked up, by name. Mutable."""

    def __init__(self, rows: dict[Any, effects.Effect]) -> None:
        super().__init__(rows)
        self.counter: collections.Counter[str] = collections.Counter()

    def get(self, function: Any, default: Any = None) -> Any:
        row = super().get(function, default)
        if row is not None:
            self.counter[row_name(function)] += 1
        return row


@contextmanager
def counting() -> Iterator[collections.Counter[str]]:
    """Counts row look-ups of traces inside the context: name as in `names` -> count."""
    effects.add_rows_of_imported()  # else these would go with the table of this context
    rows = _Counted(effects.EFFECTS)
    with mock.patch.object(effects, "EFFECTS", rows):
        yield rows.counter


def row_name(function: Any) -> str:
    """Returns the name of a callable with a row: ``math.sqrt``, ``builtins.list.append``,
    ``collections.deque``."""
    raw = function.__func__ if isinstance(function, staticmethod) else function
    qualified = getattr(raw, "__qualname__", None) or getattr(raw, "__name__", None) or repr(raw)
    if "pybind11" in qualified:  # the same for all classes; the signature names them
        qualified = (raw.__doc__ or "").partition(" ->")[0]
    module = getattr(raw, "__module__", None)
    if module is None:
        owner = getattr(raw, "__objclass__", None) or getattr(raw, "__self__", None)
        module = getattr(owner, "__module__", None) or "builtins"
    return f"{module}.{qualified}"


def names() -> list[str]:
    """Returns the name of every row. torch._dynamo, once imported, wraps torch.manual_seed: the
    function and its wrapper, which have a row each, count as one."""
    return [row_name(function) for function in {*map(inspect.unwrap, effects.EFFECTS)}]
