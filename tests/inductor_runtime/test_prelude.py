"""The vector math of the prelude against float64 over all of float32, and against eager's own
error.

In: every exponent, both signs, denormals, the special values, and each function's interesting
range. What must hold: at most the ulp written here (and in the prelude's comments), special values
as eager's.
"""

from __future__ import annotations

import math
import platform
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from inductor_backend.runtime.cpp.build import Library, build
from inductor_backend.runtime.cpp.toolchain import find_compiler

INF = float("inf")
SPECIAL = [
    0.0,
    -0.0,
    INF,
    -INF,
    float("nan"),
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-45,
    -1e-45,
    1.1754944e-38,
    3.4028235e38,
]

#: name -> (float64 reference, greatest error in ulp, extra range to look at closely)
UNARY = {
    "exp": (torch.exp, 1.1, (-104, 89)),
    "exp2": (torch.exp2, 1.1, (-150, 128)),
    "expm1": (torch.expm1, 1.6, (-20, 89)),
    "log": (torch.log, 1.1, (0.3, 3)),
    "log2": (torch.log2, 1.6, (0.3, 3)),
    "log10": (torch.log10, 2.0, (0.3, 3)),
    "log1p": (torch.log1p, 1.6, (-0.99, 3)),
    "sin": (torch.sin, 1.6, (-100, 100)),
    "cos": (torch.cos, 1.6, (-100, 100)),
    "tan": (torch.tan, 2.4, (-100, 100)),
    "tanh": (torch.tanh, 1.6, (-10, 10)),
    "sigmoid": (torch.sigmoid, 2.6, (-20, 20)),
    "erf": (torch.erf, 1.6, (-5, 5)),
    "erfc": (torch.erfc, 4.0, (-5, 5)),
    "asin": (torch.asin, 4.0, (-1, 1)),
    "acos": (torch.acos, 4.0, (-1, 1)),
    "sinh": (torch.sinh, 4.0, (-80, 80)),
    "cosh": (torch.cosh, 4.0, (-80, 80)),
    "asinh": (torch.asinh, 4.0, (-5, 5)),
    "acosh": (torch.acosh, 4.0, (1, 5)),
    "atanh": (torch.atanh, 4.0, (-1, 1)),
    "rsqrt": (torch.rsqrt, 1.6, (0, 10)),
    "sqrt": (torch.sqrt, 0.51, (0, 10)),
}
ACTIVATIONS = {
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
}
EXACT = {
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round,
    "abs": torch.abs, "relu": torch.relu, "sign": torch.sign,
}  # fmt: skip
BINARY = {"max": torch.maximum, "min": torch.minimum, "floordiv": torch.floor_divide,
"mod": torch.remainder,
          "fmod": torch.fmod}  # fmt: skip


def loop(name: str, ctype: str, call: str) -> str:
    return (
        f"TC_EXPORT void run_{name}(const int64_t* a) {{ const {ctype}* x = (const {ctype}*)a[0];"
        f" const {ctype}* y = (const {ctype}*)a[1]; {ctype}* z = ({ctype}*)a[2]; int64_t n = a[3];\n"
        f"#pragma omp simd\nfor (int64_t i = 0; i < n; i++) z[i] = {call}; }}\n"
    )


#: What prelude_vectors.h has.
VECTORS = """exp expm1 log log1p sin cos tanh sigmoid erf rsqrt sqrt floor ceil trunc round abs relu
gelu_erf gelu_tanh silu softplus""".split()
BINARY_VECTORS = ("max", "min", "fmod", "mod", "floordiv")

NO_VECTORS = pytest.mark.skipif(
    find_compiler().isa not in ("avx512", "avx2") or find_compiler().kind != "gcc",
    reason="no vectors for this processor",
)


def vector_loop(name: str, call: str) -> str:
    return (
        f"TC_EXPORT void run_{name}(const int64_t* a) {{ const float* x = (const float*)a[0];"
        f" const float* y = (const float*)a[1]; float* z = (float*)a[2];\n"
        f"tc_walk<2>(0, a[3], [&](int64_t i, auto m, int u) {{ tc_put(m, z + i, {call}); }}); }}\n"
    )


