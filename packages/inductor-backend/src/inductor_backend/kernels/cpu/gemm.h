// Matmuls with few rows.
//
// In: x[M,K] (row stride ldx) and w: [N,K] as nn.Linear keeps it (NK, row stride ldw), or [K,N] (KN).
// Out: store(context, tile, m0, rows, n0, columns) is called for tiles that cover [M,N] once, perhaps from several
// threads; element (m, n) is tile[(m - m0) * NC + n - n0], and the tile is the store's to overwrite.
// Always holds: for M <= ROWS each weight is read from memory once; accumulators stay in registers; sums run
// over at most KC products before they join a second sum (or over interleaved partial sums), so errors
// are no greater than those of the usual libraries.
#pragma once
#include "tensors.h"

enum Layout { NK, KN };
#define NC 64     // columns of a tile
#define ROWS 256  // rows of a tile
typedef void (*store_tile)(const void* context, float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns);
HIDDEN void gemm(int64_t layout, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t M, int64_t N, int64_t K,
                 store_tile store, const void* context);
// a[M,K] @ b where b [K,N] is never stored: pack(context, k0, kc, n0, columns, panel) writes rows k0 .. k0+kc of columns
// n0 .. n0+columns as panel[k * NC + n]; columns up to the next multiple of 16 must be
// written too (and are ignored); up to 15 floats beyond a row may be overwritten.
typedef void (*pack_panel)(const void* context, int64_t k0, int64_t kc, int64_t n0, int64_t columns, float* panel);
HIDDEN void gemm_packed(const float* a, int64_t lda, int64_t M, int64_t N, int64_t K, pack_panel pack, store_tile store,
                        const void* context);

// ---- the two micro-kernels
// dot.cpp: weights [N,K] as they lie, lanes along k, a horizontal sum at the end; for up to DOT_ROWS rows.
// columns_left: of this chunk and the ones after it, whose rows are fetched ahead.
#define DOT_ROWS 36
#define DOT_PARTS 3  // as many times at most may a chunk's weights be read
HIDDEN void dot_chunk(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows, int64_t columns,
                      int64_t columns_left, float* tile);
// panel.cpp: lanes along n, x broadcast; [K,N] weights as they lie, [N,K] weights transposed into `panel` (KC x NC).
HIDDEN void panel_chunk(bool nk, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows,
                        int64_t columns, float* tile, float* panel);
// rows of x [rows, kc] (kc <= KC) times a panel; add: to what the tile has
HIDDEN void panel_rows(const float* x, int64_t ldx, const float* panel, int64_t ldp, int64_t kc, int64_t rows, int64_t columns,
                       float* tile, bool add, bool fetch);

// ---- the store of a product whose result is rows of n: epilogue(tile + bias) + residual
struct Rows {
    float* out;
    int64_t ldo;
    const float *bias, *residual;
    int64_t ldr, epilogue;
};
HIDDEN void store_rows(const void* rows, float* tile, int64_t m0, int64_t count, int64_t n0, int64_t columns);
// bias (of each column, or null) and activation on rows of a tile, in place
HIDDEN void finish_rows(float* tile, int64_t count, int64_t columns, const float* bias, int64_t epilogue);

// One row a pixel of the result, columns ordered (channel, kh, kw) as a contiguous weight is, or (kh, kw, channel).
HIDDEN void unfold(const float* x, bool x_last, bool w_last, const Window& g, float* out);
