"""Registers programs whose size goes through a limit, by the limit's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.fx_capture.test_profiled_branches import noting
from tests.limits.case import Case

X = torch.linspace(0.5, 1.5, 4)


def six(*args: Any) -> Callable[[int], list[tuple[Any, ...]]]:
    """Six calls with the same arguments."""
    return lambda size: [args] * 6


#: A backend that is said to fuse: branches and numbers that depend on data are speculated on.
FUSES = {"backend": noting()}

#: Calls that are nested too deep leave the region open, since the next ones may be less deep: after n
#: traces that gave nothing the next 2**n - 2 calls are not traced, so calls 249 to 502 are not.
RARELY: dict[str, Any] = {"calls": lambda size: [(X,)] * 400, "settles": 250}

CASES: dict[str, Case] = {}


def case(name: str, **facts: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Registers the decorated function, which builds a program of a size."""

    def register(make: Callable[[int], Any]) -> Callable[[int], Any]:
        assert name not in CASES
        CASES[name] = Case(make, **({"calls": six(X)} | facts))
        return make

    return register