@pytest.fixture(scope="module", params=["scalar", pytest.param("vector", marks=NO_VECTORS)])
def functions(request: pytest.FixtureRequest) -> Library:
    """The functions of floats, in both forms."""
    if request.param == "scalar":
        return request.getfixturevalue("library")
    text = '#include "prelude.h"\n#include "prelude_vectors.h"\n'
    for name in VECTORS:
        text += vector_loop(name, f"tc_{name}(tc_take(m, x + i))")
    for name in BINARY_VECTORS:
        text += vector_loop(name, f"tc_{name}(tc_take(m, x + i), tc_take(m, y + i))")
    for name in ("bf16", "half"):
        text += (
            f"TC_EXPORT void to_{name}(const int64_t* a) {{ tc_walk<1>(0, a[2], [&](int64_t i, auto m, int u)"
            f" {{ tc_put(m, (tc_{name}*)a[1] + i, tc_take(m, (const float*)a[0] + i)); }}); }}\n"
            f"TC_EXPORT void from_{name}(const int64_t* a) {{ tc_walk<1>(0, a[2], [&](int64_t i, auto m, int u)"
            f" {{ tc_put(m, (float*)a[1] + i, tc_take(m, (const tc_{name}*)a[0] + i)); }}); }}\n"
        )
    return build([text], name="prelude_vectors_test")


def known(functions: Library, name: str) -> None:
    if functions.name == "prelude_vectors_test" and name not in (*VECTORS, *BINARY_VECTORS):
        pytest.skip("has no vector form")


@pytest.fixture(scope="module")
def library() -> Library:
    text = '#include "prelude.h"\n'
    for name in (*UNARY, *EXACT, *ACTIVATIONS):
        text += loop(name, "float", f"tc_{name}(x[i])")
    for name in (*BINARY, "pow"):
        text += loop(name, "float", f"tc_{name}(x[i], y[i])")
    for name in ("floordiv", "mod", "truncdiv", "fmod"):
        text += loop(f"{name}_i64", "int64_t", f"tc_{name}(x[i], y[i])")
    text += (
        "TC_EXPORT void to_bf16(const int64_t* a) { for (int64_t i = 0; i < a[2]; i++)"
        " tc_store((tc_bf16*)a[1], i, ((const float*)a[0])[i]); }\n"
        "TC_EXPORT void to_half(const int64_t* a) { for (int64_t i = 0; i < a[2]; i++)"
        " tc_store((tc_half*)a[1], i, ((const float*)a[0])[i]); }\n"
        "TC_EXPORT void from_half(const int64_t* a) { for (int64_t i = 0; i < a[2]; i++)"
        " ((float*)a[1])[i] = tc_load((const tc_half*)a[0], i); }\n"
        "TC_EXPORT void from_bf16(const int64_t* a) { for (int64_t i = 0; i < a[2]; i++)"
        " ((float*)a[1])[i] = tc_load((const tc_bf16*)a[0], i); }\n"
        "TC_EXPORT void welford(const int64_t* a) { tc_welford<float> w[4]; const float* x = (const float*)a[0];"
        " for (int64_t i = 0; i < a[2]; i++) w[i & 3].add(x[i]);"
        " auto r = tc_welford_combine(tc_welford_combine(w[0], w[1]), tc_welford_combine(w[2], w[3]));"
        " float* out = (float*)a[1]; out[0] = r.mean; out[1] = r.m2 / r.weight; out[2] = r.weight; }\n"
        "TC_EXPORT void scatter(const int64_t* a) { float* out = (float*)a[0];\n"
        "#pragma omp parallel for\nfor (int64_t i = 0; i < a[1]; i++) tc_atomic_add(out + i % 3, 1.0f); }\n"
        "TC_EXPORT void take(const int64_t* a) { ((int64_t*)a[0])[0] = tc_index(a[1], a[2]); }\n"
    )
    return build([text], name="prelude_test")


def every_exponent() -> torch.Tensor:
    """Every exponent, 4,096 mantissas each, both signs, and the special values."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randint(0, 1 << 23, (256, 4096), generator=generator, dtype=torch.int32)
    bits = mantissas + (torch.arange(256, dtype=torch.int32)[:, None] << 23)
    positive = bits.flatten().view(torch.float32)
    return torch.cat([positive, -positive, torch.tensor(SPECIAL)])


def ulp_error(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|got - truth| in units of the last place of float32 at truth; infinite where only one is
    finite.
    """
    truth32 = exact.float()
    same = (got == truth32) | (got.isnan() & exact.isnan())
    exponent = torch.frexp(exact).exponent.clamp(min=-125)
    unit = torch.ldexp(torch.ones_like(exact), exponent - 24)
    error = (got.double() - exact).abs() / unit
    error = torch.where(got.isnan() | got.isinf() | exact.isnan() | truth32.isinf(), INF, error)
    return torch.where(same, 0.0, error)


