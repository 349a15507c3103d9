// Kernels with packed weights on channels-last data: what their units share. See packed_weights.py for arguments and layouts.
#pragma once
#include "tensors.h"
#if LANES >= 8 && !defined(__clang__)
#include "prelude.h"
#include "prelude_vectors.h"
#endif

#define PANEL (PANEL_VECTORS * LANES)

// after(before(acc * scale + bias) + residual), each of the two one of Post
struct Epilogue {
    const float *bias, *residual;
    int64_t ldr, before, after;
    const float* scale;
    bool plain() const { return !residual && before <= RELU && after == NONE && !scale; }
    void move(int64_t n) {  // to channels from n on
        if (bias) bias += n;
        if (scale) scale += n;
        if (residual) residual += n;
    }
    // one row of the result: channels [n, n + columns)
    __attribute__((always_inline)) void row(const float* __restrict__ acc, float* __restrict__ to, int64_t m, int64_t n, int64_t columns) const {
        if (plain()) {
            const float low = before == RELU ? 0.0f : -__builtin_inff();
            const float* b = bias ? bias + n : nullptr;
            if (b) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) { const float v = acc[j] + b[j]; to[j] = v < low ? low : v; }
            } else {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) { const float v = acc[j]; to[j] = v < low ? low : v; }
            }
            return;
        }
        float line[PANEL];
        if (scale && bias) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] * scale[n + j] + bias[n + j];
        } else if (scale) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] * scale[n + j];
        } else if (bias) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] + bias[n + j];
        } else {
            memcpy(line, acc, columns * 4);
        }
        if (before) post_line(before, line, columns);
        if (residual) {
            const float* r = residual + m * ldr + n;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] += r[j];
        }
        if (after) post_line(after, line, columns);
        memcpy(to, line, columns * 4);
    }
};

// Activations that take a few instructions are done in registers; the others are calls, on lines in memory.
INLINE bool in_registers(int64_t epilogue) { return epilogue <= RELU || epilogue == RELU6 || epilogue == HARDSWISH; }
struct Act {  // clamp(v) or hardswish(v)
    V low, high;
    bool hard;
    explicit Act(int64_t epilogue)
        : low(same(epilogue == RELU || epilogue == RELU6 ? 0.0f : -__builtin_inff())), high(same(epilogue == RELU6 ? 6.0f : __builtin_inff())),
          hard(epilogue == HARDSWISH) {}
    __attribute__((always_inline)) V of(V v) const {
        if (hard) {
            V s = v + 3.0f;
            s = s < 0.0f ? V{} : s;
            s = s > 6.0f ? same(6.0f) : s;
            return v * s * (1.0f / 6.0f);
        }
        v = v < low ? low : v;
        return v > high ? high : v;
    }
};

// The same for LANES channels from n on: what belongs to them is loaded once for all their pixels.
namespace {
struct LaneEpilogue {
    V scale, bias;
    Act first, second;
    const float* residual;
    int64_t ldr, before, after;
    LaneEpilogue(const Epilogue& e, int64_t n)
        : scale(e.scale ? load(e.scale + n) : same(1.0f)), bias(e.bias ? load(e.bias + n) : same(-0.0f)),
          first(in_registers(e.before) ? e.before : NONE), second(in_registers(e.after) ? e.after : NONE),
          residual(e.residual ? e.residual + n : nullptr), ldr(e.ldr), before(in_registers(e.before) ? NONE : e.before),
          after(in_registers(e.after) ? NONE : e.after) {}
    // the same epilogue, LANES channels from n on
    __attribute__((always_inline)) void move(const Epilogue& e, int64_t n) {
        if (e.scale) scale = load(e.scale + n);
        if (e.bias) bias = load(e.bias + n);
        if (residual) residual = e.residual + n;
    }
    __attribute__((always_inline)) void store(V v, float* to, int64_t m) const {
        v = first.of(v * scale + bias);
        if (before) v = with_post(before, v);
        if (residual) v += load(residual + m * ldr);
        v = second.of(v);
        if (after) v = with_post(after, v);
        put(to, v);
    }
    static NOINLINE V with_post(int64_t epilogue, V v) {
#if defined(TC_LANES) && TC_LANES == LANES
        if (epilogue == SILU) return tc_silu(v);
#endif
        float line[LANES];
        put(line, v);
        post_line(epilogue, line, LANES);
        return load(line);
    }
};
}

