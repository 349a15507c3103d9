// What kernels call that are written in vectors, after prelude.h: 16 floats with AVX-512, 8 with AVX2 (GCC).
//
// Goes in: vectors, and for what touches memory which lanes count. Comes out: vectors. Always holds: a function has the
// meaning, the special values and at most the error that prelude.h states for the scalar of the same name (the same
// test holds both), so the text of a kernel is the same for both, and for each width; truth is 0 or -1 in 32 bits.
//
// Vectors by hand and not by `#pragma omp simd`, for what GCC does not find: exp scales by one instruction (vscalef),
// several sums are in flight at once, rows end in a masked step, and results leave past the caches from registers.
//
// What depends on the processor's instructions is in vectors_avx512.h and vectors_avx2.h; all else is here, once.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "vectors_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vectors_avx2.h"
#else
#error "vectors need AVX-512, or AVX2 with FMA and F16C"
#endif

// ---- which lanes count: all of them, or the first few of a row's last step
struct tc_all {};
TC_INLINE tc_v tc_splat(tc_v x) { return x; }
template <class A, class B, class C> TC_INLINE tc_v tc_fma(A a, B b, C c) {
    return tc_fma(tc_splat(a), tc_splat(b), tc_splat(c));
}
TC_INLINE tc_v tc_keep(tc_all, tc_v x, float other) { return x; }

