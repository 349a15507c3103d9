// Gradients of a convolution with few pixels: products with the unfolded input, weights as they
// lie. See codegen/native_calls.py for the arguments.
#include "gemm.h"

static thread_local Scratch scratch;

// dy as rows of a pixel (by_pixel), or as rows of a channel. `last`: dy is channels-last.
static void gather(const float* __restrict__ dy, bool last, bool by_pixel, const Window& g, int64_t N, float* __restrict__ to) {
    const int64_t pixels = g.pixels(), M = g.B * pixels;
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
    const int64_t taps = g.taps(), K = g.C * taps, pixels = g.pixels(), blocks = (g.C + 15) / 16;
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
EXPORT void run_convolution_backward_input(const int64_t* a) {
    const float *dy = (const float*)a[0], *w = (const float*)a[1];
    float* dx = (float*)a[2];
    const Window g(a + 3);
    const int64_t N = a[17], K = g.C * g.taps(), M = g.B * g.pixels();
    const bool dy_last = a[18], w_last = a[19], x_last = a[20];
    const bool rows = dy_last || g.pixels() == 1;  // dy is rows of a pixel as it lies
    const bool plain = x_last && g.plain();
    float* memory = scratch.get((size_t)((plain ? 0 : M * K) + (rows ? 0 : M * N)));
    float* columns = plain ? dx : memory;
    if (!rows) {
        float* to = memory + (plain ? 0 : M * K);
        gather(dy, false, true, g, N, to);
        dy = to;
    }
    const Rows store{columns, K, nullptr, nullptr, 0, NONE};
    gemm(KN, dy, N, w, K, M, K, N, store_rows, &store);
    if (!plain) fold(columns, x_last, w_last, g, dx, M * K < 20000 ? 1 : omp_get_max_threads());
}
EXPORT void run_convolution_backward_weight(const int64_t* a) {
    const float *dy = (const float*)a[0], *x = (const float*)a[1];
    float* dw = (float*)a[2];
    const Window g(a + 3);
    const int64_t N = a[17], K = g.C * g.taps(), M = g.B * g.pixels();
    const bool dy_last = a[18], x_last = a[19], w_last = a[20];
    const bool rows = !dy_last && g.B == 1;  // dy is rows of a channel as it lies
    const bool plain = x_last && g.plain();
    float* memory = scratch.get((size_t)((plain ? 0 : M * K) + (rows ? 0 : M * N)));
    const float* columns = x;
    if (!plain) {
        unfold(x, x_last, w_last, g, memory);
        columns = memory;
    }
    if (!rows) {
        float* to = memory + (plain ? 0 : M * K);
        gather(dy, dy_last, false, g, N, to);
        dy = to;
    }
    const Rows store{dw, K, nullptr, nullptr, 0, NONE};
    gemm(KN, dy, M, columns, K, N, K, M, store_rows, &store);
}
