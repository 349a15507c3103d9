"""Whether what the compiled program gave is what eager gives.

In: two `Outcome`s and, on demand, what is true (the call in double precision) and how far that
moves with rounding of the inputs and of what lies between. Out: None, or what differs. What always
holds: integers, structure, dtypes, sizes, strides, aliases and NaN are as eager's. A float is
judged by itself, however large its neighbours are: it may be off by 3 times eager's error and by a
few times its own unit, one in its last place and what rounding does to it; by more only where eager
is off by more such units in the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.opinfo.values import leaves

#: Units that any result may be off by, and those that it may be because eager is elsewhere.
UNITS, MAX_UNITS = 4, 100
#: What doubles may be off by, of the largest number beside them: sums in another order cancel
#: otherwise.
DOUBLE = 1e-12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call left: its result, its arguments as they are now, gradients of its inputs; or what
    it raised.
    """

    result: Any = None
    args: Any = None
    gradients: list[Any] = field(default_factory=list)
    error: BaseException | None = None


Truth = Callable[[], "tuple[Outcome | None, list[Outcome]]"]


def differs(expected: Outcome, actual: Outcome, exact: Truth, values: bool = True) -> str | None:
    """values: whether to compare numbers, too (what `empty` returns has none)."""
    if expected.error is not None or actual.error is not None:
        return _raised(expected.error, actual.error)
    return (
        structure(expected.result, actual.result)
        or aliases(expected, actual)
        or (_numbers(expected, actual, exact) if values else None)
    )


def _raised(expected: BaseException | None, actual: BaseException | None) -> str | None:
    if actual is None:
        return f"eager raises {type(expected).__name__}: {expected}"
    if expected is None:
        return f"raises {type(actual).__name__}: {actual}"
    return (
        None
        if type(actual) is type(expected)
        else f"eager raises {type(expected).__name__}: {expected}; ours {type(actual).__name__}: {actual}"
    )


def structure(expected: Any, actual: Any, where: str = "result") -> str | None:
    if type(expected) is not type(actual):
        return f"{where} is a {type(actual).__name__}, eager's a {type(expected).__name__}"
    if isinstance(expected, (tuple, list)):
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} parts, eager's {len(expected)}"
        parts = (structure(a, b, f"{where}[{k}]") for k, (a, b) in enumerate(zip(expected, actual)))
        return next((part for part in parts if part), None)
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return f"{where} has the keys {list(actual)}, eager's {list(expected)}"
        parts = (structure(expected[key], actual[key], f"{where}[{key!r}]") for key in expected)
        return next((part for part in parts if part), None)
    return layout(expected, actual, where) if isinstance(expected, torch.Tensor) else None


def layout(expected: torch.Tensor, actual: torch.Tensor, where: str) -> str | None:
    for name in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(expected, name) != getattr(actual, name):
            return f"{where}: {name} {getattr(actual, name)}, eager's {getattr(expected, name)}"
    if expected.layout is not torch.strided or expected.numel() == 0:
        return None
    strides = zip(expected.shape, expected.stride(), actual.stride())
    if any(size != 1 and a != b for size, a, b in strides):
        return f"{where}: strides {actual.stride()}, eager's {expected.stride()} (sizes {tuple(expected.shape)})"
    return None


def _memory(leaf: Any) -> int | None:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.numel():
        return None
    return leaf.untyped_storage().data_ptr() or None


def aliases(expected: Outcome, actual: Outcome) -> str | None:
    """Which results lie in the memory of which arguments and results, and where in it."""
    shapes = []
    for outcome in (expected, actual):
        inputs, result = leaves(outcome.args), leaves(outcome.result)
        homes = [_memory(leaf) for leaf in (*inputs, *result)]
        first = [None if home is None else homes.index(home) for home in homes]
        offsets = [
            leaf.storage_offset() if home is not None and home < len(inputs) else None
            for leaf, home in zip(result, first[len(inputs):], strict=True)
        ]  # fmt: skip
        shapes.append((first, offsets))
    if shapes[0] != shapes[1]:
        return (
            f"aliases (first tensor of the same memory; offsets) {shapes[1]}, eager's {shapes[0]}"
        )
    return None


def _numbers(expected: Outcome, actual: Outcome, exact: Truth) -> str | None:
    result = [_all_close(a, b, None) for a, b in _pairs(expected, actual)]
    if not any(result):
        return None
    true, moved = exact()
    pairs = list(_pairs(expected, actual))
    trues = _aligned(pairs, expected, true)
    moves = list(zip(*(_aligned(pairs, expected, item) for item in moved), strict=True)) or [
        ()
    ] * len(pairs)
    for (name, a), (_, b), t, m in zip(*_named(expected, actual), trues, moves, strict=True):
        problem = _all_close(a, b, Known(t, m))
        if problem:
            return f"{name}: {problem}"
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """true: a part in double precision, None where nothing is truer than eager. moves: the same
    after rounding.
    """

    true: Any
    moves: Sequence[Any]


def parts_of(outcome: Outcome) -> list[tuple[str, Any]]:
    named = [("result", leaf) for leaf in leaves(outcome.result)]
    named += [("argument", leaf) for leaf in leaves(outcome.args)]
    return named + [("gradient", leaf) for leaf in outcome.gradients]


