// What every kernel may call. Self-contained: compiles in some 10 ms (<cmath> and <algorithm> alone would be 100).
//
// Goes in: scalars. Comes out: scalars. Always holds: functions marked [v] have no branch, so GCC
// turns a `#pragma omp simd` loop over them into vector code; NaN, infinities, -0.0 and denormals come out
// as in eager. Errors in ulp are the greatest found over all exponents, both signs, against float64 (the test
// tests/inductor_runtime/test_prelude.py holds them); float64 forms, and forms without [v], are the C library's: see
// `tc_c_` below ([v] there with glibc 2.35).
//
//   exponentials  tc_exp[v] tc_exp2[v] tc_expm1[v] tc_log[v] tc_log2[v] tc_log10[v] tc_log1p[v] tc_pow[v]
//   trigonometry  tc_sin[v] tc_cos[v] tc_tan[v] tc_asin tc_acos tc_atan[v] tc_atan2[v] tc_sinh tc_cosh tc_asinh tc_acosh tc_atanh
//   activations   tc_tanh[v] tc_sigmoid[v] tc_erf[v] tc_erfc tc_gelu_erf[v] tc_gelu_tanh[v] tc_silu[v] tc_softplus[v] tc_relu[v]
//   roots         tc_sqrt[v] tc_rsqrt[v]
//   rounding      tc_floor[v] tc_ceil[v] tc_trunc[v] tc_round[v] (half to even)
//   comparing     tc_max[v] tc_min[v] (NaN propagates) tc_sign[v] tc_abs[v] tc_isnan[v] tc_isinf[v] tc_clamp[v]
//   division      tc_floordiv tc_mod (Python's sign rule)  tc_truncdiv tc_fmod (C's)
//   16-bit types  tc_bf16[v] tc_half[v]: storage only; tc_load(p, i) -> float, tc_store(p, i, value)
//   8-bit floats  tc_e4m3[v] tc_e5m2[v]: storage only; tc_to_float(x)
//   memory        tc_atomic_add(pointer, value)   tc_index(i, size): wraps negatives, reports bad indices
//   statistics    tc_welford { mean, m2, weight }  .add(x)  tc_welford_combine(a, b)
//   errors        tc_fail(code): the launcher raises after the call (TC_BAD_INDEX, TC_ZERO_DIVISION, TC_NO_MEMORY)
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#define TC_EXPORT extern "C" __attribute__((visibility("default")))
#define TC_INLINE static inline __attribute__((always_inline))
#define TC_NAN_F (__builtin_nanf(""))
#define TC_INF_F (__builtin_inff())
// In a loop over rows: GCC would walk two rows side by side (unroll and jam), which memory serves at 13 GB/s and not 33.
#define TC_ROW_BY_ROW asm volatile("")

// ---- the C library's functions. glibc has vector variants of these (libmvec: 4 ulp at most, which `const` and `simd` let
// GCC call from loops); others are called element by element.
#if defined(__x86_64__) && !defined(__clang__) && defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 35)
#define TC_MVEC simd("notinbranch"),
#endif
#endif
#ifndef TC_MVEC
#define TC_MVEC
#endif
#define TC_C(name)                                                                                   \
    extern "C" __attribute__((TC_MVEC const, nothrow)) double tc_c_##name(double) __asm__(#name); \
    TC_INLINE double tc_##name(double x) { return tc_c_##name(x); }
#define TC_C_FLOAT(name)                                                                                   \
    extern "C" __attribute__((TC_MVEC const, nothrow)) float tc_c_##name##f(float) __asm__(#name "f"); \
    TC_INLINE float tc_##name(float x) { return tc_c_##name##f(x); }
#define TC_C_PAIR(name)                                                                                            \
    extern "C" __attribute__((TC_MVEC const, nothrow)) double tc_c_##name(double, double) __asm__(#name);       \
    TC_INLINE double tc_##name(double x, double y) { return tc_c_##name(x, y); }
TC_C(exp) TC_C(exp2) TC_C(expm1) TC_C(log) TC_C(log2) TC_C(log10) TC_C(log1p) TC_C(tanh)
TC_C(erf) TC_C(erfc) TC_C(sin) TC_C(cos) TC_C(tan) TC_C(atan) TC_C(asin) TC_C(acos)
TC_C(sinh) TC_C(cosh) TC_C(asinh) TC_C(acosh) TC_C(atanh)
TC_C_FLOAT(erfc) TC_C_FLOAT(asin) TC_C_FLOAT(acos) TC_C_FLOAT(sinh) TC_C_FLOAT(cosh) TC_C_FLOAT(asinh) TC_C_FLOAT(acosh) TC_C_FLOAT(atanh)
TC_C_PAIR(pow) TC_C_PAIR(atan2)

