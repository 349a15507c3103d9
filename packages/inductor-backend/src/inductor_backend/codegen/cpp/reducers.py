"""Writes C++ reductions: how a row is accumulated.

Float sums are accumulated in vector lanes over blocks of `BLOCK` elements and the blocks in double,
so the error does not grow with the row. max and min give NaN if any element is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inductor_backend.codegen.cpp.expressions import C_TYPES
from inductor_backend.ir.index_expr import Expr

#: Elements accumulated in float before they are added to a double.
BLOCK = 512


@dataclass(frozen=True, slots=True)
class Reducer:
    """The statements of one reduction over a row (`{v}` is the element's text, `{at}` its
    position)."""

    #: Prefix of its variables.
    name: str
    #: Once per row.
    start: tuple[str, ...]
    #: Once per block.
    open: tuple[str, ...]
    #: The clause for ``#pragma omp simd`` (None: the loop cannot be vectorized).
    clause: str | None
    #: The step for each element.
    step: str
    #: After a block (`{length}` elements; `{at}`: the position of the first; `{moments}`: the
    #: prelude's function that adds distances and their squares).
    close: tuple[str, ...]
    #: Final text for each output, to be converted.
    results: tuple[str, ...]
    blocked: bool = False
    #: (type, name) of the accumulators of a chunk of a long row.
    state: tuple[tuple[str, str], ...] = ()
    #: Adds chunk `q`, whose state is in arrays ``<name>s`` (empty: such a row cannot be split).
    merge: str = ""


def extreme(dtype: torch.dtype, lowest: bool) -> str:
    """Returns the identity of max (lowest) or min of a dtype."""
    name = C_TYPES[dtype]
    if dtype.is_floating_point:
        return f"{'-' if lowest else ''}std::numeric_limits<{name}>::infinity()"
    return f"std::numeric_limits<{name}>::{'lowest' if lowest else 'max'}()"


def _sum(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    wide = "double" if value.is_floating_point else "int64_t"
    part = C_TYPES[value] if value.is_floating_point else "int64_t"
    return Reducer(
        n,
        (f"{wide} {n}_sum = 0;",),
        (f"{part} {n}_part = 0;",),
        f"reduction(+:{n}_part)",
        f"{n}_part += {{v}};",
        (f"{n}_sum += {n}_part;",),
        (f"{n}_sum",),
        blocked=value == torch.float32,
        state=((wide, f"{n}_sum"),),
        merge=f"{n}_sum += {n}_sums[q];",
    )


def _product_type(result: torch.dtype) -> str:
    """Returns the C type of running products: double for floats, as the order of the factors decides
    which products on the way are beyond float32."""
    return "double" if result.is_floating_point else C_TYPES[result]


def _prod(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    kind = _product_type(result)
    return Reducer(
        n,
        (f"{kind} {n}_prod = 1;",),
        (f"{kind} {n}_part = 1;",),
        f"reduction(*:{n}_part)",
        f"{n}_part *= {{v}};",
        (f"{n}_prod *= {n}_part;",),
        (f"{n}_prod",),
    )


def _extreme(sign: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    name = "max" if sign == ">" else "min"

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        kind, identity = C_TYPES[value], extreme(value, lowest=sign == ">")
        flag = "int64_t" if value.itemsize == 8 else "int32_t"
        nan = f"{n}_nan ? ({kind})TC_NAN_F : " if value.is_floating_point else ""
        mark = f" {n}_nan |= {{v}} != {{v}};" if value.is_floating_point else ""
        clause = f"reduction({name}:{n}_part)" + (f" reduction(|:{n}_nan)" if mark else "")
        opened = (f"{kind} {n}_part = {identity};",) + ((f"{flag} {n}_nan = 0;",) if mark else ())
        return Reducer(
            n,
            (f"{kind} {n}_{name} = {identity};",),
            opened,
            clause,
            f"{n}_part = {{v}} {sign} {n}_part ? {{v}} : {n}_part;{mark}",
            (f"{n}_{name} = tc_{name}({n}_{name}, {nan}{n}_part);",),
            (f"{n}_{name}",),
            state=((kind, f"{n}_{name}"),),
            merge=f"{n}_{name} = tc_{name}({n}_{name}, {n}_{name}s[q]);",
        )

    return make


def _logical(sign: str, identity: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        return Reducer(
            n,
            (f"int32_t {n}_all = {identity};",),
            (f"int32_t {n}_part = {identity};",),
            f"reduction({sign}:{n}_part)",
            f"{n}_part {sign}= (int32_t){{v}};",
            (f"{n}_all {sign}= {n}_part;",),
            (f"({n}_all != 0)",),
        )

    return make


def _arg(sign: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    """Finds each block's extreme, and where it is only in a block that improves on those before."""
    extreme_of = _extreme(sign)

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        kind = C_TYPES[value]
        of_block = extreme_of(n, value, result)
        extreme_text = (
            f"({n}_nan ? ({kind})TC_NAN_F : {n}_part)" if value.is_floating_point else f"{n}_part"
        )
        better = f"{n}_now {sign} {n}_best || ({n}_now != {n}_now && {n}_best == {n}_best)"
        return Reducer(
            n,
            (f"{kind} {n}_best = 0;", f"int64_t {n}_at = -1;"),
            (f"{kind} {n}_block[{BLOCK}];", *of_block.open),
            of_block.clause,
            f"{n}_block[{{local}}] = {{v}}; {of_block.step}",
            (
                f"const {kind} {n}_now = {extreme_text};",
                f"if ({better} || {n}_at < 0) {{{{ {n}_best = {n}_now;"
                f" {n}_at = {{at}} + tc_place_of({n}_block, {{length}}, {n}_now); }}}}",
            ),
            (f"{n}_at",),
            blocked=True,
        )

    return make


