// Convolutions 3x3 with stride 1 on planes (contiguous images), and their input's gradient, by Winograd's F(2x2, 3x3):
// see winograd.cpp for the method. Here lanes lie along the tiles of a line, so that nothing is turned round: the input's
// lines become values[position][channel][tile], products with the weights' transforms are rows of tiles, and pairs of
// lines of the result are written as they lie.
#include "gemm.h"

#define POSITIONS 16
#define GROUP 48  // channels of the result whose products wait for the last position

static thread_local Scratch values, products;

struct Segment { int64_t at, count, b, y, x; };  // tiles [at, at + count) of a block: pixels (2 y, 2 x ...) of image b

namespace {
struct Planes {
    const float* x;
    float* out;
    const float *bias, *u;
    int64_t B, C, H, W, N, ph, pw, OH, OW;

    int64_t across() const { return (OW + 1) / 2; }
    int64_t down() const { return (OH + 1) / 2; }
    int64_t tiles() const { return B * across() * down(); }
    // positions are moved apart, so that what is read together does not fall into one set of the cache
    int64_t of_values() const { return C * NC + LANES; }
    static int64_t of_products() { return GROUP * NC + LANES; }
    static int64_t of_weights(int64_t N, int64_t C) { return N * C + LANES; }

    int64_t segments(int64_t t0, int64_t count, Segment* s) const {
        int64_t found = 0;
        for (int64_t at = 0; at < count;) {
            const int64_t t = t0 + at, x = t % across();
            int64_t length = across() - x < count - at ? across() - x : count - at;
            length = length < LANES ? length : LANES;
            s[found++] = {at, length, t / (across() * down()), t / across() % down(), x};
            at += length;
        }
        return found;
    }
    // LANES tiles of one channel. image: of that channel; to: values of that channel at the segment's first tile
    void tiles_in(const float* image, const Segment& s, float* to) const {
        const int64_t y0 = 2 * s.y - ph, x0 = 2 * s.x - pw;
        const bool within = x0 >= 0 && x0 + 2 * LANES + 2 <= W;
        I even, odd;
        for (int i = 0; i < LANES; i++) even[i] = 2 * i, odd[i] = 2 * i + 1;
        V t[4][4];
        V d[4][4];
        UNROLL for (int r = 0; r < 4; r++) {
            float line[2 * LANES + 2];
            const float* from = image + (y0 + r) * W + x0;
            if (!within || (uint64_t)(y0 + r) >= (uint64_t)H) {
                memset(line, 0, sizeof line);
                const int64_t first = x0 < 0 ? -x0 : 0, left = W - x0 < 2 * LANES + 2 ? W - x0 : 2 * LANES + 2;
                if ((uint64_t)(y0 + r) < (uint64_t)H && left > first) memcpy(line + first, from + first, (left - first) * 4);
                from = line;
            }
            const V a = load(from), b = load(from + LANES), c = load(from + 2), e = load(from + 2 + LANES);
            d[r][0] = shuffled(a, b, even), d[r][1] = shuffled(a, b, odd);
            d[r][2] = shuffled(c, e, even), d[r][3] = shuffled(c, e, odd);
        }
        UNROLL for (int c = 0; c < 4; c++) {
            t[0][c] = d[0][c] - d[2][c], t[1][c] = d[1][c] + d[2][c], t[2][c] = d[2][c] - d[1][c], t[3][c] = d[1][c] - d[3][c];
        }
        const int64_t apart = of_values();
        UNROLL for (int r = 0; r < 4; r++) {
            float* p = to + 4 * r * apart;
            const V four[4] = {t[r][0] - t[r][2], t[r][1] + t[r][2], t[r][2] - t[r][1], t[r][1] - t[r][3]};
            UNROLL for (int c = 0; c < 4; c++) {
                if (s.count == LANES) put(p + c * apart, four[c]);
                else memcpy(p + c * apart, &four[c], s.count * 4);
            }
        }
    }
    static void put_some(float* to, V low, V high, int64_t count) {
        if (count == 2 * LANES) {
            put(to, low);
            put(to + LANES, high);
            return;
        }
        float line[2 * LANES];
        put(line, low);
        put(line + LANES, high);
        memcpy(to, line, count * 4);
    }
    // One channel of the result. m: its products at the segment's first tile
    void pixels_out(const float* m, const Segment& s, float add, float* plane) const {
        I low, high;
        for (int i = 0; i < LANES; i++) low[i] = i / 2 + (i & 1) * LANES, high[i] = LANES / 2 + i / 2 + (i & 1) * LANES;
        const int64_t apart = of_products();
        V t[2][4];
        UNROLL for (int c = 0; c < 4; c++) {
            const float* p = m + c * apart;
            const V a = load(p), b = load(p + 4 * apart), d = load(p + 8 * apart), e = load(p + 12 * apart);
            t[0][c] = a + b + d, t[1][c] = b - d - e;
        }
        const int64_t left = OW - 2 * s.x, count = left < 2 * s.count ? left : 2 * s.count;
        UNROLL for (int r = 0; r < 2; r++) {
            if (2 * s.y + r >= OH) break;
            const V one = t[r][0] + t[r][1] + t[r][2] + same(add), two = t[r][1] - t[r][2] - t[r][3] + same(add);
            put_some(plane + (2 * s.y + r) * OW + 2 * s.x, shuffled(one, two, low), shuffled(one, two, high), count);
        }
    }
    void task(int64_t t0, int64_t count) const {
        Segment s[NC];
        const int64_t parts = segments(t0, count, s), columns = (count + LANES - 1) / LANES * LANES;
        float *v = values.get((size_t)(POSITIONS * of_values() + LANES)), *m = products.get((size_t)(POSITIONS * of_products() + LANES));
        for (int64_t c = 0; c < C; c++) {
            for (int64_t i = 0; i < parts; i++) tiles_in(x + (s[i].b * C + c) * H * W, s[i], v + c * NC + s[i].at);
            for (int64_t p = 0; p < POSITIONS && count < columns; p++)
                memset(v + p * of_values() + c * NC + count, 0, (columns - count) * 4);
        }
        for (int64_t n0 = 0; n0 < N; n0 += GROUP) {
            const int64_t rows = N - n0 < GROUP ? N - n0 : GROUP;
            for (int64_t p = 0; p < POSITIONS; p++)
                for (int64_t k0 = 0; k0 < C; k0 += KC)
                    panel_rows(u + p * of_weights(N, C) + n0 * C + k0, C, v + p * of_values() + k0 * NC, NC, C - k0 < KC ? C - k0 : KC,
                               rows, columns, m + p * of_products(), k0 != 0, false);
            for (int64_t n = 0; n < rows; n++)
                for (int64_t i = 0; i < parts; i++)
                    pixels_out(m + n * NC + s[i].at, s[i], bias ? bias[n0 + n] : 0.0f, out + (s[i].b * N + n0 + n) * OH * OW);
        }
    }
};
}

