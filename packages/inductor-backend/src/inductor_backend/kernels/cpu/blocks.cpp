// The product of a block of rows with a panel: accumulators of R rows x VECTORS vectors in registers. See packed_weights.h.
#include "packed_weights.h"

// first, ends: see finish_block
template <int R, int C> INLINE void done(V (&acc)[R][C], float* tile, bool add, const Finish* finish, int first = 0, bool ends = true) {
    if (add)
        UNROLL for (int i = 0; i < R; i++)
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += load(tile + i * PANEL + j * LANES);
    if (finish) return finish_block<R, C>(acc, *finish, R, first, ends);
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++) put(tile + i * PANEL + j * LANES, acc[i][j]);
}

// What later blocks read is fetched meanwhile: see Ahead. The processor's own fetching stops at each page.
template <int R, int C>
INLINE void sums(const float* const* __restrict__ rows, int64_t at, const float* __restrict__ w, int64_t ldw, int64_t K, float* tile,
                 bool add, Ahead fetch, const Finish* finish, int first, bool ends) {
    V acc[R][C] = {};
    const float* x[R];
    UNROLL for (int i = 0; i < R; i++) x[i] = rows[i] + at;
    for (int64_t k = 0; k < K; k++) {
        if (VECTORS == 4 && fetch.lines == 1) __builtin_prefetch(fetch.at + k * LINE, 0, 2);
        else if (VECTORS == 4 && fetch.lines) UNROLL for (int j = 0; j < PANEL; j += LINE) __builtin_prefetch(fetch.at + k * PANEL + j, 0, 2);
        add_products(acc, [&](int i) { return same(x[i][k]); }, [&](int j) { return load(w + k * ldw + j * LANES); });
    }
    done<R, C>(acc, tile, add, finish, first, ends);
}
// C vectors, where registers do not hold the sums of as many at once in two halves
template <int R, int C>
static NOINLINE void block(const float* const* __restrict__ rows, int64_t at, const float* __restrict__ w, int64_t ldw, int64_t K, float* tile,
                           bool add, Ahead fetch, const Finish* finish) {
    if (C <= NB || C == 3) return sums<R, C>(rows, at, w, ldw, K, tile, add, fetch, finish, 0, true);
    sums<R, NB>(rows, at, w, ldw, K, tile, add, fetch, finish, 0, false);
    sums<R, NB>(rows, at, w + NB * LANES, ldw, K, tile + NB * LANES, add, {}, finish, NB, true);
}
#if defined(HALVES) && VECTORS == 1
template <int R>
static NOINLINE void block_of_halves(const float* const* __restrict__ rows, int64_t at, const float* __restrict__ w, int64_t ldw, int64_t K,
                                     float* tile, bool add, Ahead, const Finish* finish) {
    H halves[R][2] = {};
    const float* x[R];
    UNROLL for (int i = 0; i < R; i++) x[i] = rows[i] + at;
    for (int64_t k = 0; k < K; k++)
        add_products(halves, [&](int i) { return same_half(x[i][k]); }, [&](int j) { return half(w + k * ldw + 8 * j); });
    V acc[R][1];
    UNROLL for (int i = 0; i < R; i++) acc[i][0] = joined(halves[i][0], halves[i][1]);
    done<R, 1>(acc, tile, add, finish);
}
#endif
#define FOUR_ROWS(C) block<1, C>, block<2, C>, block<3, C>, block<4, C>
#define SIX_ROWS(C) FOUR_ROWS(C), block<5, C>, block<6, C>
#define TWELVE_ROWS(C) SIX_ROWS(C), block<7, C>, block<8, C>, block<9, C>, block<10, C>, block<11, C>, block<12, C>
#if VECTORS == 4
const Blocks BLOCKS_4{MB, {SIX_ROWS(4)}};
#elif VECTORS == 3 && NB == 4
const Blocks BLOCKS_3{ROWS_OF(3), {SIX_ROWS(3)}};
#elif VECTORS == 3
const Blocks BLOCKS_3{ROWS_OF(3), {FOUR_ROWS(3)}};
#elif VECTORS == 2 && NB == 4
const Blocks BLOCKS_2{ROWS_OF(2), {TWELVE_ROWS(2)}};
#elif VECTORS == 2
const Blocks BLOCKS_2{ROWS_OF(2), {SIX_ROWS(2)}};
#elif defined(HALVES)
#define HALF(R) block_of_halves<R>
const Blocks BLOCKS_1{ROWS_OF(1), {HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7), HALF(8), HALF(9), HALF(10), HALF(11), HALF(12)}};
#else
const Blocks BLOCKS_1{ROWS_OF(1), {TWELVE_ROWS(1)}};
#endif
