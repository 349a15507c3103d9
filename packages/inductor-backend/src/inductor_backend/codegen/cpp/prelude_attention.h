// What flex_attention's kernels are written with (codegen/cpp/flex_attention.py), after prelude.h: products of blocks that
// stay in a thread's cache, and a step of softmax over a row of a block.
//
// Goes in: blocks of floats. Comes out: blocks of floats. Always holds: sums over K are sums in order, of products that are
// not rounded before they are added.
#pragma once

#define TC_COLUMNS 64  // keys of a block
#if defined(__AVX512F__)
#define TC_LANES 16
#define TC_BLOCK_ROWS 6  // rows of a block of four vectors: as many sums as registers hold
#else
#if defined(__AVX2__)
#define TC_LANES 8
#else
#define TC_LANES 4
#endif
#define TC_BLOCK_ROWS 3
#endif
#if defined(__x86_64__) && defined(__AVX512F__)
#define TC_KEEP(value) asm("" : "+v"(value))
#elif defined(__x86_64__)
#define TC_KEEP(value) asm("" : "+x"(value))
#else
#define TC_KEEP(value)
#endif

typedef float tc_w __attribute__((vector_size(TC_LANES * 4)));
typedef int32_t tc_i __attribute__((vector_size(TC_LANES * 4)));
TC_INLINE tc_w tc_w_load(const float* p) { tc_w x; memcpy(&x, p, sizeof x); return x; }
TC_INLINE void tc_w_put(float* p, tc_w x) { memcpy(p, &x, sizeof x); }
TC_INLINE tc_w tc_w_fma(tc_w a, tc_w b, tc_w c) {
#if defined(__AVX512F__)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif defined(__AVX2__) && defined(__FMA__)
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    return a * b + c;
#endif
}

// R rows times C vectors: c = (add ? c : 0) + a @ b. Element (i, k) of a is at i * row + k * step.
template <int R, int C>
static __attribute__((noinline)) void tc_block(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, int64_t K,
                                               float* c, int64_t ldc, bool add) {
    tc_w sums[R][C] = {};
    for (int64_t k = 0; k < K; ++k) {
        tc_w kept[C];
        #pragma GCC unroll 4
        for (int j = 0; j < C; ++j) { kept[j] = tc_w_load(b + k * ldb + j * TC_LANES); TC_KEEP(kept[j]); }
        #pragma GCC unroll 6
        for (int i = 0; i < R; ++i) {
            tc_w one = a[i * row + k * step] - tc_w{};
            TC_KEEP(one);
            #pragma GCC unroll 4
            for (int j = 0; j < C; ++j) sums[i][j] = tc_w_fma(one, kept[j], sums[i][j]);
        }
    }
    #pragma GCC unroll 6
    for (int i = 0; i < R; ++i) {
        #pragma GCC unroll 4
        for (int j = 0; j < C; ++j) {
            float* p = c + i * ldc + j * TC_LANES;
            tc_w_put(p, add ? tc_w_load(p) + sums[i][j] : sums[i][j]);
        }
    }
}
template <int R> static void tc_block_row(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, int64_t vectors,
                                          int64_t K, float* c, int64_t ldc, bool add) {
    for (; vectors >= 4; vectors -= 4, b += 4 * TC_LANES, c += 4 * TC_LANES) tc_block<R, 4>(a, row, step, b, ldb, K, c, ldc, add);
    if (vectors == 3) tc_block<R, 3>(a, row, step, b, ldb, K, c, ldc, add);
    if (vectors == 2) tc_block<R, 2>(a, row, step, b, ldb, K, c, ldc, add);
    if (vectors == 1) tc_block<R, 1>(a, row, step, b, ldb, K, c, ldc, add);
}
// [rows, K] times [K, vectors * TC_LANES]
static void tc_multiply(const float* a, int64_t row, int64_t step, const float* b, int64_t ldb, int64_t rows, int64_t vectors,
                        int64_t K, float* c, int64_t ldc, bool add) {
    for (; rows >= TC_BLOCK_ROWS; rows -= TC_BLOCK_ROWS, a += TC_BLOCK_ROWS * row, c += TC_BLOCK_ROWS * ldc)
        tc_block_row<TC_BLOCK_ROWS>(a, row, step, b, ldb, vectors, K, c, ldc, add);
#if TC_BLOCK_ROWS == 6
    if (rows == 5) tc_block_row<5>(a, row, step, b, ldb, vectors, K, c, ldc, add);
    if (rows == 4) tc_block_row<4>(a, row, step, b, ldb, vectors, K, c, ldc, add);
    if (rows == 3) tc_block_row<3>(a, row, step, b, ldb, vectors, K, c, ldc, add);
#endif
    if (rows == 2) tc_block_row<2>(a, row, step, b, ldb, vectors, K, c, ldc, add);
    if (rows == 1) tc_block_row<1>(a, row, step, b, ldb, vectors, K, c, ldc, add);
}