// The transforms of the weights, [position][n][c]; sn, sc: strides of w; flipped: taps in reverse, for the gradient.
static void weights_of(const float* w, int64_t N, int64_t C, int64_t sn, int64_t sc, bool flipped, float* u, int threads) {
    const int64_t apart = Planes::of_weights(N, C);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < N; n++)
        for (int64_t c0 = 0; c0 < C; c0 += LANES) {
            const int64_t count = C - c0 < LANES ? C - c0 : LANES;
            V g[3][3] = {}, t[4][3];
            UNROLL for (int i = 0; i < 9; i++)
                for (int64_t l = 0; l < count; l++) g[i / 3][i % 3][l] = w[n * sn + (c0 + l) * sc + (flipped ? 8 - i : i)];
            UNROLL for (int x = 0; x < 3; x++) {
                t[0][x] = g[0][x], t[3][x] = g[2][x];
                t[1][x] = (g[0][x] + g[1][x] + g[2][x]) * 0.5f;
                t[2][x] = (g[0][x] - g[1][x] + g[2][x]) * 0.5f;
            }
            UNROLL for (int y = 0; y < 4; y++) {
                const V four[4] = {t[y][0], (t[y][0] + t[y][1] + t[y][2]) * 0.5f, (t[y][0] - t[y][1] + t[y][2]) * 0.5f, t[y][2]};
                UNROLL for (int x = 0; x < 4; x++) memcpy(u + (4 * y + x) * apart + n * C + c0, &four[x], count * 4);
            }
        }
}

// x, w, bias (or 0), out, B, C, H, W, N, ph, pw, OH, OW, strides of w's output and input channel, flipped
EXPORT void run_winograd_planes(const int64_t* a) {
    const int64_t B = a[4], C = a[5], H = a[6], W = a[7], N = a[8], OH = a[11], OW = a[12];
    if (B == 0 || N == 0 || OH == 0 || OW == 0) return;
    static thread_local Scratch weights;
    float* u = weights.get((size_t)(POSITIONS * Planes::of_weights(N, C)));
    const Planes one{(const float*)a[0], (float*)a[3], (const float*)a[2], u, B, C, H, W, N, a[9], a[10], OH, OW};
    const int threads = threads_for(one.tiles() * POSITIONS * N * C);
    weights_of((const float*)a[1], N, C, a[13], a[14], a[15], u, threads);
    const int64_t T = one.tiles();
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t t0 = 0; t0 < T; t0 += NC) one.task(t0, T - t0 < NC ? T - t0 : NC);
}
