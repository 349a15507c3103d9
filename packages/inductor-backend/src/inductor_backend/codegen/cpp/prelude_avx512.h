// What kernels call that are written in vectors of 16 floats (AVX-512, GCC), after prelude.h.
//
// Goes in: vectors, and for what touches memory which lanes count. Comes out: vectors. Always holds: a function has the
// meaning, the special values and at most the error that prelude.h states for the scalar of the same name (the same
// test holds both), so the text of a kernel is the same for both; truth is 0 or -1 in 32 bits.
//
// Vectors by hand and not by `#pragma omp simd`, for what GCC does not find: exp scales by one instruction (vscalef),
// several sums are in flight at once, rows end in a masked step, and results leave past the caches from registers.
#pragma once

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "vectors of 16 floats need AVX-512"
#endif

typedef float tc_v __attribute__((vector_size(64)));
typedef int32_t tc_m __attribute__((vector_size(64)));
typedef uint32_t tc_u __attribute__((vector_size(64)));
typedef uint16_t tc_h __attribute__((vector_size(32)));
typedef int8_t tc_b __attribute__((vector_size(16)));
typedef float tc_v8 __attribute__((vector_size(32)));
#define TC_ALL_LANES ((unsigned short)-1)

// ---- which lanes count: all of them, or the first few of a row's last step
struct tc_all {};
struct tc_some { unsigned short lanes; };
TC_INLINE tc_some tc_first(int64_t count) { return {(unsigned short)(count >= 16 ? 0xffff : (1u << count) - 1)}; }

