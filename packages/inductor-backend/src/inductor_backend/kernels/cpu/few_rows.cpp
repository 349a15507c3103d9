// Weights of 16 bits times a few rows: epilogue(x @ w + bias), rounded before and after the epilogue, as in eager mode.
//
// In: x[M,K] of any strides and w, [N,K] as nn.Linear keeps it (NK, row stride ldw) or [K,N] (KN), all of type WEIGHT.
// Always holds: each weight is read from memory once for GROUP rows and widened in registers; sums are float32, and the same
// for any number of threads. x is widened once, into the order in which blocks read it: one stream, where rows whose strides are
// powers of two would share a set of the L1 cache.
#include "prelude.h"

#define GROUP 48
#define NK_COLUMNS 64    // of a chunk
#define KN_COLUMNS 2048  // of a chunk at most: rows of it are long streams (measured: 512 read 14 GB/s on one core, 2048 read 20)
#define TILE (1 << 15)
#include "row_blocks.h"
enum Layout { NK, KN };

namespace {
struct FewRows {
    const WEIGHT *x, *w, *bias;
    WEIGHT* out;
    int64_t layout, row, column, ldw, ldo, N, K, epilogue;
    int64_t padded() const { return (K + LINE - 1) / LINE * LINE; }

    // rows [m, m + rows), for a block
    void pack(int64_t m, int64_t rows, float* to) const {
        for (int64_t k = 0; k < K; k += LINE, to += rows * LINE)
            for (int64_t i = 0; i < rows; i++) {
                const int64_t count = K - k < LINE ? K - k : LINE;
                const WEIGHT* from = x + (m + i) * row + k * column;
                WEIGHT copy[LINE];
                if (column != 1 || count < LINE) {
                    memset(copy, 0, sizeof copy);
                    for (int64_t j = 0; j < count; j++) copy[j] = from[j * column];
                    from = copy;
                }
                if (layout == KN) for (int64_t j = 0; j < LINE; j++) to[j * rows + i] = tc_to_float(from[j]);
                else UNROLL for (int p = 0; p < PARTS; p++) put(to + (p * rows + i) * LANES, part(from, p));
            }
    }
    void nk_chunk(const float* packed, const Cut& cut, int64_t n0, int64_t columns, float* tile) const {
        for (int64_t n = 0, now; n < columns; n += now) {
            now = n + 4 <= columns ? 4 : 1;
            const WEIGHT* here = w + (n0 + n) * ldw;
            const bool more = n0 + n + 8 <= N;  // the next rows are read next, by this thread or another
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                const int ahead = !more ? 0 : cut.count == 1 ? 4 : i < 2 ? 2 : 0;  // the fetching is shared by two blocks
                (now == 4 ? FOUR : ONE)[cut.at(i) - 1](packed + m * padded(), here, ldw, K, tile + m * NK_COLUMNS + n,
                                                       here + (4 + (ahead == 2 ? 2 * i : 0)) * ldw, ahead);
            }
        }
    }
    void kn_chunk(const float* packed, const Cut& cut, int64_t n0, int64_t columns, float* tile, int64_t ldt) const {
        const int64_t whole = columns / LINE * LINE;
        WEIGHT last[KN_DEPTH * LINE] = {};
        for (int64_t k = 0; k < K; k += KN_DEPTH) {
            const int64_t depth = K - k < KN_DEPTH ? K - k : KN_DEPTH;
            const WEIGHT* here = w + k * ldw + n0;
            if (whole < columns)
                for (int64_t j = 0; j < depth; j++) memcpy(last + j * LINE, here + j * ldw + whole, (columns - whole) * 2);
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                const kn_function block = LINES[cut.at(i) - 1];
                const float* xs = packed + m * padded() + k * cut.at(i);
                block(xs, here, ldw, depth, whole, tile + m * ldt, ldt, i == 0 && k + 2 * KN_DEPTH <= K);
                if (whole < columns) block(xs, last, LINE, depth, LINE, tile + m * ldt + whole, ldt, false);
            }
        }
    }
    void store(float* line, int64_t m, int64_t n0, int64_t columns) const {
        if (layout == KN)
            for (int64_t n = 0; n < columns; n += 2 * LANES) {
                V a = load(line + n), b = load(line + n + LANES);
                in_order(w, a, b);
                put(line + n, a);
                put(line + n + LANES, b);
            }
        WEIGHT* __restrict__ to = out + m * ldo + n0;
        const WEIGHT* add = bias + n0;
        if (bias)
#pragma omp simd
            for (int64_t n = 0; n < columns; n++) line[n] += tc_to_float(add[n]);
#pragma omp simd
        for (int64_t n = 0; n < columns; n++) tc_store(to, n, line[n]);
        if (!epilogue) return;
#pragma omp simd
        for (int64_t n = 0; n < columns; n++) line[n] = tc_to_float(to[n]);
        post_line(epilogue, line, columns);
#pragma omp simd
        for (int64_t n = 0; n < columns; n++) tc_store(to, n, line[n]);
    }
    // rows [m0, m0 + rows), at most GROUP
    void multiply(int64_t m0, int64_t rows, float* packed) const {
        const Cut cut(rows, MOST);
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) pack(m0 + m, cut.at(i), packed + m * padded());
        const int threads = threads_for(rows * N * K);
        const int64_t fitting = TILE / rows / LINE * LINE, most = layout == NK ? NK_COLUMNS : fitting < KN_COLUMNS ? fitting : KN_COLUMNS;
        const int64_t share = ((N + threads - 1) / threads + LINE - 1) / LINE * LINE;  // whole cache lines of the result
        const int64_t width = share < most ? share : most, chunks = (N + width - 1) / width, ldt = layout == NK ? NK_COLUMNS : width;
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            alignas(64) float tile[TILE];
#pragma omp for schedule(dynamic, 1)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                const int64_t n0 = chunk * width, columns = N - n0 < width ? N - n0 : width;
                if (layout == NK) {
                    nk_chunk(packed, cut, n0, columns, tile);
                } else {
                    memset(tile, 0, rows * ldt * 4);
                    kn_chunk(packed, cut, n0, columns, tile, ldt);
                }
                for (int64_t m = 0; m < rows; m++) store(tile + m * ldt, m0 + m, n0, columns);
            }
        }
    }
};
}

