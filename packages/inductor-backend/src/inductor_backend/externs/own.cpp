// The products that Python calls by themselves: act(x @ w + bias) + residual, and convolution as such a product.
// See own.py for the arguments.
#include "gemm.h"
#include <cstdlib>

enum Post { NONE, RELU, GELU_ERF, GELU_TANH, SILU, TANH, SIGMOID };
template <int P> TC_INLINE float post(float v) {
    switch (P) {
    case RELU: return tc_relu(v);
    case GELU_ERF: return tc_gelu_erf(v);
    case GELU_TANH: return tc_gelu_tanh(v);
    case SILU: return tc_silu(v);
    case TANH: return tc_tanh(v);
    case SIGMOID: return tc_sigmoid(v);
    default: return v;
    }
}

struct Rows {  // the result as rows of n
    float* out;
    int64_t ldo;
    const float *bias, *residual;
    int64_t ldr;
    template <int P> __attribute__((noinline)) void store(const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) const {
        for (int64_t i = 0; i < rows; i++) {
            const float* __restrict__ acc = tile + i * TC_NC;
            float* __restrict__ to = out + (m0 + i) * ldo + n0;
            const float* b = bias ? bias + n0 : nullptr;
            const float* r = residual ? residual + (m0 + i) * ldr + n0 : nullptr;
            float line[TC_NC];
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j];
            if (b) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) line[j] += b[j];
            }
            if (P != NONE) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) line[j] = post<P>(line[j]);
            }
            if (r) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) line[j] += r[j];
            }
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) to[j] = line[j];
        }
    }
};
struct Planes {  // the result as [batch, n, pixel]: rows are (batch, pixel)
    float* out;
    int64_t N, pixels;
    const float *bias, *residual;
    template <int P> __attribute__((noinline)) void store(const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) const {
        for (int64_t i = 0; i < rows;) {
            const int64_t batch = (m0 + i) / pixels, pixel = (m0 + i) % pixels;
            const int64_t run = pixels - pixel < rows - i ? pixels - pixel : rows - i;
            for (int64_t j = 0; j < columns; j++) {
                const int64_t at = (batch * N + n0 + j) * pixels + pixel;
                const float b = bias ? bias[n0 + j] : 0.0f;
                for (int64_t k = 0; k < run; k++) {
                    const float v = post<P>(tile[(i + k) * TC_NC + j] + b);
                    out[at + k] = residual ? v + residual[at + k] : v;
                }
            }
            i += run;
        }
    }
};
template <class S> static void product(int layout, const float* x, int64_t ldx, const float* w, int64_t ldw, int64_t M,
                                       int64_t N, int64_t K, int64_t p, const S& store) {
#define CASE(P)                                                                                                    \
    case P: {                                                                                                      \
        auto f = [&](const float* t, int64_t m0, int64_t r, int64_t n0, int64_t c) { store.template store<P>(t, m0, r, n0, c); }; \
        return tc_gemm_with(layout, x, ldx, w, ldw, M, N, K, f);                                                   \
    }
    switch (p) { CASE(NONE) CASE(RELU) CASE(GELU_ERF) CASE(GELU_TANH) CASE(SILU) CASE(TANH) CASE(SIGMOID) }
}

TC_EXPORT void run_linear(const int64_t* a) {
    const Rows rows{(float*)a[5], a[6], (const float*)a[10], (const float*)a[11], a[12]};
    product((int)a[0], (const float*)a[1], a[2], (const float*)a[3], a[4], a[7], a[8], a[9], a[13], rows);
}

struct Scratch {  // one a thread, only ever grown
    float* data = nullptr;
    size_t size = 0;
    ~Scratch() { free(data); }
    float* get(size_t count) {
        if (count > size) {
            free(data);
            data = (float*)aligned_alloc(64, (count * 4 + 63) / 64 * 64);
            size = data ? count : 0;
        }
        return data;
    }
};
static thread_local Scratch scratch;

