// One channel a group: lanes along the channels, weights [tap][channel]. A unit for each width of the window
// (-DWIDTH=3 -DRUN=run_depthwise_3). See packed.py for the arguments.
#include "packed.h"

template <int S, bool INSIDE>
INLINE void line_of_taps(const float* const* lines, const float* w, const Window& g, int64_t x0, V* acc) {
    constexpr int OUT = 4, SPAN = (OUT - 1) * S + WIDTH;
    for (int64_t ky = 0; ky < g.KH; ky++) {
        if (!lines[ky]) continue;
        const float* line = lines[ky];
        V wv[WIDTH];
        UNROLL for (int j = 0; j < WIDTH; j++) wv[j] = load(w + (ky * WIDTH + j) * g.C);
        UNROLL for (int i = 0; i < SPAN; i++) {
            V xv = {};
            if (INSIDE || (uint64_t)(x0 + i) < (uint64_t)g.W) xv = load(line + (x0 + i) * g.C);
            UNROLL for (int o = 0; o < OUT; o++)
                if (i - o * S >= 0 && i - o * S < WIDTH) acc[o] += xv * wv[i - o * S];
        }
    }
}
// a row of the result, LANES channels from c on
template <int S> static NOINLINE void row_of(const float* x, const float* w, const Window& g, int64_t b, int64_t oy, int64_t c, float* out,
                                             int64_t m, const Epilogue& e) {
    const LaneEpilogue lanes(e, c);
    const float* lines[16];
    for (int64_t ky = 0; ky < g.KH; ky++) {
        const int64_t y = oy * g.sh - g.ph + ky * g.dh;
        lines[ky] = (uint64_t)y < (uint64_t)g.H ? x + ((b * g.H + y) * g.W) * g.C + c : nullptr;
    }
    for (int64_t ox = 0; ox < g.OW; ox += 4) {
        const int64_t count = g.OW - ox < 4 ? g.OW - ox : 4, x0 = ox * S - g.pw;
        V acc[4] = {};
        if (x0 >= 0 && x0 + 3 * S + WIDTH <= g.W) line_of_taps<S, true>(lines, w, g, x0, acc);
        else line_of_taps<S, false>(lines, w, g, x0, acc);
        UNROLL for (int64_t o = 0; o < 4; o++)
            if (o < count) lanes.store(acc[o], out + (m + ox + o) * g.C + c, m + ox + o);
    }
}
// Channels beyond whole vectors are done with the last whole vector again where there is one: C >= LANES.
EXPORT void RUN(const int64_t* a) {
    const Window g(a + 5);
    if (g.KW != WIDTH || g.sw > 2) return not_built();
    const Epilogue e{(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[22]};
    const float *x = (const float*)a[0], *w = (const float*)a[1];
    float* out = (float*)a[4];
    const auto row = g.sw == 1 ? row_of<1> : row_of<2>;
    const int64_t vectors = (g.C + LANES - 1) / LANES;
    const int threads = threads_for(g.B * g.pixels() * g.C * g.taps());
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < g.B * g.OH; task++)
        for (int64_t v = 0; v < vectors; v++) {
            const int64_t c = v * LANES + LANES <= g.C ? v * LANES : g.C - LANES;
            row(x, w + c, g, task / g.OH, task % g.OH, c, out, task * g.OW, e);
        }
}
