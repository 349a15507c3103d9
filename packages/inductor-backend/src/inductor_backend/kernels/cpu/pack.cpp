// Weights as their kernels read them. See packed_weights.py for the arguments.
#include "packed_weights.h"

// ---- [N][C][taps] (strides given) to panels, group after group: see dense.cpp
struct Source { const float* w; int64_t N, C, taps, sn, sc, st; };
// k: as the weights lie
static void pack_vector(const Source& s, int64_t n0, int64_t lanes, float* panel, int64_t wide, int64_t first, int64_t end) {
    int64_t done = first;
    // dense rows, in the order (channel, tap) or (tap, channel)
    const bool by_channel = s.st == 1 && s.sc == s.taps, by_tap = s.sc == 1 && (s.taps == 1 || s.st == s.C);
    if (lanes == LANES && (by_channel || by_tap))
        for (; done + LANES <= end; done += LANES) {
            V rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = load(s.w + (n0 + i) * s.sn + done);
            transpose(rows);
            UNROLL for (int i = 0; i < LANES; i++) {
                const int64_t k = done + i, at = by_tap ? k : k % s.taps * s.C + k / s.taps;
                put(panel + at * wide, rows[i]);
            }
        }
    for (int64_t c = 0; c < s.C && done < end; c++)
        for (int64_t t = 0; t < s.taps; t++) {
            const int64_t k = by_tap ? t * s.C + c : c * s.taps + t;
            if (k < done || k >= end) continue;
            float* to = panel + (t * s.C + c) * wide;
            for (int64_t j = 0; j < LANES; j++) to[j] = j < lanes ? s.w[(n0 + j) * s.sn + c * s.sc + t * s.st] : 0.0f;
        }
}
static void pack(const Source& all, int64_t groups, float* out) {
    const int64_t N = all.N / groups, K = all.C * all.taps, vectors = (N + LANES - 1) / LANES;
    const int threads = threads_for(all.N * K);
    const int64_t step = share_of(K, groups * vectors, threads), parts = (K + step - 1) / step;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < groups * vectors * parts; task++) {
        const int64_t group = task / parts / vectors, n = task / parts % vectors * LANES, n0 = n / PANEL * PANEL, k = task % parts * step;
        Source s = all;
        s.w += group * N * s.sn;
        const int64_t columns = N - n0 < PANEL ? N - n0 : PANEL, wide = whole_vectors(columns);
        float* panel = out + group * whole_vectors(N) * K + n0 * K;
        pack_vector(s, n, N - n < LANES ? N - n : LANES, panel + (n - n0), wide, k, K - k < step ? K : k + step);
    }
}
EXPORT void run_pack(const int64_t* a) {  // w, out, N, C, taps, strides of the three, groups
    pack({(const float*)a[0], a[2], a[3], a[4], a[5], a[6], a[7]}, a[8], (float*)a[1]);
}

// ---- of the grouped kernels
// weights [C][taps] (contiguous) to [tap][channel]
EXPORT void pack_depthwise(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t C = a[2], taps = a[3];
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < C; c++) out[t * C + c] = w[c * taps + t];
}
// weights [C][cg][taps] (contiguous) to [vector][tap][k][lane]
EXPORT void pack_conv_small_groups(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t C = a[2], cg = a[3], taps = a[4];
    for (int64_t v = 0; v < C / LANES; v++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t k = 0; k < cg; k++)
                for (int64_t l = 0; l < LANES; l++) *out++ = w[((v * LANES + l) * cg + k) * taps + t];
}
// w [N][C][KH][KW] (contiguous) to panels [ky][c][kx][column]: see first.cpp. w, out, N, C, KH, KW
EXPORT void pack_conv_few_channels(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t N = a[2], C = a[3], KH = a[4], KW = a[5];
    for (int64_t n0 = 0; n0 < N; n0 += PANEL) {
        const int64_t columns = N - n0 < PANEL ? N - n0 : PANEL, wide = whole_vectors(columns);
        for (int64_t ky = 0; ky < KH; ky++)
            for (int64_t c = 0; c < C; c++)
                for (int64_t kx = 0; kx < KW; kx++, out += wide)
                    for (int64_t j = 0; j < wide; j++) out[j] = j < columns ? w[(((n0 + j) * C + c) * KH + ky) * KW + kx] : 0.0f;
    }
}