// ---- errors that a kernel meets while it runs: remembered here, raised by the launcher
#define TC_BAD_INDEX 1
#define TC_ZERO_DIVISION 2
#define TC_NO_MEMORY 4
// tc_error: how often something failed, and what did last. It is only ever counted up, so a call that compares the count
// with that at its start cannot miss its own failure; it may take another thread's for its own, and raises too.
extern "C" {
__attribute__((visibility("default"), weak)) int tc_error[2] = {0, 0};
}
TC_INLINE void tc_fail(int code) {
    __atomic_store_n(&tc_error[1], code, __ATOMIC_RELAXED);
    __atomic_fetch_add(&tc_error[0], 1, __ATOMIC_RELEASE);
}
// What a profile has called before each kernel of a run, with the kernel's number (runtime/profile_rows.py).
extern "C" {
__attribute__((visibility("default"), weak)) void (*tc_row)(int64_t) = nullptr;
}
#define TC_ROW(number) if (auto begin = tc_row) begin(number)
TC_INLINE int tc_failures() { return __atomic_load_n(&tc_error[0], __ATOMIC_ACQUIRE); }
// An index into a dimension of `size`: negative ones count from the end; a bad one is reported and read as 0.
TC_INLINE int64_t tc_index(int64_t i, int64_t size) {
    i += i < 0 ? size : 0;
    if (__builtin_expect((uint64_t)i >= (uint64_t)size, 0)) { tc_fail(TC_BAD_INDEX); return 0; }
    return i;
}

// ---- sizes
TC_INLINE int64_t tc_least(int64_t a, int64_t b) { return a < b ? a : b; }
TC_INLINE int64_t tc_greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- bits
TC_INLINE uint32_t tc_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
TC_INLINE float tc_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
TC_INLINE uint64_t tc_bits64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
TC_INLINE double tc_double(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
TC_INLINE float tc_copysign(float x, float s) { return tc_float((tc_bits(x) & 0x7fffffffu) | (tc_bits(s) & 0x80000000u)); }
TC_INLINE double tc_copysign(double x, double s) { return __builtin_copysign(x, s); }
TC_INLINE float tc_power_of_two(int32_t n) { return tc_float((uint32_t)(n + 127) << 23); }  // -126 <= n <= 127
TC_INLINE float tc_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TC_INLINE double tc_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// ---- comparing, rounding, roots: exact
TC_INLINE float tc_abs(float x) { return __builtin_fabsf(x); }
TC_INLINE double tc_abs(double x) { return __builtin_fabs(x); }
template <class T> TC_INLINE T tc_abs(T x) { return x < 0 ? -x : x; }
TC_INLINE bool tc_isnan(float x) { return x != x; }
TC_INLINE bool tc_isnan(double x) { return x != x; }
TC_INLINE bool tc_isinf(float x) { return tc_abs(x) == TC_INF_F; }
TC_INLINE bool tc_isinf(double x) { return tc_abs(x) == __builtin_inf(); }
// Two choices in a row: GCC turns `a > b || a != a ? a : b` into code that is five times slower.
template <class T> TC_INLINE T tc_max(T a, T b) { const T m = a > b ? a : b; return a != a ? a : m; }
template <class T> TC_INLINE T tc_min(T a, T b) { const T m = a < b ? a : b; return a != a ? a : m; }
template <class T> TC_INLINE T tc_clamp(T x, T low, T high) { return tc_min(tc_max(x, low), high); }
template <class T> TC_INLINE T tc_relu(T x) { return T(0) > x ? T(0) : x; }  // one max instruction; NaN stays
template <class T> TC_INLINE T tc_sign(T x) { return T((T(0) < x) - (x < T(0))); }
TC_INLINE float tc_floor(float x) { return __builtin_floorf(x); }
TC_INLINE double tc_floor(double x) { return __builtin_floor(x); }
TC_INLINE float tc_ceil(float x) { return __builtin_ceilf(x); }
TC_INLINE double tc_ceil(double x) { return __builtin_ceil(x); }
TC_INLINE float tc_trunc(float x) { return __builtin_truncf(x); }
TC_INLINE double tc_trunc(double x) { return __builtin_trunc(x); }
TC_INLINE float tc_round(float x) { return __builtin_rintf(x); }
TC_INLINE double tc_round(double x) { return __builtin_rint(x); }
// An integer that was made from a float and is one again: GCC (12 and earlier, with -fno-trapping-math) makes a trunc of
// both conversions, which leaves -0.0 of -0.5.
template <class T> TC_INLINE T tc_whole(T x) { return tc_abs(x) < T(1) ? T(0) : x; }
TC_INLINE float tc_sqrt(float x) { return __builtin_sqrtf(x); }
TC_INLINE double tc_sqrt(double x) { return __builtin_sqrt(x); }
TC_INLINE float tc_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }  // 1.5 ulp
TC_INLINE double tc_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

// ---- exponentials. Coefficients: tools/minimax.py.
// (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2
TC_INLINE float tc_exp_tail(float r) {
    float p = 0x1.6d308ep-10f;
    p = tc_fma(p, r, 0x1.120c38p-7f);
    p = tc_fma(p, r, 0x1.555500p-5f);
    p = tc_fma(p, r, 0x1.5554dcp-3f);
    return tc_fma(p, r, 0.5f);
}
// 2^n for -252 <= n <= 254 applied to p, with one rounding where the result is denormal
TC_INLINE float tc_scale(float p, int32_t n) {
    int32_t half = n >> 1;
    return p * tc_power_of_two(half) * tc_power_of_two(n - half);
}
// exp(x) = 2^n exp(r), r = x - n ln 2. 1.0 ulp
TC_INLINE float tc_exp(float x) {
    float c = x < -105.0f ? -105.0f : x;
    c = c > 90.0f ? 90.0f : c;
    float n = __builtin_rintf(c * 0x1.715476p+0f);
    float r = tc_fma(n, -0x1.62e43p-1f, c);
    r = tc_fma(n, 0x1.05c610p-29f, r);
    return tc_scale(tc_fma(r * r, tc_exp_tail(r), r) + 1.0f, (int32_t)n);
}
// 2^x = 2^n 2^r; n is exact here. 1.0 ulp
TC_INLINE float tc_exp2(float x) {
    float c = x < -152.0f ? -152.0f : x;
    c = c > 129.0f ? 129.0f : c;
    float n = __builtin_rintf(c), r = c - n;
    float p = 0x1.de5ecap-17f;
    p = tc_fma(p, r, 0x1.4419d0p-13f);
    p = tc_fma(p, r, 0x1.5da690p-10f);
    p = tc_fma(p, r, 0x1.3b2a52p-7f);
    p = tc_fma(p, r, 0x1.c6b06ep-5f);
    p = tc_fma(p, r, 0x1.ebfbe0p-3f);
    p = tc_fma(p, r, 0x1.62e430p-1f);
    return tc_scale(tc_fma(p, r, 1.0f), (int32_t)n);
}
// exp(x) - 1 = 2 (s expm1(r) + (s - 1/2)) with s = 2^(n-1). 1.5 ulp
TC_INLINE float tc_expm1(float x) {
    float c = x < -30.0f ? -30.0f : x;
    c = c > 90.0f ? 90.0f : c;
    float n = __builtin_rintf(c * 0x1.715476p+0f);
    float r = tc_fma(n, -0x1.62e43p-1f, c);
    r = tc_fma(n, 0x1.05c610p-29f, r);
    float e = tc_fma(r * r, tc_exp_tail(r), r);
    float h = n > 128.0f ? 128.0f : n;  // 2^(n-1) stays finite; above, twice it is infinite as it should be
    float s = tc_power_of_two((int32_t)h - 1);
    float y = 2.0f * tc_fma(s, e, s - 0.5f);
    y = n > 128.0f ? TC_INF_F : y;
    return tc_abs(x) < 0x1p-24f ? x : y;
}
// x = m 2^e with sqrt(1/2) <= m < sqrt(2), denormals too; f = m - 1 and
// tail = log(1 + f) - f. Only for finite x > 0.
struct tc_log_parts { float e, f, tail; };
TC_INLINE tc_log_parts tc_split_log(float x) {
    bool tiny = x < 0x1p-126f;
    float y = tiny ? x * 0x1p23f : x;
    int32_t b = (int32_t)tc_bits(y) - 0x3f3504f3;
    int32_t e = b >> 23;
    float f = tc_float((uint32_t)((b & 0x7fffff) + 0x3f3504f3)) - 1.0f;
    float p = 0x1.24bac2p-4f;
    p = tc_fma(p, f, -0x1.d9bfccp-4f);
    p = tc_fma(p, f, 0x1.dd9aaep-4f);
    p = tc_fma(p, f, -0x1.fc6382p-4f);
    p = tc_fma(p, f, 0x1.23d80ep-3f);
    p = tc_fma(p, f, -0x1.555ea6p-3f);
    p = tc_fma(p, f, 0x1.999d3ep-3f);
    p = tc_fma(p, f, -0x1.fffff2p-3f);
    p = tc_fma(p, f, 0x1.555554p-2f);
    float q = f * f;
    return {(float)(e - (tiny ? 23 : 0)), f, tc_fma(q, p * f, -0.5f * q)};
}
TC_INLINE float tc_log_ends(float x, float y) {  // the values at and beyond the ends of (0, inf)
    y = x == TC_INF_F ? x : y;
    y = x == 0.0f ? -TC_INF_F : y;
    return x < 0.0f || x != x ? TC_NAN_F : y;
}
// log(x) = e ln 2 + f + tail. 1.0 ulp
TC_INLINE float tc_log(float x) {
    tc_log_parts s = tc_split_log(x);
    float low = tc_fma(s.e, -0x1.05c610p-29f, s.tail);
    return tc_log_ends(x, tc_fma(s.e, 0x1.62e43p-1f, s.f + low));
}
// 1.5 ulp
TC_INLINE float tc_log2(float x) {
    tc_log_parts s = tc_split_log(x);
    float low = tc_fma(s.f + s.tail, 0x1.4ae0cp-26f, s.tail * 0x1.715476p+0f);
    return tc_log_ends(x, s.e + tc_fma(s.f, 0x1.715476p+0f, low));
}
// 2.0 ulp
TC_INLINE float tc_log10(float x) {
    tc_log_parts s = tc_split_log(x);
    float low = tc_fma(s.f + s.tail, -0x1.5b235ep-27f, s.tail * 0x1.bcb7b2p-2f);
    low = tc_fma(s.e, -0x1.ec10cp-27f, low);
    return tc_log_ends(x, tc_fma(s.e, 0x1.344136p-2f, tc_fma(s.f, 0x1.bcb7b2p-2f, low)));
}
// log(1 + x) = log(u) + (x - (u - 1)) / u with u = 1 + x rounded. 1.5 ulp
TC_INLINE float tc_log1p(float x) {
    float u = 1.0f + x;
    float lost = x - (u - 1.0f);
    tc_log_parts s = tc_split_log(u);
    float low = tc_fma(s.e, -0x1.05c610p-29f, s.tail) + lost / u;
    float y = tc_fma(s.e, 0x1.62e43p-1f, s.f + low);
    y = tc_log_ends(u, y);
    return tc_abs(x) < 0x1p-25f ? x : y;
}

// pow(x, y) = 2^(y log2|x|) in double, so one rounding: 0.6 ulp. log2(m) = s P(s^2), s = (m - 1) / (m + 1).
TC_INLINE float tc_pow(float x, float y) {
    float ax = tc_abs(x);
    uint64_t b = tc_bits64((double)ax) - 0x3fe6a09e667f3bcdull;
    int64_t e = (int64_t)b >> 52;
    double m = tc_double((b & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 0x1.21cec033411c7p-2;
    p = tc_fma(p, q, 0x1.47935d155430dp-2);
    p = tc_fma(p, q, 0x1.a61a3a5128c27p-2);
    p = tc_fma(p, q, 0x1.2776c285c1433p-1);
    p = tc_fma(p, q, 0x1.ec709dc54722ep-1);
    p = tc_fma(p, q, 0x1.71547652b824cp+1);
    double l = tc_fma(p, s, (double)(int32_t)e);
    l = ax == 0.0f ? -1e300 : l;
    l = ax == TC_INF_F ? 1e300 : l;
    double t = (double)y * l;
    t = t < -200.0 ? -200.0 : t;
    t = t > 200.0 ? 200.0 : t;
    double n = __builtin_rint(t), r = t - n;
    double z = 0x1.00dd491c8a1cdp-16;
    z = tc_fma(z, r, 0x1.446deabb81ebap-13);
    z = tc_fma(z, r, 0x1.5d874427bf7b0p-10);
    z = tc_fma(z, r, 0x1.3b29d6ec30284p-7);
    z = tc_fma(z, r, 0x1.c6b08dd83dd36p-5);
    z = tc_fma(z, r, 0x1.ebfbe0ac321b7p-3);
    z = tc_fma(z, r, 0x1.62e42fef844e2p-1);
    z = tc_fma(z, r, 0x1.ffffffffa59c8p-1);
    float v = (float)(z * tc_double((uint64_t)(int64_t)((int32_t)n + 1023) << 52));
    float half = y * 0.5f;
    bool whole = __builtin_rintf(y) == y, odd = whole & (__builtin_rintf(half) != half);
    bool negative = (int32_t)tc_bits(x) < 0;
    v = negative & !whole & (ax != 0.0f) & (ax != TC_INF_F) ? TC_NAN_F : v;
    v = negative & odd ? -v : v;
    v = (x != x) | (y != y) ? TC_NAN_F : v;
    v = (ax == 1.0f) & (y - y != 0.0f) & (y == y) ? 1.0f : v;
    return (x == 1.0f) | (y == 0.0f) ? 1.0f : v;
}
TC_INLINE int64_t tc_pow(int64_t x, int64_t y) {  // y < 0: 1 and -1 are exact, others 0, as eager
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    uint64_t r = 1, b = (uint64_t)x;
    for (; y; y >>= 1, b *= b) if (y & 1) r *= b;
    return (int64_t)r;
}
template <class T> TC_INLINE T tc_pow(T x, T y) { return (T)tc_pow((int64_t)x, (int64_t)y); }  // the narrower integers

// ---- activations
// |x| > 0.62: 1 - 2 / (exp(2|x|) + 1); else x + x^3 P(x^2). 1.5 ulp
TC_INLINE float tc_tanh(float x) {
    float a = tc_abs(x), s = x * x;
    float c = a > 10.0f ? 10.0f : a;
    float large = tc_copysign(1.0f - 2.0f / (tc_exp(c + c) + 1.0f), x);
    float p = 0x1.37c564p-9f;
    p = tc_fma(p, s, -0x1.14a88ep-7f);
    p = tc_fma(p, s, 0x1.6556e6p-6f);
    p = tc_fma(p, s, -0x1.ba18900p-5f);
    p = tc_fma(p, s, 0x1.111134p-3f);
    p = tc_fma(p, s, -0x1.555556p-2f);
    float small = tc_copysign(tc_fma(p * s, x, x), x);  // the sum would lose -0.0
    float y = a > 0.625f ? large : small;
    return x != x ? x : y;
}
TC_INLINE float tc_sigmoid(float x) {  // from exp(-|x|), which cannot overflow. 2.5 ulp, denormal results too
    float z = tc_exp(-tc_abs(x));
    return (x < 0.0f ? z : 1.0f) / (1.0f + z);
}
TC_INLINE double tc_sigmoid(double x) { return 1.0 / (1.0 + tc_exp(-x)); }
TC_INLINE float tc_silu(float x) { return x / (1.0f + tc_exp(-x)); }
TC_INLINE double tc_silu(double x) { return x / (1.0 + tc_exp(-x)); }
// |x| < 0.93: x + x P(x^2); else 1 - exp(-t Q(t)), t = |x| <= 4. 1.5 ulp
TC_INLINE float tc_erf(float x) {
    float a = tc_abs(x), s = x * x;
    float p = 0x1.5abbd2p-14f;
    p = tc_fma(p, s, -0x1.a99766p-11f);
    p = tc_fma(p, s, 0x1.54b3eep-8f);
    p = tc_fma(p, s, -0x1.b80c46p-6f);
    p = tc_fma(p, s, 0x1.ce2de8p-4f);
    p = tc_fma(p, s, -0x1.812742p-2f);
    p = tc_fma(p, s, 0x1.06eba8p-3f);
    float small = tc_fma(p, x, x);
    float t = a > 4.0f ? 4.0f : a;
    float q = 0x1.4a7814p-23f;
    q = tc_fma(q, t, -0x1.f25640p-19f);
    q = tc_fma(q, t, 0x1.3cd29ap-15f);
    q = tc_fma(q, t, -0x1.9ac14cp-13f);
    q = tc_fma(q, t, 0x1.72865cp-12f);
    q = tc_fma(q, t, 0x1.294960p-9f);
    q = tc_fma(q, t, -0x1.6897fcp-6f);
    q = tc_fma(q, t, 0x1.ad9030p-4f);
    q = tc_fma(q, t, 0x1.457fd6p-1f);
    q = tc_fma(q, t, 0x1.20e7fcp+0f);
    float large = tc_copysign(1.0f - tc_exp(-t * q), x);
    float y = a > 0.93f ? large : small;
    return x != x ? x : y;
}
TC_INLINE double tc_gelu_erf(double x) { return x * 0.5 * (1.0 + tc_erf(x * 0.70710678118654752440)); }
// x Phi(x) with Phi(-a) = erfc(a / sqrt 2) / 2 and erfc(t) = exp(-t Q(t)); beyond t = 4.3, Q(4.3). No cancellation for
// x < 0, where eager's 1 + erf has one: its error is below eager's everywhere.
TC_INLINE float tc_gelu_erf(float x) {
    float t = tc_abs(x) * 0x1.6a09e6p-1f, c = t > 4.3f ? 4.3f : t;
    float q = -0x1.5ff7d4p-24f;
    q = tc_fma(q, c, 0x1.238b5cp-19f);
    q = tc_fma(q, c, -0x1.ab7a98p-16f);
    q = tc_fma(q, c, 0x1.6a7a14p-13f);
    q = tc_fma(q, c, -0x1.7e1cb6p-11f);
    q = tc_fma(q, c, 0x1.ca278ep-10f);
    q = tc_fma(q, c, -0x1.74cd9ep-13f);
    q = tc_fma(q, c, -0x1.3a18d4p-6f);
    q = tc_fma(q, c, 0x1.a50632p-4f);
    q = tc_fma(q, c, 0x1.45f2bcp-1f);
    q = tc_fma(q, c, 0x1.20dd76p+0f);
    float tail = 0.5f * tc_exp(-t * q);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}
template <class T> TC_INLINE T tc_gelu_tanh(T x) {
    T inner = T(0.79788456080286535588) * (x + T(0.044715) * (x * x * x));
    return T(0.5) * x * (T(1) + tc_tanh(inner));
}
template <class T> TC_INLINE T tc_softplus(T x) {  // log(1 + exp(x)), without overflow
    return tc_max(x, T(0)) + tc_log1p(tc_exp(-tc_abs(x)));
}

// ---- trigonometry. A vectorised loop calls the vector variants below: r = x - q pi/2 in three fused steps,
// right for |x| < 30000; a vector with any greater value goes to libm lane by lane. 1.5 ulp (tan 2.4)
// (runtime/cpp/objects.py defines TC_TRIG for the texts that use them; their vector forms are in a unit of their own.)
#if defined(TC_TRIG) && defined(__x86_64__) && !defined(__clang__)
#define TC_SIMD_CALL __attribute__((simd("notinbranch"), const, nothrow, visibility("hidden")))
extern "C" {
TC_SIMD_CALL float tc_sin_f32(float);
TC_SIMD_CALL float tc_cos_f32(float);
TC_SIMD_CALL float tc_tan_f32(float);
}
TC_INLINE float tc_sin(float x) { return tc_sin_f32(x); }
TC_INLINE float tc_cos(float x) { return tc_cos_f32(x); }
TC_INLINE float tc_tan(float x) { return tc_tan_f32(x); }
#include "prelude_trig.h"
#else
TC_INLINE float tc_sin(float x) { return __builtin_sinf(x); }
TC_INLINE float tc_cos(float x) { return __builtin_cosf(x); }
TC_INLINE float tc_tan(float x) { return __builtin_tanf(x); }
#endif

// The angle of (x, y), y >= 0: float64's bits are enough for the last one of float32. backwards: x is negative, or -0.0
TC_INLINE float tc_angle(double y, double x, bool backwards) {
    const bool steep = y > x, equal = y == x;  // infinite or zero, both of them
    const double t = equal ? (y == 0 ? 0.0 : 1.0) : (steep ? x : y) / (steep ? y : x), s = t * t;
    double p = tc_fma(s, 0x1.657b3ba0095aep-13, -0x1.807a77421f2f7p-10);  // atan(t) / t in t^2, from 0 to 1
    p = tc_fma(p, s, 0x1.850bdf56a80b6p-8);
    p = tc_fma(p, s, -0x1.f323674b044a5p-7);
    p = tc_fma(p, s, 0x1.d17abe7889664p-6);
    p = tc_fma(p, s, -0x1.5ab9279e2b201p-5);
    p = tc_fma(p, s, 0x1.bf2393efe8459p-5);
    p = tc_fma(p, s, -0x1.0bb9539dc5436p-4);
    p = tc_fma(p, s, 0x1.39e23d1599a8ep-4);
    p = tc_fma(p, s, -0x1.742d65ac65c77p-4);
    p = tc_fma(p, s, 0x1.c717834559cfep-4);
    p = tc_fma(p, s, -0x1.24922161af34dp-3);
    p = tc_fma(p, s, 0x1.999998469d323p-3);
    p = tc_fma(p, s, -0x1.5555555316212p-2);
    p = tc_fma(p, s, 0x1.ffffffffff5ccp-1);
    p *= t;
    p = steep ? 0x1.921fb54442d18p0 - p : p;
    return backwards ? 0x1.921fb54442d18p1 - p : p;
}
TC_INLINE float tc_atan(float x) { return tc_copysign(tc_angle(tc_abs(x), 1.0, false), x); }
TC_INLINE float tc_atan2(float y, float x) { return tc_copysign(tc_angle(tc_abs(y), tc_abs(x), tc_bits(x) >> 31), y); }

// ---- division. Integers: a zero divisor is reported (eager raises too) and never traps.
template <class T> TC_INLINE T tc_divisor(T b) {
    if (__builtin_expect(b == 0, 0)) { tc_fail(TC_ZERO_DIVISION); return 1; }
    return b;
}
template <class T> TC_INLINE T tc_truncdiv(T a, T b) {
    b = tc_divisor(b);
    return T(-1) < T(0) && b == T(-1) ? T(0) - a : a / b;  // the least integer / -1 traps on x86
}
template <class T> TC_INLINE T tc_fmod(T a, T b) {
    b = tc_divisor(b);
    return T(-1) < T(0) && b == T(-1) ? T(0) : a % b;
}
template <class T> TC_INLINE T tc_mod(T a, T b) {
    T r = tc_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class T> TC_INLINE T tc_floordiv(T a, T b) {
    T q = tc_truncdiv(a, b), r = tc_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
TC_INLINE float tc_truncdiv(float a, float b) { return tc_trunc(a / b); }
TC_INLINE double tc_truncdiv(double a, double b) { return tc_trunc(a / b); }
TC_INLINE float tc_fmod(float a, float b) {
    const double x = tc_abs(a), y = tc_abs(b), q = x / y;
    if (__builtin_expect(!(q < 0x1p29 && y < TC_INF_F), 0)) return __builtin_fmodf(a, b);
    const double r = x - tc_trunc(q) * y;  // exact: 29 bits by 24, and a multiple of y's last bit
    return tc_copysign(r < 0 ? r + y : r, (double)a);  // below 0 where q was rounded up to an integer
}
TC_INLINE double tc_fmod(double a, double b) {
#ifdef __FMA__
    const double x = tc_abs(a), y = tc_abs(b), q = x / y;
    if (__builtin_expect(q < 0x1p51 && y < __builtin_inf(), 1)) {
        const double r = tc_fma(-tc_trunc(q), y, x);  // exact, as above
        return tc_copysign(r < 0 ? r + y : r, a);
    }
#endif
    return __builtin_fmod(a, b);
}
template <class T> TC_INLINE T tc_float_mod(T a, T b) {
    T r = tc_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class T> TC_INLINE T tc_float_floordiv(T a, T b) {  // Python's float.__floordiv__
    if (b == 0) return a / b;
    T r = tc_fmod(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= T(1);
    if (q == 0) return tc_copysign(T(0), a / b);
    T f = tc_floor(q);
    return q - f > T(0.5) ? f + T(1) : f;
}
TC_INLINE float tc_mod(float a, float b) { return tc_float_mod(a, b); }
TC_INLINE double tc_mod(double a, double b) { return tc_float_mod(a, b); }
TC_INLINE float tc_floordiv(float a, float b) { return tc_float_floordiv(a, b); }
TC_INLINE double tc_floordiv(double a, double b) { return tc_float_floordiv(a, b); }

// ---- 16-bit storage types. Conversions round to nearest even; NaN stays NaN.
struct tc_bf16 { uint16_t bits; };
struct tc_half { uint16_t bits; };
TC_INLINE float tc_to_float(tc_bf16 x) { return tc_float((uint32_t)x.bits << 16); }
TC_INLINE tc_bf16 tc_to_bf16(float x) {
    uint32_t u = tc_bits(x);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return {(uint16_t)(x != x ? 0x7fc0u : r)};
}
// Without float denormals, which set_flush_denormal makes 0: half's are normal floats.
TC_INLINE float tc_to_float(tc_half x) {
    uint32_t a = x.bits & 0x7fff, sign = (uint32_t)(x.bits & 0x8000) << 16;
    uint32_t u = a < 0x400 ? tc_bits((float)(int32_t)a * 0x1p-24f) : (a << 13) + 0x38000000u;
    return tc_float((a >= 0x7c00 ? (a << 13) | 0x7f800000u : u) | sign);
}
TC_INLINE tc_half tc_to_half(float x) {
    uint32_t u = tc_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    uint32_t small = tc_bits(tc_float(a) + 0.5f) - 0x3f000000u;               // below 2^-14: adding 1/2 rounds at half's last bit
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;      // rounds; may carry into infinity, as it should
    uint32_t r = a < 0x38800000u ? small : normal;
    r = a >= 0x47800000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? 0x7e00u : r;
    return {(uint16_t)(r | sign)};
}
// ---- 8-bit floats, which are read only.
struct tc_e4m3 { uint8_t bits; };
struct tc_e5m2 { uint8_t bits; };
TC_INLINE float tc_to_float(tc_e4m3 x) {
    uint32_t a = x.bits & 0x7f, sign = (uint32_t)(x.bits & 0x80) << 24;
    uint32_t u = a < 8 ? tc_bits((float)(int32_t)a * 0x1p-9f) : (a << 20) + 0x3c000000u;
    return tc_float((a == 0x7f ? 0x7fc00000u : u) | sign);
}
TC_INLINE float tc_to_float(tc_e5m2 x) { return tc_to_float(tc_half{(uint16_t)(x.bits << 8)}); }
TC_INLINE float tc_load(const tc_bf16* p, int64_t i) { return tc_to_float(p[i]); }
TC_INLINE float tc_load(const tc_half* p, int64_t i) { return tc_to_float(p[i]); }
template <class T> TC_INLINE T tc_load(const T* p, int64_t i) { return p[i]; }
TC_INLINE void tc_store(tc_bf16* p, int64_t i, float value) { p[i] = tc_to_bf16(value); }
TC_INLINE void tc_store(tc_half* p, int64_t i, float value) { p[i] = tc_to_half(value); }
template <class T, class V> TC_INLINE void tc_store(T* p, int64_t i, V value) { p[i] = (T)value; }

// ---- adding to memory that other threads add to
template <class T> TC_INLINE T tc_sum_of(T a, T b) { return a + b; }
TC_INLINE tc_bf16 tc_sum_of(tc_bf16 a, tc_bf16 b) { return tc_to_bf16(tc_to_float(a) + tc_to_float(b)); }
TC_INLINE tc_half tc_sum_of(tc_half a, tc_half b) { return tc_to_half(tc_to_float(a) + tc_to_float(b)); }
template <class T> TC_INLINE void tc_atomic_add(T* address, T value) {
    T old, sum;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do sum = tc_sum_of(old, value);
    while (!__atomic_compare_exchange(address, &old, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// A store past the caches to a whole vector's place.
#if defined(__clang__)
#define TC_STREAM(place, value) __builtin_nontemporal_store(value, place)
#elif defined(__AVX512F__)
#define TC_STREAM(place, value) __builtin_ia32_movntps512((float*)(place), value)
#else
#define TC_STREAM(place, value) __builtin_ia32_movntps256((float*)(place), value)
#endif

// Copies bytes past the caches: whole cache lines are written without being read. `from` is in the L1 cache. Stores
// of other threads' lines may come later than ordinary ones: tc_stream_end() before anybody else reads.
TC_INLINE void tc_stream(void* to, const void* from, int64_t bytes) {
#if defined(__AVX__)
    char* t = (char*)to;
    const char* f = (const char*)from;
    int64_t head = -(int64_t)t & 63;
    if (head > bytes) head = bytes;
    memcpy(t, f, head);
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
        typedef float V __attribute__((vector_size(64)));
        V v;
        memcpy(&v, f + i, 64);
        TC_STREAM((V*)(t + i), v);
#else
        typedef float V __attribute__((vector_size(32)));
        V v[2];
        memcpy(v, f + i, 64);
        TC_STREAM((V*)(t + i), v[0]);
        TC_STREAM((V*)(t + i + 32), v[1]);
#endif
    }
    memcpy(t + i, f + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}
TC_INLINE void tc_stream_end() {
#if defined(__AVX__)
    __builtin_ia32_sfence();
#endif
}
// ---- the first of `length` elements that is `value`, or NaN where that is NaN
template <class T, class Test> TC_INLINE int64_t tc_first_place(int64_t length, Test test) {
    if (sizeof(T) == 8) {  // as wide as the elements, for vectors of as many
        int64_t at = length;
#pragma omp simd reduction(min : at)
        for (int64_t i = 0; i < length; ++i) at = test(i) && i < at ? i : at;
        return at;
    }
    int32_t at = (int32_t)length;
#pragma omp simd reduction(min : at)
    for (int32_t i = 0; i < (int32_t)length; ++i) at = test(i) && i < at ? i : at;
    return at;
}
template <class T> TC_INLINE int64_t tc_place_of(const T* x, int64_t length, T value) {
    if (value != value) return tc_first_place<T>(length, [&](int64_t i) __attribute__((always_inline)) { return x[i] != x[i]; });
    return tc_first_place<T>(length, [&](int64_t i) __attribute__((always_inline)) { return x[i] == value; });
}

// ---- mean and sum of squared differences in one pass (Welford; combining: Chan, Golub, LeVeque 1979)
struct tc_moments { double sum, squares; };
template <class T> TC_INLINE tc_moments tc_moments_of(const T* x, int64_t length, T mean) {  // of x - mean
    T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
    for (int64_t i = 0; i < length; ++i) { const T d = x[i] - mean; sum += d; squares += d * d; }
    return {sum, squares};
}
// The squared distances to the mean, which is corrected by the sum of the distances: the sum it was made from is rounded.
// Numbers that differ by less than that rounding need a second turn, and equal numbers have a variance of 0.
template <class T, class Moments> TC_INLINE double tc_squares(int64_t length, double& mean, Moments moments) {
    for (bool again = false;; again = true) {
        const tc_moments found = moments((T)mean);
        if (found.sum - found.sum != 0) return found.squares;  // overflown
        mean = (T)mean + found.sum / length;
        const double moved = found.sum * found.sum / length;
        const double squares = found.squares - moved;
        if (again || !(moved > found.squares / 64)) return squares < 0 ? 0 : squares;
    }
}
template <class T> struct tc_welford {
    T mean = 0, m2 = 0, weight = 0;
    inline __attribute__((always_inline)) void add(T x) {
        weight += T(1);
        T d = x - mean;
        mean += d / weight;
        m2 += d * (x - mean);
    }
};
// The mean and squares of a block whose sums are beyond T: number by number, where the mean exists.
template <class T> TC_INLINE void tc_redo_overflown(const T* x, int64_t length, double& mean, double& m2) {
    if (mean - mean == 0 && m2 - m2 == 0) return;
    tc_welford<double> all;
    for (int64_t i = 0; i < length; ++i) all.add(x[i]);
    if (all.mean - all.mean == 0) mean = all.mean, m2 = all.m2;
}
template <class T> TC_INLINE tc_welford<T> tc_welford_combine(tc_welford<T> a, tc_welford<T> b) {
    T w = a.weight + b.weight, d = b.mean - a.mean;
    T share = w == T(0) ? T(0) : b.weight / w;
    tc_welford<T> r;
    r.mean = a.mean + d * share;
    r.m2 = a.m2 + b.m2 + d * d * a.weight * share;
    r.weight = w;
    return r;
}
