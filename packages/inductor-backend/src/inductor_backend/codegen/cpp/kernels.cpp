// Kernels compiled once a machine: matrix products with few rows, and convolutions with few output pixels.
//
// Two micro-kernels, both with TC_MB x TC_NB vector accumulators in registers:
//   dot    weights [N,K] as they lie; lanes run along k; a horizontal sum at the end. For up to DOT_ROWS rows.
//   panel  64 columns of weights with lanes along n, x broadcast. [K,N] weights as they lie; [N,K] weights
//          transposed in registers into a panel of at most 128 x 64 in L1. For more rows, and for [K,N].
// Threads share the columns in chunks of 64, taken as they become free; where there are fewer chunks
// than threads, the rows are shared too.
#include "gemm.h"

#if defined(__AVX512F__)
#define LANES 16
#define MB 6
#elif defined(__AVX2__)
#define LANES 8
#define MB 3
#else
#define LANES 4
#define MB 3
#endif
#define NB 4
#define KC 128
#define DOT_ROWS 36

extern "C" int omp_get_max_threads();
extern "C" int omp_in_parallel();

typedef float V __attribute__((vector_size(LANES * 4)));
typedef float VU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float V4 __attribute__((vector_size(16)));
typedef float V4U __attribute__((vector_size(16), aligned(4), may_alias));

TC_INLINE V load(const float* p) { return *(const VU*)p; }
TC_INLINE void put(float* p, V v) { *(VU*)p = v; }
TC_INLINE V load_some(const float* p, int64_t count) {
    V v = {};
    memcpy(&v, p, count * 4);
    return v;
}
// The value stays in a register from here on: left to itself GCC loads operands again for every multiplication, and
// then the two loads a multiplication bound the speed (measured: 45 GFLOP/s instead of 100 on one core).
#if defined(__AVX512F__)
#define KEEP(value) asm("" : "+v"(value))
#elif defined(__x86_64__)
#define KEEP(value) asm("" : "+x"(value))
#elif defined(__aarch64__)
#define KEEP(value) asm("" : "+w"(value))
#else
#define KEEP(value)
#endif
#define UNROLL _Pragma("GCC unroll 16")

// ---- dot: lanes along k
TC_INLINE V4 fold(V a) {
#if LANES == 16
    typedef float V8 __attribute__((vector_size(32)));
    V8 h = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif LANES == 8
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
    return a;
#endif
}
// the sums over the lanes of four vectors
TC_INLINE V4 sum4(V a, V b, V c, V d) {
    V4 p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    V4 pq = __builtin_shufflevector(p, q, 0, 1, 4, 5) + __builtin_shufflevector(p, q, 2, 3, 6, 7);
    V4 rs = __builtin_shufflevector(r, s, 0, 1, 4, 5) + __builtin_shufflevector(r, s, 2, 3, 6, 7);
    return __builtin_shufflevector(pq, rs, 0, 2, 4, 6) + __builtin_shufflevector(pq, rs, 1, 3, 5, 7);
}
// R rows of x against C rows of w; the first AHEAD of the rows from `next` on are fetched into L2 meanwhile
template <int R, int C, int AHEAD>
static __attribute__((noinline)) void dot_block(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K,
                                                float* tile, const float* next) {
    V acc[R][C] = {};
    int64_t k = 0;
    for (; k + LANES <= K; k += LANES) {
        V wv[C];
        UNROLL for (int j = 0; j < C; j++) {
            wv[j] = load(w + j * ldw + k);
            KEEP(wv[j]);
        }
        UNROLL for (int j = 0; j < AHEAD; j++) __builtin_prefetch(next + j * ldw + k, 0, 2);
        UNROLL for (int i = 0; i < R; i++) {
            V xv = load(x + i * ldx + k);
            KEEP(xv);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += xv * wv[j];
        }
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
            *(V4U*)(tile + i * TC_NC) = sum4(acc[i][0], acc[i][1 % C], acc[i][2 % C], acc[i][3 % C]);
        } else {
            for (int j = 0; j < C; j++) {
                V4 s = fold(acc[i][j]);
                tile[i * TC_NC + j] = (s[0] + s[1]) + (s[2] + s[3]);
            }
        }
    }
}
typedef void (*dot_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, const float*);
#if MB == 6
#define BY_ROWS(f, C, A) { f<1, C, A>, f<2, C, A>, f<3, C, A>, f<4, C, A>, f<5, C, A>, f<6, C, A> }
#else
#define BY_ROWS(f, C, A) { f<1, C, A>, f<2, C, A>, f<3, C, A> }
#endif
static const dot_function DOT[3][MB] = {BY_ROWS(dot_block, NB, 0), BY_ROWS(dot_block, NB, 2), BY_ROWS(dot_block, NB, 4)};
static const dot_function DOT_ONE[MB] = BY_ROWS(dot_block, 1, 0);