struct Window { int64_t B, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, OH, OW; };
// One row a pixel of the result, columns ordered (channel, kh, kw) as a contiguous weight is, or (kh, kw, channel).
static void unfold(const float* __restrict__ x, bool x_last, bool w_last, const Window& g, float* __restrict__ out, int threads) {
    const int64_t taps = g.KH * g.KW, K = g.C * taps, M = g.B * g.OH * g.OW;
    const int64_t sc = x_last ? 1 : g.H * g.W, sy = x_last ? g.W * g.C : g.W, sx = x_last ? g.C : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t m = 0; m < M; m++) {
        const int64_t b = m / (g.OH * g.OW), y0 = m / g.OW % g.OH * g.sh - g.ph, x0 = m % g.OW * g.sw - g.pw;
        const float* image = x + b * g.C * g.H * g.W;
        float* row = out + m * K;
        const bool interior = y0 >= 0 && x0 >= 0 && y0 + g.KH <= g.H && x0 + g.KW <= g.W;
        if (interior && g.dh == 1 && g.dw == 1 && g.KW == 3 && !x_last && !w_last) {  // three neighbours at once
            const float* from = image + y0 * g.W + x0;
            for (int64_t c = 0; c < g.C; c++, from += g.H * g.W)
                for (int64_t i = 0; i < g.KH; i++, row += 3) memcpy(row, from + i * g.W, 12);
            continue;
        }
        for (int64_t i = 0; i < g.KH; i++)
            for (int64_t j = 0; j < g.KW; j++) {
                const int64_t y = y0 + i * g.dh, xx = x0 + j * g.dw, tap = i * g.KW + j;
                const bool inside = (uint64_t)y < (uint64_t)g.H && (uint64_t)xx < (uint64_t)g.W;
                const float* from = image + y * sy + xx * sx;
                float* to = w_last ? row + tap * g.C : row + tap;
                const int64_t step = w_last ? 1 : taps;
                if (inside)
                    for (int64_t c = 0; c < g.C; c++) to[c * step] = from[c * sc];
                else
                    for (int64_t c = 0; c < g.C; c++) to[c * step] = 0.0f;
            }
    }
}

// ---- many pixels: channels of the result are rows, pixels (of all images) columns; nothing is unfolded in memory
struct Run { int64_t at, length, batch, y, x; };  // columns [at, at + length) are pixels (y, x ...) of one output line
struct Direct {
    const float* x;
    Window g;
    float* out;
    int64_t N;
    const float *bias, *residual;

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
        Run r[TC_NC];
        const int count = runs(n0, columns, r);
        const int64_t plane = g.H * g.W, padded = (columns + 15) / 16 * 16;
        int64_t c = k0 / (g.KH * g.KW), ky = k0 / g.KW % g.KH, kx = k0 % g.KW;
        for (int64_t k = 0; k < kc; k++) {
            float* line = panel + k * TC_NC;
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
    template <int P> void store(const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) const {
        const int64_t pixels = g.OH * g.OW;
        for (int64_t at = 0; at < columns;) {
            const int64_t batch = (n0 + at) / pixels, pixel = (n0 + at) % pixels;
            const int64_t length = pixels - pixel < columns - at ? pixels - pixel : columns - at;
            for (int64_t i = 0; i < rows; i++) {
                const int64_t to = (batch * N + m0 + i) * pixels + pixel;
                const float b = bias ? bias[m0 + i] : 0.0f;
                const float* acc = tile + i * TC_NC + at;
                if (residual) {
#pragma omp simd
                    for (int64_t j = 0; j < length; j++) out[to + j] = post<P>(acc[j] + b) + residual[to + j];
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < length; j++) out[to + j] = post<P>(acc[j] + b);
                }
            }
            at += length;
        }
    }
    template <int P> static void store_tile(void* context, const float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) {
        ((const Direct*)context)->store<P>(tile, m0, rows, n0, columns);
    }
};
static const tc_store_tile STORE_DIRECT[] = {Direct::store_tile<NONE>, Direct::store_tile<RELU>, Direct::store_tile<GELU_ERF>,
    Direct::store_tile<GELU_TANH>, Direct::store_tile<SILU>, Direct::store_tile<TANH>, Direct::store_tile<SIGMOID>};
static void pack_direct(void* context, int64_t k0, int64_t kc, int64_t n0, int64_t columns, float* panel) {
    ((const Direct*)context)->pack(k0, kc, n0, columns, panel);
}

extern "C" int omp_get_max_threads();
TC_EXPORT void run_convolution(const int64_t* a) {
    const float *x = (const float*)a[0], *w = (const float*)a[1], *bias = (const float*)a[2], *residual = (const float*)a[3];
    float* out = (float*)a[4];
    const Window g{a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18]};
    const int64_t N = a[19], p = a[20], K = g.C * g.KH * g.KW, pixels = g.OH * g.OW, M = g.B * pixels;
    const bool x_last = a[21], w_last = a[22], out_last = a[23];
    if (a[24]) {
        Direct direct{x, g, out, N, bias, residual};
        return tc_gemm_packed(w, K, N, M, K, pack_direct, STORE_DIRECT[p], &direct);
    }
    const float* rows = x;  // a 1x1 convolution of channels-last data is a product as it is
    if (!(K == g.C && x_last && g.sh == 1 && g.sw == 1 && g.ph == 0 && g.pw == 0)) {
        float* unfolded = scratch.get((size_t)(M * K));
        unfold(x, x_last, w_last, g, unfolded, M * K < 20000 ? 1 : omp_get_max_threads());
        rows = unfolded;
    }
    if (out_last) product(TC_NK, rows, K, w, K, M, N, K, p, Rows{out, N, bias, residual, N});
    else product(TC_NK, rows, K, w, K, M, N, K, p, Planes{out, N, pixels, bias, residual});
}

