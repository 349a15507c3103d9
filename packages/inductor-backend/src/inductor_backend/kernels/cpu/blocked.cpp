// Large matmuls: epilogue(a @ b + bias) + residual, any of the two operands turned round.
//
// In: a[M,K] and b[K,N] with two strides each, one of them 1; c[M,N] of dense rows. Columns of b are taken 64 at once, in
// panels of DEPTH rows that are packed where they are used; rows of `a` are read as they lie (a dense row each), or packed
// six at once where its columns are dense (a weight's gradient). What of `a` is used at once stays in the last-level cache,
// so that an operand of any size is read from memory once. Sums run over DEPTH products before they join c.
#include "tiles.h"

#define DEPTH 384            // rows of a panel: measured, 128 loses 5 %; widths of transformers are multiples
#define WIDE (NB * LANES)    // columns of a strip of a panel: 24 KB, which stay in L1 for all rows of a group
#define GROUP (16 * MB)      // rows of it: 150 KB, which stay in L2 for all strips of
#define PANELS 4             // panels
#define A_FLOATS (4 << 20)   // of `a` at once
#define MAX_DEPTH 4096      // of it

// ---- R rows, C vectors of columns, in registers
template <int R, int C, bool PACKED>
static NOINLINE void block(const float* a, int64_t lda, const float* b, int64_t K, float* c, int64_t ldc, bool add, const float* bias,
                           const float* side) {
    V acc[R][C] = {};
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < C; j++) __builtin_prefetch(c + i * ldc + j * LANES, 1, 3);
    for (int64_t k = 0; k < K; k++)
        add_products(acc, [&](int i) { return same(PACKED ? a[k * MB + i] : a[i * lda + k]); }, [&](int j) { return load(b + k * WIDE + j * LANES); });
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++) {
            float* p = c + i * ldc + j * LANES;
            const V sum = add ? load(p) + acc[i][j] : acc[i][j];
            put(p, bias ? sum + load(bias + j * LANES) : side ? sum + same(side[i]) : sum);
        }
}
typedef void (*block_function)(const float*, int64_t, const float*, int64_t, float*, int64_t, bool, const float*, const float*);
#define BY_ROWS(C, P) {block<1, C, P>, block<2, C, P>, block<3, C, P>, block<4, C, P>, block<5, C, P>, block<6, C, P>}
static const block_function BLOCK[2][MB] = {BY_ROWS(NB, false), BY_ROWS(NB, true)};

// ---- packing
// columns [n, n + 64) of rows [0, K): panel[64 / WIDE][k][WIDE], zeros after the last column
static void pack_b(const Side& b, int64_t columns, int64_t K, float* panel) {
    const auto place = [&](int64_t k, int64_t n) { return panel + n / WIDE * WIDE * K + k * WIDE + n % WIDE; };
    if (b.columns == 1) {
        for (int64_t k = 0; k < K; k++) {
            const float* from = b.data + k * b.rows;
            if (columns == NC) {
                __builtin_prefetch(from + 8 * b.rows, 0, 2);
                UNROLL for (int j = 0; j < NC; j += LANES) put(place(k, j), load(from + j));
            } else {
                for (int64_t j = 0; j < NC; j++) *place(k, j) = j < columns ? from[j] : 0.0f;
            }
        }
        return;
    }
    int64_t n = 0;
    for (; n + LANES <= columns; n += LANES) {
        const float* from = b.data + n * b.columns;
        int64_t k = 0;
        for (; k + LANES <= K; k += LANES) {
            V v[LANES];
            UNROLL for (int i = 0; i < LANES; i++) v[i] = load(from + i * b.columns + k);
            transpose(v);
            UNROLL for (int i = 0; i < LANES; i++) put(place(k + i, n), v[i]);
        }
        for (; k < K; k++)
            for (int64_t j = 0; j < LANES; j++) place(k, n)[j] = from[j * b.columns + k];
    }
    for (; n < NC; n++)
        for (int64_t k = 0; k < K; k++) *place(k, n) = n < columns ? b.data[n * b.columns + k] : 0.0f;
}
// rows [m, m + rows) of `a` (its columns dense), [rows / MB][k][MB]: each k is one piece of a dense column
static void pack_a(const float* a, int64_t lda, int64_t rows, int64_t K, float* to) {
    const int64_t size = MB * K;
    int64_t m = 0;
    for (; m + 8 * MB <= rows; m += 8 * MB) {  // three cache lines of a column
        const float* from = a + m;
        float* panel = to + m * K;
        for (int64_t k = 0; k + 1 < K; k++, from += lda, panel += MB)
            UNROLL for (int i = 0; i < 8; i++) {  // two floats too many: the next k, or the next panel, writes them again
                typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));
                if (i < 7) *(V8*)(panel + i * size) = *(const V8*)(from + i * MB);
                else memcpy(panel + i * size, from + i * MB, MB * 4);
            }
        UNROLL for (int i = 0; i < 8; i++) memcpy(panel + i * size, from + i * MB, MB * 4);
    }
    for (; m < rows; m += MB) {
        const int64_t count = rows - m < MB ? rows - m : MB;
        for (int64_t k = 0; k < K; k++)
            for (int64_t i = 0; i < MB; i++) to[m * K + k * MB + i] = i < count ? a[k * lda + m + i] : 0.0f;
    }
}

