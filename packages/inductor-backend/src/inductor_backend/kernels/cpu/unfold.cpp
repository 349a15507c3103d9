// Images to rows of a product: see gemm.h.
#include "gemm.h"

void unfold(const float* __restrict__ x, bool x_last, bool w_last, const Window& g, float* __restrict__ out) {
    const int64_t taps = g.taps(), K = g.C * taps, M = g.B * g.pixels();
    const int64_t sc = x_last ? 1 : g.H * g.W, sy = x_last ? g.W * g.C : g.W, sx = x_last ? g.C : 1;
    const int threads = M * K < 20000 ? 1 : omp_get_max_threads();
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t m = 0; m < M; m++) {
        const int64_t b = m / g.pixels(), y0 = m / g.OW % g.OH * g.sh - g.ph, x0 = m % g.OW * g.sw - g.pw;
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
                if (inside && step == 1 && sc == 1) memcpy(to, from, g.C * 4);
                else if (inside)
                    for (int64_t c = 0; c < g.C; c++) to[c * step] = from[c * sc];
                else
                    for (int64_t c = 0; c < g.C; c++) to[c * step] = 0.0f;
            }
    }
}
