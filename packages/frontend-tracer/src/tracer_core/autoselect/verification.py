"""Verifies a candidate's outcome against eager's.

Integers, booleans, infinities and NaNs must be equal. Floats may differ by rounding: by the 2-norm
of the difference relative to eager's (for gradients also relative to the largest gradient, because
that of a bias before a normalization is nothing but rounding), by the worst element and, for what
is written to, also by how far it was changed. Where outcomes of eager on nudged inputs are given, a
result may differ as much as they do: some gradients of a whole training step are nothing but
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tracer_core.autoselect.sample import Outcome
from tracer_core.torch_private.memory_layout import same_strides


class Tolerance(NamedTuple):
    """The largest relative errors that count as rounding."""

    #: Of an element, against float64 (`tracer_core.verify`).
    exact: float
    #: Of a whole tensor by its 2-norm, against eager's, which is rounded itself (``auto``,
    #: ``compile(verify=)``); elements may have `ELEMENT_FACTOR` times as much.
    rounded: float


#: Results of other dtypes must be equal to eager's; `tracer_core.verify` allows float8 more.
TOLERANCES = {
    torch.float64: Tolerance(1e-11, 1e-7), torch.complex128: Tolerance(1e-11, 1e-7),
    torch.float32: Tolerance(1e-5, 1e-3), torch.complex64: Tolerance(1e-5, 1e-3),
    torch.bfloat16: Tolerance(3e-2, 3e-2), torch.float16: Tolerance(4e-3, 3e-2),
}  # fmt: skip

#: Gradients pass ReLUs and norms whose branches depend on rounding; eager itself is off by 3e-3 in
#: resnet18.
GRADIENT_FACTOR = 20.0
#: Finite elements beyond this fraction of the dtype's largest number are verified separately.
HUGE_PART = 1e-2
#: A gradient smaller than the largest one by this factor is judged relative to it.
NEGLIGIBLE = 1e-3
#: Tolerance of a single element, as a multiple of the tolerance relative to itself or to the
#: typical element. The norm of a large result hides one wrong element, or a mask of few.
ELEMENT_FACTOR = 20.0
#: What was written to is judged by its change, too: a step of an optimizer may be smaller than the
#: parameter's tolerance.
CHANGE_PART = 0.25
#: How many roundings of a written value count in addition to its change.
ROUNDINGS = 4
#: A result may be this many times as far from eager's as eager's own on nudged inputs.
NUDGED_FACTOR = 10.0
RELATIVE = "relative error"


class Wrong(Exception):
    """A candidate's outcome differs from eager's; the message says where."""


def error_of(
    expected: Outcome,
    actual: Outcome,
    tolerance: float | None,
    nudged: Sequence[Outcome] = (),
    smooth: bool = True,
) -> float:
    """Returns the largest relative error beyond rounding. Raises Wrong.

    smooth: whether single elements are judged, too.
    """
    if len(expected.outputs) != len(actual.outputs):
        raise Wrong(f"{len(actual.outputs)} results, expected {len(expected.outputs)}")
    worst = 0.0
    for index, (output, other) in enumerate(zip(expected.outputs, actual.outputs, strict=True)):
        allowed = _Allowed(f"result {index}", tolerance, elements=smooth)
        worst = max(worst, _error(output, other, allowed, [near.outputs[index] for near in nudged]))
    for index, (item, other) in enumerate(zip(expected.written, actual.written, strict=True)):
        allowed = _Allowed(
            f"written input {index}", tolerance, elements=smooth, before=expected.before[index]
        )
        worst = max(worst, _error(item, other, allowed, [near.written[index] for near in nudged]))
    if expected.requires_grad != actual.requires_grad:
        requires_grad, wanted = actual.requires_grad, expected.requires_grad
        raise Wrong(f"results require grad: {requires_grad}, expected {wanted}")
    if expected.shared != actual.shared:
        raise Wrong(f"results share memory with {actual.shared}, expected {expected.shared}")
    largest = max((_norm(grad) for grad in expected.grads if grad is not None), default=0.0)
    for index, (grad, other) in enumerate(zip(expected.grads, actual.grads, strict=True)):
        if grad is None and other is not None and not other.any():
            continue  # None and zeros are equivalent
        allowed = _Allowed(f"gradient {index}", tolerance, GRADIENT_FACTOR, NEGLIGIBLE * largest)
        worst = max(worst, _error(grad, other, allowed, [near.grads[index] for near in nudged]))
    return worst


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The tolerances of one tensor.

    least: lower bound of the norm that errors are relative to. elements: whether single elements
    are judged, too. before: the values before the write.
    """

    name: str
    tolerance: float | None
    factor: float = 1.0
    least: float = 0.0
    elements: bool = False
    before: torch.Tensor | None = None


