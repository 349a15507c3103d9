"""Whether a compiled operator program did what eager does.

In: two `Outcome`s and, on demand, the program in double precision, also with its roundings moved.
Out: None, or what differs. The rules:

- Equal to eager's: exceptions' types, structure, dtypes, sizes, which tensors share memory and where
  in it, strides (of a dimension of one element and of an empty tensor they mean nothing), NaN and
  infinities, integers, and the arguments' own sizes and strides afterwards. The strides of a
  gradient are those that autograd promises: the leaf's, where its memory is dense, else row-major.
- A float is as near to the float64 program as eager's own error, rounding and a few units in the
  last place allow (`tests.opinfo.judge.within`).
- An integer or a boolean is eager's or the float64 program's; where rounding of the operators before
  it decides which one (the roundings moved at random give several), it is not judged.
- Where rounding decides whether a number is finite, or eager overflows and float64 does not, infinity
  and NaN are as good as the number.
- A complex number that is not finite in eager is not finite here; which part is, C++ leaves open.
- The float64 program rounds only what its type cannot hold exactly: exact values stay exact, so that
  a jump (``floor``, ``==``, ``argmax``) on them is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.opinfo.judge import (
    UNITS,
    Outcome,
    aliases,
    dense,
    first_difference,
    layout,
    near,
    parts_of,
    real_view,
    structure,
    within,
)

#: Gives the outcome in double precision, and so many with roundings moved.
Truth = Callable[[int], "tuple[Outcome, list[Outcome]]"]
#: How often roundings are moved at first, and before something is called wrong.
FEW, MANY = 3, 24


def differs(expected: Outcome, actual: Outcome, exact: Truth) -> str | None:
    if type(expected.error) is not type(actual.error):
        return f"raised: eager {expected.error!r}; ours {actual.error!r}"
    result = structure(expected.result, actual.result) or aliases(expected, actual)
    for place, (a, b) in enumerate(zip(expected.args, actual.args, strict=True)):
        result = result or layout(a, b, f"argument[{place}]")
    for place, (a, b) in enumerate(zip(expected.gradients, actual.gradients, strict=True)):
        if not result and isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            result = layout(a, b, f"gradient[{place}]")
    return result or _numbers(expected, actual, exact)


def _numbers(expected: Outcome, actual: Outcome, exact: Truth) -> str | None:
    parts = zip(parts_of(expected), parts_of(actual), strict=True)
    pairs = [(n, _on_cpu(a), _on_cpu(b)) for (n, a), (_, b) in parts]
    suspects = [k for k, (_, a, b) in enumerate(pairs) if not _builtin_equal(a, b)]
    result: dict[int, str] = {}
    for moves in (FEW, MANY):
        if suspects:
            true, moved = exact(moves)
            trues = [
                [part for _, part in parts_of(item)] for item in (true, *moved) if not item.error
            ]
            judged = {
                k: _wrong(*pairs[k][1:], [t[k] for t in trues if len(t) == len(pairs)])
                for k in suspects
            }
            result = {k: text for k, text in judged.items() if text}
            suspects = list(result)
    return next((f"{pairs[k][0]} {k}: {text}" for k, text in result.items()), None)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _builtin_equal(expected: Any, actual: Any) -> bool:
    """As eager's, but for a few units in the last place."""
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        return (expected is None) == (actual is None)
    expected, actual = dense(expected), dense(actual)
    if torch.equal(expected, actual):
        return True
    if not (expected.is_floating_point() or expected.is_complex()):
        return False
    wide = torch.complex128 if expected.is_complex() else torch.float64
    e, a = real_view(expected.to(wide)), real_view(actual.to(wide))
    return bool(near(e, a, expected.dtype).all())


def _wrong(expected: Any, actual: Any, trues: Sequence[Any]) -> str | None:
    """trues: the part in double precision, then the same with roundings moved; none where double
    precision refuses the program."""
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        return f"{actual!r}, eager's {expected!r}"
    expected, actual = dense(expected), dense(actual)
    known = [dense(t) for t in trues if isinstance(t, torch.Tensor) and t.shape == expected.shape]
    if not (expected.is_floating_point() or expected.is_complex()):
        bad = expected != actual
        for t in known:
            bad &= (t == known[0]) & (t != actual)
        return first_difference(expected, actual, bad) if bool(bad.any()) else None
    wide = torch.complex128 if expected.is_complex() else torch.float64
    e, a = (real_view(value.to(wide)) for value in (expected, actual))
    if not known:
        bad = ~near(e, a, expected.dtype, float(e.nan_to_num(0, 0, 0).abs().max()))
        return first_difference(e, a, bad) if bool(bad.any()) else None
    t, *moves = (real_view(value.to(wide)) for value in known)
    bad = ~within(e, a, t, moves, expected.dtype)
    # Where rounding decides between a number and none, neither is wrong; where eager overflows and
    # double precision does not, ours may, too.
    for m in moves:
        bad &= (m.isfinite() == t.isfinite()) & (m.isnan() == t.isnan())
        bad &= ~(m.isinf() & (m == a))
    bad &= ~(t.isfinite() & ~e.isfinite() & ~a.isfinite())
    if expected.is_complex():
        bad &= ~((~e.isfinite()).any(-1) & (~a.isfinite()).any(-1)).unsqueeze(-1)
    return first_difference(e, a, bad, t) if bool(bad.any()) else None


__all__ = ["FEW", "MANY", "UNITS", "Outcome", "differs"]