// TC_LANES vectors turned round: stages of block swaps
TC_INLINE void tc_turned(tc_w* a) {
    tc_i lane;
    for (int i = 0; i < TC_LANES; ++i) lane[i] = i;
    #pragma GCC unroll 4
    for (int s = 1; s < TC_LANES; s *= 2) {
        const tc_i low = (lane & s) != 0 ? lane - s + TC_LANES : lane, high = (lane & s) != 0 ? lane + TC_LANES : lane + s;
        #pragma GCC unroll 16
        for (int i = 0; i < TC_LANES; ++i) {
            if (i & s) continue;
            const tc_w p = a[i], q = a[i + s];
#if defined(__clang__)
            for (int k = 0; k < TC_LANES; ++k) {
                a[i][k] = k & s ? q[k - s] : p[k];
                a[i + s][k] = k & s ? q[k] : p[k + s];
            }
#else
            a[i] = __builtin_shuffle(p, q, low);
            a[i + s] = __builtin_shuffle(p, q, high);
#endif
        }
    }
}
// [count, width] elements of memory to rows of floats, times a factor; `padded` columns, zeros after the last
template <class T>
static void tc_rows(const T* from, int64_t row, int64_t step, int64_t count, int64_t width, int64_t padded, float factor, float* to) {
    for (int64_t i = 0; i < count; ++i) {
        if (step == 1) {
            #pragma omp simd
            for (int64_t d = 0; d < width; ++d) to[i * padded + d] = tc_load(from + i * row, d) * factor;
        } else {
            for (int64_t d = 0; d < width; ++d) to[i * padded + d] = tc_load(from + i * row, d * step) * factor;
        }
        for (int64_t d = width; d < padded; ++d) to[i * padded + d] = 0.0f;
    }
}
// [count, width] floats, `apart` from row to row, to columns: [width, TC_COLUMNS], zeros up to a whole vector
static void tc_columns_of(const float* from, int64_t apart, int64_t count, int64_t width, float* to) {
    for (int64_t c = 0; c < count; c += TC_LANES) {
        int64_t d = 0;
        if (c + TC_LANES <= count)
            for (; d + TC_LANES <= width; d += TC_LANES) {
                tc_w a[TC_LANES];
                #pragma GCC unroll 16
                for (int i = 0; i < TC_LANES; ++i) a[i] = tc_w_load(from + (c + i) * apart + d);
                tc_turned(a);
                #pragma GCC unroll 16
                for (int i = 0; i < TC_LANES; ++i) tc_w_put(to + (d + i) * TC_COLUMNS + c, a[i]);
            }
        for (; d < width; ++d)
            for (int64_t i = 0; i < TC_LANES; ++i) to[d * TC_COLUMNS + c + i] = c + i < count ? from[(c + i) * apart + d] : 0.0f;
    }
}
// The same of memory; buffer: room for [TC_COLUMNS, width] floats
static void tc_columns(const float* from, int64_t row, int64_t step, int64_t count, int64_t width, float* to, float* buffer) {
    if (step == 1) { tc_columns_of(from, row, count, width, to); return; }
    tc_rows(from, row, step, count, width, width, 1.0f, buffer);
    tc_columns_of(buffer, width, count, width, to);
}
template <class T>
static void tc_columns(const T* from, int64_t row, int64_t step, int64_t count, int64_t width, float* to, float* buffer) {
    tc_rows(from, row, step, count, width, width, 1.0f, buffer);
    tc_columns_of(buffer, width, count, width, to);
}
// [count, width] elements that vectors can be read from: where they are, or as floats in `buffer`. apart: from row to row
TC_INLINE const float* tc_values(const float* from, int64_t row, int64_t step, int64_t count, int64_t width, int64_t padded,
                                 float* buffer, int64_t* apart) {
    if (step == 1 && width == padded) { *apart = row; return from; }
    *apart = padded;
    tc_rows(from, row, step, count, width, padded, 1.0f, buffer);
    return buffer;
}
template <class T>
TC_INLINE const float* tc_values(const T* from, int64_t row, int64_t step, int64_t count, int64_t width, int64_t padded,
                                 float* buffer, int64_t* apart) {
    *apart = padded;
    tc_rows(from, row, step, count, width, padded, 1.0f, buffer);
    return buffer;
}

// exp(x), but 0 below the smallest normal number: beside a greatest weight of 1 nothing is lost, and products with denormal
// numbers take the processor some 100 cycles (measured: ALiBi, 2.2 times the time)
TC_INLINE float tc_weight(float x) {
    const float e = tc_exp(x < -87.0f ? -87.0f : x);
    return x < -87.0f ? 0.0f : e;
}
// Exponentials of a row of scores in place, over those of the rows before: `most` and `total` go on. Returns what earlier
// sums are to be multiplied by.
static __attribute__((noinline)) float tc_softmax_step(float* s, int64_t count, float* most, float* total) {
    float greatest = *most, sum = 0.0f;
    #pragma omp simd reduction(max : greatest)
    for (int64_t c = 0; c < count; ++c) greatest = s[c] > greatest ? s[c] : greatest;
    const float level = greatest == -TC_INF_F ? 0.0f : greatest;
    #pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < count; ++c) {
        s[c] = tc_weight(s[c] - level);
        sum += s[c];
    }
    const float kept = tc_weight(*most - level);
    *total = *total * kept + sum;
    *most = greatest;
    return kept;
}
TC_INLINE void tc_scale_row(float* p, int64_t count, float factor) {
    #pragma omp simd
    for (int64_t c = 0; c < count; ++c) p[c] *= factor;
}
