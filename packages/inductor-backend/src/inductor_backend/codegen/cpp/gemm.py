"""Writes C++ for ``out[M,N] = epilogue(x[M,K] @ weight)``: few rows, each weight read once.

In: a `GemmSpec`. Out: the text of one static function; put ``#include "gemm.h"`` first (its bodies are
compiled once a machine, see runtime/build_cpp.py). `choose` says, from measurements
(docs/notes/cpu_externs.md), whether this or an extern kernel is the faster one.
"""

from __future__ import annotations

from dataclasses import dataclass

_LAYOUTS = {"nk": "TC_NK", "kn": "TC_KN"}


@dataclass(frozen=True, slots=True)
class GemmSpec:
    """name: of the function. k, n: ints, or C++ expressions over the extra arguments. layout: "nk" for
    weights [N,K] (nn.Linear), "kn" for [K,N]. epilogue: a C++ expression for the value stored at row
    ``m`` and column ``n`` (int64_t), over ``acc`` (float, the sum) and the extra arguments, such as
    ``tc_gelu_erf(acc + bias[n])``. extra: (C++ type, name) pairs. row_stride_x, row_stride_out: like k."""

    name: str
    k: int | str
    n: int | str
    layout: str = "nk"
    epilogue: str = "acc"
    extra: tuple[tuple[str, str], ...] = ()
    row_stride_x: int | str | None = None
    row_stride_out: int | str | None = None

    def __post_init__(self) -> None:
        if self.layout not in _LAYOUTS:
            raise ValueError(f"gemm {self.name!r}: layout={self.layout!r}; 'nk' or 'kn'")


def gemm_source(spec: GemmSpec) -> str:
    """``static void name(const float* x, const float* w, float* out, <extra>, int64_t M)``.

    x, w, out must not overlap. Any M >= 0.
    """
    extra = "".join(f"{ctype} {name}, " for ctype, name in spec.extra)
    ldx = spec.k if spec.row_stride_x is None else spec.row_stride_x
    ldo = spec.n if spec.row_stride_out is None else spec.row_stride_out
    ldw = spec.k if spec.layout == "nk" else spec.n
    return f"""static void {spec.name}(const float* __restrict__ x, const float* __restrict__ w, \
float* __restrict__ out, {extra}int64_t M) {{
    auto store = [=](const float* __restrict__ tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {{
        for (int64_t i = 0; i < rows; i++) {{
            const int64_t m = m0 + i;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) {{
                const int64_t n = n0 + j;
                const float acc = tile[i * TC_NC + j];
                out[m * ({ldo}) + n] = {spec.epilogue};
            }}
        }}
    }};
    tc_gemm_with({_LAYOUTS[spec.layout]}, x, {ldx}, w, {ldw}, M, {spec.n}, {spec.k}, store);
}}
"""
