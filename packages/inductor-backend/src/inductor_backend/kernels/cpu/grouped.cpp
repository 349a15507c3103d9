// Groups of 8, 16 or 32 channels in and out: the sums of a block of pixels stay in registers over the whole window.
//
// What a group reads for some lines of the result is copied together, with a border: its pixels lie as far apart as all
// groups' channels, which for powers of two is into the same few sets of the cache. Packed weights:
// as pack_conv_small_groups's (8) and run_pack's. A unit for each size of a group (-DCHANNELS=16
// -DRUN=run_grouped_16). See packed_weights.py for the arguments.
#include "packed_weights.h"

#define COPIED_BYTES 20480   // of a group at once: L1
#define MAX_LINES 16        // of a task's result

// WIDE channels lie together; a group's columns are VECTORS of these vectors
#if defined(HALVES) && CHANNELS <= LANES
typedef H W;
typedef HU WU;
#define WIDTH 8
#define WIDE LANES
#else
typedef V W;
typedef VU WU;
#define WIDTH LANES
#define WIDE CHANNELS
#endif
#define VECTORS (CHANNELS / WIDTH)
#define GROUPS (WIDE / CHANNELS)
#define MAX_SUMS (REGISTERS == 32 ? 16 : 12)
#define R (GROUPS * VECTORS > MAX_SUMS / 8 ? MAX_SUMS / (GROUPS * VECTORS) : 8)  // pixels of a block
#define UNITS (64 / WIDE)  // that are copied and stored side by side: memory is read and written in longer runs

static thread_local Scratch together;

namespace {
struct Grouped {
    const float *x, *w;
    float* out;
    Window g;
    Epilogue e;

    // pixels of a copied line: the last block may read beyond the border
    int64_t across() const {
        const int64_t read = ((g.OW + R - 1) / R * R - 1) * g.sw + (g.KW - 1) * g.dw + 1, all = g.W + 2 * g.pw;
        return read > all ? read : all;
    }
    // `units` times WIDE channels from c on, of `count` lines from y on: to[unit][line][pixel][channel]
    void copy(int64_t b, int64_t y, int64_t count, int64_t c, int64_t units, float* to) const {
        const int64_t apart = count * across() * WIDE;
        for (int64_t end = y + count; y < end; y++, to += across() * WIDE) {
            const bool inside = (uint64_t)y < (uint64_t)g.H;
            const int64_t before = inside ? g.pw : across(), after = inside ? across() - g.pw - g.W : 0;
            for (int64_t u = 0; u < units; u++) {
                memset(to + u * apart, 0, before * WIDE * 4);
                memset(to + u * apart + (across() - after) * WIDE, 0, after * WIDE * 4);
            }
            if (!inside) continue;
            const float* from = x + (b * g.H + y) * g.W * g.C + c;
            float* inner = to + g.pw * WIDE;
            for (int64_t i = 0; i < g.W; i++, from += g.C, inner += WIDE)
                for (int64_t u = 0; u < units; u++)
                    UNROLL for (int j = 0; j < WIDE; j += LANES) put(inner + u * apart + j, load(from + u * WIDE + j));
        }
    }
    // R neighbouring pixels, WIDE channels; at: what the first of them reads first
    template <int S> NOINLINE void block(const float* at, const float* panel, float* tile) const {
        W acc[GROUPS][R][VECTORS] = {};
        const int64_t line = g.dh * across() * WIDE, step = g.dw * WIDE;
        for (int64_t ky = 0; ky < g.KH; ky++, at += line)
            for (int64_t kx = 0; kx < g.KW; kx++) {
                const float* from = at + kx * step;
                for (int64_t k = 0; k < CHANNELS; k++, from++, panel += WIDE)
                    UNROLL for (int h = 0; h < GROUPS; h++)
                        add_products(acc[h], [&](int i) { return from[i * S * WIDE + h * CHANNELS] - W{}; },
                                     [&](int j) -> W { return *(const WU*)(panel + h * CHANNELS + j * WIDTH); });
            }
        UNROLL for (int h = 0; h < GROUPS; h++)
            UNROLL for (int i = 0; i < R; i++)
                UNROLL for (int j = 0; j < VECTORS; j++) *(WU*)(tile + i * WIDE + h * CHANNELS + j * WIDTH) = acc[h][i][j];
    }
    // lines [y0, y1) of image b, channels [c0, c1)
    template <int S> void task(int64_t b, int64_t y0, int64_t y1, int64_t c0, int64_t c1) const {
        const int64_t count = (y1 - 1 - y0) * g.sh + (g.KH - 1) * g.dh + 1, apart = count * across() * WIDE;
        float* lines = together.get((size_t)(apart * UNITS));
        alignas(64) float tile[UNITS * R * WIDE];
        for (int64_t c = c0; c < c1; c += UNITS * WIDE) {
            const int64_t left = (c1 - c) / WIDE, units = left < UNITS ? left : UNITS;
            copy(b, y0 * g.sh - g.ph, count, c, units, lines);
            for (int64_t y = y0; y < y1; y++)
                for (int64_t ox = 0; ox < g.OW; ox += R) {
                    for (int64_t u = 0; u < units; u++) {
                        const float* at = lines + u * apart + ((y - y0) * g.sh * across() + ox * S) * WIDE;
                        const float* panel = w + (c + u * WIDE) * CHANNELS * g.taps();
                        block<S>(at, panel, tile + u * R * WIDE);
                    }
                    store(tile, (b * g.OH + y) * g.OW + ox, g.OW - ox < R ? g.OW - ox : R, c, units);
                }
        }
    }
    void store(const float* tile, int64_t m, int64_t count, int64_t c, int64_t units) const {
        LaneEpilogue lanes(e, c);
        for (int64_t j = 0; j < units * WIDE; j += LANES) {
            lanes.move(e, c + j);
            const float* from = tile + j / WIDE * R * WIDE + j % WIDE;
            for (int64_t i = 0; i < count; i++) lanes.store(load(from + i * WIDE), out + (m + i) * g.C + c + j, m + i);
        }
    }
};
}

EXPORT void RUN(const int64_t* a) {
    const Grouped one{(const float*)a[0], (const float*)a[1], (float*)a[4], Window(a + 5),
                      {(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[23]}};
    const Window& g = one.g;
    if (a[22] != CHANNELS || g.sw > 2 || g.C % WIDE) return not_built();
    if (g.B * g.pixels() <= 0 || g.C == 0) return;
    const int threads = threads_for(g.B * g.pixels() * g.C * g.taps() * CHANNELS);
    int64_t lines = (COPIED_BYTES / (one.across() * WIDE * 4) - (g.KH - 1) * g.dh - 1) / g.sh + 1;
    lines = lines < 1 ? 1 : lines < MAX_LINES ? lines : MAX_LINES;
    const int64_t rounds = (g.OH + lines - 1) / lines, units = g.C / WIDE;
    int64_t parts = 1;
    while (g.B * rounds * parts < 2 * threads && parts * 2 <= units) parts *= 2;
    const auto task = g.sw == 1 ? &Grouped::task<1> : &Grouped::task<2>;
    share_out(g.B * rounds * parts, threads, [&](int64_t i) {
        const int64_t part = i % parts, round = i / parts % rounds, b = i / parts / rounds;
        (one.*task)(b, g.OH * round / rounds, g.OH * (round + 1) / rounds, units * part / parts * WIDE, units * (part + 1) / parts * WIDE);
    });
}