// An epilogue in registers, for a block of rows of the result. out, residual: at the block's first row and column; scale,
// bias: whole vectors, in memory of its own; last: columns of the block's last vector.
struct Finish {
    float* out;
    const float* residual;
    int64_t ldo, ldr, last;
    Act before, after;
    alignas(64) float scale[PANEL], bias[PANEL];
    static bool takes(const Epilogue& e) { return in_registers(e.before) && in_registers(e.after); }
    Finish(const Epilogue& e, int64_t ldo, int64_t n, int64_t columns) : ldo(ldo), ldr(e.ldr), before(e.before), after(e.after) {
        last = (columns - 1) % LANES + 1;
        for (int64_t j = 0; j < columns; j += LANES) {
            const int64_t count = columns - j < LANES ? columns - j : LANES;
            put(scale + j, e.scale ? load_some(e.scale + n + j, count) : same(1.0f));
            put(bias + j, e.bias ? load_some(e.bias + n + j, count) : same(-0.0f));
        }
    }
};

// first: the block's first vector, of those that f is for; ends: whether its last one is theirs
template <int R, int C> INLINE void finish_block(V (&acc)[R][C], const Finish& f, int64_t rows, int first = 0, bool ends = true) {
    float* to = f.out + first * LANES;
    const float* r = f.residual ? f.residual + first * LANES : nullptr;
    const float *scale = f.scale + first * LANES, *bias = f.bias + first * LANES;
    const int64_t ldo = f.ldo, ldr = f.ldr, last = ends ? f.last : LANES;
    const Act before = f.before, after = f.after;
    UNROLL for (int i = 0; i < R; i++, to += ldo) {
        if (i >= rows) return;
        UNROLL for (int j = 0; j < C; j++) acc[i][j] = before.of(acc[i][j] * load(scale + j * LANES) + load(bias + j * LANES));
        if (r) {
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += j + 1 < C || last == LANES ? load(r + j * LANES) : load_some(r + j * LANES, last);
            r += ldr;
        }
        UNROLL for (int j = 0; j < C; j++) {
            const V v = after.of(acc[i][j]);
            if (j + 1 < C || last == LANES) put(to + j * LANES, v);
            else put_some(to + j * LANES, v, last);
        }
    }
}

// What a block brings into L2 while it computes, for those after it: `lines` of the cache, none, one, or a row of a panel, for
// each row of its own panel.
#define LINE 16
struct Ahead { const float* at; int lines; };
// The share of block i of `blocks` in `next`, the piece of a panel after theirs, of as many rows. Where blocks are as many as
// a row has lines, each of those fetches one of them a step: all in the first block's time are more than a core can have on
// the way (measured on a Xeon with AVX-512: 0.76 to 0.92 of the time).
INLINE Ahead share_ahead(const float* next, int64_t rows, int64_t i, int64_t blocks) {
    if (blocks < PANEL / LINE) return i == 0 ? Ahead{next, PANEL / LINE} : Ahead{};
    return i < PANEL / LINE ? Ahead{next + i * rows * LINE, 1} : Ahead{};
}

// [R rows] x [one to four vectors] of the dense kernel: blocks.cpp. rows: where each row's values start (from `at` on);
// w: a panel; tile: rows PANEL apart; add: to what the tile has; finish: what becomes of the sums, which otherwise go to
// the tile.
typedef void (*block_function)(const float* const* rows, int64_t at, const float* w, int64_t ldw, int64_t K, float* tile, bool add,
                               Ahead fetch, const Finish* finish);
struct Blocks { int64_t most; block_function by_rows[12]; };  // most: rows of a block
extern HIDDEN const Blocks BLOCKS_4;
// only in libraries of kernels that take any number of channels
extern HIDDEN __attribute__((weak)) const Blocks BLOCKS_3, BLOCKS_2, BLOCKS_1;
HIDDEN inline int64_t whole_vectors(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }
