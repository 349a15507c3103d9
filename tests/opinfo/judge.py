"""Whether what the compiled program gave is what eager gives.

In: two `Outcome`s and, on demand, what is true (the call in double precision) and how far that moves with rounding of
the inputs. Out: None, or what differs. What always holds: integers, structure, dtypes, sizes, strides, aliases
and NaN are as eager's; a float may be off by 3 times eager's own error and a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.opinfo.values import leaves

#: Units in the last place that any result may be off by.
ULPS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call left: its result, its arguments as they are now, gradients of its inputs; or what it raised."""

    result: Any = None
    args: Any = None
    gradients: list[Any] = field(default_factory=list)
    error: BaseException | None = None


Truth = Callable[[], "tuple[Outcome | None, Outcome | None]"]


def differs(expected: Outcome, actual: Outcome, truth: Truth, values: bool = True) -> str | None:
    """values: whether to compare numbers, too (what `empty` returns has none)."""
    if expected.error is not None or actual.error is not None:
        return _raised(expected.error, actual.error)
    return (
        _structure(expected.result, actual.result)
        or _aliases(expected, actual)
        or (_numbers(expected, actual, truth) if values else None)
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


def _structure(expected: Any, actual: Any, where: str = "result") -> str | None:
    if type(expected) is not type(actual):
        return f"{where} is a {type(actual).__name__}, eager's a {type(expected).__name__}"
    if isinstance(expected, (tuple, list)):
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} parts, eager's {len(expected)}"
        parts = (_structure(a, b, f"{where}[{k}]") for k, (a, b) in enumerate(zip(expected, actual)))
        return next((part for part in parts if part), None)
    if isinstance(expected, dict):
        if list(expected) != list(actual):
            return f"{where} has the keys {list(actual)}, eager's {list(expected)}"
        parts = (_structure(expected[key], actual[key], f"{where}[{key!r}]") for key in expected)
        return next((part for part in parts if part), None)
    return _layout(expected, actual, where) if isinstance(expected, torch.Tensor) else None


def _layout(expected: torch.Tensor, actual: torch.Tensor, where: str) -> str | None:
    for name in ("dtype", "shape", "layout", "requires_grad"):
        if getattr(expected, name) != getattr(actual, name):
            return f"{where}: {name} {getattr(actual, name)}, eager's {getattr(expected, name)}"
    if expected.layout is not torch.strided or expected.numel() == 0:
        return None
    strides = zip(expected.shape, expected.stride(), actual.stride())
    if any(size != 1 and a != b for size, a, b in strides):
        return (
            f"{where}: strides {actual.stride()}, eager's {expected.stride()} (sizes {tuple(expected.shape)})"
        )
    return None


def _memory(leaf: Any) -> int | None:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.numel():
        return None
    return leaf.untyped_storage().data_ptr() or None


def _aliases(expected: Outcome, actual: Outcome) -> str | None:
    """Which results lie in the memory of which arguments and results, and where in it."""
    shapes = []
    for outcome in (expected, actual):
        given, made = leaves(outcome.args), leaves(outcome.result)
        homes = [_memory(leaf) for leaf in (*given, *made)]
        first = [None if home is None else homes.index(home) for home in homes]
        offsets = [
            leaf.storage_offset() if home is not None and home < len(given) else None
            for leaf, home in zip(made, first[len(given):], strict=True)
        ]  # fmt: skip
        shapes.append((first, offsets))
    if shapes[0] != shapes[1]:
        return f"aliases (first tensor of the same memory; offsets) {shapes[1]}, eager's {shapes[0]}"
    return None


def _numbers(expected: Outcome, actual: Outcome, truth: Truth) -> str | None:
    found = [_all_close(a, b, None, None) for a, b in _pairs(expected, actual)]
    if not any(found):
        return None
    true, moved = truth()
    pairs = list(_pairs(expected, actual))
    trues = _aligned(pairs, expected, true)
    moves = _aligned(pairs, expected, moved)
    for (name, a), (_, b), t, m in zip(*_named(expected, actual), trues, moves, strict=True):
        problem = _all_close(a, b, t, m)
        if problem:
            return f"{name}: {problem}"
    return None


def _parts(outcome: Outcome) -> list[tuple[str, Any]]:
    named = [("result", leaf) for leaf in leaves(outcome.result)]
    named += [("argument", leaf) for leaf in leaves(outcome.args)]
    return named + [("gradient", leaf) for leaf in outcome.gradients]


def _named(expected: Outcome, actual: Outcome) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    return _parts(expected), _parts(actual)