namespace {
struct Product {
    Side a, b;
    int64_t M, N, K;
    Rows out;
    bool onto = false;  // what is in `out` already (no bias, epilogue or residual then)
    const char* tiles = nullptr;  // b, packed for them
    const float* side = nullptr;  // added to whole rows

    // activation and residual, in place, of NC columns
    void finish(float* c, int64_t m, int64_t count, int64_t n0) const {
        for (int64_t i = 0; i < count && (out.epilogue || out.residual); i++, c += out.ldo) {
            if (out.epilogue) post_line(out.epilogue, c, NC);
            if (!out.residual) continue;
            const float* r = out.residual + (m + i) * out.ldr + n0;
            UNROLL for (int j = 0; j < NC; j += LANES) put(c + j, load(c + j) + load(r + j));
        }
    }
    // rows [m0 + m, m0 + m + rows) of columns [n0, n0 + columns), PANELS panels at most: depth [k0, k0 + depth). rows_packed: of
    // `a` from m0 on, which lie at `memory`
    void chunk(const float* memory, int64_t rows_packed, int64_t m0, int64_t m, int64_t rows, int64_t n0, int64_t columns, int64_t k0, int64_t depth,
               float* panels) const {
        const Cut depths(depth, DEPTH);
        for (int64_t i = 0; i < depths.count; i++) {
            const int64_t kc = depths.at(i), k = depths.from(i);
            const float* from = b.data + (k0 + k) * b.rows + n0 * b.columns;
            for (int64_t n = 0; n < columns; n += NC)
                pack_b({from + n * b.columns, b.rows, b.columns}, columns - n < NC ? columns - n : NC, kc, panels + n * kc);
            for (int64_t g = m; g < m + rows; g += GROUP)
                for (int64_t n = 0; n < columns; n += NC)
                    group(memory ? memory + k * rows_packed + g * kc : a.data + (m0 + g) * a.rows + k0 + k, memory ? kc : a.rows, m0 + g,
                          m + rows - g < GROUP ? m + rows - g : GROUP, n0 + n, columns - n < NC ? columns - n : NC, kc, memory, panels + n * kc,
                          onto || k0 + k != 0, k0 + k + kc == K);
        }
    }
    // `count` rows times a panel, of kc rows; lda: floats from a row of `a` to the next
    void group(const float* at, int64_t lda, int64_t m, int64_t count, int64_t n0, int64_t columns, int64_t kc, bool packed, const float* panel, bool add,
               bool last) const {
        alignas(64) float tile[GROUP * NC];
        float *c = out.out + m * out.ldo + n0, *to = columns == NC ? c : tile;
        const int64_t ldo = columns == NC ? out.ldo : NC;
        const float* bias = columns == NC && last && out.bias ? out.bias + n0 : nullptr;
        if (add && columns < NC)
            for (int64_t r = 0; r < count; r++) memcpy(tile + r * NC, c + r * out.ldo, columns * 4);
        const Cut cut(count, MB);
        for (int64_t n = 0; n < columns; n += WIDE)
            for (int64_t i = 0, r = 0, some; r < count; r += some, i++) {
                some = !packed ? cut.at(i) : count - r < MB ? count - r : MB;
                BLOCK[packed][some - 1](at + r * lda, lda, panel + n * kc, kc, to + r * ldo + n, ldo, add, bias ? bias + n : nullptr,
                                        side && last ? side + m + r : nullptr);
            }
        if (columns == NC && last) finish(c, m, count, n0);
        else if (last) store_rows(&out, tile, m, count, n0, columns);
        else if (columns < NC)
            for (int64_t r = 0; r < count; r++) memcpy(c + r * out.ldo, tile + r * NC, columns * 4);
    }
};
}

// sums of nothing
static void store_zeros(const Product& p) {
    alignas(64) float tile[MB * NC];
    for (int64_t m = 0; m < p.M; m += MB)
        for (int64_t n = 0; n < p.N; n += NC) {
            memset(tile, 0, sizeof tile);  // the store adds to it
            store_rows(&p.out, tile, m, p.M - m < MB ? p.M - m : MB, n, p.N - n < NC ? p.N - n : NC);
        }
}

