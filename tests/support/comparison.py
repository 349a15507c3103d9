"""What tests compare results with: eager mode's own, or float64 where rounding decides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tracer_core.testing import compare
from tracer_core.testing.compare import Tolerance, tensors_in


def assert_same(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = True,
) -> None:
    """Types, shapes, dtypes, strides, devices, `requires_grad` and values are equal, NaN to NaN.

    Values differ at most by torch.testing's tolerance for the dtype, or by rtol and atol. Without
    strides, those may differ.
    """
    if (rtol is None) != (atol is None):
        raise TypeError("rtol and atol go together")
    compare(expected, actual, Tolerance(rtol, atol, strides))


def assert_equal(actual: Any, expected: Any) -> None:
    """`assert_same`, and the values do not differ at all."""
    assert_same(actual, expected, rtol=0.0, atol=0.0)


def assert_same_calls(
    compiled: Callable[..., Any],
    program: Callable[..., Any],
    *inputs: Any,
    calls: int = 2,
    rtol: float | None = None,
    atol: float | None = None,
) -> bool:
    """Each call gives the program's results or raises its error, and leaves equal arguments.

    Both sides get copies of the tensors in the inputs. Returns whether the program raises.
    """
    raises = False
    for _ in range(calls):
        mine, theirs = _copied(inputs), _copied(inputs)
        expected, actual = _outcome(program, theirs), _outcome(compiled, mine)
        assert_same(actual, expected, rtol=rtol, atol=atol)
        assert_same(mine, theirs, rtol=rtol, atol=atol)
        raises = isinstance(expected, tuple) and isinstance(expected[0], type)
    return raises


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_neg() or value.is_conj():
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tuple(pytree.tree_map(copy, inputs))


def _outcome(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """The results of a call, or the type and the text of its error."""
    try:
        return function(*inputs)
    except Exception as error:
        # pytest writes addresses into what its assert statements say
        return type(error), "" if isinstance(error, AssertionError) else str(error)


def assert_same_sums(actual: Any, expected: Any, *, rtol: float = 2e-4, atol: float = 2e-5) -> None:
    """`assert_same` for sums over many steps: each tensor is exact to the place of its largest
    element, of which atol is the part.
    """
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        largest = 1.0
        if theirs is not None and theirs.numel():
            largest = max(1.0, float(theirs.detach().abs().max()))
        assert_same(ours, theirs, rtol=rtol, atol=atol * largest)


def assert_as_accurate(actual: Any, eager: Any, exact: Any, *, floor: float = 1e-6) -> None:
    """Eager's shapes, strides and dtypes, and at most three times its error against float64.

    Args:
        actual: The results that are checked.
        eager: Those of eager mode.
        exact: Those of eager mode in float64.
        floor: An error that is always allowed, relative to the largest value.
    """
    sides = (list(tensors_in(value)) for value in (actual, eager, exact))
    for ours, theirs, in_float64 in zip(*sides, strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (
            theirs.shape,
            theirs.stride(),
            theirs.dtype,
        )
        assert torch.equal(ours.isnan(), theirs.isnan())
        error, of_eager = (
            (value.nan_to_num() - in_float64.nan_to_num()).abs().max().item()
            for value in (ours, theirs)
        )
        allowed = floor * in_float64.nan_to_num().abs().max().item()
        assert error <= max(3 * of_eager, allowed), (error, of_eager, allowed)


def assert_as_accurate_as_eager(
    actual: Any, model: torch.nn.Module, *inputs: Any, floor: float = 1e-6
) -> None:
    """`assert_as_accurate` for the results of a compiled module."""

    def double(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else value

    exact = copy.deepcopy(model).double()(*pytree.tree_map(double, inputs))
    assert_as_accurate(actual, model(*inputs), exact, floor=floor)


def assert_same_training(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """The modules have equal gradients and buffers."""
    for module in (ours, theirs):
        assert any(parameter.grad is not None for parameter in module.parameters())
    assert_same(
        {name: parameter.grad for name, parameter in ours.named_parameters()},
        {name: parameter.grad for name, parameter in theirs.named_parameters()},
    )
    assert_same(dict(ours.named_buffers()), dict(theirs.named_buffers()))
