// A row of attention: its scores become weights.
#pragma once
#include "prelude.h"
#if LANES >= 8 && !defined(__clang__)
#include "prelude_vectors.h"
#define BY_VECTORS
#endif
#include "tensors.h"

// exp(x * scale + mask - greatest) in place; what they add up to. greatest: where it goes, if anywhere
#if defined(BY_VECTORS)
static NOINLINE float softmax(float* x, int64_t T, float scale, const float* mask, int64_t step, bool empty, float* greatest = nullptr) {
    tc_v most[2] = {tc_splat(-TC_INF_F), tc_splat(-TC_INF_F)}, sums[2] = {};
    tc_walk<2>(0, T, [&](int64_t i, auto lanes, int at) {
        tc_v s = tc_take(lanes, x + i) * scale;
        if (step) s += tc_take(lanes, mask + i);
        tc_put(lanes, x + i, s);
        most[at] = tc_greater(most[at], tc_keep(lanes, s, -TC_INF_F));
    });
    const float found = tc_greatest(most), from = empty && found == -TC_INF_F ? 0.0f : found;
    if (greatest) *greatest = found;
    tc_walk<2>(0, T, [&](int64_t i, auto lanes, int at) {
        const tc_v e = tc_exp(tc_take(lanes, x + i) - from);
        tc_put(lanes, x + i, e);
        sums[at] += tc_keep(lanes, e, 0.0f);
    });
    return tc_total(sums);
}
#else
static NOINLINE float softmax(float* __restrict__ x, int64_t T, float scale, const float* mask, int64_t step, bool empty, float* greatest = nullptr) {
    float most = -__builtin_inff(), sum = 0.0f;
    for (int64_t i = 0; i < T; i++) {
        x[i] = x[i] * scale + (step ? mask[i] : 0.0f);
        most = x[i] > most ? x[i] : most;
    }
    if (greatest) *greatest = most;
    if (empty && most == -__builtin_inff()) most = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < T; i++) {
        x[i] = tc_exp(x[i] - most);
        sum += x[i];
    }
    return sum;
}
#endif
