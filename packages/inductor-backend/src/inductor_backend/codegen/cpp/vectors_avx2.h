// The operations that prelude_vectors.h is made of, on vectors of 8 floats: AVX2, FMA and F16C by GCC's builtins.
#pragma once

#define TC_LANES 8
typedef float tc_v __attribute__((vector_size(32)));
typedef int32_t tc_m __attribute__((vector_size(32)));
typedef uint32_t tc_u __attribute__((vector_size(32)));
typedef uint16_t tc_h __attribute__((vector_size(16)));
typedef int16_t tc_s __attribute__((vector_size(16)));
typedef int8_t tc_b __attribute__((vector_size(8)));
typedef tc_m tc_bits_of_lanes;  // the highest bit of each lane

TC_INLINE tc_v tc_splat(float x) { return tc_v{x, x, x, x, x, x, x, x}; }
TC_INLINE tc_m tc_splat(bool x) { const int32_t i = -(int32_t)x; return tc_m{i, i, i, i, i, i, i, i}; }
TC_INLINE tc_v tc_fma(tc_v a, tc_v b, tc_v c) { return __builtin_ia32_vfmaddps256(a, b, c); }

// ---- the first few lanes. Nothing beyond them is touched. Stores are of 4, 2 and 1: a masked store takes many times as long.
struct tc_some { tc_m lanes; int64_t count; };
TC_INLINE tc_some tc_first(int64_t count) {
    return {tc_m{0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)tc_least(count, 8), count};
}
TC_INLINE tc_v tc_keep(tc_some m, tc_v x, float other) { return m.lanes ? x : tc_splat(other); }
TC_INLINE tc_v tc_take(tc_some m, const float* p) { return __builtin_ia32_maskloadps256((const tc_v*)p, m.lanes); }
template <class T> TC_INLINE T tc_take_lanes(int64_t count, const void* p) {  // as integers, so that no lane waits for a store
    constexpr int64_t size = sizeof(T) / 8;
    if (count >= 8) { T x; memcpy(&x, p, sizeof x); return x; }
    T x = {};
    #pragma GCC unroll 7
    for (int64_t i = 0; i < 7; ++i)
        if (i < count) { decltype(x[0] + 0) one = 0; memcpy(&one, (const char*)p + i * size, size); x[i] = one; }
    return x;
}
TC_INLINE tc_h tc_take_16(tc_some m, const void* p) { return tc_take_lanes<tc_h>(m.count, p); }
TC_INLINE tc_b tc_take_8(tc_some m, const void* p) { return tc_take_lanes<tc_b>(m.count, p); }
// the first `count` of 8 values of `size` bytes
template <int64_t size> TC_INLINE void tc_put_lanes(int64_t count, void* p, const void* from) {
    char* to = (char*)p;
    const char* x = (const char*)from;
    if (count >= 8) { memcpy(to, x, 8 * size); return; }
    if (count & 4) { memcpy(to, x, 4 * size); to += 4 * size; x += 4 * size; }
    if (count & 2) { memcpy(to, x, 2 * size); to += 2 * size; x += 2 * size; }
    if (count & 1) memcpy(to, x, size);
}
TC_INLINE void tc_put(tc_some m, float* p, tc_v x) { tc_put_lanes<4>(m.count, p, &x); }
TC_INLINE void tc_put_16(tc_some m, void* p, tc_h x) { tc_put_lanes<2>(m.count, p, &x); }