def _pairs(expected: Outcome, actual: Outcome) -> list[tuple[Any, Any]]:
    return [(a, b) for (_, a), (_, b) in zip(_parts(expected), _parts(actual), strict=True)]


def _aligned(pairs: list[Any], expected: Outcome, other: Outcome | None) -> list[Any]:
    """The true value of each part, None where there is none."""
    if other is None or other.error is not None:
        return [None] * len(pairs)
    found = [leaf for _, leaf in _parts(other)]
    return found if len(found) == len(pairs) else [None] * len(pairs)


def _all_close(expected: Any, actual: Any, true: Any, moved: Any) -> str | None:
    if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
        return f"{actual!r}, eager's {expected!r}"
    if not isinstance(expected, torch.Tensor):
        return _plain(expected, actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{actual.dtype} {tuple(actual.shape)}, eager's {expected.dtype} {tuple(expected.shape)}"
    expected, actual = (_dense(value) for value in (expected, actual))
    if expected.is_quantized or torch.equal(expected, actual):
        return None if torch.equal(expected, actual) else "quantised values differ"
    if not (expected.is_floating_point() or expected.is_complex()):
        return _first_difference(expected, actual, expected != actual)
    if not isinstance(true, torch.Tensor) or true.shape != expected.shape:
        true = moved = None
    elif not (true.is_floating_point() or true.is_complex()):
        true = moved = None
    wide = torch.complex128 if expected.is_complex() else torch.float64
    e, a = (_real(value.detach().to(wide)) for value in (expected, actual))
    t = e if true is None else _real(_dense(true).detach().to(wide))
    m = t if moved is None else _real(_dense(moved).detach().to(wide))
    bad = ~_within(e, a, t, m, expected.dtype)
    return _first_difference(e, a, bad, t) if bool(bad.any()) else None


def _plain(expected: Any, actual: Any) -> str | None:
    same = expected is actual or expected == actual or (expected != expected and actual != actual)
    if isinstance(expected, float) and isinstance(actual, float) and not same:
        same = abs(expected - actual) <= 1e-6 * max(abs(expected), abs(actual))
    same = same or isinstance(expected, torch.Generator)
    return None if same else f"{actual!r}, eager's {expected!r}"


def _dense(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    value = value.resolve_conj().resolve_neg()
    return value.to(torch.complex64) if value.dtype is torch.complex32 else value


def _real(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value) if value.is_complex() else value


def _within(e: Any, a: Any, t: Any, m: Any, dtype: torch.dtype) -> torch.Tensor:
    """Where a (ours) is right: as eager (e), or as near to the truth (t) as eager and rounding allow.
    m: the truth for inputs that are moved by their own rounding."""
    info = torch.finfo(dtype)  # of the tensors as they are compared
    rounded = _real(torch.view_as_complex(t).to(dtype).to(torch.complex128)) if dtype.is_complex else (
        t.to(dtype).to(torch.float64)
    )  # fmt: skip
    same = (a == e) | (a == rounded) | (a.isnan() & e.isnan()) | (a.isnan() & t.isnan() & m.isnan())
    finite = e.isfinite() & t.isfinite() & m.isfinite()
    error = torch.where(finite, (e - t).abs(), 0.0)
    sensitivity = torch.where(t.isfinite() & m.isfinite(), (m - t).abs(), 0.0)
    size = torch.where(t.isfinite(), t.abs(), 0.0)
    size = torch.where(e.isfinite(), torch.maximum(size, e.abs()), size)
    worst = error.max() if error.numel() else 0.0
    bound = 3 * error + 3 * worst + ULPS * info.eps * size.clamp(min=info.tiny) + 4 * sensitivity
    if t is e or dtype in (torch.float64, torch.complex128):  # nothing truer than eager is known
        bound = bound + 8 * info.eps * (size + size.max())
    return same | (a.isfinite() & t.isfinite() & ((a - t).abs() <= bound))


def _first_difference(e: Any, a: Any, bad: torch.Tensor, t: Any = None) -> str:
    """The worst place, in words."""
    places = bad.nonzero()
    distance = (a - e).abs() if a.dtype.is_floating_point else (a != e).double()
    distance = torch.where(bad, distance.double().nan_to_num(torch.inf, torch.inf, torch.inf), -1.0)
    place = int(distance.reshape(-1).argmax())
    ours, eager = a.reshape(-1)[place].item(), e.reshape(-1)[place].item()
    true = f", in double {t.reshape(-1)[place].item()}" if t is not None and t is not e else ""
    where = tuple(int(k) for k in torch.unravel_index(torch.tensor(place), bad.shape)) if bad.dim() else ()
    return f"{len(places)} of {bad.numel()} differ, most at {where}: {ours}, eager {eager}{true}"
