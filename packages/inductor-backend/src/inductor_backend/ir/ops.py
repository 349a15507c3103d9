"""The op vocabulary of loop bodies.

Every handler (C++, reference, printer) covers exactly `OPS`
(tests/inductor/test_tables.py); `values.make` raises for any other name. Values are bool, integers,
float32 or float64: 16-bit floats exist in memory only; `load` widens them to float32 and a store
rounds to nearest even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DtypeRule = Callable[[Sequence[torch.dtype], Any], torch.dtype]

#: Memory dtype -> the dtype that loaded values are computed in.
COMPUTE_DTYPE = {
    torch.bfloat16: torch.float32, torch.float16: torch.float32,
    torch.float8_e4m3fn: torch.float32, torch.float8_e5m2: torch.float32,
}  # fmt: skip


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which bodies compute on memory of `dtype`."""
    return COMPUTE_DTYPE.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """name;"""

    name: str
    #: Number of value arguments.
    arity: int
    #: Result from argument dtypes and attr.
    dtype: DtypeRule
    #: Meaning.
    doc: str
    #: Rough scalar instructions, for `schedule/fusion_heuristics.py`.
    cost: int = 1


def _same(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return dtypes[0]


def _bool(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return torch.bool


def _attr(dtypes: Sequence[torch.dtype], attr: torch.dtype) -> torch.dtype:
    return attr


def _attr_last(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return compute_dtype(attr[-1])


def _int64(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return torch.int64


def _float32(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return torch.float32


def _second(dtypes: Sequence[torch.dtype], attr: Any) -> torch.dtype:
    return dtypes[1]


def _table() -> dict[str, OpSpec]:
    specs = [
        OpSpec(
            "load",
            0,
            _attr_last,
            "attr (buffer, index, dtype): the element of a buffer at a logical index",
        ),
        OpSpec(
            "masked_load",
            2,
            _attr_last,
            "load where args[0] is true, else args[1]; memory is read only where true",
        ),
        OpSpec("constant", 0, _attr_last, "attr (value, dtype)"),
        OpSpec("index", 0, _int64, "attr Index: an index expression as a value"),
        OpSpec(
            "check_index",
            1,
            _int64,
            "attr size: an index that torch would reject sets the call's error flag; "
            "result clamped to range(size)",
            4,
        ),
        OpSpec("wrap_index", 1, _int64, "attr size: adds size to negative indices", 2),
        OpSpec("cast", 1, _attr, "attr dtype: converts as torch does (float to int truncates)"),
        OpSpec(
            "round_to", 1, _float32, "attr bfloat16 or float16: rounds a float32 to it and back", 4
        ),
        OpSpec("where", 3, _second, "args[0] ? args[1] : args[2]"),
        OpSpec("fma", 3, _same, "a * b + c of floats, rounded once: inside one operator of ATen"),
        OpSpec(
            "philox",
            2,
            _float32,
            "(seed, place): a number from 0 to below 1, by ten rounds of Philox 4x32",
            60,
        ),
    ]
    arithmetic = {
        "add": "a + b",
        "sub": "a - b",
        "mul": "a * b",
        "maximum": "the greater; NaN if either is",
        "minimum": "the lesser; NaN if either is",
        "bit_and": "a & b",
        "bit_or": "a | b",
        "bit_xor": "a ^ b",
        "shift_left": "a << b; 0 where b is negative or not below the width",
        "shift_right": "a >> b; the sign's 0 or -1 where b is negative or not below the width",
    }
    specs += [OpSpec(name, 2, _same, doc) for name, doc in arithmetic.items()]
    expensive2 = {
        "div": "a / b, floats",
        "trunc_div": "a / b rounded to zero",
        "floor_div": "a / b rounded down",
        "fmod": "a - b * trunc(a / b)",
        "mod": "a - b * floor(a / b)",
        "pow": "a to the power b",
        "atan2": "angle of (b, a)",
        "copysign": "|a| with the sign of b",
        "hypot": "sqrt(a^2 + b^2); inf where either is infinite",
        "nextafter": "the number next to a towards b",
        "gcd": "greatest common divisor",
        "lcm": "least common multiple, 0 where either is 0",
    }
    specs += [OpSpec(name, 2, _same, doc, 12) for name, doc in expensive2.items()]
    comparison = {
        "eq": "a == b",
        "ne": "a != b",
        "lt": "a < b",
        "le": "a <= b",
        "gt": "a > b",
        "ge": "a >= b",
    }
    specs += [OpSpec(name, 2, _bool, doc) for name, doc in comparison.items()]
    cheap1 = {
        "neg": "-a",
        "abs": "|a|",
        "relu": "max(a, 0), NaN kept",
        "floor": "rounded down",
        "ceil": "rounded up",
        "trunc": "rounded to zero",
        "round": "rounded to nearest even",
        "sign": "-1, 0 or 1",
        "bit_not": "~a, not a for bool",
    }
    specs += [OpSpec(name, 1, _same, doc) for name, doc in cheap1.items()]
    specs += [OpSpec("isnan", 1, _bool, "a != a"), OpSpec("isinf", 1, _bool, "|a| == inf")]
    math1 = (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh"
        " asinh acosh atanh erf erfc sigmoid silu gelu_erf gelu_tanh softplus"
    )
    specs += [OpSpec(name, 1, _same, f"torch's {name}", 20) for name in math1.split()]
    specs.append(OpSpec("sigmoid_exp2", 1, _same, "1 / (1 + 2^a)", 12))
    special = "erfinv digamma i0 i0e i1 i1e"
    specs += [
        OpSpec(name, 1, _same, f"torch's {name}; float32 only", 60) for name in special.split()
    ]
    return {spec.name: spec for spec in specs}


OPS = _table()

#: A reduction with two results: the greatest x, and the sum of exp(x - greatest).
EXP_SUM = "exp_sum"

#: Reductions: name -> (identity as Python number or None, meaning).
REDUCTIONS = {
    "sum": (0, "sum"),
    "prod": (1, "product"),
    "max": (None, "greatest; NaN if any is"),
    "min": (None, "least; NaN if any is"),
    "any": (False, "true if any is"),
    "all": (True, "true if all are"),
    "argmax": (None, "flat index of the first greatest (NaN counts as greatest)"),
    "argmin": (None, "flat index of the first least (NaN counts as least)"),
    "welford": (None, "two outputs: mean, and sum of squared distances to it"),
    EXP_SUM: (None, "two outputs: greatest, and sum of exponentials of the distances to it"),
}

#: Scans: name -> meaning, at each point over the points up to it along the reduced variables.
SCANS = {
    "sum": "running sum; of floats in float64",
    "prod": "running product; of floats in float64",
    "max": "greatest so far; NaN from the first NaN on",
    "min": "least so far; NaN from the first NaN on",
    "max_at": "two outputs: greatest so far, and the position of the last such element",
    "min_at": "two outputs: least so far, and the position of the last such element",
    "logsumexp": "logarithm of the running sum of exponentials, in float64",
}

#: Scatters: name -> how a stored value combines with the element. Points of one element come in the
#: order of the domain.
COMBINES = {
    "set": "replaces it",
    "add": "is added to it, rounded to the buffer's dtype each time; or, for bool",
    "mul": "is multiplied with it; and, for bool",
    "max": "the greater stays; NaN if either is",
    "min": "the lesser stays; NaN if either is",
}


def outputs_of(reduce: str | None, scan: str | None) -> int:
    """Returns the number of buffers that a store of that kind writes."""
    return 2 if reduce in ("welford", EXP_SUM) or scan in ("max_at", "min_at") else 1


#: Element types that loops read, compute with and write.
MEMORY_DTYPES = frozenset({
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip

#: Element types that kernels read and convert (and never write: PTX rounds numbers beyond the largest
#: one to it, torch to NaN).
READ_DTYPES = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})

#: Element types that loops copy, as the write back to an input does, and compute nothing with.
COPIED_DTYPES = frozenset({torch.uint16, torch.uint32, torch.uint64})
