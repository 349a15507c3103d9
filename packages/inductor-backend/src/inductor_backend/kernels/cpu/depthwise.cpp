// One channel a group: lanes along the channels, weights [tap][channel]. A unit for each width of the window
// (-DWIDTH=3 -DRUN=run_depthwise_3). See packed_weights.py for the arguments.
//
// A block is OUT pixels of a line of the result, LANES channels: 7 where the line is a multiple of that, else 4. Blocks
// of all channels come first and then those of the next pixels, so that memory is read as it lies.
#include "packed_weights.h"

#define MAX_LINES 16

template <int S, int OUT, bool INSIDE>
INLINE void line_of_taps(const float* const* lines, const float* w, const Window& g, int64_t x0, int64_t c, V* acc) {
    constexpr int SPAN = (OUT - 1) * S + WIDTH;
    for (int64_t ky = 0; ky < g.KH; ky++) {
        if (!lines[ky]) continue;
        const float* line = lines[ky] + x0 * g.C + c;
        V wv[WIDTH];
        UNROLL for (int j = 0; j < WIDTH; j++) wv[j] = load(w + (ky * WIDTH + j) * g.C);
        UNROLL for (int i = 0; i < SPAN; i++) {
            V xv = {};
            if (INSIDE || (uint64_t)(x0 + i) < (uint64_t)g.W) xv = load(line + i * g.C);
            UNROLL for (int o = 0; o < OUT; o++)
                if (i - o * S >= 0 && i - o * S < WIDTH) acc[o] += xv * wv[i - o * S];
        }
    }
}
// What the next row reads and writes beside this one's block: few lines of each pixel are used at once, which the processor's
// own fetching does not see (measured: 25 MB of input at 5 GB/s without this).
template <int S, int OUT> INLINE void fetch(const float* const* next, int64_t count, int64_t x0, const Window& g, int64_t c, float* out) {
    for (int64_t i = 0; i < count; i++)
        UNROLL for (int j = 0; j < OUT * S; j++) __builtin_prefetch(next[i] + (x0 + j) * g.C + c, 0, 2);
    UNROLL for (int j = 0; j < OUT; j++) __builtin_prefetch(out + j * g.C + c, 1, 2);
}
// A row of the result. Channels beyond whole vectors are done with the last whole vector again: C >= LANES.
template <int S, int OUT> static NOINLINE void row_of(const float* x, const float* w, const Window& g, int64_t b, int64_t oy, float* out,
                                                      const Epilogue& e) {
    // an activation that is a call is made for all channels of some pixels at once, where nothing is added after it
    const bool at_once = !in_registers(e.before) && !e.residual && e.after == NONE;
    LaneEpilogue lanes(e, 0);
    if (at_once) lanes.before = NONE;
    const float* lines[MAX_LINES];
    const int64_t m = (b * g.OH + oy) * g.OW;
    for (int64_t ky = 0; ky < g.KH; ky++) {
        const int64_t y = oy * g.sh - g.ph + ky * g.dh;
        lines[ky] = (uint64_t)y < (uint64_t)g.H ? x + ((b * g.H + y) * g.W) * g.C : nullptr;
    }
    const float* next[MAX_LINES];
    int64_t news = 0;
    for (int64_t y = (oy + 1) * g.sh - g.ph + (g.KH - g.sh) * g.dh, i = 0; i < g.sh && i < g.KH; y += g.dh, i++)
        if ((uint64_t)y < (uint64_t)g.H) next[news++] = x + ((b * g.H + y) * g.W) * g.C;
    for (int64_t ox = 0; ox < g.OW; ox += OUT) {
        const int64_t count = g.OW - ox < OUT ? g.OW - ox : OUT, x0 = ox * S - g.pw;
        const bool inside = x0 >= 0 && x0 + (OUT - 1) * S + WIDTH <= g.W;
        for (int64_t n = 0; n < g.C; n += LANES) {
            const int64_t c = n + LANES <= g.C ? n : g.C - LANES;
            V acc[OUT] = {};
            lanes.move(e, c);
            fetch<S, OUT>(next, news, ox * S, g, c, out + (m + g.OW + ox) * g.C);
            if (inside) line_of_taps<S, OUT, true>(lines, w + c, g, x0, c, acc);
            else line_of_taps<S, OUT, false>(lines, w + c, g, x0, c, acc);
            UNROLL for (int64_t o = 0; o < OUT; o++)
                if (o < count) lanes.store(acc[o], out + (m + ox + o) * g.C + c, m + ox + o);
        }
        if (at_once) post_line(e.before, out + (m + ox) * g.C, count * g.C);
    }
}
EXPORT void RUN(const int64_t* a) {
    const Window g(a + 5);
    if (g.KW != WIDTH || g.sw > 2 || g.KH > MAX_LINES || g.C < LANES) return not_built();
    const Epilogue e{(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[22]};
    const float *x = (const float*)a[0], *w = (const float*)a[1];
    float* out = (float*)a[4];
    const bool sevens = g.OW % 7 == 0;
    const auto row = g.sw == 1 ? (sevens ? row_of<1, 7> : row_of<1, 4>) : sevens ? row_of<2, 7> : row_of<2, 4>;
    share_out(g.B * g.OH, threads_for(g.B * g.pixels() * g.C * g.taps()),
              [&](int64_t task) { row(x, w, g, task / g.OH, task % g.OH, out, e); });
}
