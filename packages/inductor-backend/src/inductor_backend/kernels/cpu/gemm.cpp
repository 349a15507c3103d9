// How products are shared among threads and cut into tiles: see gemm.h.
#include "gemm.h"

void gemm(int64_t layout, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t M, int64_t N, int64_t K,
          store_tile store, const void* context) {
    if (M == 0 || N == 0) return;
    // Threads share the columns in chunks, taken as they become free; where there are fewer chunks than threads, the rows too.
    const int64_t chunks = (N + NC - 1) / NC;
    const int threads = threads_for(M * N * K);
    const int64_t parts = chunks < threads && M >= 2 * MB * threads ? threads : 1;
    int64_t step = (M + parts - 1) / parts;
    step = step < ROWS ? step : ROWS;
    const int64_t blocks = (M + step - 1) / step;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        alignas(64) float tile[ROWS * NC];
        alignas(64) float panel[KC * NC];
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * blocks; task++) {
            const int64_t n0 = task / blocks * NC, m0 = task % blocks * step;
            const int64_t columns = N - n0 < NC ? N - n0 : NC, rows = M - m0 < step ? M - m0 : step;
            const float* xs = x + m0 * ldx;
            if (K == 0) memset(tile, 0, rows * NC * 4);  // a sum of nothing
            else if (layout == NK && rows <= DOT_PARTS * DOT_ROWS) {  // the second time the chunk's weights are in the cache
                const Cut cut(rows, DOT_ROWS);
                for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
                    dot_chunk(xs + m * ldx, ldx, w + n0 * ldw, ldw, K, cut.at(i), columns, N - n0, tile + m * NC);
            } else panel_chunk(layout == NK, xs, ldx, layout == NK ? w + n0 * ldw : w + n0, ldw, K, rows, columns, tile, panel);
            store(context, tile, m0, rows, n0, columns);
        }
    }
}

// Rows of `a` at once: their tile (512 x 64 floats) and the panel share L2, so b is packed once for all of them.
#define WIDE_ROWS 512
void gemm_packed(const float* a, int64_t lda, int64_t M, int64_t N, int64_t K, pack_panel pack, store_tile store,
                 const void* context) {
    // narrower chunks where 64 columns each would leave a thread without work
    const int64_t nc = N <= NC && M * N * K >= 150000 ? NC / 2 : NC;
    const int64_t chunks = (N + nc - 1) / nc, blocks = (M + WIDE_ROWS - 1) / WIDE_ROWS;
    const int threads = threads_for(M * N * K);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        alignas(64) float tile[WIDE_ROWS * NC];
        alignas(64) float panel[KC * NC + 16];
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * blocks; task++) {
            const int64_t n0 = task / blocks * nc, m0 = task % blocks * WIDE_ROWS;
            const int64_t columns = N - n0 < nc ? N - n0 : nc, rows = M - m0 < WIDE_ROWS ? M - m0 : WIDE_ROWS;
            if (K == 0) memset(tile, 0, rows * NC * 4);
            for (int64_t k0 = 0; k0 < K; k0 += KC) {
                const int64_t kc = K - k0 < KC ? K - k0 : KC;
                pack(context, k0, kc, n0, columns, panel);
                panel_rows(a + m0 * lda + k0, lda, panel, NC, kc, rows, columns, tile, k0 != 0, false);
            }
            store(context, tile, m0, rows, n0, columns);
        }
    }
}