// ---- memory. Loads and stores touch nothing beyond their lanes.
TC_INLINE tc_v tc_take(tc_all, const float* p) { tc_v x; memcpy(&x, p, sizeof x); return x; }
TC_INLINE tc_h tc_take_16(tc_all, const void* p) { tc_h x; memcpy(&x, p, sizeof x); return x; }
TC_INLINE tc_b tc_take_8(tc_all, const void* p) { tc_b x; memcpy(&x, p, sizeof x); return x; }
template <class M> TC_INLINE tc_v tc_take(M m, const tc_bf16* p) {
    return (tc_v)(__builtin_convertvector(tc_take_16(m, p), tc_u) << 16);
}
template <class M> TC_INLINE tc_v tc_take(M m, const tc_half* p) { return tc_from_half(tc_take_16(m, p)); }
template <class M> TC_INLINE tc_m tc_take(M m, const bool* p) { return __builtin_convertvector(tc_take_8(m, p), tc_m) != 0; }
TC_INLINE tc_h tc_narrow(tc_v x, const tc_bf16*) {
    const tc_u u = (tc_u)x, r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector(x != x ? (tc_u)(tc_m{} + 0x7fc0) : r, tc_h);
}
TC_INLINE tc_h tc_narrow(tc_v x, const tc_half*) { return tc_to_half(x); }
TC_INLINE tc_v tc_rounded_bf16(tc_v x) {
    const tc_u u = (tc_u)x, r = (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
    return (tc_v)(x != x ? (tc_u)(tc_m{} + 0x7fc00000) : r);
}
TC_INLINE tc_v tc_rounded_half(tc_v x) { return tc_from_half(tc_to_half(x)); }
TC_INLINE void tc_put(tc_all, float* p, tc_v x) { memcpy(p, &x, sizeof x); }
TC_INLINE void tc_put_16(tc_all, void* p, tc_h x) { memcpy(p, &x, sizeof x); }
template <class M, class T> TC_INLINE void tc_put(M m, T* p, tc_v x) { tc_put_16(m, p, tc_narrow(x, p)); }
// past: not into the caches; p is then a multiple of a vector's bytes where all lanes count
TC_INLINE void tc_put_past(tc_all m, float* p, tc_v x, bool past) {
    if (past) tc_put_past_32(p, x); else tc_put(m, p, x);
}
template <class T> TC_INLINE void tc_put_past(tc_all m, T* p, tc_v x, bool past) {
    if (past) tc_put_past_16(p, tc_narrow(x, p)); else tc_put(m, p, x);
}
template <class T> TC_INLINE void tc_put_past(tc_some m, T* p, tc_v x, bool past) { tc_put(m, p, x); }

// ---- rows: `unrolled` steps in flight, then the rest, masked. step(first element, lanes, number of the step)
template <int unrolled, class Step> TC_INLINE void tc_walk(int64_t i, int64_t stop, Step step) {
    for (; i + TC_LANES * unrolled <= stop; i += TC_LANES * unrolled) {
        step(i, tc_all(), 0);
        if (unrolled > 1) step(i + TC_LANES, tc_all(), 1);
        if (unrolled > 2) step(i + 2 * TC_LANES, tc_all(), 2);
        if (unrolled > 3) step(i + 3 * TC_LANES, tc_all(), 3);
    }
    for (; i < stop; i += TC_LANES) step(i, tc_first(stop - i), 0);
}

// The same for steps that hold for usual values only: step(first element, lanes, number, tc_near) is false, and has done
// nothing, where others come; step(..., tc_anywhere) takes all. Calls of libm stay out of the inner loop: around one no
// vector keeps its register, and every constant would be read anew.
struct tc_near {};
struct tc_anywhere {};
template <int unrolled, class Step> TC_INLINE void tc_walk_near(int64_t i, int64_t stop, Step step) {
    for (; i < stop; i += TC_LANES) {
        for (; i + TC_LANES * unrolled <= stop; i += TC_LANES * unrolled) {
            if (!step(i, tc_all(), 0, tc_near())) break;
            if (unrolled > 1 && !step(i + TC_LANES, tc_all(), 1, tc_near())) { i += TC_LANES; break; }
        }
        if (i < stop) step(i, tc_first(stop - i), 0, tc_anywhere());
    }
}

// ---- tiles: `length` rows of 16 floats become 16 columns
TC_INLINE void tc_turn(float* to, int64_t to_step, const float* from, int64_t from_step, int64_t length) {
    int64_t i = 0;
    for (; i + TC_LANES <= length; i += TC_LANES)
        for (int64_t q = 0; q < 16; q += TC_LANES) tc_turn_square(to + q * to_step + i, to_step, from + i * from_step + q, from_step);
    for (; i < length; ++i)
        for (int64_t q = 0; q < 16; ++q) to[q * to_step + i] = from[i * from_step + q];
}

// 16 rows of 16 values become columns: floats of a tile with `width` columns, values in memory `step` apart
template <int width> TC_INLINE void tc_square_in(const float* from, int64_t step, float* rows) { tc_turn(rows, width, from, step, 16); }
template <int width> TC_INLINE void tc_square_out(float* to, int64_t step, const float* rows) { tc_turn(to, step, rows, width, 16); }
template <int width, class T> TC_INLINE void tc_square_in(const T* from, int64_t step, float* rows) {
    alignas(64) float square[256];
    for (int64_t i = 0; i < 256; i += TC_LANES) tc_put(tc_all(), square + i, tc_take(tc_all(), from + i / 16 * step + i % 16));
    tc_turn(rows, width, square, 16, 16);
}
template <int width, class T> TC_INLINE void tc_square_out(T* to, int64_t step, const float* rows) {
    alignas(64) float square[256];
    tc_turn(square, 16, rows, width, 16);
    for (int64_t i = 0; i < 256; i += TC_LANES) tc_put(tc_all(), to + i / 16 * step + i % 16, tc_take(tc_all(), square + i));
}
// Up to 16 rows of `lanes` columns, which are `step` apart in memory: into a tile of floats, and out of it.
template <int width, class T> TC_INLINE void tc_turn_in(const T* from, int64_t step, float* rows, int64_t lanes, int64_t count) {
    int64_t l = 0;
    for (; count == 16 && l + 16 <= lanes; l += 16) tc_square_in<width>(from + l * step, step, rows + l);
    for (; l < lanes; ++l)
        for (int64_t i = 0; i < count; ++i) rows[i * width + l] = tc_load(from, l * step + i);
}
template <int width, class T> TC_INLINE void tc_turn_out(T* to, int64_t step, const float* rows, int64_t lanes, int64_t count) {
    int64_t l = 0;
    for (; count == 16 && l + 16 <= lanes; l += 16) tc_square_out<width>(to + l * step, step, rows + l);
    for (; l < lanes; ++l)
        for (int64_t i = 0; i < count; ++i) tc_store(to, l * step + i, rows[i * width + l]);
}

// ---- over the lanes of a vector
// over all lanes of one to four vectors
#define TC_OVER_LANES(name, of)                                                                       \
    template <int n> TC_INLINE float tc_##name(const tc_v (&x)[n]) {                                   \
        tc_v y = x[0];                                                                                \
        if (n == 2) y = of(x[0], x[n - 1]);                                                           \
        if (n == 4) y = of(of(x[0], x[n / 4]), of(x[n / 2], x[n - 1]));                               \
        TC_OVER_LANES_OF_VECTOR(y, of)                                                                \
        return y[0];                                                                                  \
    }
