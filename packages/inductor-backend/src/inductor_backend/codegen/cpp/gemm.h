// Matrix products with few rows, included by texts that codegen/cpp/gemm.py writes.
//
// In: x[M,K] (row stride ldx) and w, [N,K] as nn.Linear keeps it or [K,N]. Out: store(tile, n0, columns) is
// called once for every block of columns with all M rows of x @ w^T (or x @ w) in `tile`, row stride TC_NC.
// Always holds: each weight is read from memory once, in order, for any M <= TC_ROWS; accumulators stay in registers;
// sums run in float32 over 16 (8, 4) interleaved partial sums, so errors are below those of one long sum.
#pragma once
#include "prelude.h"

#if defined(__AVX512F__)
#define TC_LANES 16
#define TC_MB 6
#elif defined(__AVX2__)
#define TC_LANES 8
#define TC_MB 3
#else
#define TC_LANES 4
#define TC_MB 3
#endif
#define TC_NB 4     // weight rows (or vectors of columns) at once: TC_MB * TC_NB accumulators
#define TC_NC 64    // columns a chunk: what one thread takes at a time
#define TC_ROWS 64  // rows of x at once; more are done in turns

extern "C" int omp_get_max_threads();
extern "C" int omp_in_parallel();
// threads for that many multiplications: waking the others costs about 5 us
TC_INLINE int tc_threads(int64_t work) { return work < 200000 || omp_in_parallel() ? 1 : omp_get_max_threads(); }

typedef float tc_v __attribute__((vector_size(TC_LANES * 4)));
typedef float tc_vu __attribute__((vector_size(TC_LANES * 4), aligned(4), may_alias));
typedef float tc_v4 __attribute__((vector_size(16)));
typedef float tc_v4u __attribute__((vector_size(16), aligned(4), may_alias));

TC_INLINE tc_v tc_vload(const float* p) { return *(const tc_vu*)p; }
TC_INLINE tc_v tc_vload_some(const float* p, int64_t count) {
    tc_v v = {};
    memcpy(&v, p, count * 4);
    return v;
}
TC_INLINE tc_v4 tc_fold(tc_v a) {
#if TC_LANES == 16
    typedef float v8 __attribute__((vector_size(32)));
    v8 h = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif TC_LANES == 8
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
    return a;
#endif
}
// the sums over the lanes of four vectors
TC_INLINE tc_v4 tc_sum4(tc_v a, tc_v b, tc_v c, tc_v d) {
    tc_v4 p = tc_fold(a), q = tc_fold(b), r = tc_fold(c), s = tc_fold(d);
    tc_v4 pq = __builtin_shufflevector(p, q, 0, 1, 4, 5) + __builtin_shufflevector(p, q, 2, 3, 6, 7);
    tc_v4 rs = __builtin_shufflevector(r, s, 0, 1, 4, 5) + __builtin_shufflevector(r, s, 2, 3, 6, 7);
    return __builtin_shufflevector(pq, rs, 0, 2, 4, 6) + __builtin_shufflevector(pq, rs, 1, 3, 5, 7);
}

