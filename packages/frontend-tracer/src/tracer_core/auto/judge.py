"""Is a candidate's outcome eager's?

In: two `Outcome`s of one sample. Out: the relative error, or `Wrong` with what differs. What always holds: whole
numbers, booleans, infinities and NaNs must be the same; floats may differ by rounding, judged by the 2-norm of the
difference against that of eager's (for gradients also against the largest gradient: that of a bias before a
normalisation is rounding and nothing else). Where outcomes of eager on nudged inputs are given, a result that
they change as much is rounding itself, and nobody's fault: a whole training step has such gradients among its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.auto.sample import Outcome

#: The largest relative error that counts as rounding. Results of dtypes that are not here must be equal.
TOLERANCES = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-3,
    torch.complex64: 1e-3,
    torch.bfloat16: 3e-2,
    torch.float16: 3e-2,
}

#: Gradients go through ReLUs and norms whose sides rounding changes; eager itself is off by 3e-3 in resnet18.
GRADIENT_FACTOR = 20.0
#: Finite elements beyond this part of the largest number that a dtype has are judged apart from the others.
HUGE_PART = 1e-2
#: A gradient this much smaller than the largest one is judged against that.
NEGLIGIBLE = 1e-3


#: A result may be this many times as far from eager's as eager's own is where the inputs' last bits are others.
NUDGED_FACTOR = 10.0


class Wrong(Exception):
    """A candidate's outcome is not eager's. Its text says where."""


def error_of(expected: Outcome, actual: Outcome, tolerance: float | None, nudged: Sequence[Outcome] = ()) -> float:
    """The largest relative error of what is more than rounding. Raises Wrong."""
    if len(expected.outputs) != len(actual.outputs):
        raise Wrong(f"{len(actual.outputs)} results, expected {len(expected.outputs)}")
    worst = 0.0
    for name, wanted, found, others in (
        ("result", expected.outputs, actual.outputs, [one.outputs for one in nudged]),
        ("written input", expected.written, actual.written, [one.written for one in nudged]),
    ):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            near = [row[index] for row in others]
            worst = max(worst, _error(one, other, f"{name} {index}", tolerance, 1.0, 0.0, near))
    if expected.requires_grad != actual.requires_grad:
        raise Wrong(f"results require grad: {actual.requires_grad}, expected {expected.requires_grad}")
    if expected.shared != actual.shared:
        raise Wrong(f"results share memory with {actual.shared}, expected {expected.shared}")
    largest = max((_norm(one) for one in expected.grads if one is not None), default=0.0)
    for index, (gradient, found_gradient) in enumerate(zip(expected.grads, actual.grads, strict=True)):
        if gradient is None and found_gradient is not None and not found_gradient.any():
            continue  # None and zeros say the same
        near = [one.grads[index] for one in nudged]
        least = NEGLIGIBLE * largest
        worst = max(worst, _error(gradient, found_gradient, f"gradient {index}", tolerance, GRADIENT_FACTOR, least, near))
    return worst


def _error(
    expected: Any, actual: Any, name: str, tolerance: float | None, factor: float, least: float, nudged: Sequence[Any]
) -> float:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        if type(expected) is not type(actual) or expected != actual:
            raise Wrong(f"{name} is {_short(actual)}, expected {_short(expected)}")
        return 0.0
    _demand_same_form(expected, actual, name)
    if expected.dtype not in TOLERANCES:
        if not torch.equal(expected, actual):
            raise Wrong(f"{name} ({expected.dtype}) is not equal")
        return 0.0
    exact, found = _wide(expected), _wide(actual)
    finite = torch.isfinite(exact)
    if not bool(finite.all()) and not _same_odd(exact[~finite], found[~finite]):
        raise Wrong(f"{name}: infinities or NaNs differ")
    huge = finite & (exact.abs() > HUGE_PART * torch.finfo(expected.dtype).max)
    if bool(huge.any()) and not torch.allclose(found[huge], exact[huge], rtol=0.05, atol=0.0):
        raise Wrong(f"{name}: its largest elements differ")
    usual = finite & ~huge  # huge ones mask elements; beside them every other error is nothing
    if not bool(usual.all()):
        exact, found = exact[usual], found[usual]
        nudged = [one[usual] for one in nudged]
    scale = max(_norm(exact), least) or 1.0
    error = float((found - exact).norm()) / scale
    limit = (TOLERANCES[expected.dtype] if tolerance is None else tolerance) * factor
    if not error <= limit:  # NaN is wrong, too
        own = min((float((_wide(one) - exact).norm()) / scale for one in nudged), default=0.0)
        if error <= NUDGED_FACTOR * own:
            return 0.0
        raise Wrong(f"{name}: relative error {error:.1e}, at most {limit:.0e} counts as rounding")
    return error


def _same_odd(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Whether infinities have their signs and NaNs are NaNs; of complex numbers, each part."""
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
    if not torch.equal(expected.isnan(), actual.isnan()) or not torch.equal(expected.isinf(), actual.isinf()):
        return False
    infinite = expected.isinf()
    return torch.equal(expected[infinite], actual[infinite])


def _demand_same_form(expected: torch.Tensor, actual: torch.Tensor, name: str) -> None:
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(expected, what) != getattr(actual, what):
            raise Wrong(f"{name}: {what} {getattr(actual, what)}, expected {getattr(expected, what)}")
    if expected.layout is torch.strided and not _same_strides(expected, actual):
        raise Wrong(f"{name}: strides {actual.stride()}, expected {expected.stride()}")


def _same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    steps = zip(left.shape, left.stride(), right.stride(), strict=True)
    return left.numel() == 0 or all(size == 1 or a == b for size, a, b in steps)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _norm(value: torch.Tensor) -> float:
    return float(_wide(value).norm())


def _short(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