// ---- gradients of a convolution with few pixels: products with the unfolded input, weights as they lie
// dy as rows of a pixel (by_pixel), or as rows of a channel. `last`: dy is channels-last.
static void gather(const float* __restrict__ dy, bool last, bool by_pixel, const Window& g, int64_t N, float* __restrict__ to) {
    const int64_t pixels = g.OH * g.OW, M = g.B * pixels;
    for (int64_t b = 0; b < g.B; b++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t p = 0; p < pixels; p++) {
                const int64_t m = b * pixels + p;
                const float v = last ? dy[m * N + n] : dy[(b * N + n) * pixels + p];
                if (by_pixel) to[m * N + n] = v;
                else to[n * M + m] = v;
            }
}
// The reverse of unfold: what each pixel of dy gives is added up. Channels of 16 belong to one thread.
static void fold(const float* __restrict__ columns, bool x_last, bool w_last, const Window& g, float* __restrict__ dx, int threads) {
    const int64_t taps = g.KH * g.KW, K = g.C * taps, pixels = g.OH * g.OW, blocks = (g.C + 15) / 16;
    const int64_t sc = x_last ? 1 : g.H * g.W, sy = x_last ? g.W * g.C : g.W, sx = x_last ? g.C : 1;
    const int64_t kc = w_last ? 1 : taps, kt = w_last ? g.C : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < g.B * blocks; part++) {
        const int64_t b = part / blocks, c0 = part % blocks * 16, c1 = c0 + 16 < g.C ? c0 + 16 : g.C;
        float* image = dx + b * g.C * g.H * g.W;
        if (x_last) {
            for (int64_t at = 0; at < g.H * g.W; at++)
                for (int64_t c = c0; c < c1; c++) image[at * g.C + c] = 0.0f;
        } else {
            memset(image + c0 * sc, 0, (size_t)((c1 - c0) * sc) * 4);
        }
        for (int64_t p = 0; p < pixels; p++) {
            const float* row = columns + (b * pixels + p) * K;
            const int64_t y0 = p / g.OW * g.sh - g.ph, x0 = p % g.OW * g.sw - g.pw;
            for (int64_t i = 0; i < g.KH; i++) {
                const int64_t y = y0 + i * g.dh;
                if ((uint64_t)y >= (uint64_t)g.H) continue;
                for (int64_t j = 0; j < g.KW; j++) {
                    const int64_t x = x0 + j * g.dw;
                    if ((uint64_t)x >= (uint64_t)g.W) continue;
                    const float* from = row + (i * g.KW + j) * kt;
                    float* to = image + y * sy + x * sx;
                    for (int64_t c = c0; c < c1; c++) to[c * sc] += from[c * kc];
                }
            }
        }
    }
}
TC_EXPORT void run_convolution_backward_input(const int64_t* a) {
    const float *dy = (const float*)a[0], *w = (const float*)a[1];
    float* dx = (float*)a[2];
    const Window g{a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16]};
    const int64_t N = a[17], K = g.C * g.KH * g.KW, M = g.B * g.OH * g.OW;
    const bool dy_last = a[18], w_last = a[19], x_last = a[20];
    const bool rows = dy_last || g.OH * g.OW == 1;  // dy is rows of a pixel as it lies
    const bool plain = x_last && K == g.C && g.sh == 1 && g.sw == 1 && g.ph == 0 && g.pw == 0;
    float* memory = scratch.get((size_t)((plain ? 0 : M * K) + (rows ? 0 : M * N)));
    float* columns = plain ? dx : memory;
    if (!rows) {
        float* to = memory + (plain ? 0 : M * K);
        gather(dy, false, true, g, N, to);
        dy = to;
    }
    const Rows store{columns, K, nullptr, nullptr, 0};
    product(TC_KN, dy, N, w, K, M, K, N, NONE, store);
    if (!plain) fold(columns, x_last, w_last, g, dx, M * K < 20000 ? 1 : omp_get_max_threads());
}
TC_EXPORT void run_convolution_backward_weight(const int64_t* a) {
    const float *dy = (const float*)a[0], *x = (const float*)a[1];
    float* dw = (float*)a[2];
    const Window g{a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16]};
    const int64_t N = a[17], K = g.C * g.KH * g.KW, M = g.B * g.OH * g.OW;
    const bool dy_last = a[18], x_last = a[19], w_last = a[20];
    const bool rows = !dy_last && g.B == 1;  // dy is rows of a channel as it lies
    const bool plain = K == g.C && x_last && g.sh == 1 && g.sw == 1 && g.ph == 0 && g.pw == 0;
    float* memory = scratch.get((size_t)((plain ? 0 : M * K) + (rows ? 0 : M * N)));
    const float* columns = x;
    if (!plain) {
        unfold(x, x_last, w_last, g, memory, M * K < 20000 ? 1 : omp_get_max_threads());
        columns = memory;
    }
    if (!rows) {
        float* to = memory + (plain ? 0 : M * K);
        gather(dy, dy_last, false, g, N, to);
        dy = to;
    }
    const Rows store{dw, K, nullptr, nullptr, 0};
    product(TC_KN, dy, M, columns, K, N, K, M, NONE, store);
}
