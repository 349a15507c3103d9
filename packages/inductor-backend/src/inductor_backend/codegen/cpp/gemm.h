// Matrix products with few rows: declarations. The bodies (kernels.cpp) are compiled once a machine and linked
// into every library whose text includes this file, so a product costs its epilogue's compile time only.
//
// In: x[M,K] (row stride ldx) and w: [N,K] as nn.Linear keeps it (TC_NK, row stride ldw), or [K,N] (TC_KN).
// Out: store(context, tile, m0, rows, n0, columns) is called for tiles that cover [M,N] once, perhaps from several
// threads; element (m, n) is tile[(m - m0) * TC_NC + n - n0].
// Always holds: for M <= TC_ROWS each weight is read from memory once; accumulators stay in registers; sums run
// over at most 128 products before they join a second sum (or over interleaved partial sums), so errors
// are no greater than those of the usual libraries.
#pragma once
#include "prelude.h"

#define TC_NK 0
#define TC_KN 1
#define TC_NC 64     // columns of a tile
#define TC_ROWS 256  // rows of a tile
typedef void (*tc_store_tile)(void* context, const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns);

extern "C" {
__attribute__((visibility("hidden"))) void tc_gemm(int layout, const float* x, int64_t ldx, const float* w, int64_t ldw,
                                                   int64_t M, int64_t N, int64_t K, tc_store_tile store, void* context);
// a[M,K] @ b where b [K,N] is never stored: pack(context, k0, kc, n0, columns, panel) writes rows k0 .. k0+kc of columns
// n0 .. n0+columns as panel[k * TC_NC + n]; columns up to the next multiple of 16 must be
// written too (and are ignored); up to 15 floats beyond a row may be overwritten.
typedef void (*tc_pack_panel)(void* context, int64_t k0, int64_t kc, int64_t n0, int64_t columns, float* panel);
__attribute__((visibility("hidden"))) void tc_gemm_packed(const float* a, int64_t lda, int64_t M, int64_t N, int64_t K,
                                                          tc_pack_panel pack, tc_store_tile store, void* context);
}
// The same with the epilogue as a function object.
template <class Store>
TC_INLINE void tc_gemm_with(int layout, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t M, int64_t N,
                            int64_t K, Store& store) {
    tc_gemm(layout, x, ldx, w, ldw, M, N, K,
            [](void* context, const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {
                (*(Store*)context)(tile, m0, rows, n0, columns);
            },
            &store);
}
