// Convolutions and products with packed weights, on channels-last data: each group by itself.
//
// A product is a convolution of one tap. The result's pixels are rows, its channels columns; a column panel is
// PANEL_VECTORS = 4 vectors wide and lies in memory as it is read: panel[tap][channel][column], its last one cut down to whole vectors.
// Nothing is unfolded: each row of a block points at the pixel that a tap reads (or at zeros), so that padding, strides
// and dilation cost one pointer a tap. See packed_weights.py for the arguments.
#include "packed_weights.h"

#define MAX_ROWS (1536 / LANES)  // rows of a tile of 24 KB
#define MIN_SHARE 48             // rows of a thread that reads all weights

static thread_local Scratch padded_input;

// C vectors of each row of a tile to the result. Activations other than relu are calls: they take the whole tile at once.
template <int C>
static NOINLINE void finish_rows(const Epilogue& e, float* tile, float* out, int64_t ldo, int64_t m0, int64_t rows, int64_t n0) {
    V scale[C], bias[C];
    UNROLL for (int j = 0; j < C; j++) {
        scale[j] = e.scale ? load(e.scale + n0 + j * LANES) : same(1.0f);
        bias[j] = e.bias ? load(e.bias + n0 + j * LANES) : same(-0.0f);
    }
    const auto whole = [&](int64_t epilogue) {
        if (C == PANEL_VECTORS) return post_line(epilogue, tile, rows * PANEL);
        for (int64_t i = 0; i < rows; i++) post_line(epilogue, tile + i * PANEL, C * LANES);
    };
    const bool before = e.before > RELU, after = e.after > RELU;
    if (before) {
        for (int64_t i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < C; j++) {
                float* p = tile + i * PANEL + j * LANES;
                put(p, load(p) * scale[j] + bias[j]);
            }
        whole(e.before);
        UNROLL for (int j = 0; j < C; j++) scale[j] = same(1.0f), bias[j] = same(-0.0f);
    }
    const V low = same(e.before == RELU ? 0.0f : -__builtin_inff()), last = same(e.after == RELU ? 0.0f : -__builtin_inff());
    for (int64_t i = 0; i < rows; i++) {
        float *from = tile + i * PANEL, *to = after ? from : out + (m0 + i) * ldo + n0;
        const float* r = e.residual ? e.residual + (m0 + i) * e.ldr + n0 : nullptr;
        UNROLL for (int j = 0; j < C; j++) {
            V v = load(from + j * LANES) * scale[j] + bias[j];
            v = v < low ? low : v;
            if (r) v += load(r + j * LANES);
            v = v < last ? last : v;
            put(to + j * LANES, v);
        }
    }
    if (!after) return;
    whole(e.after);
    for (int64_t i = 0; i < rows; i++) memcpy(out + (m0 + i) * ldo + n0, tile + i * PANEL, C * LANES * 4);
}

// One group: C input channels at x (pixels ldx apart), N result channels at out (pixels ldo apart).
namespace {
struct Conv {
    const float* x;
    int64_t ldx;
    const float* w;
    float* out;
    int64_t ldo, N;
    Window g;
    Epilogue e;

    int64_t depth() const { return g.C * g.taps(); }

    void finish(float* tile, int64_t m0, int64_t rows, int64_t n0, int64_t columns) const {
        switch (columns % LANES ? 0 : columns / LANES) {
        case 4: return finish_rows<4>(e, tile, out, ldo, m0, rows, n0);
        case 3: return finish_rows<3>(e, tile, out, ldo, m0, rows, n0);
        case 2: return finish_rows<2>(e, tile, out, ldo, m0, rows, n0);
        case 1: return finish_rows<1>(e, tile, out, ldo, m0, rows, n0);
        }
        for (int64_t i = 0; i < rows; i++) e.row(tile + i * PANEL, out + (m0 + i) * ldo + n0, m0 + i, n0, columns);
    }
    // What the epilogue of these rows will read and write: lines of columns are too short for the processor's own fetching.
    void fetch(int64_t m, int64_t rows, int64_t n, int64_t columns) const {
        for (int64_t i = m; i < m + rows; i++)
            for (int64_t j = n; j < n + columns; j += 16) {
                __builtin_prefetch(out + i * ldo + j, 1, 2);
                if (e.residual) __builtin_prefetch(e.residual + i * e.ldr + j, 0, 2);
            }
    }
    // The next rows of a product of few channels: they are read in pieces too short for the processor's own fetching as well.
    void fetch_rows(int64_t m, int64_t rows) const {
        for (const float *p = x + m * ldx, *end = x + (m + rows) * ldx; p < end; p += 16) __builtin_prefetch(p, 0, 2);
    }
    // Where the rows of a tile begin to read, and whether a tap reads anything but padding
    struct Pixels {
        const float* first[MAX_ROWS];
        int64_t oy[MAX_ROWS], ox[MAX_ROWS];
    };
    void pixels_of(int64_t m0, int64_t rows, Pixels& p) const {
        for (int64_t i = 0, b = m0 / g.pixels(), y = m0 / g.OW % g.OH, xx = m0 % g.OW; i < rows; i++) {
            p.oy[i] = y * g.sh - g.ph, p.ox[i] = xx * g.sw - g.pw;
            p.first[i] = x + ((b * g.H + p.oy[i]) * g.W + p.ox[i]) * ldx;
            if (++xx == g.OW) { xx = 0; if (++y == g.OH) { y = 0; b++; } }
        }
    }
    bool rows_of(const Pixels& p, int64_t tap, int64_t rows, const float* nothing, const float** from) const {
        const int64_t dy = tap / g.KW * g.dh, dx = tap % g.KW * g.dw, move = (dy * g.W + dx) * ldx;
        int64_t some = 0;
#pragma omp simd reduction(| : some)
        for (int64_t i = 0; i < rows; i++) {
            const int64_t inside = ((uint64_t)(p.oy[i] + dy) < (uint64_t)g.H) & ((uint64_t)(p.ox[i] + dx) < (uint64_t)g.W);
            from[i] = inside ? p.first[i] + move : nothing;
            some |= inside;
        }
        return some;
    }
    void tile_of(int64_t m0, int64_t rows, int64_t n0, const float* nothing, float* tile) const {
        const int64_t columns = N - n0 < PANEL ? N - n0 : PANEL, wide = whole_vectors(columns), vectors = wide / LANES;
        const float* panel = w + n0 * depth();  // all panels before this one are whole
        const Blocks& blocks = vectors == 4 ? BLOCKS_4 : vectors == 3 ? BLOCKS_3 : vectors == 2 ? BLOCKS_2 : BLOCKS_1;
        const Cut cut(rows, blocks.most), depths(g.C, KC);
        const float* from[MAX_ROWS];
        Pixels p;
        int64_t last = g.taps() - 1;  // the last tap that reads anything
        if (g.plain()) {
#pragma omp simd
            for (int64_t i = 0; i < rows; i++) from[i] = x + (m0 + i) * ldx;
        } else {
            pixels_of(m0, rows, p);
            while (last >= 0 && !rows_of(p, last, rows, nothing, from)) last--;
        }
        if (last < 0 || g.C == 0) {
            memset(tile, 0, rows * PANEL * 4);
            return finish(tile, m0, rows, n0, columns);
        }
        const bool ahead = columns == PANEL && g.C >= 48;  // else fetching takes as long as the products (measured)
        const bool rows_ahead = g.plain() && n0 == 0 && ldx == g.C && g.C <= 128;
        const bool at_once = Finish::takes(e);
        Finish end(e, ldo, n0, columns);
        bool add = false;
        for (int64_t t = 0; t <= last; t++) {
            if (!g.plain() && !rows_of(p, t, rows, nothing, from)) continue;  // every row reads padding
            for (int64_t d = 0, k0 = 0; d < depths.count; k0 += depths.at(d), d++) {
                const float* part = panel + (t * g.C + k0) * wide;
                const bool finished = at_once && t == last && d + 1 == depths.count;
                for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                    if (ahead && !add) fetch(m0 + m, cut.at(i), n0, columns);
                    if (rows_ahead) fetch_rows(m0 + m + 2 * blocks.most, cut.at(i));
                    end.out = out + (m0 + m) * ldo + n0;
                    end.residual = e.residual ? e.residual + (m0 + m) * e.ldr + n0 : nullptr;
                    blocks.by_rows[cut.at(i) - 1](from + m, k0, part, wide, depths.at(d), tile + m * PANEL, add,
                                                  share_ahead(part + depths.at(d) * wide, depths.at(d), i, cut.count), finished ? &end : nullptr);
                }
                add = true;
            }
        }
        if (!at_once) finish(tile, m0, rows, n0, columns);
    }
};
}

// groups of the same shape, side by side in the channels
static void convolve(Conv conv, int64_t groups) {
    const int64_t M = conv.g.B * conv.g.pixels(), N = conv.N, C = conv.g.C;
    if (M == 0 || N == 0) return;
    const int64_t chunks = (N + PANEL - 1) / PANEL;
    const int threads = threads_for(M * N * conv.depth() * groups);
    // Threads share the rows, as many at once as share a panel in L1. Where each would have so few that it waited for the
    // panels, of which it reads all, threads share the columns: neighbours in time read the same or neighbouring weights.
    const bool few = M <= MAX_ROWS, rows_last = few || M < MIN_SHARE * threads;
    const int64_t blocks = ((M + MAX_ROWS - 1) / MAX_ROWS + threads - 1) / threads * threads;
    const int64_t step = rows_last ? rows_of_task(M, MAX_ROWS, groups * chunks, threads) : (M + blocks - 1) / blocks;
    const int64_t whole = whole_vectors(N) * conv.depth();
    const float* nothing = zeros(C);
    const int64_t rounds = (M + step - 1) / step, tasks = groups * chunks * rounds;
    const auto work = [&](int64_t task) {
        alignas(64) float tile[MAX_ROWS * PANEL];
        const int64_t group = rows_last ? task / (chunks * rounds) : task % groups, left = rows_last ? task % (chunks * rounds) : task / groups;
        const int64_t chunk = rows_last ? left / rounds : left % chunks, m0 = (rows_last ? left % rounds : left / chunks) * step;
        Conv one = conv;
        one.x += group * C;
        one.w += group * whole;
        one.out += group * N;
        one.e.move(group * N);
        one.tile_of(m0, M - m0 < step ? M - m0 : step, chunk * PANEL, nothing, tile);
    };
    if (!few) return share_out(tasks, threads, work);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < tasks; task++) work(task);
}

// x (planes, or channels last) to [B][H + 2 ph][W + 2 pw + rest][C] with zeros around: the taps of a line are then one run
static const float* with_border(const float* x, bool last, const Window& g, int64_t H, int64_t W) {
    float* to = padded_input.get((size_t)(g.B * H * W * g.C));
    const int64_t line = W * g.C;
#pragma omp parallel for if (g.B * H * line > 30000)
    for (int64_t by = 0; by < g.B * H; by++) {
        const int64_t b = by / H, y = by % H - g.ph;
        float* __restrict__ row = to + by * line;
        if (y < 0 || y >= g.H) {
            memset(row, 0, line * 4);
            continue;
        }
        memset(row, 0, g.pw * g.C * 4);
        memset(row + (g.pw + g.W) * g.C, 0, (W - g.pw - g.W) * g.C * 4);
        float* inner = row + g.pw * g.C;
        if (last) memcpy(inner, x + (b * g.H + y) * g.W * g.C, g.W * g.C * 4);
        else
            for (int64_t c = 0; c < g.C; c++) {
                const float* from = x + ((b * g.C + c) * g.H + y) * g.W;
                for (int64_t i = 0; i < g.W; i++) inner[i * g.C + c] = from[i];
            }
    }
    return to;
}

EXPORT void RUN(const int64_t* a) {
    const Window g(a + 5);
    const int64_t N = a[19], ldx = a[20], ldo = a[21], ldr = a[22], groups = a[23];
    if (N % PANEL && !&BLOCKS_1) return not_built();
    Conv conv{(const float*)a[0], ldx, (const float*)a[1], (float*)a[4], ldo, N, g,
              {(const float*)a[2], (const float*)a[3], ldr, a[24], a[25], (const float*)a[27]}};
    if (a[26]) {  // few channels: a line of taps is one run of KW * C values (a[26]: 1 planes, 2 channels last)
        const int64_t H = g.H + 2 * g.ph, W = g.W + 2 * g.pw;
        conv.x = with_border(conv.x, a[26] == 2, g, H, W);
        // pixel p of a line starts at p * sw * C: a "pixel" of the new window is one value, and its channels run on
        conv.ldx = 1;
        const int64_t lines[14] = {g.B, g.KW * g.C, H, W * g.C, g.KH, 1, g.sh, g.sw * g.C, 0, 0, g.dh, 1, g.OH, g.OW};
        conv.g = Window(lines);
    }
    convolve(conv, groups);
}