def _error(expected: Any, actual: Any, allowed: _Allowed, nudged: Sequence[Any]) -> float:
    name = allowed.name
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        if type(expected) is not type(actual) or expected != actual:
            raise Wrong(f"{name} is {_short(actual)}, expected {_short(expected)}")
        return 0.0
    _demand_same_form(expected, actual, name)
    if expected.dtype not in TOLERANCES:
        if not torch.equal(expected, actual):
            raise Wrong(f"{name} ({expected.dtype}) is not equal")
        return 0.0
    exact, result = _wide(expected), _wide(actual)
    finite = torch.isfinite(exact)
    if not bool(finite.all()) and not _same_odd(exact[~finite], result[~finite]):
        raise Wrong(f"{name}: infinities or NaNs differ")
    huge = finite & (exact.abs() > HUGE_PART * torch.finfo(expected.dtype).max)
    if bool(huge.any()) and not torch.allclose(result[huge], exact[huge], rtol=0.05, atol=0.0):
        raise Wrong(f"{name}: its largest elements differ")
    usual = finite & ~huge  # huge ones mask elements; beside them every other error is nothing
    if not bool(usual.any()):
        return 0.0
    differences = [(_wide(item) - exact)[usual] for item in (actual, *nudged)]
    before = None if allowed.before is None else (exact - _wide(allowed.before))[usual]
    worst = 0.0
    for what, limit, distance in _measures(exact[usual], before, allowed, expected.dtype):
        error, *others = map(distance, differences)
        if error <= limit:
            worst = max(worst, error if what == RELATIVE else 0.0)
            continue
        own = min(others, default=0.0)  # NaN is wrong, too, and infinities of eager's say nothing
        if not (math.isfinite(own) and error <= NUDGED_FACTOR * own):
            raise Wrong(f"{name}: {what} {error:.1e}, at most {limit:.0e} counts as rounding")
    return worst


def _measures(
    exact: torch.Tensor, change: torch.Tensor | None, allowed: _Allowed, dtype: torch.dtype
) -> Iterator[tuple[str, float, Callable[[torch.Tensor], float]]]:
    """Yields the measures of a difference from eager's: name, limit, function."""
    norm = _norm(exact)
    scale = max(norm, allowed.least) or 1.0
    own = allowed.tolerance
    limit = (TOLERANCES[dtype].rounded if own is None else own) * allowed.factor
    yield RELATIVE, limit, lambda difference: _norm(difference) / scale
    if allowed.elements:
        sizes = exact.abs().clamp(min=scale / math.sqrt(exact.numel()))
        most = ELEMENT_FACTOR * limit
        yield "an element's error", most, lambda off: float((off.abs() / sizes).max())
    if change is not None:
        most = max(CHANGE_PART, limit) * _norm(change) + ROUNDINGS * torch.finfo(dtype).eps * norm
        yield (
            "error of the change",
            1.0,
            lambda difference: _norm(difference) / most if most else math.inf * _norm(difference),
        )


def _same_odd(expected: torch.Tensor, actual: torch.Tensor) -> bool:
    """Whether infinities have their signs and NaNs are NaNs; of complex numbers, each part."""
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
    infinite = expected.isinf()
    return (
        torch.equal(expected.isnan(), actual.isnan())
        and torch.equal(infinite, actual.isinf())
        and torch.equal(expected[infinite], actual[infinite])
    )


def _demand_same_form(expected: torch.Tensor, actual: torch.Tensor, name: str) -> None:
    for what in ("dtype", "shape", "device", "layout"):
        wanted, attribute = getattr(expected, what), getattr(actual, what)
        if wanted != attribute:
            raise Wrong(f"{name}: {what} {attribute}, expected {wanted}")
    if expected.layout is torch.strided and not same_strides(expected, actual):
        raise Wrong(f"{name}: strides {actual.stride()}, expected {expected.stride()}")


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _norm(value: torch.Tensor) -> float:
    return float(_wide(value).norm())


def _short(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
