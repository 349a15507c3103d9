// The operations that prelude_vectors.h is made of, on vectors of 16 floats: AVX-512 (F, BW, VL, DQ) by GCC's builtins.
#pragma once

#define TC_LANES 16
typedef float tc_v __attribute__((vector_size(64)));
typedef int32_t tc_m __attribute__((vector_size(64)));
typedef uint32_t tc_u __attribute__((vector_size(64)));
typedef uint16_t tc_h __attribute__((vector_size(32)));
typedef int16_t tc_s __attribute__((vector_size(32)));
typedef int8_t tc_b __attribute__((vector_size(16)));
typedef unsigned short tc_bits_of_lanes;  // a bit a lane
#define TC_ALL_LANES ((unsigned short)-1)

TC_INLINE tc_v tc_splat(float x) { return tc_v{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
TC_INLINE tc_m tc_splat(bool x) { const int32_t i = -(int32_t)x; return tc_m{i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i}; }
TC_INLINE tc_v tc_fma(tc_v a, tc_v b, tc_v c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, TC_ALL_LANES, 4); }

// ---- the first few lanes. Masked loads and stores touch nothing beyond them.
struct tc_some { unsigned short lanes; };
TC_INLINE tc_some tc_first(int64_t count) { return {(unsigned short)(count >= 16 ? 0xffff : (1u << count) - 1)}; }
TC_INLINE tc_v tc_keep(tc_some m, tc_v x, float other) { return __builtin_ia32_blendmps_512_mask(tc_splat(other), x, m.lanes); }
TC_INLINE tc_v tc_take(tc_some m, const float* p) { return __builtin_ia32_loadups512_mask(p, tc_v{}, m.lanes); }
TC_INLINE tc_h tc_take_16(tc_some m, const void* p) { return (tc_h)__builtin_ia32_loaddquhi256_mask((const short*)p, tc_s{}, m.lanes); }
TC_INLINE tc_b tc_take_8(tc_some m, const void* p) {
    typedef char c __attribute__((vector_size(16)));
    return (tc_b)__builtin_ia32_loaddquqi128_mask((const char*)p, c{}, m.lanes);
}
TC_INLINE void tc_put(tc_some m, float* p, tc_v x) { __builtin_ia32_storeups512_mask(p, x, m.lanes); }
TC_INLINE void tc_put_16(tc_some m, void* p, tc_h x) { __builtin_ia32_storedquhi256_mask((short*)p, (tc_s)x, m.lanes); }

// ---- all lanes
TC_INLINE tc_v tc_from_half(tc_h x) { return __builtin_ia32_vcvtph2ps512_mask((tc_s)x, tc_v{}, TC_ALL_LANES, 4); }
TC_INLINE tc_h tc_to_half(tc_v x) { return (tc_h)__builtin_ia32_vcvtps2ph512_mask(x, 0, tc_s{}, TC_ALL_LANES); }
TC_INLINE void tc_put_past_32(float* p, tc_v x) { __builtin_ia32_movntps512(p, x); }
TC_INLINE void tc_put_past_16(void* p, tc_h x) {
    typedef float f __attribute__((vector_size(32)));
    __builtin_ia32_movntps256((float*)p, (f)x);
}
TC_INLINE tc_v tc_greater(tc_v a, tc_v b) { return __builtin_ia32_maxps512_mask(a, b, a, TC_ALL_LANES, 4); }  // b if one is NaN
TC_INLINE tc_v tc_lesser(tc_v a, tc_v b) { return __builtin_ia32_minps512_mask(a, b, a, TC_ALL_LANES, 4); }
TC_INLINE int tc_nans(tc_v x) { return __builtin_ia32_cmpps512_mask(x, x, 3, TC_ALL_LANES, 4); }  // a bit for each NaN
// a bit for each lane that is not below or at the limit: NaN, too
TC_INLINE int tc_beyond(tc_v x, float limit) { return __builtin_ia32_cmpps512_mask(x, tc_splat(limit), 6, TC_ALL_LANES, 4); }
#define TC_ROUNDED(x, how) __builtin_ia32_rndscaleps_mask(x, how, x, TC_ALL_LANES, 4)
TC_INLINE tc_v tc_sqrt(tc_v x) { return __builtin_ia32_sqrtps512_mask(x, x, TC_ALL_LANES, 4); }
TC_INLINE tc_v tc_scaled(tc_v p, tc_v n) { return __builtin_ia32_scalefps512_mask(p, n, p, TC_ALL_LANES, 4); }  // p 2^n
// max(x, 0), but NaN at -inf: by kinds of floats. Positive, 1, zero, inf: x; negative: 0; -inf, NaN: NaN
TC_INLINE tc_v tc_positive_part(tc_v x) { return (tc_v)__builtin_ia32_fixupimmps512_mask(x, x, tc_m{} + 0x18131122, 0, TC_ALL_LANES, 4); }
TC_INLINE tc_bits_of_lanes tc_odd(tc_m x) { return __builtin_ia32_ptestmd512(x, tc_m{} + 1, TC_ALL_LANES); }
// y where the lane's bit is set, else x
TC_INLINE tc_v tc_blend(tc_bits_of_lanes bits, tc_v x, tc_v y) { return __builtin_ia32_blendmps_512_mask(x, y, bits); }
// y, in even lanes with r's sign if that is negative
TC_INLINE tc_v tc_signed_where_even(tc_bits_of_lanes odd, tc_v y, tc_v r) {
    return (tc_v)__builtin_ia32_pternlogd512_mask((tc_m)y, (tc_m)r, tc_m{} + INT32_MIN, 0xf8, (unsigned short)~odd);
}

// ---- over the lanes: of(x, x with its lanes exchanged at half the distance each time)
#define TC_OVER_LANES_OF_VECTOR(y, of)                                                                    \
    y = of(y, __builtin_shufflevector(y, y, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));       \
    y = of(y, __builtin_shufflevector(y, y, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));             \
    y = of(y, __builtin_shufflevector(y, y, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));             \
    y = of(y, __builtin_shufflevector(y, y, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0));

// ---- tiles: 16 rows of 16 floats become 16 columns. Four rounds of shuffles, each between pairs of vectors.
// Rows far apart are no stream that the processor would see: those 64 rows on are asked for (1.4 times as fast). The last
// float's line: the first one's, where it is another, was the last one's of the tile before.
TC_INLINE void tc_turn_square(float* to, int64_t to_step, const float* from, int64_t from_step) {
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
