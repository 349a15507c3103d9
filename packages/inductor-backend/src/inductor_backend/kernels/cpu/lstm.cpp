// The steps of an LSTM layer. What the input adds to the gates of all steps is one product made before.
//
// Units come in groups of LANES; the gates of a group (input, forget, cell, output) are four neighbouring vectors of the packed
// weights, panel[group][unit before][gate][lane]; the products of the input lie as torch orders them, [gate][unit]. A thread
// keeps its groups from the first step to the last, so that its part of the weights stays in its cache; threads meet once a step.
#include "prelude.h"
#include "packed_weights.h"

// LANES units of one sequence: gates in, cell and result out
INLINE void cell(const float* __restrict__ gates, const float* __restrict__ before, float* __restrict__ cells, float* __restrict__ out) {
#pragma omp simd
    for (int64_t j = 0; j < LANES; j++) {
        const float c = tc_sigmoid(gates[LANES + j]) * before[j] + tc_sigmoid(gates[j]) * tc_tanh(gates[2 * LANES + j]);
        cells[j] = c;
        out[j] = tc_sigmoid(gates[3 * LANES + j]) * tc_tanh(c);
    }
}

namespace {
struct Lstm {
    const float *inputs, *w, *h0, *c0;
    float *out, *cells;  // [T][B][H] and [B][H]
    int64_t T, B, H, reverse;

    NOINLINE void step(int64_t t, int64_t last, bool first, int64_t group) const {
        const Cut cut(B, MB);
        const float* panel = w + group * H * PANEL;
        for (int64_t i = 0, b = 0; i < cut.count; b += cut.at(i), i++) {
            const int64_t rows = cut.at(i);
            alignas(64) float gates[MB * PANEL];
            const float* before[MB];
            for (int64_t r = 0; r < rows; r++) {
                const float* given = inputs + (t * B + b + r) * H * 4 + group * LANES;
                UNROLL for (int gate = 0; gate < 4; gate++) put(gates + r * PANEL + gate * LANES, load(given + gate * H));
                before[r] = (first ? h0 : out + last * B * H) + (b + r) * H;
            }
            BLOCKS_4.by_rows[rows - 1](before, 0, panel, PANEL, H, gates, true, {}, nullptr);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t at = (b + r) * H + group * LANES;
                cell(gates + r * PANEL, (first ? c0 : cells) + at, cells + at, out + t * B * H + at);
            }
        }
    }
};
}

// inputs [T * B][4 * H], packed weights, h0, c0 [B][H], out [(T + 1)][B][H] (its last part: the cells), T, B, H, backwards
EXPORT void run_lstm(const int64_t* a) {
    const int64_t T = a[5], B = a[6], H = a[7], groups = H / LANES;
    if (B == 0) return;
    float* out = (float*)a[4];
    const Lstm layer{(const float*)a[0], (const float*)a[1], (const float*)a[2], (const float*)a[3], out, out + T * B * H, T, B, H, a[8]};
    int threads = threads_for(B * H * H * 4);
    if (threads > groups) threads = (int)groups;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < T; i++) {
        const int64_t t = layer.reverse ? T - 1 - i : i, last = layer.reverse ? t + 1 : t - 1;
#pragma omp for schedule(static)
        for (int64_t group = 0; group < groups; group++) layer.step(t, last, i == 0, group);
    }
}
