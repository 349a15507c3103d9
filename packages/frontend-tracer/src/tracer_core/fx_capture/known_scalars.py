"""Symbolic values of one-element tensors, such as the step counters that optimizers read as
numbers.

A value is a number, the value of an input before the graph runs, or arithmetic on such values. It
equals the operators' result bit for bit; any other write to the tensor discards it.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.torch_private.names import names


def single(value: float) -> float:
    """Rounds a number to float32."""
    return ctypes.c_float(value).value


@dataclass(frozen=True, slots=True)
class ScalarEntry:
    """The value of an input before the graph runs."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Applied:
    """function(*operands), rounded to the tensor's dtype."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    dtype: torch.dtype


#: Dtype -> rounding to it. Sums and products of such numbers are exact in float64, or equal to the
#: operator's result.
ROUNDING: dict[torch.dtype, Callable[[Any], Any] | None] = {
    torch.float32: single,
    torch.float64: None,
}

#: Devices whose tensors are read before the graph runs. Where that waits for the device, eager
#: mode waits at each `Tensor.item`.
_READ = frozenset({"cpu", "cuda"})


class Scalars:
    """The symbolic values of one trace. Mutable."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._known: dict[int, tuple[Any, int, Any]] = {}

    def value(self, fake: Any) -> Any:
        """Returns the expression of a tensor's value, or None."""
        known = self._known.get(id(fake))
        if known is not None:
            stale = known[1] != fake._version or self._fakes.may_be_written_apart(fake)
            return None if stale else known[2]
        real = self._fakes.real_of(fake)
        if real is None or real.device.type not in _READ or real.is_inference():
            return None
        if not _is_scalar(fake) or self._fakes.was_written(fake):
            return None
        if self._fakes.shares_memory(real):
            return None  # it may be mutated through an alias
        return ScalarEntry(real)

    def before(self, func: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns (tensor, new expression) for the tensors that an operator will change
        predictably."""
        rule = _CHANGES.get(func)
        return [] if rule is None else rule(self, args, kwargs)

    def after(
        self,
        changes: list[tuple[Any, Any]],
        unseen: list[Any],
        func: Any,
        args: Any,
        kwargs: Any,
        result: Any,
    ) -> None:
        """Updates the expressions after an operator. unseen: tensors mutated without a version
        bump."""
        for fake in unseen:
            self._known.pop(id(fake), None)
        rule = _MAKES.get(func)
        if rule is not None and isinstance(result, torch.Tensor) and _is_scalar(result):
            value = rule(self, args, kwargs, result)
            changes = [] if value is None else [(result, value)]
        for fake, value in changes:
            if not fake.is_inference():
                self._known[id(fake)] = fake, fake._version, value

    def _changed(self, fake: Any, function: Any, other: Any) -> list[tuple[Any, Any]]:
        if not isinstance(fake, torch.Tensor) or not _is_scalar(fake):
            return []
        before, operand = self.value(fake), self._number(other)
        if before is None or operand is None:
            return []
        return [(fake, Applied(function, (before, operand), fake.dtype))]

    def _number(self, value: Any) -> Any:
        """Returns a number, or the expression of a tensor's value."""
        if isinstance(value, torch.Tensor):
            return self.value(value)
        return value if type(value) in (int, float, torch.SymInt, torch.SymFloat) else None


def _is_scalar(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 0 and tensor.dtype in ROUNDING and tensor.layout is torch.strided


def _in_place(function: Any) -> Callable[[Scalars, Any, Any], Any]:
    def rule(scalars: Scalars, args: Any, kwargs: Any) -> Any:
        return [] if kwargs or len(args) != 2 else scalars._changed(args[0], function, args[1])

    return rule


def _of_lists(function: Any) -> Callable[[Scalars, Any, Any], Any]:
    """Handles torch._foreach_add_(tensors, scalar, tensor or list of scalars, alpha=1) and the
    like."""

    def rule(scalars: Scalars, args: Any, kwargs: Any) -> Any:
        if len(args) != 2 or not isinstance(args[0], (list, tuple)) or kwargs.get("alpha", 1) != 1:
            return []
        others = args[1] if isinstance(args[1], (list, tuple)) else [args[1]] * len(args[0])
        written = [torch_private.storage_id(item) for item in args[0]]
        read = {torch_private.storage_id(item) for item in others if isinstance(item, torch.Tensor)}
        if len(set(written)) != len(written) or not read.isdisjoint(written):
            return []  # a tensor is mutated twice, or read after its mutation
        pairs = zip(args[0], others, strict=False)
        return [
            change for item, other in pairs for change in scalars._changed(item, function, other)
        ]

    return rule


def second(before: Any, value: Any) -> Any:
    return value


def _given(scalars: Scalars, args: Any, kwargs: Any, result: Any) -> Any:
    value = scalars._number(args[0] if args else kwargs.get("data"))
    return None if value is None else Applied(second, (0.0, value), result.dtype)


def _made(function: Any) -> Callable[[Scalars, Any, Any, Any], Any]:
    def rule(scalars: Scalars, args: Any, kwargs: Any, result: Any) -> Any:
        operands = tuple(map(scalars._number, args))
        if kwargs or len(operands) != 2 or None in operands:
            return None
        return Applied(function, operands, result.dtype)

    return rule


def _negated(scalars: Scalars, args: Any, kwargs: Any, result: Any) -> Any:
    value = scalars._number(args[0])
    return None if value is None else Applied(operator.mul, (value, -1.0), result.dtype)


_CHANGES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((operator.iadd, *names("Tensor.add_")), _in_place(operator.add)),
    **dict.fromkeys((operator.imul, *names("Tensor.mul_")), _in_place(operator.mul)),
    **dict.fromkeys(names("Tensor.copy_"), _in_place(second)),
    **dict.fromkeys(names("_foreach_add_"), _of_lists(operator.add)),
    **dict.fromkeys(names("_foreach_mul_"), _of_lists(operator.mul)),
}
_MAKES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(names("tensor as_tensor Tensor.clone Tensor.detach"), _given),
    **dict.fromkeys(names("zeros"), lambda scalars, args, kwargs, result: 0.0),
    **dict.fromkeys(names("ones"), lambda scalars, args, kwargs, result: 1.0),
    operator.truediv: _made(operator.truediv), operator.mul: _made(operator.mul),
    operator.neg: _negated,
}  # fmt: skip