def _named(
    expected: Outcome, actual: Outcome
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    return parts_of(expected), parts_of(actual)


def _pairs(expected: Outcome, actual: Outcome) -> list[tuple[Any, Any]]:
    return [(a, b) for (_, a), (_, b) in zip(parts_of(expected), parts_of(actual), strict=True)]


def _aligned(pairs: list[Any], expected: Outcome, other: Outcome | None) -> list[Any]:
    """The true value of each part, None where there is none."""
    if other is None or other.error is not None:
        return [None] * len(pairs)
    parts = [leaf for _, leaf in parts_of(other)]
    return parts if len(parts) == len(pairs) else [None] * len(pairs)


def _all_close(expected: Any, actual: Any, known: Known | None) -> str | None:
    """known: None to compare with eager alone, strictly."""
    if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
        return f"{actual!r}, eager's {expected!r}"
    if not isinstance(expected, torch.Tensor):
        return _plain(expected, actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{actual.dtype} {tuple(actual.shape)}, eager's {expected.dtype} {tuple(expected.shape)}"
    expected, actual = (dense(value) for value in (expected, actual))
    if expected.is_quantized or torch.equal(expected, actual):
        return None if torch.equal(expected, actual) else "quantised values differ"
    if not (expected.is_floating_point() or expected.is_complex()):
        return first_difference(expected, actual, expected != actual)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    e, a = (real_view(value.detach().to(wide)) for value in (expected, actual))
    if known is None:
        return (
            first_difference(e, a, bad)
            if bool((bad := ~near(e, a, expected.dtype)).any())
            else None
        )
    fits = [move for move in (known.true, *known.moves) if _fits(move, expected)]
    if not fits or fits[0] is not known.true:
        bad = ~near(e, a, expected.dtype, float(e.abs().max()))
        return first_difference(e, a, bad) if bool(bad.any()) else None
    t, *moves = (real_view(dense(fit).detach().to(wide)) for fit in fits)
    bad = ~within(e, a, t, moves, expected.dtype)
    return first_difference(e, a, bad, t) if bool(bad.any()) else None


def _fits(true: Any, expected: torch.Tensor) -> bool:
    number = isinstance(true, torch.Tensor) and (true.is_floating_point() or true.is_complex())
    return number and true.shape == expected.shape


def _plain(expected: Any, actual: Any) -> str | None:
    same = expected is actual or expected == actual or (expected != expected and actual != actual)
    if isinstance(expected, float) and isinstance(actual, float) and not same:
        same = abs(expected - actual) <= 1e-6 * max(abs(expected), abs(actual))
    same = same or isinstance(expected, torch.Generator)
    return None if same else f"{actual!r}, eager's {expected!r}"


def dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    value = value.resolve_conj().resolve_neg()
    return value.to(torch.complex64) if value.dtype is torch.complex32 else value


def real_view(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value) if value.is_complex() else value


def near(e: Any, a: Any, dtype: torch.dtype, beside: float = 0.0) -> torch.Tensor:
    """Where a (ours) is eager's (e), a few units in the last place aside. beside: of a number of
    this size, too.
    """
    info = torch.finfo(dtype)
    size = e.abs().clamp(min=info.tiny) + (beside if math.isfinite(beside) else 0.0)
    return (
        (a == e)
        | (a.isnan() & e.isnan())
        | (a.isfinite() & ((a - e).abs() <= UNITS * info.eps * size))
    )


def within(e: Any, a: Any, t: Any, moves: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Where a (ours) is right: as eager (e), or as near to the truth (t) as eager and rounding
    allow. moves: what the truth becomes where all numbers are rounded."""
    info = torch.finfo(dtype)  # of the tensors as they are compared
    rounded = real_view(torch.view_as_complex(t).to(dtype).to(torch.complex128)) if dtype.is_complex else (
        t.to(dtype).to(torch.float64)
    )  # fmt: skip
    moves = moves or [t]
    doubtful = torch.stack([m.isnan() for m in moves]).any(0)
    same = (a == e) | (a == rounded) | (a.isnan() & e.isnan()) | (a.isnan() & t.isnan() & doubtful)
    shifts = torch.stack(
        [torch.where(m.isfinite() & t.isfinite(), (m - t).abs(), 0.0) for m in moves]
    )
    size = torch.where(t.isfinite(), t.abs(), 0.0)
    size = torch.where(e.isfinite(), torch.maximum(size, e.abs()), size)
    unit = info.eps * size.clamp(min=info.tiny) + shifts.amax(0)
    error = torch.where(e.isfinite() & t.isfinite(), (e - t).abs(), 0.0)
    units = min(max(3 * float((error / unit).max()), UNITS), MAX_UNITS) if error.numel() else UNITS
    bound = 3 * error + units * unit
    if (
        dtype in (torch.float64, torch.complex128) and size.numel()
    ):  # nothing truer than eager is known there
        bound = bound + 4 * UNITS * unit + DOUBLE * size.max()
    return same | (a.isfinite() & t.isfinite() & ((a - t).abs() <= bound))


def first_difference(e: Any, a: Any, bad: torch.Tensor, t: Any = None) -> str:
    """The worst place, in words."""
    places = bad.nonzero()
    distance = (a - e).abs() if a.dtype.is_floating_point else (a != e).double()
    distance = torch.where(bad, distance.double().nan_to_num(torch.inf, torch.inf, torch.inf), -1.0)
    place = int(distance.reshape(-1).argmax())
    ours, eager = a.reshape(-1)[place].item(), e.reshape(-1)[place].item()
    true = f", in double {t.reshape(-1)[place].item()}" if t is not None and t is not e else ""
    where = (
        tuple(int(k) for k in torch.unravel_index(torch.tensor(place), bad.shape))
        if bad.dim()
        else ()
    )
    return f"{len(places)} of {bad.numel()} differ, most at {where}: {ours}, eager {eager}{true}"