static thread_local Scratch packed;

// x, its strides, w, ldw, layout, out, ldo, M, N, K, bias, epilogue
EXPORT void RUN(const int64_t* a) {
    const FewRows f{(const WEIGHT*)a[0], (const WEIGHT*)a[3], (const WEIGHT*)a[11], (WEIGHT*)a[6], a[5], a[1], a[2], a[4], a[7], a[9], a[10], a[12]};
    const int64_t M = a[8];
    if (M == 0 || f.N == 0) return;
    float* memory = packed.get((size_t)((M < GROUP ? M : GROUP) * f.padded()));
    for (int64_t m = 0; m < M; m += GROUP) f.multiply(m, M - m < GROUP ? M - m : GROUP, memory);
}

#ifdef GROUPED
// Rows in groups, each with a matrix of its own, of which only those with rows are read; rows after the last group are 0.
// As RUN without bias and epilogue; after K: the groups' number, elements from a matrix to the next, the int32 end of each group
EXPORT void GROUPED(const int64_t* a) {
    FewRows f{(const WEIGHT*)a[0], (const WEIGHT*)a[3], nullptr, (WEIGHT*)a[6], a[5], a[1], a[2], a[4], a[7], a[9], a[10], NONE};
    const int64_t M = a[8], count = a[11], apart = a[12];
    const int32_t* ends = (const int32_t*)a[13];
    if (M == 0 || f.N == 0) return;
    float* memory = packed.get((size_t)((M < GROUP ? M : GROUP) * f.padded()));
    int64_t m = 0;
    for (int64_t g = 0; g < count; g++, f.w += apart)
        for (const int64_t end = ends[g] < M ? ends[g] : M; m < end;) {
            const int64_t rows = end - m < GROUP ? end - m : GROUP;
            f.multiply(m, rows, memory);
            m += rows;
        }
    for (; m < M; m++) memset((void*)(f.out + m * f.ldo), 0, f.N * sizeof(WEIGHT));
}
#endif