TC_INLINE tc_v tc_added(tc_v a, tc_v b) { return a + b; }
TC_OVER_LANES(total, tc_added)
TC_OVER_LANES(greatest, tc_greater)
TC_OVER_LANES(least, tc_lesser)
TC_INLINE tc_moments tc_moments_in_vectors(const float* x, int64_t length, float mean) {
    tc_v sums[4] = {}, squares[4] = {}, m = tc_splat(mean);
    tc_walk<4>(0, length, [&](int64_t i, auto lanes, int u) __attribute__((always_inline)) {
        const tc_v d = tc_keep(lanes, tc_take(lanes, x + i) - m, 0.0f);
        sums[u] += d;
        squares[u] = tc_fma(d, d, squares[u]);
    });
    return {tc_total(sums), tc_total(squares)};
}

// ---- comparing, rounding, roots
TC_INLINE tc_v tc_abs(tc_v x) { return (tc_v)((tc_m)x & 0x7fffffff); }
TC_INLINE tc_v tc_with_sign(tc_v x, tc_v s) { return (tc_v)(((tc_m)x & 0x7fffffff) | ((tc_m)s & INT32_MIN)); }
TC_INLINE tc_m tc_isinf(tc_v x) { return tc_abs(x) == TC_INF_F; }
TC_INLINE tc_v tc_max(tc_v a, tc_v b) { const tc_v m = tc_greater(a, b); return a != a ? a : m; }
TC_INLINE tc_v tc_min(tc_v a, tc_v b) { const tc_v m = tc_lesser(a, b); return a != a ? a : m; }
TC_INLINE tc_v tc_relu(tc_v x) { return tc_greater(tc_v{}, x); }
#define TC_ROUNDING(name, how) TC_INLINE tc_v tc_##name(tc_v x) { return TC_ROUNDED(x, how); }
TC_ROUNDING(round, 8) TC_ROUNDING(floor, 9) TC_ROUNDING(ceil, 10) TC_ROUNDING(trunc, 11)
TC_INLINE tc_v tc_rsqrt(tc_v x) { return 1.0f / tc_sqrt(x); }
TC_INLINE tc_v tc_chosen(tc_m c) { return (tc_v)(c & 0x3f800000); }  // 1 or 0