def _welford(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
    """Computes each block's mean, then its squared distances to it (the block is in the L1 cache);
    combines blocks in double by Chan's formula."""
    kind, double = C_TYPES[value], "double"
    return Reducer(
        n,
        (f"{double} {n}_mean = 0, {n}_m2 = 0, {n}_count = 0;",),
        (f"{kind} {n}_block[{BLOCK}];", f"{kind} {n}_part = 0;"),
        f"reduction(+:{n}_part)",
        f"{n}_block[{{local}}] = {{v}}; {n}_part += {{v}};",
        (
            f"{double} {n}_bmean = {n}_part / ({kind}){{length}};",
            f"{double} {n}_bm2 = tc_squares<{kind}>({{length}}, {n}_bmean, [&]({kind} mean) {{{{"
            f" return {{moments}}({n}_block, {{length}}, mean); }}}});",
            f"tc_redo_overflown({n}_block, {{length}}, {n}_bmean, {n}_bm2);",
            f"const {double} {n}_new = {n}_count + {{length}}, {n}_delta = {n}_bmean - {n}_mean;",
            f"{n}_mean += {n}_delta * ({{length}} / {n}_new);",
            f"{n}_m2 += {n}_bm2 + {n}_delta * ({n}_delta * ({n}_count * {{length}} / {n}_new));",
            f"{n}_count = {n}_new;",
        ),
        (f"{n}_mean", f"{n}_m2"),
        blocked=True,
        state=((double, f"{n}_mean"), (double, f"{n}_m2"), (double, f"{n}_count")),
        merge=(
            f"if ({n}_counts[q] > 0) {{ const double all = {n}_count + {n}_counts[q], d ="
            f" {n}_means[q] - {n}_mean; {n}_mean += d * ({n}_counts[q] / all); {n}_m2 += {n}_m2s[q]"
            f" + d * (d * ({n}_count * {n}_counts[q] / all)); {n}_count = all; }}"
        ),
    )


def _arg_of_few(sign: str) -> Callable[[str, torch.dtype, torch.dtype], Reducer]:
    """Finds the place of an extreme element by element, which is faster for short rows."""

    def make(n: str, value: torch.dtype, result: torch.dtype) -> Reducer:
        kind = C_TYPES[value]
        better = f"{{v}} {sign} {n}_best || ({{v}} != {{v}} && {n}_best == {n}_best) || {n}_at < 0"
        return Reducer(
            n,
            (f"{kind} {n}_best = 0;", f"int64_t {n}_at = -1;"),
            (),
            None,
            f"if ({better}) {{{{ {n}_best = {{v}}; {n}_at = {{at}}; }}}}",
            (),
            (f"{n}_at",),
        )

    return make


def reducer_of(
    kind: str, name: str, value: torch.dtype, result: torch.dtype, length: int
) -> Reducer:
    """Returns the statements of a reduction over rows of about `length` elements."""
    few = _OF_FEW.get(kind)
    if few is not None and length * min(value.itemsize, 4) < LEAST_BYTES:
        return few(name, value, result)
    return REDUCERS[kind](name, value, result)


#: Bytes of a row, by at most four an element, from which places of extremes are found block by block.
LEAST_BYTES = 64

_OF_FEW = {"argmax": _arg_of_few(">"), "argmin": _arg_of_few("<")}

REDUCERS: dict[str, Callable[[str, torch.dtype, torch.dtype], Reducer]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extreme(">"),
    "min": _extreme("<"),
    "any": _logical("|", "0"),
    "all": _logical("&", "1"),
    "argmax": _arg(">"),
    "argmin": _arg("<"),
    "welford": _welford,
}


@dataclass(frozen=True, slots=True)
class ColumnReducer:
    """One reduction for rows as lanes; `[l]` selects the row."""

    #: (type, name, initial text).
    arrays: tuple[tuple[str, str, str], ...]
    #: The step for each element.
    step: str
    #: Final text for each output, to be converted.
    results: tuple[str, ...]
    #: Adds a later part of the rows, whose state is in arrays ``<array>q``; `before` and `now` count the
    #: elements of the earlier parts and of this one (empty: the rows cannot be split).
    merge: str = ""
    #: Arrays of floats in which vectors accumulate a few rows, and how they are added to `arrays`:
    #: `before` counts the elements of earlier rows, `count` those of these.
    parts: tuple[str, ...] = ()
    add: str = ""


def column_reducer(
    kind: str, n: str, value: torch.dtype, result: torch.dtype, length: Expr
) -> ColumnReducer:
    """Returns the column form for rows of `length` elements; sums, products and Welford accumulate in
    double. Raises KeyError for an unknown kind."""
    c = C_TYPES[value]
    wide = "double" if value.is_floating_point else "int64_t"
    if kind == "sum":
        return ColumnReducer(
            ((wide, f"{n}_a", "0"),),
            f"{n}_a[l] += {{v}};",
            (f"{n}_a[l]",),
            f"{n}_a[l] += {n}_aq[l];",
            (f"{n}_part",),
            f"{n}_a[l] += {n}_part[l];",
        )
    if kind == "prod":
        array = (_product_type(result), f"{n}_a", "1")
        return ColumnReducer(
            (array,), f"{n}_a[l] *= {{v}};", (f"{n}_a[l]",), f"{n}_a[l] *= {n}_aq[l];"
        )
    if kind in ("max", "min"):
        start = extreme(value, kind == "max")
        return ColumnReducer(
            ((c, f"{n}_a", start),),
            f"{n}_a[l] = tc_{kind}({n}_a[l], {{v}});",
            (f"{n}_a[l]",),
            f"{n}_a[l] = tc_{kind}({n}_a[l], {n}_aq[l]);",
        )
    if kind in ("any", "all"):
        sign, start = ("|", "0") if kind == "any" else ("&", "1")
        return ColumnReducer(
            (("int32_t", f"{n}_a", start),),
            f"{n}_a[l] {sign}= (int32_t){{v}};",
            (f"({n}_a[l] != 0)",),
            f"{n}_a[l] {sign}= {n}_aq[l];",
        )
    if kind in ("argmax", "argmin"):
        sign = ">" if kind == "argmax" else "<"
        better = (
            f"{{v}} {sign} {n}_a[l] || ({{v}} != {{v}} && {n}_a[l] == {n}_a[l]) || {n}_at[l] < 0"
        )
        # As wide as the values, so that GCC vectorizes the choice of both.
        short = value.itemsize <= 4 and isinstance(length, int) and length < 1 << 31
        place = "int32_t" if short else "int64_t"
        step = f"if ({better}) {{{{ {n}_a[l] = {{v}}; {n}_at[l] = ({place}){{at}}; }}}}"
        return ColumnReducer(((c, f"{n}_a", "0"), (place, f"{n}_at", "-1")), step, (f"{n}_at[l]",))
    if kind == "welford":
        step = (
            f"{{{{ const double d = {{v}} - {n}_a[l], e = d / ({{at}} + 1); {n}_a[l] += e; {n}_q[l] +="
            f" d * (d - e); }}}}"
        )
        arrays = (("double", f"{n}_a", "0"), ("double", f"{n}_q", "0"))
        merge = (
            f"{{ const double d = {n}_aq[l] - {n}_a[l], share = now / (before + now); {n}_a[l] += d *"
            f" share; {n}_q[l] += {n}_qq[l] + d * (d * (before * share)); }}"
        )
        # Of distances to one of the rows, squares are at most `count` times those to the mean: no digits of
        # the difference are lost.
        parts = (f"{n}_first", f"{n}_part", f"{n}_squares")
        add = (
            f"const double far = (double){n}_part[l] / count, d = {n}_first[l] + far - {n}_a[l];"
            f" {n}_a[l] += d * share; {n}_q[l] += {n}_squares[l] - {n}_part[l] * far + d * (d *"
            " (before * share));"
        )
        return ColumnReducer(arrays, step, (f"{n}_a[l]", f"{n}_q[l]"), merge, parts, add)
    raise KeyError(kind)
