// Blocks of matmuls of a few rows, whose other operand, of type WEIGHT, is read from memory once and widened in registers.
//
// In: WEIGHT; ELEMENT, where weights are integers of 8 bits that stand for floats; NK_COLUMNS, the floats from a row to the next of
// the tile that nk_block fills. x is float32, in the order in which the blocks read it: of a row of w, K elements long, for
// nk_block; of its columns for kn_block.
#pragma once
#include "tensors.h"

#ifndef ELEMENT
#define ELEMENT WEIGHT
#else
#define INTEGERS
#endif
#define LINE 32  // weights of a step of all loops, a cache line of 16 bits
#define PARTS (LINE / LANES)
#define MOST (REGISTERS == 32 ? 6 : 3)  // rows of a block
#define KN_DEPTH 8       // rows of KN weights between a load and a store of the sums (4 and 16 are slower)
#define PIECE 256      // weights of four rows that are widened at once
// What a weight stands for: itself; times its group's scale; less its group's zero before; both rounded to ELEMENT.
enum Form { PLAIN, SCALED, SHIFTED, ROUNDED };


#ifdef INTEGERS
INLINE V part(const WEIGHT* line, int i) { return widened(line + i * LANES); }
INLINE void in_order(const WEIGHT*, V&, V&) {}
#else
INLINE V part(const WEIGHT* line, int i) { return widened(line + i / 2 * 2 * LANES, i % 2); }
#endif
// Elements of x, in the order of the weights' parts.
INLINE V x_part(const ELEMENT* line, int i) {
#ifdef INTEGERS
    float wide[LANES];
#pragma omp simd
    for (int j = 0; j < LANES; j++) wide[j] = tc_load(line, i * LANES + j);
    return load(wide);
#else
    return part(line, i);
#endif
}

INLINE V rounded(V v) {
    ELEMENT narrow[LANES];
    for (int i = 0; i < LANES; i++) tc_store(narrow, i, v[i]);
    for (int i = 0; i < LANES; i++) v[i] = tc_load(narrow, i);
    return v;
}
template <int FORM> INLINE V value(V weight, V scale, V zero) {
    if (FORM >= SHIFTED) weight -= zero;
    if (FORM == ROUNDED) weight = rounded(weight);
    if (FORM >= SCALED) weight *= scale;
    return FORM == ROUNDED ? rounded(weight) : weight;
}

// The scales and zeros of rows of w: those of row j begin at j * groups.
namespace {
struct Groups {
    const float *scales, *zeros;
    int64_t size, groups;
    V scale(int64_t j, int64_t g) const { return same(scales[j * groups + g]); }
    V zero(int64_t j, int64_t g) const { return same(zeros[j * groups + g]); }
};
}

// R rows of x, [part of a line][row][LANES], against C rows of w; the first `ahead` (0, 2 or 4) rows from `next` on are fetched into L2
template <int R, int C, int FORM>
static NOINLINE void nk_block(const float* x, const WEIGHT* w, int64_t ldw, int64_t K, float* tile, const WEIGHT* next, int ahead, const Groups* of) {
    V acc[R][C] = {}, scale[C], zero[C];
    const auto add_line = [&](auto weight) __attribute__((always_inline)) {
        // unrolled, GCC spills a sum of bfloat16 blocks (measured: 62 GFLOP/s on one core instead of 76)
        _Pragma("GCC unroll 1") for (int both = 0; both < PARTS; both += 2)
            UNROLL for (int p = both; p < both + 2; p++)
                add_products(acc, [&](int i) { return load(x + (p * R + i) * LANES); }, [&](int j) { return weight(j, p); });
        x += R * LINE;
    };
    for (int64_t k = 0, g = 0; k < K; g++) {
        const int64_t end = FORM == PLAIN || K - k < of->size ? K : k + of->size;
        if (FORM >= SCALED) UNROLL for (int j = 0; j < C; j++) scale[j] = of->scale(j, g);
        if (FORM >= SHIFTED) UNROLL for (int j = 0; j < C; j++) zero[j] = of->zero(j, g);
        for (; k + LINE <= end; k += LINE) {
            if (ahead) UNROLL for (int j = 0; j < C / 2; j++) __builtin_prefetch(next + j * ldw + k, 0, 2);
            if (ahead > C / 2) UNROLL for (int j = C / 2; j < C; j++) __builtin_prefetch(next + j * ldw + k, 0, 2);
            add_line([&](int j, int p) __attribute__((always_inline)) { return value<FORM>(part(w + k + j * ldw, p), scale[j], zero[j]); });
        }
        if (k < end) {
            WEIGHT last[C * LINE] = {};
            alignas(64) float wide[C * LINE];
            for (int j = 0; j < C; j++) memcpy(last + j * LINE, w + j * ldw + k, (end - k) * sizeof(WEIGHT));
            for (int j = 0; j < C; j++)
                for (int p = 0; p < PARTS; p++) put(wide + j * LINE + p * LANES, value<FORM>(part(last + j * LINE, p), scale[j], zero[j]));
            if (FORM != PLAIN)  // whatever scale and zero are
                for (int j = 0; j < C; j++) memset(wide + j * LINE + end - k, 0, (LINE - (end - k)) * 4);
            add_line([&](int j, int p) __attribute__((always_inline)) { return load(wide + j * LINE + p * LANES); });
            k = end;
        }
    }
    UNROLL for (int i = 0; i < R; i++) {
        const V4 sums = sum4(acc[i][0], acc[i][1 % C], acc[i][2 % C], acc[i][3 % C]);
        if (C == 4) *(V4U*)(tile + i * NK_COLUMNS) = sums;
        else tile[i * NK_COLUMNS] = sums[0];
    }
}

