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


// Two integers of 4 bits a byte: those of the low bits of LANES bytes are a part, those of the high bits the next.
#ifdef NIBBLES
#define A_BYTE 2
INLINE I nibbles(const WEIGHT* line, int i) {
    const I bytes = integers(line + i / 2 * LANES);
    return i % 2 ? bytes >> 4 : bytes;
}
INLINE int term(int at) { return at / (2 * LANES) * 2 * LANES + at % LANES * 2 + at / LANES % 2; }
#else
#define A_BYTE 1
INLINE int term(int at) { return at; }
#endif
// 16 lanes hold what the 16 integers of 4 bits stand for, which one instruction looks up.
#if defined(NIBBLES) && LANES == 16 && !defined(__clang__)
#define LOOKED_UP 1
#else
#define LOOKED_UP 0
#endif

#ifdef INTEGERS
#ifdef NIBBLES
INLINE V part(const WEIGHT* line, int i) { return __builtin_convertvector(nibbles(line, i) & 15, V); }
#else
INLINE V part(const WEIGHT* line, int i) { return widened(line + i * LANES); }
#endif
INLINE void in_order(const WEIGHT*, V&, V&) {}
#else
INLINE V part(const WEIGHT* line, int i) { return widened(line + i / 2 * 2 * LANES, i % 2); }
#endif
// Elements of x, in the order of the weights' parts.
INLINE V x_part(const ELEMENT* line, int i, [[maybe_unused]] int swapped) {
#ifdef INTEGERS
    float wide[LANES];
#pragma omp simd
    for (int j = 0; j < LANES; j++) wide[j] = tc_load(line, A_BYTE == 2 ? term(i * LANES + j) ^ swapped : i * LANES + j);
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

// Sets the weights after the first `count` terms of a line to zero.
INLINE void clear(float* line, int64_t count) {
    for (int i = 0; i < LINE; i++)
        if (term(i) >= count) line[i] = 0;
}

// R rows of x, [part of a line][row][LANES], against C rows of w; the first `ahead` (0, 2 or 4) rows from `next` on are fetched into L2
template <int R, int C, int FORM>
static NOINLINE void nk_block(const float* x, const WEIGHT* w, int64_t ldw, int64_t K, float* tile, const WEIGHT* next, int ahead, const Groups* of) {
    V acc[R][C] = {}, scale[C], zero[C], table[C];
    const auto weight = [&](const WEIGHT* line, int j, int p) __attribute__((always_inline)) {
#if LOOKED_UP
        return shuffled(table[j], nibbles(line, p));
#else
        return value<FORM>(part(line, p), scale[j], zero[j]);
#endif
    };
    V lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    const auto add_line = [&](auto column) __attribute__((always_inline)) {
        // unrolled, GCC spills a sum of bfloat16 blocks (measured: 62 GFLOP/s on one core instead of 76)
        _Pragma("GCC unroll 1") for (int both = 0; both < PARTS; both += 2)
            UNROLL for (int p = both; p < both + 2; p++)
                add_products(acc, [&](int i) { return load(x + (p * R + i) * LANES); }, [&](int j) { return column(j, p); });
        x += R * LINE;
    };
    for (int64_t k = 0, g = 0; k < K; g++) {
        const int64_t end = FORM == PLAIN || K - k < of->size ? K : k + of->size;
        if (FORM >= SCALED) UNROLL for (int j = 0; j < C; j++) scale[j] = of->scale(j, g);
        if (FORM >= SHIFTED) UNROLL for (int j = 0; j < C; j++) zero[j] = of->zero(j, g);
        if (LOOKED_UP) UNROLL for (int j = 0; j < C; j++) table[j] = value<FORM>(lane, scale[j], zero[j]);
        for (; k + LINE <= end; k += LINE) {
            if (ahead) UNROLL for (int j = 0; j < C / 2; j++) __builtin_prefetch(next + j * ldw + k / A_BYTE, 0, 2);
            if (ahead > C / 2) UNROLL for (int j = C / 2; j < C; j++) __builtin_prefetch(next + j * ldw + k / A_BYTE, 0, 2);
            add_line([&](int j, int p) __attribute__((always_inline)) { return weight(w + k / A_BYTE + j * ldw, j, p); });
        }
        if (k < end) {
            WEIGHT last[C * LINE] = {};
            alignas(64) float wide[C * LINE];
            for (int j = 0; j < C; j++) memcpy(last + j * LINE, w + j * ldw + k / A_BYTE, (end - k) / A_BYTE * sizeof(WEIGHT));
            for (int j = 0; j < C; j++)
                for (int p = 0; p < PARTS; p++) put(wide + j * LINE + p * LANES, weight(last + j * LINE, j, p));
            if (FORM != PLAIN)  // whatever scale and zero are
                for (int j = 0; j < C; j++) clear(wide + j * LINE, end - k);
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
        const WEIGHT* line = w + n / A_BYTE;
        if (here < LINE) line = (const WEIGHT*)memcpy(last, line, here / A_BYTE * sizeof(WEIGHT));
        UNROLL for (int p = 0; p < PARTS; p++) put(to + n + p * LANES, value<FORM>(part(line, p), scale, zero));
        if (here < LINE) clear(to + n, here);
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
