// Kernels with packed weights on channels-last data: what their units share. See packed.py for arguments and layouts.
#pragma once
#include "tensors.h"

#define PANEL (NB * LANES)

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

// The same for LANES channels from n on: what belongs to them is loaded once for all their pixels.
struct LaneEpilogue {
    V scale, bias, low;
    const float* residual;
    int64_t ldr, before, after;
    LaneEpilogue(const Epilogue& e, int64_t n)
        : scale(e.scale ? load(e.scale + n) : same(1.0f)), bias(e.bias ? load(e.bias + n) : same(-0.0f)),
          low(same(e.before == RELU ? 0.0f : -__builtin_inff())), residual(e.residual ? e.residual + n : nullptr), ldr(e.ldr),
          before(e.before <= RELU ? NONE : e.before), after(e.after) {}
    __attribute__((always_inline)) void store(V v, float* to, int64_t m) const {
        v = v * scale + bias;
        v = v < low ? low : v;
        if (before) v = with_post(before, v);
        if (residual) v += load(residual + m * ldr);
        if (after) v = with_post(after, v);
        put(to, v);
    }
    static NOINLINE V with_post(int64_t post, V v) {
        float line[LANES];
        put(line, v);
        post_line(post, line, LANES);
        return load(line);
    }
};

// [R rows] x [one to four vectors] of the dense kernel: blocks.cpp. rows: where each row's values start (from `at` on);
// w: a panel; tile: rows PANEL apart; add: to what the tile has; fetch: the panel comes from memory.
typedef void (*block_function)(const float* const* rows, int64_t at, const float* w, int64_t ldw, int64_t K, float* tile, bool add,
                               bool fetch);
struct Blocks { int64_t most; block_function by_rows[2 * MB]; };  // most: rows of a block
extern HIDDEN const Blocks BLOCKS_4;
// only in libraries of kernels that take any number of channels
extern HIDDEN __attribute__((weak)) const Blocks BLOCKS_3, BLOCKS_2, BLOCKS_1;
HIDDEN inline int64_t whole_vectors(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }
