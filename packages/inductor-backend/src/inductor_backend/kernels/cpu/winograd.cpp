// Convolutions 3x3 with stride 1, four results at once by Winograd's F(2x2, 3x3): 16 multiplications instead of 36.
//
// A tile is 2x2 pixels of the result, which read 4x4 of the input: these become 16 values by additions alone, and so do
// the weights once, when they are packed; 16 products of [tiles, channels] with [channels, columns] follow, and additions
// make 2x2 pixels of their results. Packed weights lie as they are read: panel[position][channel][column], panels PANEL
// wide, the last one perhaps half of that. Errors are at most twice those of sums of products (all constants are 0, 1, 1/2).
#include "packed_weights.h"

#define POSITIONS 16
#define MAX_TILES 96        // of a task
#define TILE_BYTES (768 << 10)  // of a task's values and products: they stay in L2

static thread_local Scratch values, products;

namespace {
struct Winograd {
    const float *x, *w;
    float* out;
    int64_t N;
    Window g;
    Epilogue e;

    int64_t across() const { return (g.OW + 1) / 2; }
    int64_t down() const { return (g.OH + 1) / 2; }
    int64_t tiles() const { return g.B * across() * down(); }
    // rows and positions are moved apart, so that what is read together does not fall into one set of the cache
    int64_t row() const { return g.C + LANES; }
    static int64_t apart(int64_t count, int64_t row) { return count * row + LANES; }

    static NOINLINE void tile_in(const float* const* from, int64_t C, float* to, int64_t apart) {
        for (int64_t c = 0; c < C; c += LANES) {
            V t[4][4];
            UNROLL for (int x = 0; x < 4; x++) {
                const V a = load(from[x] + c), b = load(from[4 + x] + c), d = load(from[8 + x] + c), f = load(from[12 + x] + c);
                t[0][x] = a - d, t[1][x] = b + d, t[2][x] = d - b, t[3][x] = b - f;
            }
            UNROLL for (int y = 0; y < 4; y++) {
                float* p = to + 4 * y * apart + c;
                put(p, t[y][0] - t[y][2]);
                put(p + apart, t[y][1] + t[y][2]);
                put(p + 2 * apart, t[y][2] - t[y][1]);
                put(p + 3 * apart, t[y][1] - t[y][3]);
            }
        }
    }
    // values[position][tile][channel] of tiles t0 .. t0 + count
    void values_of(int64_t t0, int64_t count, const float* nothing, float* to) const {
        for (int64_t t = t0; t < t0 + count; t++) {
            const int64_t b = t / (across() * down()), y0 = t / across() % down() * 2 - g.ph, x0 = t % across() * 2 - g.pw;
            const float* from[16];
            for (int64_t i = 0; i < 16; i++) {
                const int64_t y = y0 + i / 4, xx = x0 + i % 4;
                const bool inside = (uint64_t)y < (uint64_t)g.H && (uint64_t)xx < (uint64_t)g.W;
                from[i] = inside ? x + ((b * g.H + y) * g.W + xx) * g.C : nothing;
            }
            tile_in(from, g.C, to + (t - t0) * row(), apart(count, row()));
        }
    }
    // LANES channels of the tiles' pixels; m: products[position][tile][column]
    NOINLINE void pixels_of(int64_t t0, int64_t count, const float* m, int64_t n) const {
        const int64_t between = apart(count, PANEL);
        const LaneEpilogue last(e, n);
        for (int64_t t = t0; t < t0 + count; t++, m += PANEL) {
            V s[2][4], r[2][2];
            UNROLL for (int x = 0; x < 4; x++) {
                const float* p = m + x * between;
                const V a = load(p), b = load(p + 4 * between), c = load(p + 8 * between), d = load(p + 12 * between);
                s[0][x] = a + b + c, s[1][x] = b - c - d;
            }
            UNROLL for (int y = 0; y < 2; y++) {
                r[y][0] = s[y][0] + s[y][1] + s[y][2];
                r[y][1] = s[y][1] - s[y][2] - s[y][3];
            }
            const int64_t b = t / (across() * down()), oy = t / across() % down() * 2, ox = t % across() * 2;
            const int64_t pixel = (b * g.OH + oy) * g.OW + ox;
            UNROLL for (int y = 0; y < 2; y++)
                UNROLL for (int x = 0; x < 2; x++) {
                    if (oy + y >= g.OH || ox + x >= g.OW) continue;
                    const int64_t at = pixel + y * g.OW + x;
                    last.store(r[y][x], out + at * N + n, at);
                }
        }
    }
    void task(int64_t t0, int64_t count, int64_t first, int64_t end, const float* nothing) const {
        const int64_t lda = apart(count, row()), ldm = apart(count, PANEL);
        float *v = values.get((size_t)(POSITIONS * lda)), *m = products.get((size_t)(POSITIONS * ldm));
        values_of(t0, count, nothing, v);
        for (int64_t n0 = first; n0 < end; n0 += PANEL) {
            const int64_t wide = end - n0 < PANEL ? end - n0 : PANEL;
            const float* panel = w + n0 * POSITIONS * g.C;
            const Blocks& blocks = wide == PANEL ? BLOCKS_4 : BLOCKS_2;
            const Cut cut(count, blocks.most);
            for (int64_t p = 0; p < POSITIONS; p++, panel += g.C * wide) {
                const float* rows[MAX_TILES];
                for (int64_t i = 0; i < count; i++) rows[i] = v + p * lda + i * row();
                for (int64_t k0 = 0; k0 < g.C; k0 += KC) {
                    const int64_t kc = g.C - k0 < KC ? g.C - k0 : KC;
                    for (int64_t i = 0, at = 0; i < cut.count; at += cut.at(i), i++)
                        blocks.by_rows[cut.at(i) - 1](rows + at, k0, panel + k0 * wide, wide, kc, m + p * ldm + at * PANEL, k0 != 0,
                                                          share_ahead(panel + (k0 + kc) * wide, kc, i, cut.count), nullptr);
                }
            }
            for (int64_t j = 0; j < wide; j += LANES) pixels_of(t0, count, m + j, n0 + j);
        }
    }
};
}

EXPORT void run_winograd(const int64_t* a) {
    const Winograd one{(const float*)a[0], (const float*)a[1], (float*)a[4], a[19], Window(a + 5),
                       {(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[22]}};
    const int64_t T = one.tiles(), N = one.N, C = one.g.C, panels = (N + PANEL - 1) / PANEL;
    if (T == 0 || N == 0) return;
    const int threads = threads_for(T * POSITIONS * N * C);
    int64_t most = TILE_BYTES / 4 / POSITIONS / (C + PANEL) / MB * MB;
    most = most < MB ? MB : most < MAX_TILES ? most : MAX_TILES;
    int64_t rounds = (T + most - 1) / most, parts = 1;
    // tasks of equal size, as many as threads can share; few tiles: threads share the columns too, and read fewer weights
    const bool few = rounds < threads;
    if (!few && T >= threads * MB) rounds = (rounds + threads - 1) / threads * threads;
    int64_t step = (T + rounds - 1) / rounds;
    for (int64_t p = 1, least = INT64_MAX; few && p <= panels; p++) {
        const int64_t tiles = rows_of_task(T, most, p, threads), tasks = (T + tiles - 1) / tiles * p;
        const int64_t time = (tasks + threads - 1) / threads * (tiles + COLUMN_ROWS) * ((panels + p - 1) / p);
        if (time < least) step = tiles, parts = p, least = time;
    }
    const int64_t share = (panels + parts - 1) / parts * PANEL;
    rounds = (T + step - 1) / step;
    const float* nothing = zeros(C);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < rounds * parts; task++) {
        const int64_t t0 = task / parts * step, n0 = task % parts * share, n1 = n0 + share < N ? n0 + share : N;
        if (n0 < N) one.task(t0, T - t0 < step ? T - t0 : step, n0, n1, nothing);
    }
}

// w, out, N, C, strides of n, c and tap. [N][C][3][3] to panels; lanes along n.
static void pack_lanes(const float* w, int64_t C, int64_t first, int64_t end, int64_t sn, int64_t sc, int64_t st, float* to, int64_t wide) {
    for (int64_t c = first; c < end; c++) {
        V g[3][3], t[4][3];
        UNROLL for (int i = 0; i < 9; i++)
            for (int l = 0; l < LANES; l++) g[i / 3][i % 3][l] = w[l * sn + c * sc + i * st];
        UNROLL for (int x = 0; x < 3; x++) {
            t[0][x] = g[0][x], t[3][x] = g[2][x];
            t[1][x] = (g[0][x] + g[1][x] + g[2][x]) * 0.5f;
            t[2][x] = (g[0][x] - g[1][x] + g[2][x]) * 0.5f;
        }
        UNROLL for (int y = 0; y < 4; y++) {
            float* p = to + 4 * y * C * wide + c * wide;
            put(p, t[y][0]);
            put(p + C * wide, (t[y][0] + t[y][1] + t[y][2]) * 0.5f);
            put(p + 2 * C * wide, (t[y][0] - t[y][1] + t[y][2]) * 0.5f);
            put(p + 3 * C * wide, t[y][2]);
        }
    }
}
EXPORT void pack_winograd(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t N = a[2], C = a[3];
    const int threads = threads_for(N * C * POSITIONS);
    const int64_t vectors = N / LANES, step = share_of(C, vectors, threads), parts = (C + step - 1) / step;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < vectors * parts; task++) {
        const int64_t n = task / parts * LANES, n0 = n / PANEL * PANEL, wide = N - n0 < PANEL ? N - n0 : PANEL, c = task % parts * step;
        pack_lanes(w + n * a[4], C, c, C - c < step ? C : c + step, a[4], a[5], a[6], out + n0 * POSITIONS * C + (n - n0), wide);
    }
}