TC_INLINE tc_v tc_splat(float x) { return tc_v{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
TC_INLINE tc_m tc_splat(bool x) { const int32_t i = -(int32_t)x; return tc_m{i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i}; }
TC_INLINE tc_v tc_fma(tc_v a, tc_v b, tc_v c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, TC_ALL_LANES, 4); }
TC_INLINE tc_v tc_splat(tc_v x) { return x; }
template <class A, class B, class C> TC_INLINE tc_v tc_fma(A a, B b, C c) {
    return tc_fma(tc_splat(a), tc_splat(b), tc_splat(c));
}
TC_INLINE tc_v tc_keep(tc_all, tc_v x, float other) { return x; }
TC_INLINE tc_v tc_keep(tc_some m, tc_v x, float other) { return __builtin_ia32_blendmps_512_mask(tc_splat(other), x, m.lanes); }

// ---- memory. Masked loads and stores touch nothing beyond their lanes.
TC_INLINE tc_v tc_take(tc_all, const float* p) { tc_v x; memcpy(&x, p, 64); return x; }
TC_INLINE tc_v tc_take(tc_some m, const float* p) { return __builtin_ia32_loadups512_mask(p, tc_v{}, m.lanes); }
TC_INLINE tc_h tc_take_16(tc_all, const void* p) { tc_h x; memcpy(&x, p, 32); return x; }
TC_INLINE tc_h tc_take_16(tc_some m, const void* p) {
    typedef short s __attribute__((vector_size(32)));
    return (tc_h)__builtin_ia32_loaddquhi256_mask((const short*)p, s{}, m.lanes);
}
template <class M> TC_INLINE tc_v tc_take(M m, const tc_bf16* p) {
    return (tc_v)(__builtin_convertvector(tc_take_16(m, p), tc_u) << 16);
}
template <class M> TC_INLINE tc_v tc_take(M m, const tc_half* p) {
    typedef short s __attribute__((vector_size(32)));
    return __builtin_ia32_vcvtph2ps512_mask((s)tc_take_16(m, p), tc_v{}, TC_ALL_LANES, 4);
}
TC_INLINE tc_m tc_take(tc_all, const bool* p) { tc_b x; memcpy(&x, p, 16); return __builtin_convertvector(x, tc_m) != 0; }
TC_INLINE tc_m tc_take(tc_some m, const bool* p) {
    typedef char c __attribute__((vector_size(16)));
    return __builtin_convertvector((tc_b)__builtin_ia32_loaddquqi128_mask((const char*)p, c{}, m.lanes), tc_m) != 0;
}
TC_INLINE tc_h tc_narrow(tc_v x, const tc_bf16*) {
    const tc_u u = (tc_u)x, r = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return __builtin_convertvector(x != x ? (tc_u)(tc_m{} + 0x7fc0) : r, tc_h);
}
TC_INLINE tc_h tc_narrow(tc_v x, const tc_half*) {
    typedef short s __attribute__((vector_size(32)));
    return (tc_h)__builtin_ia32_vcvtps2ph512_mask(x, 0, s{}, TC_ALL_LANES);
}
TC_INLINE tc_v tc_rounded_bf16(tc_v x) {
    const tc_u u = (tc_u)x, r = (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
    return (tc_v)(x != x ? (tc_u)(tc_m{} + 0x7fc00000) : r);
}
TC_INLINE tc_v tc_rounded_half(tc_v x) {
    typedef short s __attribute__((vector_size(32)));
    return __builtin_ia32_vcvtph2ps512_mask((s)tc_narrow(x, (const tc_half*)0), tc_v{}, TC_ALL_LANES, 4);
}
TC_INLINE void tc_put(tc_all, float* p, tc_v x) { memcpy(p, &x, 64); }
TC_INLINE void tc_put(tc_some m, float* p, tc_v x) { __builtin_ia32_storeups512_mask(p, x, m.lanes); }
template <class T> TC_INLINE void tc_put(tc_all, T* p, tc_v x) { const tc_h h = tc_narrow(x, p); memcpy(p, &h, 32); }
template <class T> TC_INLINE void tc_put(tc_some m, T* p, tc_v x) {
    typedef short s __attribute__((vector_size(32)));
    __builtin_ia32_storedquhi256_mask((short*)p, (s)tc_narrow(x, p), m.lanes);
}
// past: not into the caches; p is then a multiple of a vector's bytes where all lanes count
TC_INLINE void tc_put_past(tc_all m, float* p, tc_v x, bool past) {
    if (past) __builtin_ia32_movntps512(p, x); else tc_put(m, p, x);
}
template <class T> TC_INLINE void tc_put_past(tc_all m, T* p, tc_v x, bool past) {
    if (past) __builtin_ia32_movntps256((float*)p, (tc_v8)tc_narrow(x, p)); else tc_put(m, p, x);
}
template <class T> TC_INLINE void tc_put_past(tc_some m, T* p, tc_v x, bool past) { tc_put(m, p, x); }

// ---- rows: `unrolled` steps in flight, then the rest, masked. step(first element, lanes, number of the step)
template <int unrolled, class Step> TC_INLINE void tc_walk(int64_t i, int64_t stop, Step step) {
    for (; i + 16 * unrolled <= stop; i += 16 * unrolled) {
        step(i, tc_all(), 0);
        if (unrolled > 1) step(i + 16, tc_all(), 1);
        if (unrolled > 2) step(i + 32, tc_all(), 2);
        if (unrolled > 3) step(i + 48, tc_all(), 3);
    }
    for (; i < stop; i += 16) step(i, tc_first(stop - i), 0);
}

// The same for steps that hold for usual values only: step(first element, lanes, number, tc_near) is false, and has done
// nothing, where others come; step(..., tc_anywhere) takes all. Calls of libm stay out of the inner loop: around one no
// vector keeps its register, and every constant would be read anew.
struct tc_near {};
struct tc_anywhere {};
template <int unrolled, class Step> TC_INLINE void tc_walk_near(int64_t i, int64_t stop, Step step) {
    for (; i < stop; i += 16) {
        for (; i + 16 * unrolled <= stop; i += 16 * unrolled) {
            if (!step(i, tc_all(), 0, tc_near())) break;
            if (unrolled > 1 && !step(i + 16, tc_all(), 1, tc_near())) { i += 16; break; }
        }
        if (i < stop) step(i, tc_first(stop - i), 0, tc_anywhere());
    }
}

// ---- tiles: 16 rows of 16 floats become 16 columns. Four rounds of shuffles, each between pairs of vectors.
// Rows far apart are no stream that the processor would see: those 64 rows on are asked for (1.4 times as fast). The last
// float's line: the first one's, where it is another, was the last one's of the tile before.
TC_INLINE void tc_turn_16(float* to, int64_t to_step, const float* from, int64_t from_step) {
    tc_v a[16], b[16];
    #pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
        __builtin_prefetch(from + 15 + (k + 64) * from_step);
        memcpy(&a[k], from + k * from_step, 64);
    }
    #pragma GCC unroll 8
    for (int k = 0; k < 16; k += 2) {  // pairs of floats
        b[k] = __builtin_shufflevector(a[k], a[k + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        b[k + 1] = __builtin_shufflevector(a[k], a[k + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    #pragma GCC unroll 4
    for (int k = 0; k < 16; k += 4) {  // of pairs: a[k + j] holds in its part i column 4 i + j of rows k to k + 3
        #pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const tc_v x = b[k + j], y = b[k + j + 2];
            a[k + 2 * j] = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            a[k + 2 * j + 1] = __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    }
    #pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        #pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {  // of parts 0 and 2, of parts 1 and 3
            const tc_v x = a[8 * k + j], y = a[8 * k + 4 + j];
            b[4 * j + 2 * k] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
            b[4 * j + 2 * k + 1] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        }
        #pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
            const tc_v x = b[4 * j + k], y = b[4 * j + 2 + k];
            const tc_v low = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
            const tc_v high = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
            memcpy(to + (4 * k + j) * to_step, &low, 64);
            memcpy(to + (4 * (k + 2) + j) * to_step, &high, 64);
        }
    }
}
// `length` rows of 16 floats
TC_INLINE void tc_turn(float* to, int64_t to_step, const float* from, int64_t from_step, int64_t length) {
    int64_t i = 0;
    for (; i + 16 <= length; i += 16) tc_turn_16(to + i, to_step, from + i * from_step, from_step);
    for (; i < length; ++i)
        for (int64_t q = 0; q < 16; ++q) to[q * to_step + i] = from[i * from_step + q];
}

// ---- over the lanes of a vector
TC_INLINE tc_v tc_greater(tc_v a, tc_v b) { return __builtin_ia32_maxps512_mask(a, b, a, TC_ALL_LANES, 4); }  // b if one is NaN
TC_INLINE tc_v tc_lesser(tc_v a, tc_v b) { return __builtin_ia32_minps512_mask(a, b, a, TC_ALL_LANES, 4); }
// over all lanes of one to four vectors
#define TC_OVER_LANES(name, of)                                                                       \
    template <int n> TC_INLINE float tc_##name(const tc_v (&x)[n]) {                                   \
        tc_v y = x[0];                                                                                \
        if (n == 2) y = of(x[0], x[n - 1]);                                                           \
        if (n == 4) y = of(of(x[0], x[n / 4]), of(x[n / 2], x[n - 1]));                               \
        y = of(y, __builtin_shufflevector(y, y, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
        y = of(y, __builtin_shufflevector(y, y, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));     \
        y = of(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));     \
        return of(y, __builtin_shufflevector(y, y, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0))[0]; \
    }
TC_INLINE tc_v tc_added(tc_v a, tc_v b) { return a + b; }
TC_OVER_LANES(total, tc_added)
TC_OVER_LANES(greatest, tc_greater)
TC_OVER_LANES(least, tc_lesser)
TC_INLINE int tc_nans(tc_v x) { return __builtin_ia32_cmpps512_mask(x, x, 3, TC_ALL_LANES, 4); }  // a bit for each NaN
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
#define TC_ROUNDING(name, how) \
    TC_INLINE tc_v tc_##name(tc_v x) { return __builtin_ia32_rndscaleps_mask(x, how, x, TC_ALL_LANES, 4); }
TC_ROUNDING(round, 8) TC_ROUNDING(floor, 9) TC_ROUNDING(ceil, 10) TC_ROUNDING(trunc, 11)
TC_INLINE tc_v tc_sqrt(tc_v x) { return __builtin_ia32_sqrtps512_mask(x, x, TC_ALL_LANES, 4); }
TC_INLINE tc_v tc_rsqrt(tc_v x) { return 1.0f / tc_sqrt(x); }
TC_INLINE tc_v tc_chosen(tc_m c) { return (tc_v)(c & 0x3f800000); }  // 1 or 0
TC_INLINE tc_v tc_scaled(tc_v p, tc_v n) { return __builtin_ia32_scalefps512_mask(p, n, p, TC_ALL_LANES, 4); }  // p 2^n

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
    // max(x, 0) by kinds of floats: positive, 1, zero, inf: x; negative: 0; -inf, NaN: NaN
    const tc_m kinds = tc_m{} + 0x18131122;
    return tc_fma(-a, tc_scaled(p, n), (tc_v)__builtin_ia32_fixupimmps512_mask(x, x, kinds, 0, TC_ALL_LANES, 4));
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
// y where the bit is set, else x
TC_INLINE tc_v tc_blend(unsigned short bits, tc_v x, tc_v y) { return __builtin_ia32_blendmps_512_mask(x, y, bits); }
TC_INLINE tc_v tc_blend(unsigned short bits, float x, float y) { return tc_blend(bits, tc_splat(x), tc_splat(y)); }
// sin(x + turn pi/2) of |x| <= 30000
template <int turn> TC_INLINE tc_v tc_wave(tc_v x) {
    const tc_m sign = tc_m{} + INT32_MIN;
    const tc_v shifted = tc_fma(x, 0x1.45f306p-1f, 0x1.8p23f + turn), n = shifted - (0x1.8p23f + turn);
    tc_v r = tc_fma(n, -0x1.921fb4p+0f, x);
    r = tc_fma(n, -0x1.4442d0p-24f, r);
    r = tc_fma(n, -0x1.846988p-48f, r);
    const tc_v s = r * r;
    const tc_m q = (tc_m)shifted;
    const unsigned short odd = __builtin_ia32_ptestmd512(q, tc_m{} + 1, TC_ALL_LANES), even = ~odd;
    tc_v p = tc_fma(tc_blend(odd, -0x1.9aaee2p-13f, 0x1.9bc37cp-16f), s, tc_blend(odd, 0x1.110bdep-7f, -0x1.6c1298p-10f));
    p = tc_fma(p, s, tc_blend(odd, -0x1.555552p-3f, 0x1.555554p-5f));
    tc_v y = tc_fma(p, s * tc_blend(odd, r, s), tc_blend(odd, r, tc_fma(s, -0.5f, 1.0f)));
    y = (tc_v)__builtin_ia32_pternlogd512_mask((tc_m)y, (tc_m)r, sign, 0xf8, even);  // y | r & sign: the sum loses -0.0's
    return (tc_v)__builtin_ia32_pternlogd512_mask((tc_m)y, q << 30, sign, 0x78, TC_ALL_LANES);  // y ^ q << 30 & sign
}
// the lanes with |x| > 30000, infinity, NaN: libm's
TC_INLINE int tc_far(tc_v x) { return __builtin_ia32_cmpps512_mask(tc_abs(x), tc_splat(30000.0f), 6, TC_ALL_LANES, 4); }
#define TC_WAVE(name, turn)                                                                                    \
    TC_INLINE tc_v tc_##name(tc_v x) {                                                                         \
        return __builtin_expect(tc_far(x), 0) ? tc_trige::by_lane<tc_libm_##name>(x) : tc_wave<turn>(x);       \
    }                                                                                                          \
    TC_INLINE tc_v tc_##name(tc_v x, tc_near, int* far) { *far |= tc_far(x); return tc_wave<turn>(x); }        \
    TC_INLINE tc_v tc_##name(tc_v x, tc_anywhere, int*) { return tc_##name(x); }
TC_WAVE(sin, 0)
TC_WAVE(cos, 1)
#endif