static void add_side(const Product& p) {
    for (int64_t m = 0; p.side && m < p.M; m++) {
        float* row = p.out.out + m * p.out.ldo;
        for (int64_t n = 0; n < p.N; n++) row[n] += p.side[m];
    }
}

static thread_local Scratch packed_a, packed_b;

static void multiply(const Product& p) {
    if (p.M == 0 || p.N == 0) return;
    if (p.K == 0) return store_zeros(p);
    if (!p.onto && multiply_in_tiles(p.a, p.b, p.M, p.N, p.K, p.out, p.tiles)) return add_side(p);
    const bool packed = p.a.columns != 1;
    const int64_t deep = p.K < MAX_DEPTH ? p.K : MAX_DEPTH, cached = A_FLOATS / deep, most = cached < 32 * MB ? 32 * MB : cached;
    const int64_t steps = (p.M + most - 1) / most, step = ((p.M + steps - 1) / steps + MB - 1) / MB * MB;  // each packs all of b
    const int threads = threads_for(p.M * p.N * p.K);
    const int64_t wide = threads == 1 || p.N >= 3 * PANELS * NC * threads ? PANELS * NC : NC, chunks = (p.N + wide - 1) / wide;
    float* memory = packed ? packed_a.get((size_t)(step * deep)) : nullptr;
    for (int64_t m0 = 0; m0 < p.M; m0 += step) {
        const int64_t rows = p.M - m0 < step ? p.M - m0 : step;
        const int64_t part = rows_of_task(rows, rows + MB, chunks, threads), parts = (rows + part - 1) / part;
        for (int64_t k0 = 0; k0 < p.K; k0 += deep) {
            const int64_t depth = p.K - k0 < deep ? p.K - k0 : deep;
            const Cut depths(depth, DEPTH);
#pragma omp parallel num_threads(threads) if (threads > 1)
            {
                float* panels = packed_b.get(PANELS * DEPTH * NC);
                if (packed) {
#pragma omp for collapse(2) schedule(static)
                    for (int64_t i = 0; i < depths.count; i++)
                        for (int64_t m = 0; m < rows; m += 8 * MB)
                            pack_a(p.a.data + m0 + m + (k0 + depths.from(i)) * p.a.columns, p.a.columns, rows - m < 8 * MB ? rows - m : 8 * MB,
                                   depths.at(i), memory + depths.from(i) * step + m * depths.at(i));
                }
#pragma omp for schedule(dynamic, 1)
                for (int64_t task = 0; task < chunks * parts; task++) {
                    const int64_t n0 = task / parts * wide, m = task % parts * part;
                    p.chunk(memory, step, m0, m, rows - m < part ? rows - m : part, n0, p.N - n0 < wide ? p.N - n0 : wide, k0, depth, panels);
                }
            }
        }
    }
}
EXPORT void run_blocked(const int64_t* v) {
    multiply({{(const float*)v[0], v[1], v[2]}, {(const float*)v[3], v[4], v[5]}, v[8], v[9], v[10],
              {(float*)v[6], v[7], (const float*)v[11], (const float*)v[12], v[13], v[14]}, false, (const char*)v[15]});
}
// b for run_blocked: see multiply_in_tiles.
EXPORT void pack_tiles(const int64_t* v) {
    pack_for_tiles({(const float*)v[0], v[1], v[2]}, v[5], v[4], (char*)v[3]);
}
// One `a` times a matrix of each image: see kernels/conv1x1.py.
EXPORT void run_conv1x1(const int64_t* v) {
    const int64_t images = v[4], M = v[5], K = v[6], N = v[7];
    for (int64_t i = 0; i < images; i++)
        multiply({{(const float*)v[0], v[1], v[2]}, {(const float*)v[3] + i * K * N, N, 1}, M, N, K,
                  {(float*)v[8] + i * M * N, N, nullptr, nullptr, 0, NONE}, false, nullptr, (const float*)v[9]});
}
// The gradient of that `a`: of each image's result times its matrix turned round, one after the other.
EXPORT void run_conv1x1_weight(const int64_t* v) {
    const int64_t images = v[3], M = v[4], N = v[5], K = v[6];
    for (int64_t i = 0; i < images; i++)
        multiply({{(const float*)v[0] + i * M * K, K, 1}, {(const float*)v[1] + i * N * K, 1, K}, M, N, K,
                  {(float*)v[2], N, nullptr, nullptr, 0, NONE}, i != 0});
}
