// Weights of 16 or 8 bits times a few rows: epilogue(x @ w + bias), rounded before and after the epilogue, as in eager mode.
//
// In: x[M,K] of any strides, of type ELEMENT, and w, [N,K] as nn.Linear keeps it (NK, row stride ldw) or [K,N] (KN), of type
// WEIGHT: the same floats of 16 bits, or integers of 8, or two of 4 a byte (NK alone). A weight of NK integers may stand for (w - zero) * scale, with one zero
// and one scale for `group` weights of a row; sums of integers may be multiplied by a factor for each column.
// Always holds: each weight is read from memory once for GROUP rows and widened in registers; sums are float32, and the same
// for any number of threads. x is widened once, into the order in which blocks read it: one stream, where rows whose strides are
// powers of two would share a set of the L1 cache.
#include "prelude.h"

#define GROUP 48
#define NK_COLUMNS 64                   // of a chunk
#define KN_COLUMNS 2048  // of a chunk at most: rows of it are long streams (measured: 512 read 14 GB/s on one core, 2048 read 20)
#define TILE (1 << 15)
#define LARGEST 65504  // float16
#define FEW_BLOCKS 4   // with more blocks of rows, weights of groups are widened once for all (measured: 48 rows take 52 ms, else 68)
#include "row_blocks.h"
enum Layout { NK, KN };

// Numbers of a type (kernels/quantized.py numbers them) for groups of weights; or one number, whose bits are the address.
namespace {
struct Numbers {
    const void* data;
    int64_t type, row, column;
    template <class T> void copy(int64_t n, int64_t count, float* to) const {
        const T* from = (const T*)data + n * row;
        if (column != 1) for (int64_t g = 0; g < count; g++) to[g] = (float)tc_load(from, g * column);
        else
#pragma omp simd
            for (int64_t g = 0; g < count; g++) to[g] = (float)tc_load(from, g);
    }
    void one(int64_t, int64_t count, float* to) const {
        double number;
        memcpy(&number, &data, 8);
        for (int64_t g = 0; g < count; g++) to[g] = (float)number;
    }
    void read(int64_t n, int64_t count, float* to) const {
        static void (Numbers::*const COPIES[])(int64_t, int64_t, float*) const = {
            &Numbers::copy<float>, &Numbers::copy<tc_bf16>, &Numbers::copy<tc_half>, &Numbers::copy<int8_t>, &Numbers::copy<uint8_t>,
            &Numbers::copy<int32_t>, &Numbers::copy<int64_t>, &Numbers::one};
        (this->*COPIES[type])(n, count, to);
    }
};
}

namespace {
struct FewRows {
    const ELEMENT *x, *bias;
    const WEIGHT* w;
    ELEMENT* out;
    int64_t layout, row, column, ldw, ldo, N, K, epilogue;
    const ELEMENT* factor;
    int64_t at_once, group;  // at_once: sums are not rounded before they are multiplied by factor
    Numbers scales, zeros;
    int swapped;  // of two integers a byte: whether that of the high bits comes first
    int64_t padded() const { return (K + LINE - 1) / LINE * LINE; }

    // rows [m, m + rows), for a block
    void pack(int64_t m, int64_t rows, float* to) const {
        for (int64_t k = 0; k < K; k += LINE, to += rows * LINE)
            for (int64_t i = 0; i < rows; i++) {
                const int64_t count = K - k < LINE ? K - k : LINE;
                const ELEMENT* from = x + (m + i) * row + k * column;
                ELEMENT copy[LINE];
                if (column != 1 || count < LINE) {
                    memset(copy, 0, sizeof copy);
                    for (int64_t j = 0; j < count; j++) copy[j] = from[j * column];
                    from = copy;
                }
                if (layout == KN) for (int64_t j = 0; j < LINE; j++) to[j * rows + i] = tc_load(from, j);
                else UNROLL for (int p = 0; p < PARTS; p++) put(to + (p * rows + i) * LANES, x_part(from, p, swapped));
            }
    }
    // the scales and zeros of `rows` rows of w from n on, and what their weights stand for
    Form groups_of(int64_t n, int64_t rows, Groups& of, float* memory) const {
        if (!group) return PLAIN;
        const int64_t count = rows * of.groups;
        for (int64_t j = 0; j < rows; j++) {
            scales.read(n + j, of.groups, memory + j * of.groups);
            zeros.read(n + j, of.groups, memory + (4 + j) * of.groups);
        }
        of.scales = memory, of.zeros = memory + 4 * of.groups;
        int shifted = 0, beyond = 0;
#pragma omp simd reduction(| : shifted, beyond)
        for (int64_t i = 0; i < count; i++) {
            shifted |= of.zeros[i] != 0;
            if (LAST == ROUNDED) beyond |= !(tc_abs(of.scales[i]) * (256 + tc_abs(of.zeros[i])) <= LARGEST);
        }
        return beyond ? ROUNDED : shifted ? SHIFTED : SCALED;
    }
#ifdef INTEGERS
    void by_pieces(const float* packed, const Cut& cut, const WEIGHT* here, decltype(&widen<SCALED>) widen, const Groups& of, float* tile) const {
        alignas(64) float piece[4 * PIECE], sums[GROUP * 4 * LANES] = {};
        for (int64_t k = 0; k < K; k += PIECE) {
            const int64_t count = K - k < PIECE ? K - k : PIECE;
            for (int64_t j = 0; j < 4; j++) widen(here + j * ldw + k / A_BYTE, j, k, count, &of, piece + j * PIECE);
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
                WIDE[cut.at(i) - 1](packed + m * padded() + k * cut.at(i), piece, (count + LINE - 1) / LINE * LINE, sums + m * 4 * LANES);
        }
        const auto of_row = [&](int64_t m, int j) { return load(sums + (m * 4 + j) * LANES); };
        for (int64_t i = 0, m = 0; i < cut.count; i++)
            for (const int64_t end = m + cut.at(i); m < end; m++)
                *(V4U*)(tile + m * NK_COLUMNS) = sum4(of_row(m, 0), of_row(m, 1), of_row(m, 2), of_row(m, 3));
    }
#endif
    void nk_chunk(const float* packed, const Cut& cut, int64_t n0, int64_t columns, float* tile, float* memory) const {
        Groups of{nullptr, nullptr, group, group ? (K + group - 1) / group : 0};
        for (int64_t n = 0, now; n < columns; n += now) {
            now = n + 4 <= columns ? 4 : 1;
            Form form = groups_of(n0 + n, now, of, memory);
            if (form == ROUNDED && now == 4) form = groups_of(n0 + n, now = 1, of, memory);
            const WEIGHT* here = w + (n0 + n) * ldw;
            const bool more = n0 + n + 8 <= N;  // the next rows are read next, by this thread or another
#ifdef INTEGERS
            if (form != PLAIN && now == 4 && cut.count > FEW_BLOCKS) {
                by_pieces(packed, cut, here, form == SHIFTED ? widen<SHIFTED> : widen<SCALED>, of, tile + n);
                continue;
            }
#endif
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                const int ahead = !more ? 0 : cut.count == 1 ? 4 : i < 2 ? 2 : 0;  // the fetching is shared by two blocks
                (now == 4 ? FOUR : ONE)[form][cut.at(i) - 1](packed + m * padded(), here, ldw, K, tile + m * NK_COLUMNS + n,
                                                             here + (4 + (ahead == 2 ? 2 * i : 0)) * ldw, ahead, &of);
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
                for (int64_t j = 0; j < depth; j++) memcpy(last + j * LINE, here + j * ldw + whole, (columns - whole) * sizeof(WEIGHT));
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
        ELEMENT* __restrict__ to = out + m * ldo + n0;
        const auto in_memory = [&] {
#pragma omp simd
            for (int64_t n = 0; n < columns; n++) tc_store(to, n, line[n]);
        };
        const auto round = [&] {
            in_memory();
#pragma omp simd
            for (int64_t n = 0; n < columns; n++) line[n] = tc_load(to, n);
        };
        const ELEMENT *by = factor + n0, *add = bias + n0;
        if (factor) {
            if (!at_once) round();
#pragma omp simd
            for (int64_t n = 0; n < columns; n++) line[n] *= tc_load(by, n);
            if (bias) round();
        }
        if (bias)
#pragma omp simd
            for (int64_t n = 0; n < columns; n++) line[n] += tc_load(add, n);
        if (epilogue) {
            round();
            post_line(epilogue, line, columns);
        }
        in_memory();
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
            static thread_local Scratch groups;
            float* const memory = group ? groups.get((size_t)(8 * ((K + group - 1) / group))) : nullptr;
#pragma omp for schedule(dynamic, 1)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                const int64_t n0 = chunk * width, columns = N - n0 < width ? N - n0 : width;
                if (layout == NK) {
                    nk_chunk(packed, cut, n0, columns, tile, memory);
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

// x, its strides, w, ldw, layout, out, ldo, M, N, K, bias, epilogue; of integers also: factor, at_once, group (0: PLAIN), and of the
// scales and of the zeros (or 0) address, type and strides; swapped
EXPORT void RUN(const int64_t* a) {
    FewRows f{(const ELEMENT*)a[0], (const ELEMENT*)a[11], (const WEIGHT*)a[3], (ELEMENT*)a[6], a[5], a[1], a[2], a[4], a[7], a[9], a[10], a[12]};
#ifdef INTEGERS
    f.factor = (const ELEMENT*)a[13], f.at_once = a[14], f.group = a[15];
    f.scales = {(const void*)a[16], a[17], a[18], a[19]}, f.swapped = (int)a[24], f.zeros = {(const void*)a[20], a[21], a[22], a[23]};
#endif
    const int64_t M = a[8];
    if (M == 0 || f.N == 0) return;
    float* memory = packed.get((size_t)((M < GROUP ? M : GROUP) * f.padded()));
    for (int64_t m = 0; m < M; m += GROUP) f.multiply(m, M - m < GROUP ? M - m : GROUP, memory);
}

#ifdef GROUPED
// Rows in groups, each with a matrix of its own, of which only those with rows are read; rows after the last group are 0.
// As RUN without bias and epilogue; after K: the groups' number, elements from a matrix to the next, the int32 end of each group
EXPORT void GROUPED(const int64_t* a) {
    FewRows f{(const ELEMENT*)a[0], nullptr, (const WEIGHT*)a[3], (ELEMENT*)a[6], a[5], a[1], a[2], a[4], a[7], a[9], a[10], NONE};
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
