// Weights as nn.Linear keeps them times a few rows: see gemm.h.
#include "gemm.h"

// R rows of x against C rows of w; the first `ahead` (0, 2 or 4) of the rows from `next` on are fetched into L2 meanwhile
template <int R, int C>
static NOINLINE void dot_block(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, float* tile, const float* next,
                               int ahead) {
    V acc[R][C] = {};
    int64_t k = 0;
    for (; k + LANES <= K; k += LANES) {
        if (C > 1 && ahead) {
            __builtin_prefetch(next + k, 0, 2);
            __builtin_prefetch(next + ldw + k, 0, 2);
            if (ahead > 2) {
                __builtin_prefetch(next + 2 * ldw + k, 0, 2);
                __builtin_prefetch(next + 3 * ldw + k, 0, 2);
            }
        }
        add_products(acc, [&](int i) { return load(x + i * ldx + k); }, [&](int j) { return load(w + j * ldw + k); });
    }
    if (k < K) {
        V wv[C];
        UNROLL for (int j = 0; j < C; j++) wv[j] = load_some(w + j * ldw + k, K - k);
        UNROLL for (int i = 0; i < R; i++) {
            V xv = load_some(x + i * ldx + k, K - k);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += xv * wv[j];
        }
    }
    UNROLL for (int i = 0; i < R; i++) {
        if (C == 4) {
            *(V4U*)(tile + i * NC) = sum4(acc[i][0], acc[i][1 % C], acc[i][2 % C], acc[i][3 % C]);
        } else {
            for (int j = 0; j < C; j++) {
                V4 s = fold(acc[i][j]);
                tile[i * NC + j] = (s[0] + s[1]) + (s[2] + s[3]);
            }
        }
    }
}
typedef void (*dot_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, const float*, int);
#define FOUR 4  // rows of w at once
#define MOST ROWS_OF(FOUR)
#if REGISTERS == 32
#define BY_ROWS(C) {dot_block<1, C>, dot_block<2, C>, dot_block<3, C>, dot_block<4, C>, dot_block<5, C>, dot_block<6, C>}
#else
#define BY_ROWS(C) {dot_block<1, C>, dot_block<2, C>, dot_block<3, C>}
#endif
static const dot_function DOT[MOST] = BY_ROWS(FOUR), DOT_ONE[MOST] = BY_ROWS(1);

void dot_chunk(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows, int64_t columns,
               int64_t columns_left, float* tile) {
    const Cut cut(rows, MOST);
    int64_t n = 0;
    for (; n + FOUR <= columns; n += FOUR) {
        const float* here = w + n * ldw;
        const bool more = n + 2 * FOUR <= columns_left;  // the next rows are read next, by this thread or another
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
            const int ahead = !more ? 0 : cut.count == 1 ? 4 : i < 2 ? 2 : 0;  // the fetching is shared by two blocks
            const float* next = here + (FOUR + (ahead == 2 ? 2 * i : 0)) * ldw;
            DOT[cut.at(i) - 1](x + m * ldx, ldx, here, ldw, K, tile + m * NC + n, next, ahead);
        }
    }
    for (; n < columns; n++)
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
            DOT_ONE[cut.at(i) - 1](x + m * ldx, ldx, w + n * ldw, ldw, K, tile + m * NC + n, nullptr, 0);
}
