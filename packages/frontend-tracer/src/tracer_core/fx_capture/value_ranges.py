"""Value ranges: decides comparisons of tensors that hold for all their possible values.

`torch.rand` gives numbers in [0, 1), so ``torch.rand([]) < 0.0`` is false (layer drop with
probability zero). A tensor that was mutated later has no known range.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

#: Comparison of x with a bound -> function(bound): its result for all x in [0, 1), None if open.
_DECIDED: dict[Any, Callable[[float], bool | None]] = {
    "lt": lambda n: True if n >= 1 else False if n <= 0 else None,
    "le": lambda n: True if n >= 1 else False if n < 0 else None,
    "gt": lambda n: False if n >= 1 else True if n < 0 else None,
    "ge": lambda n: False if n >= 1 else True if n <= 0 else None,
}
_COMPARISONS = {
    function: name
    for name in _DECIDED
    for function in (getattr(operator, name), getattr(torch, name), getattr(torch.Tensor, name),
                     getattr(torch.Tensor, f"__{name}__"))
}  # fmt: skip


class Ranges:
    """Value ranges known in one trace. Mutable."""

    def __init__(self) -> None:
        #: id -> (tensor, its version, its bool); None: its elements are in [0, 1).
        self._known: dict[int, tuple[Any, int, bool | None]] = {}

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Records the range of a result; called after each recorded operator that returns a tensor."""
        if func is torch.rand:
            if "out" not in kwargs and result.is_floating_point():
                self._add(result, None)
            return
        try:
            name = _COMPARISONS.get(func)
        except TypeError:
            return
        number: Any = args[1] if len(args) == 2 and not kwargs else None
        if name is None or type(number) not in (int, float) or math.isnan(number):
            return
        as_bool = _DECIDED[name](number) if self._range_of(args[0]) else None
        if as_bool is not None:
            self._add(result, as_bool)

    def as_bool(self, tensor: Any) -> bool | None:
        """Returns the bool of a one-element tensor, or None if it is unknown."""
        result = self._known.get(id(tensor))
        if result is None or tensor.numel() != 1 or tensor._version != result[1]:
            return None
        return result[2]

    def _add(self, tensor: Any, as_bool: bool | None) -> None:
        if not tensor.is_inference():
            self._known[id(tensor)] = (tensor, tensor._version, as_bool)

    def _range_of(self, tensor: Any) -> bool:
        result = self._known.get(id(tensor))
        return result is not None and result[2] is None and tensor._version == result[1]
