"""Writes Triton reductions over axis 1 of a block.

A block holds one partial result per lane, combined at the end (floats therefore add in a tree).
Masked-out elements count as the reduction's identity; max, min, argmax and argmin propagate NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inductor_backend.codegen.triton.expressions import TL_TYPES
from inductor_backend.ir.ops import EXP_SUM

#: Elements that a thread loads at once, of 4 bytes (`device_functions.add_exponentials`).
LANE = 4


@dataclass(frozen=True, slots=True)
class Reducer:
    """`{v}`: the element; `{shape}`: the block; `{mask}`: which elements count; `{at}`: their
    positions; `{count}`: the length of the row; `{turn}`: the loop's iteration, from 0; `{lanes}`:
    the block's shape where a lane takes `LANE` elements that lie side by side.
    """

    #: Before the loop.
    start: tuple[str, ...]
    #: In the loop (both unused where the row is one block).
    each: tuple[str, ...]
    #: After the loop.
    finish: tuple[str, ...]
    #: Statements where the row is one block.
    single_block: tuple[str, ...]
    #: Text of each output, after finish or single_block.
    results: tuple[str, ...]


def extreme(dtype: torch.dtype, lowest: bool) -> str:
    """Returns the identity of max (lowest) or min."""
    if dtype.is_floating_point:
        return f'float("{"-" if lowest else ""}inf")'
    if dtype == torch.bool:
        return str(int(not lowest))
    info = torch.iinfo(dtype)
    return str(info.min if lowest else info.max)


def _simple(
    n: str, value: torch.dtype, result: torch.dtype, identity: str, combine: str, block_text: str
) -> Reducer:
    """combine: of `{n}` and the element. block_text: of a block."""
    kind = TL_TYPES[value]
    part = f"tl.where({{mask}}, {{v}}, {identity})"
    combined = combine.format(n=n, v="{v}")
    return Reducer(
        (f"{n} = tl.full({{shape}}, {identity}, {kind})",),
        (f"{n} = tl.where({{mask}}, {combined}, {n})",),
        (f"{n} = {block_text.format(block=n)}",),
        (f"{n} = {block_text.format(block=part)}",),
        (f"{n}.to({TL_TYPES[result]})",),
    )


def _sum(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    block_text = "tl.sum({block}, 1, keep_dims=True)"
    if value.is_floating_point:  # eager's begin with 0: that of negative zeros is 0
        block_text += " + 0.0"
    if result == torch.float64 and value == torch.float32:
        # A block's lanes are short sums; the lanes are added in double.
        reducer = _simple(n, value, result, "0", "{n} + {v}", block_text)
        return Reducer(
            reducer.start,
            reducer.each,
            (f"{n} = {block_text.format(block=f'{n}.to(tl.float64)')}",),
            (f"{n} = {block_text.format(block='tl.where({mask}, {v}, 0).to(tl.float64)')}",),
            (n,),
        )
    return _simple(n, value, result, "0", "{n} + {v}", block_text)


def _prod(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    return _simple(n, value, result, "1", "{n} * {v}", "prod_row({block})")


def _extreme(name: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        nan = ", propagate_nan=tl.PropagateNan.ALL" if value.is_floating_point else ""
        block_text = (
            f"{name}_row({{block}})"
            if value.is_floating_point
            else f"tl.{name}({{block}}, 1, keep_dims=True)"
        )
        combine = f"tl.{name}imum({{n}}, {{v}}{nan})"
        return _simple(n, value, result, extreme(value, name == "max"), combine, block_text)

    return make


def _logical(name: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    identity, sign = ("0", "|") if name == "any" else ("1", "&")
    block_text = "max" if name == "any" else "min"

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        element = "{v}.to(tl.int32)"
        return Reducer(
            (f"{n} = tl.full({{shape}}, {identity}, tl.int32)",),
            (f"{n} = tl.where({{mask}}, {n} {sign} {element}, {n})",),
            (f"{n} = tl.{block_text}({n}, 1, keep_dims=True)",),
            (
                f"{n} = tl.{block_text}(tl.where({{mask}}, {element}, {identity}), 1, keep_dims=True)",
            ),
            (f"({n} != 0)",),
        )

    return make


def _arg(name: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    largest = str(2**63 - 1)

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        identity = extreme(value, name == "argmax")
        kind = TL_TYPES[value]
        element = "{v}"
        if value == torch.bool:
            kind, element = "tl.int8", "{v}.to(tl.int8)"
        take = f"better_{name}({n}, {n}_at, {element}, {{at}}) & {{mask}}"
        masked = f"tl.where({{mask}}, {element}, {identity})"
        return Reducer(
            (
                f"{n} = tl.full({{shape}}, {identity}, {kind})",
                f"{n}_at = tl.full({{shape}}, {largest}, tl.int64)",
            ),
            (
                f"{n}_take = {take}",
                f"{n} = tl.where({n}_take, {element}, {n})",
                f"{n}_at = tl.where({n}_take, {{at}}, {n}_at)",
            ),
            (f"{n}_at = {name}_row({n}, {n}_at)",),
            (f"{n}_at = {name}_row({masked}, tl.where({{mask}}, {{at}}, {largest}))",),
            (f"{n}_at",),
        )

    return make


def _welford(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    """For a row in one block: its mean, then the squares around it. Looped: each lane keeps its own
    mean and squares; the distances between the lanes' means are added at the end."""
    kind, out = TL_TYPES[value], TL_TYPES[result]
    share = (
        f"(tl.full([], 1, {kind}) / ({{turn}} + 1))"  # every lane that counts met so many elements
    )
    return Reducer(
        tuple(f"{n}_{part} = tl.zeros({{shape}}, {kind})" for part in ("mean", "m2", "count")),
        (
            f"{n}_far = {{v}} - {n}_mean",
            f"{n}_count = tl.where({{mask}}, {n}_count + 1, {n}_count)",
            (f"{n}_mean = tl.where({{mask}}, {n}_mean + {n}_far * {share}, {n}_mean)"),
            f"{n}_m2 = tl.where({{mask}}, {n}_m2 + {n}_far * ({{v}} - {n}_mean), {n}_m2)",
        ),
        (
            f"{n}_all = tl.sum({n}_mean * {n}_count, 1, keep_dims=True) / {{count}}",
            f"{n}_far = {n}_mean - {n}_all",
            f"{n}_m2 = tl.sum({n}_m2 + {n}_count * {n}_far * {n}_far, 1, keep_dims=True)",
        ),
        (
            f"{n}_all = tl.sum(tl.where({{mask}}, {{v}}, 0), 1, keep_dims=True) / {{count}}",
            f"{n}_far = tl.where({{mask}}, {{v}} - {n}_all, 0)",
            f"{n}_m2 = tl.sum({n}_far * {n}_far, 1, keep_dims=True)",
        ),
        (f"{n}_all.to({out})", f"{n}_m2.to({out})"),
    )


def _exp_sum(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    """Each lane holds the maximum of what it has met, and the sum of exponentials relative to it."""
    kind, out = TL_TYPES[value], TL_TYPES[result]
    identity = extreme(value, lowest=True)
    part = f"tl.where({{mask}}, {{v}}, {identity})"
    return Reducer(
        (
            f"{n}_max = tl.full({{lanes}}, {identity}, {kind})",
            f"{n}_sum = tl.zeros({{lanes}}, {kind})",
        ),
        (f"{n}_max, {n}_sum = add_exponentials({n}_max, {n}_sum, {part})",),
        (f"{n}_max, {n}_sum = exponentials_row({n}_max, {n}_sum)",),
        (
            f"{n}_max = max_row({part})",
            f"{n}_sum = tl.sum(tl.where({{mask}}, libdevice.exp({{v}} - {n}_max), 0), 1,"
            " keep_dims=True)",
        ),
        (f"{n}_max.to({out})", f"{n}_sum.to({out})"),
    )


REDUCERS: dict[str, Callable[[str, torch.dtype, torch.dtype], Reducer]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "any": _logical("any"),
    "all": _logical("all"),
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "welford": _welford,
    EXP_SUM: _exp_sum,
}