#ifdef INTEGERS
// `count` weights of row j of four, from term k on, with zeros up to a whole line
template <int FORM> static NOINLINE void widen(const WEIGHT* w, int64_t j, int64_t k, int64_t count, const Groups* of, float* to) {
    for (int64_t n = 0; n < count; n += LINE) {
        const int64_t g = (k + n) / of->size, here = count - n < LINE ? count - n : LINE;
        const V scale = of->scale(j, g), zero = of->zero(j, g);
        WEIGHT last[LINE] = {};
        const WEIGHT* line = w + n;
        if (here < LINE) line = (const WEIGHT*)memcpy(last, line, here * sizeof(WEIGHT));
        UNROLL for (int p = 0; p < PARTS; p++) put(to + n + p * LANES, value<FORM>(part(line, p), scale, zero));
        if (here < LINE) memset(to + n + here, 0, (LINE - here) * 4);
    }
}
// R rows of x against four widened rows, added to the sums of each
template <int R> static NOINLINE void wide_block(const float* x, const float* w, int64_t count, float* sums) {
    V acc[R][4];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < 4; j++) acc[i][j] = load(sums + (i * 4 + j) * LANES);
    for (int64_t k = 0; k < count; k += LANES)
        add_products(acc, [&](int i) { return load(x + k * R + i * LANES); }, [&](int j) { return load(w + j * PIECE + k); });
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < 4; j++) put(sums + (i * 4 + j) * LANES, acc[i][j]);
}
#endif

// R rows of x, [k][row], against `depth` rows of w, in lines of columns: added to the tile, in the order of widened lines
template <int R>
static NOINLINE void kn_block(const float* x, const WEIGHT* w, int64_t ldw, int64_t depth, int64_t columns, float* tile, int64_t ldt, bool fetch) {
    for (int64_t n = 0; n < columns; n += LINE) {
        V acc[R][PARTS];
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int p = 0; p < PARTS; p++) acc[i][p] = load(tile + i * ldt + n + p * LANES);
        for (int64_t k = 0; k < depth; k++) {
            if (fetch) __builtin_prefetch(w + (k + KN_DEPTH) * ldw + n, 0, 2);
            add_products(acc, [&](int i) { return same(x[k * R + i]); }, [&](int p) { return part(w + k * ldw + n, p); });
        }
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int p = 0; p < PARTS; p++) put(tile + i * ldt + n + p * LANES, acc[i][p]);
    }
}

typedef void (*nk_function)(const float*, const WEIGHT*, int64_t, int64_t, float*, const WEIGHT*, int, const Groups*);
typedef void (*kn_function)(const float*, const WEIGHT*, int64_t, int64_t, int64_t, float*, int64_t, bool);
#if REGISTERS == 32
#define BY_ROWS(F, ...) {F<1 __VA_ARGS__>, F<2 __VA_ARGS__>, F<3 __VA_ARGS__>, F<4 __VA_ARGS__>, F<5 __VA_ARGS__>, F<6 __VA_ARGS__>}
#else
#define BY_ROWS(F, ...) {F<1 __VA_ARGS__>, F<2 __VA_ARGS__>, F<3 __VA_ARGS__>}
#endif
constexpr Form LAST = __is_same(ELEMENT, tc_half) ? ROUNDED : SHIFTED;
#ifdef INTEGERS
typedef void (*wide_function)(const float*, const float*, int64_t, float*);
static const wide_function WIDE[MOST] = BY_ROWS(wide_block);
static const nk_function FOUR[ROUNDED][MOST] = {BY_ROWS(nk_block, , 4, PLAIN), BY_ROWS(nk_block, , 4, SCALED), BY_ROWS(nk_block, , 4, SHIFTED)};
static const nk_function ONE[ROUNDED + 1][MOST] = {BY_ROWS(nk_block, , 1, PLAIN), BY_ROWS(nk_block, , 1, SCALED), BY_ROWS(nk_block, , 1, SHIFTED),
                                                   BY_ROWS(nk_block, , 1, LAST)};
#else
static const nk_function FOUR[1][MOST] = {BY_ROWS(nk_block, , 4, PLAIN)}, ONE[1][MOST] = {BY_ROWS(nk_block, , 1, PLAIN)};
#endif
static const kn_function LINES[MOST] = BY_ROWS(kn_block);