// Rows are cut into blocks of nearly equal size, none above MB: 7 is 4 + 3, not 6 + 1.
struct Cut {
    int64_t small, large, count;
    explicit Cut(int64_t rows) : count((rows + MB - 1) / MB) { small = rows / count; large = rows % count; }
    int64_t at(int64_t i) const { return small + (i < large); }
};

static void dot_chunk(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows, int64_t columns,
                      int64_t columns_left, float* tile) {
    const Cut cut(rows);
    int64_t n = 0;
    for (; n + NB <= columns; n += NB) {
        const float* here = w + n * ldw;
        const bool more = n + 2 * NB <= columns_left;  // the next rows are read next, by this thread or another
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
            int ahead = !more ? 0 : cut.count == 1 ? 2 : i < 2 ? 1 : 0;  // the fetching is shared by two blocks
            const float* next = here + (NB + (ahead == 1 ? 2 * i : 0)) * ldw;
            DOT[ahead][cut.at(i) - 1](x + m * ldx, ldx, here, ldw, K, tile + m * TC_NC + n, next);
        }
    }
    for (; n < columns; n++)
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
            DOT_ONE[cut.at(i) - 1](x + m * ldx, ldx, w + n * ldw, ldw, K, tile + m * TC_NC + n, nullptr);
}

// ---- panel: lanes along n. AHEAD: weights come from memory, and are fetched AHEAD / R + 8 rows before they are used
// (the fewer rows of x, the less time a row of weights takes).
template <int R, int C, int AHEAD>
static __attribute__((noinline)) void panel_block(const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K,
                                                  float* tile, bool add) {
    V acc[R][C] = {};
    for (int64_t k = 0; k < K; k++) {
        V wv[C];
        UNROLL for (int j = 0; j < C; j++) {
            wv[j] = load(w + k * ldw + j * LANES);
            KEEP(wv[j]);
            if (AHEAD) __builtin_prefetch(w + (k + AHEAD / R + 8) * ldw + j * LANES, 0, 3);
        }
        UNROLL for (int i = 0; i < R; i++) {
            V xv = x[i * ldx + k] - V{};
            KEEP(xv);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += xv * wv[j];
        }
    }
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++) {
            float* p = tile + i * TC_NC + j * LANES;
            put(p, add ? load(p) + acc[i][j] : acc[i][j]);
        }
}
typedef void (*panel_function)(const float*, int64_t, const float*, int64_t, int64_t, float*, bool);
static const panel_function PANEL[2][MB] = {BY_ROWS(panel_block, NB, 0), BY_ROWS(panel_block, NB, 32)};
static const panel_function PANEL_TWO[MB] = BY_ROWS(panel_block, 2, 0);
static const panel_function PANEL_ONE[MB] = BY_ROWS(panel_block, 1, 0);

// 16 (8, 4) rows of w along k to columns of the panel: log2(LANES) stages of block swaps
TC_INLINE void transpose(const float* w, int64_t ldw, float* panel) {
    typedef int32_t I __attribute__((vector_size(LANES * 4)));
    V a[LANES];
    UNROLL for (int i = 0; i < LANES; i++) a[i] = load(w + i * ldw);
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    UNROLL for (int s = 1; s < LANES; s *= 2) {
        I low = (lane & s) != 0 ? lane - s + LANES : lane;           // a_i, with a_(i+s)'s lower blocks moved up
        I high = (lane & s) != 0 ? lane + LANES : lane + s;          // a_(i+s), with a_i's upper blocks moved down
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            V p = a[i], q = a[i + s];
            a[i] = __builtin_shuffle(p, q, low);
            a[i + s] = __builtin_shuffle(p, q, high);
        }
    }
    UNROLL for (int i = 0; i < LANES; i++) put(panel + i * TC_NC, a[i]);
}
// rows w[0..columns) along k in [0, K) to panel[k][n]; columns up to the next multiple of LANES are zero
static void pack_nk(const float* w, int64_t ldw, int64_t columns, int64_t K, float* panel) {
    for (int64_t n = 0; n < columns; n += LANES) {
        int64_t k = 0;
        if (n + LANES <= columns)
            for (; k + LANES <= K; k += LANES) transpose(w + n * ldw + k, ldw, panel + k * TC_NC + n);
        for (; k < K; k++)
            for (int64_t j = 0; j < LANES; j++) panel[k * TC_NC + n + j] = n + j < columns ? w[(n + j) * ldw + k] : 0.0f;
    }
}
static void pack_kn(const float* w, int64_t ldw, int64_t columns, int64_t K, float* panel) {
    const int64_t padded = (columns + LANES - 1) / LANES * LANES;
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < padded; j++) panel[k * TC_NC + j] = j < columns ? w[k * ldw + j] : 0.0f;
}
static void panel_chunk(bool nk, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t K, int64_t rows,
                        int64_t columns, float* tile, float* panel) {
    const Cut cut(rows);
    const bool pack = nk || columns % LANES;
    for (int64_t k0 = 0; k0 < K; k0 += KC) {
        const int64_t kc = K - k0 < KC ? K - k0 : KC;
        const float* source = nk ? w + k0 : w + k0 * ldw;
        if (nk) pack_nk(source, ldw, columns, kc, panel);
        else if (pack) pack_kn(source, ldw, columns, kc, panel);
        if (pack) source = panel;
        const int64_t lds = pack ? TC_NC : ldw;
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
            const float* xs = x + m * ldx + k0;
            float* out = tile + m * TC_NC;
            int64_t n = 0;
            for (; n + NB * LANES <= columns; n += NB * LANES)
                PANEL[!pack && i == 0][cut.at(i) - 1](xs, ldx, source + n, lds, kc, out + n, k0 != 0);
            for (; n + LANES < columns; n += 2 * LANES)
                PANEL_TWO[cut.at(i) - 1](xs, ldx, source + n, lds, kc, out + n, k0 != 0);
            for (; n < columns; n += LANES) PANEL_ONE[cut.at(i) - 1](xs, ldx, source + n, lds, kc, out + n, k0 != 0);
        }
    }
}

