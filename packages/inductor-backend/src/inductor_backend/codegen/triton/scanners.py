"""Writes Triton scans over axis 1 of a block.

Elements are combined in a tree, each with all before it in its row. Masked-out elements follow all
others, so they need no identity. Where a loop covers the row, it carries one value per row from
block to block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inductor_backend.codegen.triton.expressions import TL_TYPES
from inductor_backend.codegen.triton.reducers import extreme


@dataclass(frozen=True, slots=True)
class Scanner:
    """`{v}`: the element; `{at}`: its position in the row; `{rows}`: the shape of one value per
    row; `{last}`: whether an element is the last of its block."""

    #: Before the loop.
    start: tuple[str, ...]
    #: In the loop.
    each: tuple[str, ...]
    #: In place of both where the row is one block.
    single_block: tuple[str, ...]
    #: Text of each output.
    results: tuple[str, ...]


def _wide(dtype: torch.dtype) -> str:
    """Returns the dtype in which elements are combined: blocks of one or two bytes are not
    supported."""
    small = not dtype.is_floating_point and dtype.itemsize < 4
    return "tl.int32" if small else TL_TYPES[dtype]


def _narrow(text: str, value: torch.dtype, result: torch.dtype) -> str:
    return f"({text} != 0)" if value == torch.bool else f"{text}.to({TL_TYPES[result]})"


def _simple(combine: str, start: Callable[[torch.dtype], str]) -> Callable[..., Scanner]:
    def make(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
        kind = _wide(value)
        full = f"{n} = tl.associative_scan({{v}}.to({kind}), 1, {combine})"
        return Scanner(
            (f"{n}_carry = tl.full({{rows}}, {start(value)}, {kind})",),
            (
                full,
                f"{n} = {combine}({n}_carry, {n})",
                f"{n}_carry = tl.sum(tl.where({{last}}, {n}, 0), 1, keep_dims=True)",
            ),
            (full,),
            (_narrow(n, value, result),),
        )

    return make


def _place(combine: str, lowest: bool) -> Callable[..., Scanner]:
    """Returns a scan that also gives the position of the last element that is as great (or as
    small)."""

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Scanner:
        kind = _wide(value)
        full = f"{n}, {n}_at = tl.associative_scan(({{v}}.to({kind}), {{at}}), 1, {combine})"
        return Scanner(
            (
                f"{n}_carry = tl.full({{rows}}, {extreme(value, lowest)}, {kind})",
                f"{n}_carried = tl.full({{rows}}, -1, tl.int64)",
            ),
            (
                full,
                f"{n}, {n}_at = {combine}({n}_carry, {n}_carried, {n}, {n}_at)",
                f"{n}_carry = tl.sum(tl.where({{last}}, {n}, 0), 1, keep_dims=True)",
                f"{n}_carried = tl.sum(tl.where({{last}}, {n}_at, 0), 1, keep_dims=True)",
            ),
            (full,),
            (_narrow(n, value, result), f"{n}_at"),
        )

    return make


SCANNERS: dict[str, Callable[[str, torch.dtype, torch.dtype], Scanner]] = {
    "sum": _simple("plus", lambda dtype: "0"),
    "prod": _simple("times", lambda dtype: "1"),
    "max": _simple("greater", lambda dtype: extreme(dtype, True)),
    "min": _simple("lesser", lambda dtype: extreme(dtype, False)),
    "logsumexp": _simple("log_add_exp", lambda dtype: 'float("-inf")'),
    "max_at": _place("last_greatest", True),
    "min_at": _place("last_least", False),
}
