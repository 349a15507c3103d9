// Panels of weights, lanes along the columns, times rows that are broadcast: see gemm.h.
#include "gemm.h"

// fetch: weights come from memory, and are fetched 32 / R + 8 rows before they are used (the fewer rows of x, the less
// time a row of weights takes).
template <int R, int C>
static NOINLINE void panel_block(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, float* tile, bool add, bool fetch) {
    V acc[R][C] = {};
    for (int64_t k = 0; k < K; k++) {
        if (C == NB && fetch) UNROLL for (int j = 0; j < C; j++) __builtin_prefetch(w + (k + 32 / R + 8) * ldw + j * LANES, 0, 3);
        add_products(acc, [&](int i) { return same(x[i * ldx + k]); }, [&](int j) { return load(w + k * ldw + j * LANES); });
    }
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++) {
            float* p = tile + i * NC + j * LANES;
            put(p, add ? load(p) + acc[i][j] : acc[i][j]);
        }
}
typedef void (*panel_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, bool, bool);
#define BY_ROWS(C) {panel_block<1, C>, panel_block<2, C>, panel_block<3, C>, panel_block<4, C>, panel_block<5, C>, panel_block<6, C>}
static const panel_function MANY[MB] = BY_ROWS(NB), TWO[MB] = BY_ROWS(2), ONE[MB] = BY_ROWS(1);

void panel_rows(const float* x, int64_t ldx, const float* panel, int64_t ldp, int64_t kc, int64_t rows, int64_t columns, float* tile,
                bool add, bool fetch) {
    const Cut cut(rows, MB);
    for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
        const float* xs = x + m * ldx;
        float* out = tile + m * NC;
        const int64_t r = cut.at(i) - 1;
        int64_t n = 0;
        for (; n + NB * LANES <= columns; n += NB * LANES) MANY[r](xs, ldx, panel + n, ldp, kc, out + n, add, fetch && i == 0);
        for (; n + LANES < columns; n += 2 * LANES) TWO[r](xs, ldx, panel + n, ldp, kc, out + n, add, false);
        for (; n < columns; n += LANES) ONE[r](xs, ldx, panel + n, ldp, kc, out + n, add, false);
    }
}

static NOINLINE void transposed(const float* w, int64_t ldw, float* panel) {
    V a[LANES];
    UNROLL for (int i = 0; i < LANES; i++) a[i] = load(w + i * ldw);
    transpose(a);
    UNROLL for (int i = 0; i < LANES; i++) put(panel + i * NC, a[i]);
}
// rows w[0..columns) along k in [0, K) to panel[k][n]; columns up to the next multiple of LANES are zero
static void pack_nk(const float* w, int64_t ldw, int64_t columns, int64_t K, float* panel) {
    for (int64_t n = 0; n < columns; n += LANES) {
        int64_t k = 0;
        if (n + LANES <= columns)
            for (; k + LANES <= K; k += LANES) transposed(w + n * ldw + k, ldw, panel + k * NC + n);
        for (; k < K; k++)
            for (int64_t j = 0; j < LANES; j++) panel[k * NC + n + j] = n + j < columns ? w[(n + j) * ldw + k] : 0.0f;
    }
}
static void pack_kn(const float* w, int64_t ldw, int64_t columns, int64_t K, float* panel) {
    const int64_t padded = (columns + LANES - 1) / LANES * LANES;
    for (int64_t k = 0; k < K; k++) {
        memcpy(panel + k * NC, w + k * ldw, columns * 4);
        for (int64_t j = columns; j < padded; j++) panel[k * NC + j] = 0.0f;
    }
}
void panel_chunk(bool nk, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows, int64_t columns,
                 float* tile, float* panel) {
    const bool pack = nk || columns % LANES;
    for (int64_t k0 = 0; k0 < K; k0 += KC) {
        const int64_t kc = K - k0 < KC ? K - k0 : KC;
        const float* source = nk ? w + k0 : w + k0 * ldw;
        if (nk) pack_nk(source, ldw, columns, kc, panel);
        else if (pack) pack_kn(source, ldw, columns, kc, panel);
        panel_rows(x + k0, ldx, pack ? panel : source, pack ? NC : ldw, kc, rows, columns, tile, k0 != 0, !pack);
    }
}
