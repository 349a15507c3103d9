// Storing tiles of a product: bias, activation and residual. See gemm.h.
#include "gemm.h"

void finish_rows(float* __restrict__ tile, int64_t count, int64_t columns, const float* __restrict__ bias, int64_t epilogue) {
    if (bias)
        for (int64_t i = 0; i < count; i++) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) tile[i * NC + j] += bias[j];
        }
    if (!epilogue) return;
    if (columns == NC) return post_line(epilogue, tile, count * NC);
    for (int64_t i = 0; i < count; i++) post_line(epilogue, tile + i * NC, columns);
}
void store_rows(const void* context, float* tile, int64_t m0, int64_t count, int64_t n0, int64_t columns) {
    const Rows& to = *(const Rows*)context;
    finish_rows(tile, count, columns, to.bias ? to.bias + n0 : nullptr, to.epilogue);
    for (int64_t i = 0; i < count; i++) {
        const float* __restrict__ line = tile + i * NC;
        float* __restrict__ out = to.out + (m0 + i) * to.ldo + n0;
        if (to.residual) {
            const float* r = to.residual + (m0 + i) * to.ldr + n0;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) out[j] = line[j] + r[j];
        } else {
            memcpy(out, line, columns * 4);
        }
    }
}