// ---- the product
extern "C" void tc_gemm(int layout, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t M, int64_t N,
                        int64_t K, tc_store_tile store, void* context) {
    if (M == 0 || N == 0) return;
    const int64_t chunks = (N + TC_NC - 1) / TC_NC;
    // waking the other threads costs some 5 us
    const int threads = M * N * K < 150000 || omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t parts = chunks < threads && M >= 2 * MB * threads ? threads : 1;
    int64_t step = (M + parts - 1) / parts;
    step = step < TC_ROWS ? step : TC_ROWS;
    const int64_t blocks = (M + step - 1) / step;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        alignas(64) float tile[TC_ROWS * TC_NC];
        alignas(64) float panel[KC * TC_NC];
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * blocks; task++) {
            const int64_t n0 = task / blocks * TC_NC, m0 = task % blocks * step;
            const int64_t columns = N - n0 < TC_NC ? N - n0 : TC_NC, rows = M - m0 < step ? M - m0 : step;
            const float* xs = x + m0 * ldx;
            if (layout == TC_NK && rows <= DOT_ROWS) dot_chunk(xs, ldx, w + n0 * ldw, ldw, K, rows, columns, N - n0, tile);
            else panel_chunk(layout == TC_NK, xs, ldx, layout == TC_NK ? w + n0 * ldw : w + n0, ldw, K, rows, columns, tile, panel);
            store(context, tile, m0, rows, n0, columns);
        }
    }
}

// Rows of `a` at once: their tile (512 x 64 floats) and the panel share L2, so b is packed once for all of them.
#define WIDE_ROWS 512
extern "C" void tc_gemm_packed(const float* a, int64_t lda, int64_t M, int64_t N, int64_t K, tc_pack_panel pack,
                               tc_store_tile store, void* context) {
    // narrower chunks where 64 columns each would leave a thread without work
    const int64_t nc = N <= TC_NC && M * N * K >= 150000 ? TC_NC / 2 : TC_NC;
    const int64_t chunks = (N + nc - 1) / nc, blocks = (M + WIDE_ROWS - 1) / WIDE_ROWS;
    const int threads = M * N * K < 150000 || omp_in_parallel() ? 1 : omp_get_max_threads();
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        alignas(64) float tile[WIDE_ROWS * TC_NC];
        alignas(64) float panel[KC * TC_NC + 16];
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < chunks * blocks; task++) {
            const int64_t n0 = task / blocks * nc, m0 = task % blocks * WIDE_ROWS;
            const int64_t columns = N - n0 < nc ? N - n0 : nc, rows = M - m0 < WIDE_ROWS ? M - m0 : WIDE_ROWS;
            const Cut cut(rows);
            for (int64_t k0 = 0; k0 < K; k0 += KC) {
                const int64_t kc = K - k0 < KC ? K - k0 : KC;
                pack(context, k0, kc, n0, columns, panel);
                for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                    const float* as = a + (m0 + m) * lda + k0;
                    float* out = tile + m * TC_NC;
                    int64_t n = 0;
                    for (; n + NB * LANES <= columns; n += NB * LANES)
                        PANEL[0][cut.at(i) - 1](as, lda, panel + n, TC_NC, kc, out + n, k0 != 0);
                    for (; n + LANES < columns; n += 2 * LANES)
                        PANEL_TWO[cut.at(i) - 1](as, lda, panel + n, TC_NC, kc, out + n, k0 != 0);
                    for (; n < columns; n += LANES)
                        PANEL_ONE[cut.at(i) - 1](as, lda, panel + n, TC_NC, kc, out + n, k0 != 0);
                }
            }
            store(context, tile, m0, rows, n0, columns);
        }
    }
}
