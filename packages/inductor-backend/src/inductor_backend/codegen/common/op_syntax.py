"""Syntax of ops shared by C++ and Triton: a call, an infix operator, one text for floats and one
for integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Text of an op's result from (value, argument texts).
Spelling = Callable[..., str]


def call(name: str) -> Spelling:
    return lambda value, *args: f"{name}({', '.join(args)})"


def infix(sign: str, logical: str = "") -> Spelling:
    """logical: the operator for bools."""
    return lambda value, a, b: (
        f"{a} {logical if logical and value.dtype == torch.bool else sign} {b}"
    )


def by_kind(for_floats: str, for_ints: str) -> Spelling:
    return lambda value, *args: (for_floats if value.dtype.is_floating_point else for_ints).format(
        *args
    )