// ---- weights [N,K]: lanes run along k, MB rows of x against NB rows of w
template <int MB, int NB, bool PREFETCH>
static inline __attribute__((always_inline)) void tc_nk_tile(
    const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, float* tile, const float* next) {
    tc_v acc[MB][NB] = {};
    int64_t k = 0;
    for (; k + TC_LANES <= K; k += TC_LANES) {
        tc_v wv[NB];
#pragma GCC unroll 8
        for (int j = 0; j < NB; j++) {
            wv[j] = tc_vload(w + j * ldw + k);
            if (PREFETCH) __builtin_prefetch(next + j * ldw + k, 0, 2);
        }
#pragma GCC unroll 8
        for (int i = 0; i < MB; i++) {
            tc_v xv = tc_vload(x + i * ldx + k);
#pragma GCC unroll 8
            for (int j = 0; j < NB; j++) acc[i][j] += xv * wv[j];
        }
    }
    if (k < K) {
        tc_v wv[NB];
#pragma GCC unroll 8
        for (int j = 0; j < NB; j++) wv[j] = tc_vload_some(w + j * ldw + k, K - k);
#pragma GCC unroll 8
        for (int i = 0; i < MB; i++) {
            tc_v xv = tc_vload_some(x + i * ldx + k, K - k);
#pragma GCC unroll 8
            for (int j = 0; j < NB; j++) acc[i][j] += xv * wv[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MB; i++) {
        if (NB == 4) {
            *(tc_v4u*)(tile + i * TC_NC) = tc_sum4(acc[i][0], acc[i][1 % NB], acc[i][2 % NB], acc[i][3 % NB]);
        } else {
            for (int j = 0; j < NB; j++) {
                tc_v4 s = tc_fold(acc[i][j]);
                tile[i * TC_NC + j] = (s[0] + s[1]) + (s[2] + s[3]);
            }
        }
    }
}

template <int MB, int NB, bool PREFETCH>
static __attribute__((noinline)) void tc_nk_rows(
    const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, float* tile, const float* next) {
    tc_nk_tile<MB, NB, PREFETCH>(x, ldx, w, ldw, K, tile, next);
}
typedef void (*tc_nk_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, const float*);
template <int NB, bool P> TC_INLINE tc_nk_function tc_nk_pick(int64_t rows) {
    switch (rows) {
    case 1: return tc_nk_rows<1, NB, P>;
    case 2: return tc_nk_rows<2, NB, P>;
    case 3: return tc_nk_rows<3, NB, P>;
#if TC_MB > 3
    case 4: return tc_nk_rows<4, NB, P>;
    case 5: return tc_nk_rows<5, NB, P>;
    default: return tc_nk_rows<6, NB, P>;
#else
    default: return tc_nk_rows<3, NB, P>;
#endif
    }
}
// M rows are cut into blocks of nearly equal size, none above TC_MB: 7 is 4 + 3, not 6 + 1
struct tc_blocks { int64_t small, large_count, count; };
TC_INLINE tc_blocks tc_cut(int64_t M) {
    int64_t count = (M + TC_MB - 1) / TC_MB;
    return {M / count, M % count, count};
}

template <int NB>
static void tc_nk_columns(const float* x, int64_t ldx, const float* w, int64_t K, int64_t M, float* tile, const float* next) {
    tc_blocks b = tc_cut(M);
    tc_nk_function small = tc_nk_pick<NB, false>(b.small), large = tc_nk_pick<NB, false>(b.small + 1);
    int64_t m = 0;
    for (int64_t i = 0; i < b.count; i++) {
        int64_t rows = b.small + (i < b.large_count);
        tc_nk_function f = i == 0 ? tc_nk_pick<NB, true>(rows) : i < b.large_count ? large : small;
        f(x + m * ldx, ldx, w, K, K, tile + m * TC_NC, next);
        m += rows;
    }
}

template <class Store>
TC_INLINE void tc_gemm_nk(const float* x, int64_t ldx, const float* w, int64_t M, int64_t N, int64_t K, int threads, Store store) {
    int64_t chunks = (N + TC_NC - 1) / TC_NC;
#pragma omp parallel num_threads(threads)
    {
        alignas(64) float tile[TC_ROWS * TC_NC];
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < chunks; c++) {
            int64_t n0 = c * TC_NC, n1 = n0 + TC_NC < N ? n0 + TC_NC : N, n = n0;
            for (; n + TC_NB <= n1; n += TC_NB) {
                const float* rows = w + n * K;
                // what this thread (or the other one) reads next; at the very end, itself again
                const float* next = n + 2 * TC_NB <= N ? rows + TC_NB * K : rows;
                tc_nk_columns<TC_NB>(x, ldx, rows, K, M, tile + (n - n0), next);
            }
            for (; n < n1; n++) tc_nk_columns<1>(x, ldx, w + n * K, K, M, tile + (n - n0), w + n * K);
            store(tile, n0, n1 - n0);
        }
    }
}

// ---- weights [K,N]: lanes run along n, MB rows of x against NV vectors of columns
template <int MB, int NV>
static __attribute__((noinline)) void tc_kn_rows(
    const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, float* tile, int64_t ahead) {
    tc_v acc[MB][NV] = {};
    for (int64_t k = 0; k < K; k++) {
        tc_v wv[NV];
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) {
            wv[j] = tc_vload(w + k * ldw + j * TC_LANES);
            __builtin_prefetch(w + (k + ahead) * ldw + j * TC_LANES, 0, 2);
        }
#pragma GCC unroll 8
        for (int i = 0; i < MB; i++) {
            float xs = x[i * ldx + k];
#pragma GCC unroll 8
            for (int j = 0; j < NV; j++) acc[i][j] += xs * wv[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MB; i++)
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) *(tc_vu*)(tile + i * TC_NC + j * TC_LANES) = acc[i][j];
}
typedef void (*tc_kn_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t);
template <int NV> TC_INLINE tc_kn_function tc_kn_pick(int64_t rows) {
    switch (rows) {
    case 1: return tc_kn_rows<1, NV>;
    case 2: return tc_kn_rows<2, NV>;
    case 3: return tc_kn_rows<3, NV>;
#if TC_MB > 3
    case 4: return tc_kn_rows<4, NV>;
    case 5: return tc_kn_rows<5, NV>;
    default: return tc_kn_rows<6, NV>;
#else
    default: return tc_kn_rows<3, NV>;
#endif
    }
}
template <int NV>
static void tc_kn_columns(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t M, float* tile) {
    tc_blocks b = tc_cut(M);
    int64_t m = 0;
    for (int64_t i = 0; i < b.count; i++) {
        int64_t rows = b.small + (i < b.large_count);
        tc_kn_pick<NV>(rows)(x + m * ldx, ldx, w, ldw, K, tile + m * TC_NC, i == 0 ? 16 : 0);
        m += rows;
    }
}
template <class Store>
TC_INLINE void tc_gemm_kn(const float* x, int64_t ldx, const float* w, int64_t M, int64_t N, int64_t K, int threads, Store store) {
    int64_t chunks = (N + TC_NC - 1) / TC_NC;
#pragma omp parallel num_threads(threads)
    {
        alignas(64) float tile[TC_ROWS * TC_NC];
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < chunks; c++) {
            int64_t n0 = c * TC_NC, n1 = n0 + TC_NC < N ? n0 + TC_NC : N, n = n0;
            for (; n + TC_NB * TC_LANES <= n1; n += TC_NB * TC_LANES)
                tc_kn_columns<TC_NB>(x, ldx, w + n, N, K, M, tile + (n - n0));
            for (; n + TC_LANES <= n1; n += TC_LANES) tc_kn_columns<1>(x, ldx, w + n, N, K, M, tile + (n - n0));
            for (; n < n1; n++)
                for (int64_t m = 0; m < M; m++) {
                    float sum = 0;
                    for (int64_t k = 0; k < K; k++) sum += x[m * ldx + k] * w[k * N + n];
                    tile[m * TC_NC + n - n0] = sum;
                }
            store(tile, n0, n1 - n0);
        }
    }
}
