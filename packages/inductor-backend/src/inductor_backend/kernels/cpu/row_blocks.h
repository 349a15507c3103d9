// Blocks of matmuls of a few rows, whose other operand, of type WEIGHT, is read from memory once and widened in registers.
//
// In: WEIGHT; NK_COLUMNS, the floats from a row to the next of the tile that nk_block fills. x is float32, in the order in which
// the blocks read it: of a row of w, K elements long, for nk_block; of its columns for kn_block.
#pragma once
#include "tensors.h"

#define LINE 32  // weights of a cache line, the step of all loops
#define PARTS (LINE / LANES)
#define MOST (REGISTERS == 32 ? 6 : 3)  // rows of a block
#define KN_DEPTH 8       // rows of KN weights between a load and a store of the sums (4 and 16 are slower)

INLINE V part(const WEIGHT* line, int i) { return widened(line + i / 2 * 2 * LANES, i % 2); }

// R rows of x, [part of a line][row][LANES], against C rows of w; the first `ahead` (0, 2 or 4) rows from `next` on are fetched into L2
template <int R, int C>
static NOINLINE void nk_block(const float* x, const WEIGHT* w, int64_t ldw, int64_t K, float* tile, const WEIGHT* next, int ahead) {
    V acc[R][C] = {};
    const auto add_line = [&](const WEIGHT* w, int64_t ldw) __attribute__((always_inline)) {
        // unrolled, GCC spills a sum of bfloat16 blocks (measured: 62 GFLOP/s on one core instead of 76)
        _Pragma("GCC unroll 1") for (int both = 0; both < PARTS; both += 2)
            UNROLL for (int p = both; p < both + 2; p++)
                add_products(acc, [&](int i) { return load(x + (p * R + i) * LANES); }, [&](int j) { return part(w + j * ldw, p); });
        x += R * LINE;
    };
    int64_t k = 0;
    for (; k + LINE <= K; k += LINE) {
        if (ahead) UNROLL for (int j = 0; j < C / 2; j++) __builtin_prefetch(next + j * ldw + k, 0, 2);
        if (ahead > C / 2) UNROLL for (int j = C / 2; j < C; j++) __builtin_prefetch(next + j * ldw + k, 0, 2);
        add_line(w + k, ldw);
    }
    if (k < K) {
        WEIGHT last[C * LINE] = {};
        for (int j = 0; j < C; j++) memcpy(last + j * LINE, w + j * ldw + k, (K - k) * sizeof(WEIGHT));
        add_line(last, LINE);
    }
    UNROLL for (int i = 0; i < R; i++) {
        const V4 sums = sum4(acc[i][0], acc[i][1 % C], acc[i][2 % C], acc[i][3 % C]);
        if (C == 4) *(V4U*)(tile + i * NK_COLUMNS) = sums;
        else tile[i * NK_COLUMNS] = sums[0];
    }
}

// R rows of x, [k][row], against `depth` rows of w, in lines of columns: added to the tile, in the order of widened lines
template <int R>
static NOINLINE void kn_block(const float* x, const WEIGHT* w, int64_t ldw, int64_t depth, int64_t columns, float* tile, int64_t ldt, bool fetch) {
    for (int64_t n = 0; n < columns; n += LINE) {
        V acc[R][PARTS];
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int p = 0; p < PARTS; p++) acc[i][p] = load(tile + i * ldt + n + p * LANES);
        for (int64_t k = 0; k < depth; k++) {
            if (fetch) __builtin_prefetch(w + (k + KN_DEPTH) * ldw + n, 0, 2);
            add_products(acc, [&](int i) { return same(x[k * R + i]); }, [&](int p) { return part(w + k * ldw + n, p); });
        }
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int p = 0; p < PARTS; p++) put(tile + i * ldt + n + p * LANES, acc[i][p]);
    }
}

typedef void (*nk_function)(const float*, const WEIGHT*, int64_t, int64_t, float*, const WEIGHT*, int);
typedef void (*kn_function)(const float*, const WEIGHT*, int64_t, int64_t, int64_t, float*, int64_t, bool);
#if REGISTERS == 32
#define BY_ROWS(F, ...) {F<1 __VA_ARGS__>, F<2 __VA_ARGS__>, F<3 __VA_ARGS__>, F<4 __VA_ARGS__>, F<5 __VA_ARGS__>, F<6 __VA_ARGS__>}
#else
#define BY_ROWS(F, ...) {F<1 __VA_ARGS__>, F<2 __VA_ARGS__>, F<3 __VA_ARGS__>}
#endif
static const nk_function FOUR[MOST] = BY_ROWS(nk_block, , 4), ONE[MOST] = BY_ROWS(nk_block, , 1);
static const kn_function LINES[MOST] = BY_ROWS(kn_block);
