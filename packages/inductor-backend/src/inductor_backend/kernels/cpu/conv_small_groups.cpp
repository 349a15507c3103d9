// Groups of 2, 4 or 8 channels in and out: a vector of channels holds LANES / c of them. A unit for each c
// (-DCHANNELS=4 -DRUN=run_conv_small_groups_4). See packed_weights.py for the arguments.
#include "packed_weights.h"

template <int R>
static NOINLINE void narrow_block(const float* const* from, const float* w, int64_t taps, float* tile) {
    V acc[R] = {};
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    const I first = lane & -CHANNELS;
    for (int64_t t = 0; t < taps; t++, from += R) {
        V x[R];
        UNROLL for (int i = 0; i < R; i++) x[i] = load(from[i]);
        UNROLL for (int k = 0; k < CHANNELS; k++) {
            const V wv = load(w + (t * CHANNELS + k) * LANES);
            const I at = first + k;
            UNROLL for (int i = 0; i < R; i++) acc[i] += shuffled(x[i], at) * wv;
        }
    }
    UNROLL for (int i = 0; i < R; i++) put(tile + i * LANES, acc[i]);
}
typedef void (*narrow_function)(const float* const*, const float*, int64_t, float*);
static const narrow_function BY_ROWS[6] = {narrow_block<1>, narrow_block<2>, narrow_block<3>, narrow_block<4>, narrow_block<5>, narrow_block<6>};

EXPORT void RUN(const int64_t* a) {
    const Window g(a + 5);
    if (a[22] != CHANNELS || g.taps() > 49) return not_built();
    const Epilogue e{(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[23]};
    const int64_t taps = g.taps(), vectors = g.C / LANES;
    const float *x = (const float*)a[0], *w = (const float*)a[1], *nothing = zeros(LANES);
    float* out = (float*)a[4];
    const int threads = threads_for(g.B * g.pixels() * g.C * taps * CHANNELS);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < g.B * g.OH; task++) {
        const int64_t b = task / g.OH, oy = task % g.OH;
        const float* from[6 * 49];
        float tile[6 * LANES];
        for (int64_t ox = 0; ox < g.OW; ox += 6) {
            const int64_t count = g.OW - ox < 6 ? g.OW - ox : 6;
            for (int64_t v = 0; v < vectors; v++) {
                for (int64_t ky = 0, t = 0; ky < g.KH; ky++)
                    for (int64_t kx = 0; kx < g.KW; kx++, t++)
                        for (int64_t i = 0; i < count; i++) {
                            const int64_t y = oy * g.sh - g.ph + ky * g.dh, xx = (ox + i) * g.sw - g.pw + kx * g.dw;
                            const bool inside = (uint64_t)y < (uint64_t)g.H && (uint64_t)xx < (uint64_t)g.W;
                            from[t * count + i] = inside ? x + ((b * g.H + y) * g.W + xx) * g.C + v * LANES : nothing;
                        }
                BY_ROWS[count - 1](from, w + v * taps * CHANNELS * LANES, taps, tile);
                const LaneEpilogue lanes(e, v * LANES);
                for (int64_t i = 0; i < count; i++) {
                    const int64_t m = task * g.OW + ox + i;
                    lanes.store(load(tile + i * LANES), out + m * g.C + v * LANES, m);
                }
            }
        }
    }
}