def run(
    library: Library, name: str, x: torch.Tensor, y: torch.Tensor | None = None
) -> torch.Tensor:
    out = torch.empty_like(x)
    library.function("run_" + name, 4)(x, x if y is None else y, out, x.numel())
    return out


@pytest.mark.parametrize("name", UNARY)
def test_float32_error_in_ulp(functions: Library, name: str) -> None:
    known(functions, name)
    exact_value_of, limit, (low, high) = UNARY[name]
    x = torch.cat([every_exponent(), torch.linspace(low, high, 2_000_000)])
    got, exact = run(functions, name, x), exact_value_of(x.double())
    error = ulp_error(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= limit, (
        f"{name}({x[worst].item()!r}) = {got[worst].item()!r}, {error[worst]:.2f} ulp"
    )
    zeros = torch.tensor([0.0, -0.0] * 20)
    signs, want = run(functions, name, zeros).signbit(), exact_value_of(zeros.double()).signbit()
    assert torch.equal(signs, want), f"{name}: the sign of zero"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_at_least_as_near_as_eager(functions: Library, name: str) -> None:
    known(functions, name)
    x = torch.cat(
        [torch.linspace(-20, 20, 1_000_001), torch.randn(100_000) * 1e-3, every_exponent()]
    )
    x = x[x.isfinite()]  # eager's vector gelu gives NaN at infinity, its scalar one infinity
    exact, eager = ACTIVATIONS[name](x.double()), ACTIVATIONS[name](x)
    got = run(functions, name, x)
    finite = exact.isfinite() & (exact.abs() < 3e38)
    error, eagers = ((y.double() - exact).abs()[finite] for y in (got, eager))
    scale = exact.abs()[finite].clamp(min=1e-3)
    assert (error / scale).max() <= max(3e-7, 1.5 * (eagers / scale).max().item())
    # Eager's own may be coarse (of gelu 1e-3 at -3.5), so beside the argument too.
    assert (
        error / torch.maximum(exact.abs(), x.abs().double())[finite].clamp(min=1e-30)
    ).max() <= 4e-7
    assert torch.equal(got.isnan(), eager.isnan()) and not got[finite].isnan().any()


@pytest.mark.parametrize("name", EXACT)
def test_exact_functions(functions: Library, name: str) -> None:
    known(functions, name)
    x = every_exponent()
    assert torch.equal(run(functions, name, x).nan_to_num(7.5), EXACT[name](x).nan_to_num(7.5))


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_are_exact(functions: Library, name: str) -> None:
    """Through float64, where they are exact: eager's own vector fmod gives NaN for quotients beyond
    2^31.
    """
    known(functions, name)
    special = torch.tensor([*SPECIAL, 2.5, -2.5, 7.0, -7.0, 0.1])
    x, y = (t.flatten().contiguous() for t in torch.meshgrid(special, special, indexing="ij"))
    x = torch.cat([x, torch.randn(100_000) * 100])
    y = torch.cat([y, torch.randn(100_000) * 3])
    got, want = run(functions, name, x, y), BINARY[name](x.double(), y.double()).float()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_pow(library: Library) -> None:
    special = torch.tensor(
        [*SPECIAL, 2.0, -2.0, 3.0, -3.0, 0.3, 2.5, -2.5, 1e30, 33554431.0, 16777215.0]
    )
    x, y = (t.flatten().contiguous() for t in torch.meshgrid(special, special, indexing="ij"))
    x = torch.cat([x, torch.randn(2_000_000).exp()])
    y = torch.cat([y, torch.randn(2_000_000) * 30])
    got, exact = run(library, "pow", x, y), torch.pow(x.double(), y.double())
    error = ulp_error(got, exact)
    worst = int(error.argmax())
    assert error[worst] <= 0.6, (
        f"pow({x[worst].item()!r}, {y[worst].item()!r}) = {got[worst].item()!r}"
    )


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("floordiv", lambda a, b: torch.div(a, b, rounding_mode="floor")),
        ("mod", torch.remainder),
        ("truncdiv", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
        ("fmod", torch.fmod),
    ],
)
def test_integer_division(library: Library, name: str, reference: object) -> None:
    x = torch.randint(-1000, 1000, (10_000,))
    y = torch.randint(1, 50, (10_000,)) * (torch.randint(0, 2, (10_000,)) * 2 - 1)
    assert torch.equal(run(library, f"{name}_i64", x, y), reference(x, y))  # type: ignore[operator]


