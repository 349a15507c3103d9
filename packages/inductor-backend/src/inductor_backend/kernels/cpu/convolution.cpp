// A convolution as a product, with few pixels (a row a pixel) or many: act(x * w + bias) + residual. The
// arguments are written by codegen/native_calls.py.
#include "gemm.h"

namespace {
struct Planes {  // the result as [batch, n, pixel]: rows are (batch, pixel)
    float* out;
    int64_t N, pixels;
    const float *bias, *residual;
    int64_t epilogue;
};
}
static void store_planes(const void* context, float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {
    const Planes& p = *(const Planes*)context;
    finish_rows(tile, rows, columns, p.bias ? p.bias + n0 : nullptr, p.epilogue);
    for (int64_t i = 0; i < rows;) {
        const int64_t batch = (m0 + i) / p.pixels, pixel = (m0 + i) % p.pixels;
        const int64_t run = p.pixels - pixel < rows - i ? p.pixels - pixel : rows - i;
        for (int64_t j = 0; j < columns; j++) {
            const int64_t at = (batch * p.N + n0 + j) * p.pixels + pixel;
            for (int64_t k = 0; k < run; k++) {
                const float v = tile[(i + k) * NC + j];
                p.out[at + k] = p.residual ? v + p.residual[at + k] : v;
            }
        }
        i += run;
    }
}

// ---- many pixels: channels of the result are rows, pixels (of all images) columns; nothing is unfolded in memory
struct Run { int64_t at, length, batch, y, x; };  // columns [at, at + length) are pixels (y, x ...) of one output line
namespace {
struct Direct {
    const float* x;
    Window g;
    float* out;
    int64_t N;
    const float *bias, *residual;
    int64_t epilogue;

    int runs(int64_t n0, int64_t columns, Run* r) const {
        int count = 0;
        for (int64_t at = 0; at < columns;) {
            const int64_t n = n0 + at, ox = n % g.OW, left = g.OW - ox;
            const int64_t length = left < columns - at ? left : columns - at;
            r[count++] = {at, length, n / (g.OH * g.OW), n / g.OW % g.OH, ox};
            at += length;
        }
        return count;
    }
    // One tap of one run. Whole groups of 16 are copied where they lie inside x, and what of them is padding is
    // overwritten: what they put beyond the run is written again by the next run or row (the panel has room after its end).
    void pack_run(const float* from, int64_t x0, int64_t length, float* __restrict__ to) const {
        int64_t low = x0 < 0 ? (-x0 + g.sw - 1) / g.sw : 0, high = (g.W - x0 + g.sw - 1) / g.sw;
        low = low < length ? low : length;
        high = high < low ? low : high < length ? high : length;
        const int64_t whole = (length + 15) / 16 * 16;
        if (g.sw == 1 && from >= x && from + whole <= x + g.B * g.C * g.H * g.W) {
            for (int64_t j = 0; j < whole; j += 16) memcpy(to + j, from + j, 64);
        } else {
            for (int64_t j = low; j < high; j++) to[j] = from[j * g.sw];
        }
        for (int64_t j = 0; j < low; j++) to[j] = 0.0f;
        for (int64_t j = high; j < length; j++) to[j] = 0.0f;
    }
    void pack(int64_t k0, int64_t kc, int64_t n0, int64_t columns, float* panel) const {
        Run r[NC];
        const int count = runs(n0, columns, r);
        const int64_t plane = g.H * g.W, padded = (columns + 15) / 16 * 16;
        int64_t c = k0 / (g.KH * g.KW), ky = k0 / g.KW % g.KH, kx = k0 % g.KW;
        for (int64_t k = 0; k < kc; k++) {
            float* line = panel + k * NC;
            for (int i = 0; i < count; i++) {
                const int64_t y = r[i].y * g.sh + ky * g.dh - g.ph, x0 = r[i].x * g.sw + kx * g.dw - g.pw;
                if ((uint64_t)y < (uint64_t)g.H)
                    pack_run(x + (r[i].batch * g.C + c) * plane + y * g.W + x0, x0, r[i].length, line + r[i].at);
                else
                    for (int64_t j = 0; j < r[i].length; j++) line[r[i].at + j] = 0.0f;
            }
            for (int64_t j = columns; j < padded; j++) line[j] = 0.0f;
            if (++kx == g.KW) {
                kx = 0;
                if (++ky == g.KH) { ky = 0; c++; }
            }
        }
    }
    void store(float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) const {
        for (int64_t i = 0; epilogue && i < rows; i++) {
            const float b = bias ? bias[m0 + i] : -0.0f;
            float* line = tile + i * NC;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] += b;
            post_line(epilogue, line, columns);
        }
        const int64_t pixels = g.pixels();
        for (int64_t at = 0; at < columns;) {
            const int64_t batch = (n0 + at) / pixels, pixel = (n0 + at) % pixels;
            const int64_t length = pixels - pixel < columns - at ? pixels - pixel : columns - at;
            for (int64_t i = 0; i < rows; i++) {
                const int64_t to = (batch * N + m0 + i) * pixels + pixel;
                const float* __restrict__ acc = tile + i * NC + at;
                const float b = bias && !epilogue ? bias[m0 + i] : -0.0f;  // x + -0 is x
                if (residual) {
#pragma omp simd
                    for (int64_t j = 0; j < length; j++) out[to + j] = acc[j] + b + residual[to + j];
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < length; j++) out[to + j] = acc[j] + b;
                }
            }
            at += length;
        }
    }
};
}
static void store_direct(const void* context, float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {
    ((const Direct*)context)->store(tile, m0, rows, n0, columns);
}
static void pack_direct(const void* context, int64_t k0, int64_t kc, int64_t n0, int64_t columns, float* panel) {
    ((const Direct*)context)->pack(k0, kc, n0, columns, panel);
}

static thread_local Scratch scratch;

EXPORT void run_convolution(const int64_t* a) {
    const float *x = (const float*)a[0], *w = (const float*)a[1], *bias = (const float*)a[2], *residual = (const float*)a[3];
    float* out = (float*)a[4];
    const Window g(a + 5);
    const int64_t N = a[19], epilogue = a[20], K = g.C * g.taps(), pixels = g.pixels(), M = g.B * pixels;
    const bool x_last = a[21], w_last = a[22], out_last = a[23];
    if (a[24]) {
        const Direct direct{x, g, out, N, bias, residual, epilogue};
        return gemm_packed(w, K, N, M, K, pack_direct, store_direct, &direct);
    }
    const float* rows = x;
    if (!(g.plain() && x_last)) {
        float* unfolded = scratch.get((size_t)(M * K));
        unfold(x, x_last, w_last, g, unfolded);
        rows = unfolded;
    }
    const Rows lines{out, N, bias, residual, N, epilogue};
    const Planes planes{out, N, pixels, bias, residual, epilogue};
    if (out_last) gemm(NK, rows, K, w, K, M, N, K, store_rows, &lines);
    else gemm(NK, rows, K, w, K, M, N, K, store_planes, &planes);
}
