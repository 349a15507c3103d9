// Special functions, for the texts that use them (codegen/cpp/module.py includes it then).
//
// Goes in: scalars. Comes out: scalars. Always holds: NaN and infinities come out as in eager. Errors in ulp are
// the greatest found against float64 (tests/inductor_runtime/test_special.py holds them).
#pragma once
#include "prelude.h"

// log(exp(a) + exp(b)) as eager's scans have it: exact where either is -inf, NaN where either is NaN.
TC_INLINE double ts_log_add_exp(double a, double b) {
    double low = a != a || a < b ? a : b, high = b != b || a < b ? b : a;
    if (a != a) return a;
    if (b != b) return b;
    return low != high || low - low == 0 ? tc_log1p(tc_exp(low - high)) + high : b;
}

// ---- random numbers: the first word of Philox 4x32-10 with the place as counter and the seed as key
TC_INLINE float ts_philox(int64_t seed, int64_t place) {
    uint32_t c0 = (uint32_t)place, c1 = (uint32_t)(place >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    int32_t word = (int32_t)c0;
    return (float)(word < 0 ? -word - 1 : word) * 4.6566127342e-10f;
}
// ---- pairs of numbers
template <class T> TC_INLINE T ts_copysign(T x, T s) { return tc_copysign(x, s); }
// Squares in double neither overflow nor vanish: 0.51 ulp. [v]
TC_INLINE float ts_hypot(float x, float y) {
    float r = (float)tc_sqrt((double)x * x + (double)y * y);
    return tc_isinf(x) || tc_isinf(y) ? TC_INF_F : r;
}
TC_INLINE double ts_hypot(double x, double y) { return __builtin_hypot(x, y); }
TC_INLINE float ts_nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
TC_INLINE double ts_nextafter(double x, double y) { return __builtin_nextafter(x, y); }
template <class T> TC_INLINE T ts_gcd(T x, T y) {
    T a = tc_abs(x), b = tc_abs(y);
    while (a != 0) { T c = a; a = b == 0 ? T(0) : tc_fmod(b, a); b = c; }
    return b;
}
// The absolute value is of an int for narrower types, as in eager: 127 and 2 give -2 as int8.
template <class T> TC_INLINE T ts_lcm(T x, T y) {
    T g = ts_gcd(x, y);
    return g == 0 ? T(0) : T(tc_abs(tc_truncdiv(x, g) * y));
}
// Shifts beyond the width, or by a negative number: 0, or for a right shift the sign, as eager.
template <class T> TC_INLINE T ts_shift_left(T x, T by) {
    return by < 0 || by >= T(sizeof(T) * 8) ? T(0) : T((uint64_t)x << by);
}
template <class T> TC_INLINE T ts_shift_right(T x, T by) {
    constexpr int most = sizeof(T) * 8 - (T(-1) < T(0));
    return T(x >> (by < 0 || by >= most ? most : int(by)));
}

// ---- functions of one number, float32 (of float64 eager's are called)
// Coefficients: Chebyshev interpolation of scipy's ive, cut where the rest is below 1.2e-10 of the value.
static const double TS_I0_SMALL[] = {  // 21 terms, 1.0e-10
    0x1.a98bdae147ae1p-34, -0x1.1d4fd8b851eb8p-31, 0x1.6d903a028f5c3p-29, -0x1.beaf68e5c28f6p-27,
    0x1.03b769c70a3d7p-24, -0x1.1ec638f0a8f5cp-22, 0x1.2bf24977dd70ap-20, -0x1.2866fcba69eb8p-18,
    0x1.13f58be9927aep-16, -0x1.e2b2659c370a4p-15, 0x1.8b51b74106e90p-13, -0x1.2e2fd1f15ea3ep-11,
    0x1.adc758a120f80p-10, -0x1.1b65e201aa800p-8, 0x1.59961f3dde34ap-7, -0x1.84e9ef121b6d0p-6,
    0x1.93e8acea8a317p-5, -0x1.84b70342d06e0p-4, 0x1.5f7ac77ac88bcp-3, -0x1.37febc057cd8cp-2,
    0x1.5a84e9035a229p-2};
static const double TS_I0_LARGE[] = {  // 8 terms, 1.0e-10
    0x1.0f9ccdeb851ecp-31, 0x1.d2c6496147ae1p-29, 0x1.85692823d70a4p-26, 0x1.b8007d99c28f6p-23,
    0x1.8412bc103d70ap-19, 0x1.20fa378999a3ep-14, 0x1.b998ca2e59052p-9, 0x1.9be62aca809ccp-2};
static const double TS_I1_SMALL[] = {  // 21 terms, 1.0e-10
    0x1.9cee0c7ae147bp-37, -0x1.25101a51eb852p-34, 0x1.8ea34a3333333p-32, -0x1.0361b2d4ccccdp-29,
    0x1.4258dff0f5c29p-27, -0x1.7dd3e2457ae15p-25, 0x1.ae344b30b5c29p-23, -0x1.cc07983688f5cp-21,
    0x1.d1c4ed50d9c29p-19, -0x1.bd5f9b8dd5333p-17, 0x1.911b542c6f290p-15, -0x1.533cad3d69252p-13,
    0x1.0c95db6c6dedbp-11, -0x1.8cc620b3cd436p-10, 0x1.1065349d3a12fp-8, -0x1.5a29f7913a24dp-7,
    0x1.951e3e7bb2331p-6, -0x1.b1bbc537c9eb2p-5, 0x1.a46dad536f538p-4, -0x1.694d10469192dp-3,
    0x1.02a63724a7ffap-3};
static const double TS_I1_LARGE[] = {  // 8 terms, 1.2e-10
    -0x1.334ca40000000p-31, -0x1.0790ba3d70a3ep-28, -0x1.c415393851eb8p-26, -0x1.0dbfd2eb7ae15p-22,
    -0x1.048df49c8f5c3p-18, -0x1.cfd7f804ab000p-14, -0x1.3fda053fcdb48p-7, 0x1.8ea18b55b1515p-2};
// A Chebyshev series in y, from -1 to 1, highest term first (Clenshaw).
template <int N> TC_INLINE double ts_series(const double (&c)[N], double y) {
    double b0 = 0, b1 = 0, twice = 2 * y;
    #pragma GCC unroll 64
    for (int k = 0; k < N - 1; ++k) { double b = tc_fma(twice, b0, c[k] - b1); b1 = b0; b0 = b; }
    return tc_fma(y, b0, c[N - 1] - b1);
}
// exp(-|x|) I0(x): series in x / 4 - 1 up to 8, in 16 / x - 1 beyond (over sqrt x). 0.51 ulp [v]
TC_INLINE double ts_i0e_wide(float x) {
    double a = tc_abs(x), c = a > 8 ? 8 : a, d = a < 8 ? 8 : a;
    double small = ts_series(TS_I0_SMALL, c * 0.25 - 1), large = ts_series(TS_I0_LARGE, 16 / d - 1) / tc_sqrt(d);
    return a <= 8 ? small : a == a ? large : a;
}
TC_INLINE double ts_i1e_wide(float x) {
    double a = tc_abs(x), c = a > 8 ? 8 : a, d = a < 8 ? 8 : a;
    double small = ts_series(TS_I1_SMALL, c * 0.25 - 1) * c, large = ts_series(TS_I1_LARGE, 16 / d - 1) / tc_sqrt(d);
    double y = a <= 8 ? small : a == a ? large : a;
    return x < 0 ? -y : y;
}
TC_INLINE float ts_i0e(float x) { return (float)ts_i0e_wide(x); }
TC_INLINE float ts_i1e(float x) { return (float)ts_i1e_wide(x); }
// The half of the exponent twice: finite up to the largest float; NaN at infinity as eager's. 3.2 ulp [v]
TC_INLINE float ts_i0(float x) {
    double h = tc_exp(tc_abs(x) * 0.5f);
    return (float)(ts_i0e_wide(x) * h * h);
}
TC_INLINE float ts_i1(float x) {
    double h = tc_exp(tc_abs(x) * 0.5f);
    return (float)(ts_i1e_wide(x) * h * h);
}
// psi(x) = psi(x + 8) - sum 1 / (x + k), the asymptotic series in double; below 0 by reflection. 0.51 ulp
TC_INLINE float ts_digamma(float v) {
    if (v == 0) return tc_copysign(TC_INF_F, -v);
    double x = v, result = 0;
    if (v < 0) {
        if (tc_isinf(v) || __builtin_trunc(x) == x) return TC_NAN_F;
        result = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * (x - __builtin_trunc(x)));
        x = 1 - x;
    }
    while (x < 8) { result -= 1 / x; x += 1; }
    double z = 1 / (x * x);
    double p = 1.0 / 132;
    p = -1.0 / 240 + z * p;
    p = 1.0 / 252 + z * p;
    p = -1.0 / 120 + z * p;
    p = 1.0 / 12 + z * p;
    return (float)(result + __builtin_log(x) - 0.5 / x - z * p);
}
// Giles' single precision form, in w = -log(1 - x^2). 3.5 ulp [v]
TC_INLINE float ts_erfinv(float x) {
    float w = -tc_log(tc_fma(-x, x, 1.0f));
    float s = w - 2.5f, p = 2.81022636e-08f;
    p = tc_fma(p, s, 3.43273939e-07f);
    p = tc_fma(p, s, -3.5233877e-06f);
    p = tc_fma(p, s, -4.39150654e-06f);
    p = tc_fma(p, s, 0.00021858087f);
    p = tc_fma(p, s, -0.00125372503f);
    p = tc_fma(p, s, -0.00417768164f);
    p = tc_fma(p, s, 0.246640727f);
    p = tc_fma(p, s, 1.50140941f);
    float t = tc_sqrt(w < 5.0f ? 5.0f : w) - 3.0f, q = -0.000200214257f;
    q = tc_fma(q, t, 0.000100950558f);
    q = tc_fma(q, t, 0.00134934322f);
    q = tc_fma(q, t, -0.00367342844f);
    q = tc_fma(q, t, 0.00573950773f);
    q = tc_fma(q, t, -0.0076224613f);
    q = tc_fma(q, t, 0.00943887047f);
    q = tc_fma(q, t, 1.00167406f);
    q = tc_fma(q, t, 2.83297682f);
    float y = (w < 5.0f ? p : q) * x, a = tc_abs(x);
    y = a == 1.0f ? tc_copysign(TC_INF_F, x) : y;
    return a > 1.0f || x != x ? TC_NAN_F : y;
}