// ---- division. Quotients below 2^22 have remainders that floats hold exactly; others are the scalars', lane by lane.
template <class F> __attribute__((noinline)) tc_v tc_by_lane(tc_v a, tc_v b, F of) {
    for (int l = 0; l < TC_LANES; ++l) a[l] = of((float)a[l], (float)b[l]);
    return a;
}
TC_INLINE int tc_far(tc_v a, tc_v b) { return tc_beyond(tc_abs(a / b) + (b - b), 0x1p22f); }  // b - b: NaN of infinity
TC_INLINE tc_v tc_truncdiv(tc_v a, tc_v b) { return tc_trunc(a / b); }
TC_INLINE tc_v tc_near_fmod(tc_v a, tc_v b) {
    const tc_v x = tc_abs(a), y = tc_abs(b), r = tc_fma(-tc_trunc(x / y), y, x);
    return tc_with_sign(r < 0.0f ? r + y : r, a);  // below 0 where the quotient was rounded up to an integer
}
TC_INLINE tc_m tc_other_sign(tc_v r, tc_v b) { return (r != 0.0f) & ((r < 0.0f) ^ (b < 0.0f)); }
TC_INLINE tc_v tc_near_mod(tc_v a, tc_v b) {
    const tc_v r = tc_near_fmod(a, b);
    return tc_other_sign(r, b) ? r + b : r;
}
TC_INLINE tc_v tc_near_floordiv(tc_v a, tc_v b) {
    const tc_v r = tc_near_fmod(a, b), n = (a - r) / b, q = tc_other_sign(r, b) ? n - 1.0f : n, f = tc_floor(q);
    return q == 0.0f ? tc_with_sign(tc_v{}, a / b) : q - f > 0.5f ? f + 1.0f : f;
}
#define TC_DIVISION(name)                                                                                      \
    TC_INLINE tc_v tc_##name(tc_v a, tc_v b) {                                                                 \
        if (__builtin_expect(!tc_far(a, b), 1)) return tc_near_##name(a, b);                                   \
        return tc_by_lane(a, b, [](float x, float y) { return tc_##name(x, y); });                             \
    }                                                                                                          \
    TC_INLINE tc_v tc_##name(tc_v a, tc_v b, tc_near, int* far) { *far |= tc_far(a, b); return tc_near_##name(a, b); } \
    TC_INLINE tc_v tc_##name(tc_v a, tc_v b, tc_anywhere, int*) { return tc_##name(a, b); }
TC_DIVISION(fmod)
TC_DIVISION(mod)
TC_DIVISION(floordiv)

// ---- exponentials. The forms and coefficients of prelude.h.
// n = x log2(e) to the nearest, r = x - n ln 2, exp(r) by Horner's rule
struct tc_split_exp { tc_v n, r, tail; };
TC_INLINE tc_split_exp tc_reduced(tc_v c) {
    const tc_v n = tc_fma(c, 0x1.715476p+0f, 0x1.8p23f) - 0x1.8p23f;  // adding 1.5 * 2^23 rounds
    tc_v r = tc_fma(n, -0x1.62e43p-1f, c);
    r = tc_fma(n, 0x1.05c610p-29f, r);
    tc_v p = tc_fma(r, 0x1.6d308ep-10f, 0x1.120c38p-7f);
    p = tc_fma(p, r, 0x1.555500p-5f);
    p = tc_fma(p, r, 0x1.5554dcp-3f);
    return {n, r, tc_fma(p, r, 0.5f)};
}
TC_INLINE tc_v tc_exp(tc_v x) {
    const tc_v c = tc_lesser(tc_splat(90.0f), tc_greater(tc_splat(-105.0f), x));
    const tc_split_exp s = tc_reduced(c);
    return tc_scaled(tc_fma(tc_fma(s.tail, s.r, 1.0f), s.r, 1.0f), s.n);
}
// exp of what is not positive, or NaN
TC_INLINE tc_v tc_exp_below(tc_v x) {
    const tc_split_exp s = tc_reduced(tc_greater(tc_splat(-105.0f), x));
    return tc_scaled(tc_fma(tc_fma(s.tail, s.r, 1.0f), s.r, 1.0f), s.n);
}
TC_INLINE tc_v tc_expm1(tc_v x) {
    const tc_v c = tc_lesser(tc_splat(90.0f), tc_greater(tc_splat(-30.0f), x));
    const tc_split_exp k = tc_reduced(c);
    const tc_v e = tc_fma(k.r * k.r, k.tail, k.r);
    const tc_v s = tc_scaled(tc_splat(1.0f), tc_lesser(tc_splat(128.0f), k.n) - 1.0f);
    tc_v y = 2.0f * tc_fma(s, e, s - 0.5f);
    y = k.n > 128.0f ? tc_splat(TC_INF_F) : y;
    return tc_abs(x) < 0x1p-24f ? x : y;
}
struct tc_split_log_v { tc_v e, f, tail; };
TC_INLINE tc_split_log_v tc_split_log(tc_v x) {
    const tc_m tiny = x < 0x1p-126f;
    const tc_v y = tiny ? x * 0x1p23f : x;
    const tc_m b = (tc_m)y - 0x3f3504f3, e = b >> 23;
    const tc_v f = (tc_v)((b & 0x7fffff) + 0x3f3504f3) - 1.0f;
    tc_v p = tc_fma(f, 0x1.24bac2p-4f, -0x1.d9bfccp-4f);
    p = tc_fma(p, f, 0x1.dd9aaep-4f);
    p = tc_fma(p, f, -0x1.fc6382p-4f);
    p = tc_fma(p, f, 0x1.23d80ep-3f);
    p = tc_fma(p, f, -0x1.555ea6p-3f);
    p = tc_fma(p, f, 0x1.999d3ep-3f);
    p = tc_fma(p, f, -0x1.fffff2p-3f);
    p = tc_fma(p, f, 0x1.555554p-2f);
    const tc_v q = f * f;
    return {__builtin_convertvector(e - (tiny & 23), tc_v), f, tc_fma(q, p * f, -0.5f * q)};
}
TC_INLINE tc_v tc_log_ends(tc_v x, tc_v y) {
    y = x == TC_INF_F ? x : y;
    y = x == 0.0f ? tc_splat(-TC_INF_F) : y;
    return (x < 0.0f) | (x != x) ? tc_splat(TC_NAN_F) : y;
}
TC_INLINE tc_v tc_log(tc_v x) {
    const tc_split_log_v s = tc_split_log(x);
    const tc_v low = tc_fma(s.e, -0x1.05c610p-29f, s.tail);
    return tc_log_ends(x, tc_fma(s.e, 0x1.62e43p-1f, s.f + low));
}
TC_INLINE tc_v tc_log1p(tc_v x) {
    const tc_v u = 1.0f + x, lost = x - (u - 1.0f);
    const tc_split_log_v s = tc_split_log(u);
    const tc_v low = tc_fma(s.e, -0x1.05c610p-29f, s.tail) + lost / u;
    const tc_v y = tc_log_ends(u, tc_fma(s.e, 0x1.62e43p-1f, s.f + low));
    return tc_abs(x) < 0x1p-25f ? x : y;
}

// ---- activations
TC_INLINE tc_v tc_tanh(tc_v x) {
    const tc_v a = tc_abs(x), s = x * x, c = tc_lesser(tc_splat(10.0f), a);
    const tc_v large = 1.0f - 2.0f / (tc_exp(c + c) + 1.0f);
    tc_v p = tc_fma(s, 0x1.37c564p-9f, -0x1.14a88ep-7f);
    p = tc_fma(p, s, 0x1.6556e6p-6f);
    p = tc_fma(p, s, -0x1.ba18900p-5f);
    p = tc_fma(p, s, 0x1.111134p-3f);
    p = tc_fma(p, s, -0x1.555556p-2f);
    const tc_v small = tc_fma(p * s, a, a);
    const tc_v y = tc_with_sign(a > 0.625f ? large : small, x);
    return x != x ? x : y;
}
TC_INLINE tc_v tc_sigmoid(tc_v x) {
    const tc_v z = tc_exp_below((tc_v)((tc_m)x | INT32_MIN));
    return (x < 0.0f ? z : tc_splat(1.0f)) / (1.0f + z);
}
TC_INLINE tc_v tc_silu(tc_v x) { return x / (1.0f + tc_exp(-x)); }
TC_INLINE tc_v tc_erf(tc_v x) {
    const tc_v a = tc_abs(x), s = x * x, t = tc_lesser(tc_splat(4.0f), a);
    tc_v p = tc_fma(s, 0x1.5abbd2p-14f, -0x1.a99766p-11f);
    p = tc_fma(p, s, 0x1.54b3eep-8f);
    p = tc_fma(p, s, -0x1.b80c46p-6f);
    p = tc_fma(p, s, 0x1.ce2de8p-4f);
    p = tc_fma(p, s, -0x1.812742p-2f);
    p = tc_fma(p, s, 0x1.06eba8p-3f);
    const tc_v small = tc_fma(p, x, x);
    tc_v q = tc_fma(t, 0x1.4a7814p-23f, -0x1.f25640p-19f);
    q = tc_fma(q, t, 0x1.3cd29ap-15f);
    q = tc_fma(q, t, -0x1.9ac14cp-13f);
    q = tc_fma(q, t, 0x1.72865cp-12f);
    q = tc_fma(q, t, 0x1.294960p-9f);
    q = tc_fma(q, t, -0x1.6897fcp-6f);
    q = tc_fma(q, t, 0x1.ad9030p-4f);
    q = tc_fma(q, t, 0x1.457fd6p-1f);
    q = tc_fma(q, t, 0x1.20e7fcp+0f);
    const tc_v large = tc_with_sign(1.0f - tc_exp_below(-t * q), x);
    const tc_v y = a > 0.93f ? large : small;
    return x != x ? x : y;
}
// max(x, 0) - |x| Phi(-|x|), Phi(-a) = 2^(a Q(a) - 1), within 3.2e-8 (eager's: 6e-8), 2.4e-6 of it up to a = 3 and
// 2.6e-3 up to 6. Beyond a = 20 nothing is left of the second term. At -inf: NaN, as eager's. (At inf eager's is NaN in a
// row of floats, but inf of one float, of strided ones and of doubles; here it is inf.)
TC_INLINE tc_v tc_gelu_erf(tc_v x) {
    const tc_v a = tc_lesser(tc_splat(20.0f), tc_abs(x)), c = tc_lesser(tc_splat(6.0811181f), a);
    tc_v q = tc_fma(c, 0x1.94d020p-22f, -0x1.066c98p-17f);
    q = tc_fma(q, c, 0x1.14c2e8p-14f);
    q = tc_fma(q, c, -0x1.10c810p-12f);
    q = tc_fma(q, c, -0x1.6a07fcp-16f);
    q = tc_fma(q, c, 0x1.c8467ap-8f);
    q = tc_fma(q, c, -0x1.ada938p-5f);
    q = tc_fma(q, c, -0x1.d63d5ep-2f);
    q = tc_fma(q, c, -0x1.26aec8p+0f);
    const tc_v y = tc_fma(q, a, -1.0f), n = (y + 0x1.8p23f) - 0x1.8p23f, r = y - n;
    tc_v p = tc_fma(r, 0x1.44031ap-13f, 0x1.5ec97ap-10f);
    p = tc_fma(p, r, 0x1.3b2a68p-7f);
    p = tc_fma(p, r, 0x1.c6afecp-5f);
    p = tc_fma(p, r, 0x1.ebfbe0p-3f);
    p = tc_fma(p, r, 0x1.62e430p-1f);
    p = tc_fma(p, r, 1.0f);
    return tc_fma(-a, tc_scaled(p, n), tc_positive_part(x));
}
// x (1 + tanh u) / 2 = x / (1 + exp(-2u))
TC_INLINE tc_v tc_gelu_tanh(tc_v x) {
    const tc_v u = tc_fma(x * x, 0.044715f, 1.0f) * (x * -1.59576912160573072f);
    return x / (1.0f + tc_exp(u));
}
TC_INLINE tc_v tc_softplus(tc_v x) { return tc_max(x, tc_v{}) + tc_log1p(tc_exp_below((tc_v)((tc_m)x | INT32_MIN))); }

// ---- trigonometry: the forms and coefficients of prelude_trig.h, inlined. A lane's coefficients are chosen, not one of
// two results: sin(r) = r + s r (S0 + S1 s + S2 s^2), cos(r) = 1 - s / 2 + s s (C0 + C1 s + C2 s^2), s = r^2.
#if defined(TC_TRIG)
TC_INLINE tc_v tc_blend(tc_bits_of_lanes bits, float x, float y) { return tc_blend(bits, tc_splat(x), tc_splat(y)); }
// sin(x + turn pi/2) of |x| <= 30000
template <int turn> TC_INLINE tc_v tc_wave(tc_v x) {
    const tc_v shifted = tc_fma(x, 0x1.45f306p-1f, 0x1.8p23f + turn), n = shifted - (0x1.8p23f + turn);
    tc_v r = tc_fma(n, -0x1.921fb4p+0f, x);
    r = tc_fma(n, -0x1.4442d0p-24f, r);
    r = tc_fma(n, -0x1.846988p-48f, r);
    const tc_v s = r * r;
    const tc_m q = (tc_m)shifted;
    const tc_bits_of_lanes odd = tc_odd(q);
    tc_v p = tc_fma(tc_blend(odd, -0x1.9aaee2p-13f, 0x1.9bc37cp-16f), s, tc_blend(odd, 0x1.110bdep-7f, -0x1.6c1298p-10f));
    p = tc_fma(p, s, tc_blend(odd, -0x1.555552p-3f, 0x1.555554p-5f));
    tc_v y = tc_fma(p, s * tc_blend(odd, r, s), tc_blend(odd, r, tc_fma(s, -0.5f, 1.0f)));
    y = tc_signed_where_even(odd, y, r);  // the sum loses -0.0's
    return (tc_v)((tc_m)y ^ ((q << 30) & INT32_MIN));
}
// the lanes with |x| > 30000, infinity, NaN: libm's
TC_INLINE int tc_far(tc_v x) { return tc_beyond(tc_abs(x), 30000.0f); }
#define TC_WAVE(name, turn)                                                                                    \
    TC_INLINE tc_v tc_##name(tc_v x) {                                                                         \
        return __builtin_expect(tc_far(x), 0) ? tc_trig<tc_v, tc_m>::by_lane<tc_libm_##name>(x) : tc_wave<turn>(x);    \
    }                                                                                                          \
    TC_INLINE tc_v tc_##name(tc_v x, tc_near, int* far) { *far |= tc_far(x); return tc_wave<turn>(x); }        \
    TC_INLINE tc_v tc_##name(tc_v x, tc_anywhere, int*) { return tc_##name(x); }
TC_WAVE(sin, 0)
TC_WAVE(cos, 1)
#endif