// ---- all lanes
TC_INLINE tc_v tc_from_half(tc_h x) { return __builtin_ia32_vcvtph2ps256((tc_s)x); }
TC_INLINE tc_h tc_to_half(tc_v x) { return (tc_h)__builtin_ia32_vcvtps2ph256(x, 0); }
TC_INLINE void tc_put_past_32(float* p, tc_v x) { __builtin_ia32_movntps256(p, x); }
TC_INLINE void tc_put_past_16(void* p, tc_h x) {
    typedef float f __attribute__((vector_size(16)));
    __builtin_ia32_movntps((float*)p, (f)x);
}
TC_INLINE tc_v tc_greater(tc_v a, tc_v b) { return __builtin_ia32_maxps256(a, b); }  // b if one is NaN
TC_INLINE tc_v tc_lesser(tc_v a, tc_v b) { return __builtin_ia32_minps256(a, b); }
TC_INLINE int tc_nans(tc_v x) { return __builtin_ia32_movmskps256((tc_v)(x != x)); }  // a bit for each NaN
// a bit for each lane that is not below or at the limit: NaN, too
TC_INLINE int tc_beyond(tc_v x, float limit) { return __builtin_ia32_movmskps256((tc_v)~(x <= limit)); }
#define TC_ROUNDED(x, how) __builtin_ia32_roundps256(x, how)
TC_INLINE tc_v tc_sqrt(tc_v x) { return __builtin_ia32_sqrtps256(x); }
TC_INLINE tc_v tc_power_of_two(tc_m n) { return (tc_v)((n + 127) << 23); }
// p 2^n for -252 <= n <= 254, with one rounding where the result is denormal
TC_INLINE tc_v tc_scaled(tc_v p, tc_v n) {
    const tc_m whole = __builtin_ia32_cvtps2dq256(n), half = whole >> 1;
    return p * tc_power_of_two(half) * tc_power_of_two(whole - half);
}
// max(x, 0), but NaN at -inf
TC_INLINE tc_v tc_positive_part(tc_v x) { return x == -TC_INF_F ? tc_splat(TC_NAN_F) : tc_greater(tc_v{}, x); }
TC_INLINE tc_bits_of_lanes tc_odd(tc_m x) { return x << 31; }
// y where the lane's bit is set, else x
TC_INLINE tc_v tc_blend(tc_bits_of_lanes bits, tc_v x, tc_v y) { return __builtin_ia32_blendvps256(x, y, (tc_v)bits); }
// y, in even lanes with r's sign if that is negative
TC_INLINE tc_v tc_signed_where_even(tc_bits_of_lanes odd, tc_v y, tc_v r) { return (tc_v)((tc_m)y | ((tc_m)r & ~odd & INT32_MIN)); }

// ---- over the lanes: of(x, x with its lanes exchanged at half the distance each time)
#define TC_OVER_LANES_OF_VECTOR(y, of)                                   \
    y = of(y, __builtin_shufflevector(y, y, 4, 5, 6, 7, 0, 1, 2, 3));    \
    y = of(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 6, 7, 4, 5));    \
    y = of(y, __builtin_shufflevector(y, y, 1, 0, 3, 2, 5, 4, 7, 6));

// ---- tiles: 8 rows of 8 floats become 8 columns. Three rounds of shuffles, each between pairs of vectors.
TC_INLINE void tc_turn_square(float* to, int64_t to_step, const float* from, int64_t from_step) {
    tc_v a[8], b[8];
    #pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
        __builtin_prefetch(from + 7 + (k + 64) * from_step);
        memcpy(&a[k], from + k * from_step, 32);
    }
    #pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) {
        b[k] = __builtin_shufflevector(a[k], a[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[k + 1] = __builtin_shufflevector(a[k], a[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    #pragma GCC unroll 2
    for (int k = 0; k < 8; k += 4) {
        #pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {  // a[k + c] holds columns c and c + 4 of rows k to k + 3
            a[k + 2 * j] = __builtin_shufflevector(b[k + j], b[k + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[k + 2 * j + 1] = __builtin_shufflevector(b[k + j], b[k + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    #pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const tc_v low = __builtin_shufflevector(a[c], a[c + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        const tc_v high = __builtin_shufflevector(a[c], a[c + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(to + c * to_step, &low, 32);
        memcpy(to + (c + 4) * to_step, &high, 32);
    }
}