def test_integer_division_by_zero_raises_as_eager_does(library: Library) -> None:
    x = torch.ones(5, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(library, "floordiv_i64", x, torch.zeros_like(x))
    assert torch.equal(run(library, "floordiv_i64", x, x), x)  # and the error is forgotten


def test_index_checks(library: Library) -> None:
    take, out = library.function("take", 3), torch.empty(1, dtype=torch.int64)
    take(out, -1, 7)
    assert out.item() == 6
    for bad in (7, -8):
        with pytest.raises(IndexError, match="index out of range"):
            take(out, bad, 7)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("half", torch.float16)])
def test_16_bit_conversions_are_eagers(functions: Library, name: str, dtype: torch.dtype) -> None:
    x = torch.cat(
        [
            every_exponent(),
            torch.linspace(-70000, 70000, 1_000_001),
            torch.linspace(-1e-4, 1e-4, 1_000_001),
        ]
    )
    narrow = torch.empty_like(x, dtype=dtype)
    functions.function(f"to_{name}", 3)(x, narrow, x.numel())
    want = x.to(dtype)
    differs = (narrow.view(torch.int16) != want.view(torch.int16)) & ~(x.isnan() & narrow.isnan())
    assert not differs.any(), x[differs][:5]
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    wide = torch.empty(every.numel())
    functions.function(f"from_{name}", 3)(every, wide, every.numel())
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)


def test_welford_and_atomic_add(library: Library) -> None:
    x, out = torch.randn(10_001) + 100, torch.empty(3)
    library.function("welford", 3)(x, out, x.numel())
    assert math.isclose(out[0].item(), x.double().mean().item(), rel_tol=1e-6)
    assert math.isclose(out[1].item(), x.double().var(correction=0).item(), rel_tol=1e-4)
    sums = torch.zeros(3)
    library.function("scatter", 2)(sums, 300_000)
    assert sums.tolist() == [100_000.0] * 3


#: Functions of float64 that are the C library's, of which glibc has vector variants.
OF_THE_C_LIBRARY = """exp exp2 expm1 log log2 log10 log1p tanh erf erfc sin cos tan atan asin acos sinh
cosh asinh acosh atanh""".split()


@pytest.fixture(scope="module")
def doubles() -> Library:
    text = '#include "prelude.h"\n'
    for name in OF_THE_C_LIBRARY:
        text += loop(name, "double", f"tc_{name}(x[i])")
    return build([text], name="prelude_doubles_test")


@pytest.mark.parametrize("name", OF_THE_C_LIBRARY)
def test_float64_error_in_ulp(doubles: Library, name: str) -> None:
    x = torch.cat(
        [
            torch.tensor(SPECIAL, dtype=torch.float64),
            torch.linspace(-700, 700, 10_001, dtype=torch.float64),
            torch.linspace(-1, 3, 10_001, dtype=torch.float64),
        ]
    )
    got, eager = torch.empty_like(x), getattr(torch, name)(x)
    doubles.function(f"run_{name}", 4)(x, x, got, len(x))
    assert torch.equal(got.isnan(), eager.isnan())
    assert torch.equal(got.signbit() & ~got.isnan(), eager.signbit() & ~eager.isnan())
    finite = eager.isfinite()
    assert torch.equal(got[~finite & ~eager.isnan()], eager[~finite & ~eager.isnan()])
    error = (got - eager).abs()[finite] / eager[finite].abs().clamp(min=2.0**-1021)
    assert error.max() <= 5 * 2.0**-52  # 4 ulp of ours, 1 of eager's


@NO_VECTORS
@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="an older C library")
def test_float64_loops_call_vector_variants(doubles: Library) -> None:
    """They are several times as fast as a call for each element."""
    code = Path(doubles.path).read_bytes()
    for name in OF_THE_C_LIBRARY:
        assert re.search(rb"_ZGV[bcde]N\d+v_%s\0" % name.encode(), code), name
