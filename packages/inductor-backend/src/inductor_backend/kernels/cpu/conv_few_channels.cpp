// Convolutions of few channels, a network's first: no vector of channels to read, so pixels are broadcast from lines.
//
// A task is some lines of one image's result. What they read is copied to lines with a border, plane by plane:
// lines[y][channel][x]. A tap of R neighbouring pixels is then R values STRIDE apart, whatever the window: their sums stay in
// registers over the whole window. Packed weights: panel[ky][channel][kx][column], panels as dense.cpp's.
// A unit for each stride along a line (-DSTRIDE=2 -DRUN=run_first_2). See packed_weights.py for the arguments.
#include "packed_weights.h"

#define TASK_LINES 8  // of the result

static thread_local Scratch bordered;

// The same pointer. What it points at is loaded again: GCC keeps the pixels that the next tap reads, too, in registers that the
// sums need (measured with AVX2: 41 GFLOP/s, then 86 on one core).
INLINE const float* forgotten(const float* p) {
    asm("" : "+r"(p));
    return p;
}

namespace {
struct First {
    const float *x, *w;
    float* out;
    int64_t N;
    Window g;
    Epilogue e;
    bool last;  // x is channels-last

    int64_t line() const { return (g.W + 2 * g.pw + 63) / 16 * 16 + LANES; }  // blocks read beyond the border

    // line y of image b, all channels
    void copy_line(int64_t b, int64_t y, float* to) const {
        for (int64_t c = 0; c < g.C; c++, to += line()) {
            if ((uint64_t)y >= (uint64_t)g.H) {
                memset(to, 0, line() * 4);
                continue;
            }
            memset(to, 0, g.pw * 4);
            memset(to + g.pw + g.W, 0, (line() - g.pw - g.W) * 4);
            if (last) {
                const float* from = x + (b * g.H + y) * g.W * g.C + c;
                for (int64_t i = 0; i < g.W; i++) to[g.pw + i] = from[i * g.C];
            } else {
                memcpy(to + g.pw, x + ((b * g.C + c) * g.H + y) * g.W, g.W * 4);
            }
        }
    }
    template <int R, int C>
    NOINLINE void block(const float* lines, const float* panel, int64_t count, float* tile, const Finish* finish) const {
        V acc[R][C] = {};
        const int64_t apart = line(), wide = C * LANES;
        for (int64_t ky = 0; ky < g.KH; ky++) {
            const float* from = lines + ky * g.dh * g.C * apart;
            for (int64_t c = 0; c < g.C; c++, from += apart)
                for (int64_t kx = 0; kx < g.KW; kx++, panel += wide) {
                    const float* pixels = forgotten(from + kx);
                    add_products(acc, [&](int i) { return same(pixels[i * STRIDE]); }, [&](int j) { return load(panel + j * LANES); });
                }
        }
        if (finish) return finish_block<R, C>(acc, *finish, count);
        UNROLL for (int i = 0; i < R; i++)
            UNROLL for (int j = 0; j < C; j++) put(tile + i * PANEL + j * LANES, acc[i][j]);
    }
#ifdef HALVES
    // the same of one vector of columns
    template <int R>
    NOINLINE void block_of_halves(const float* lines, const float* panel, int64_t count, float* tile, const Finish* finish) const {
        H halves[R][2] = {};
        const int64_t apart = line();
        for (int64_t ky = 0; ky < g.KH; ky++) {
            const float* from = lines + ky * g.dh * g.C * apart;
            for (int64_t c = 0; c < g.C; c++, from += apart)
                for (int64_t kx = 0; kx < g.KW; kx++, panel += LANES) {
                    const float* pixels = forgotten(from + kx);
                    add_products(halves, [&](int i) { return same_half(pixels[i * STRIDE]); }, [&](int j) { return half(panel + 8 * j); });
                }
        }
        V acc[R][1];
        UNROLL for (int i = 0; i < R; i++) acc[i][0] = joined(halves[i][0], halves[i][1]);
        if (finish) return finish_block<R, 1>(acc, *finish, count);
        UNROLL for (int i = 0; i < R; i++) put(tile + i * PANEL, acc[i][0]);
    }
#endif
    typedef void (First::*block_of)(const float*, const float*, int64_t, float*, const Finish*) const;
    // one line of the result, columns [n0, n0 + columns)
    template <int R>
    void line_of(block_of sums, const float* lines, int64_t m0, int64_t n0, int64_t columns) const {
        const float* panel = w + n0 * g.C * g.taps();
        const bool at_once = Finish::takes(e);
        Finish end(e, N, n0, columns);
        alignas(64) float tile[R * PANEL];
        for (int64_t ox = 0; ox < g.OW; ox += R) {
            const int64_t count = g.OW - ox < R ? g.OW - ox : R, m = m0 + ox;
            end.out = out + m * N + n0;
            end.residual = e.residual ? e.residual + m * e.ldr + n0 : nullptr;
            (this->*sums)(lines + ox * STRIDE, panel, count, tile, at_once ? &end : nullptr);
            for (int64_t i = 0; i < count && !at_once; i++) e.row(tile + i * PANEL, out + (m + i) * N + n0, m + i, n0, columns);
        }
    }
    void task(int64_t b, int64_t y0, int64_t y1) const {
        const int64_t top = y0 * g.sh - g.ph, count = (y1 - 1 - y0) * g.sh + (g.KH - 1) * g.dh + 1, apart = g.C * line();
        float* lines = bordered.get((size_t)(count * apart + 16 * LANES));
        for (int64_t y = 0; y < count; y++) copy_line(b, top + y, lines + y * apart);
        for (int64_t y = y0; y < y1; y++) {
            const float* from = lines + (y - y0) * g.sh * apart;
            const int64_t m0 = (b * g.OH + y) * g.OW;
            for (int64_t n0 = 0; n0 < N;) {  // whole panels, then what is left: three vectors are two and one
                const int64_t left = N - n0, vectors = (left + LANES - 1) / LANES;
                if (vectors >= 4) line_of<ROWS_OF(4)>(&First::block<ROWS_OF(4), 4>, from, m0, n0, left < PANEL ? left : PANEL);
                else if (vectors == 3) line_of<ROWS_OF(3)>(&First::block<ROWS_OF(3), 3>, from, m0, n0, left);
                else if (vectors == 2) line_of<ROWS_OF(2)>(&First::block<ROWS_OF(2), 2>, from, m0, n0, left);
#ifdef HALVES
                else line_of<14>(&First::block_of_halves<14>, from, m0, n0, left);
#else
                else line_of<ROWS_OF(1)>(&First::block<ROWS_OF(1), 1>, from, m0, n0, left);
#endif
                n0 += PANEL;
            }
        }
    }
};
}

EXPORT void RUN(const int64_t* a) {
    const First one{(const float*)a[0], (const float*)a[1], (float*)a[4], a[19], Window(a + 5),
                    {(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[23]}, a[22] == 2};
    const Window& g = one.g;
    if (g.sw != STRIDE || g.dw != 1) return not_built();
    if (g.B == 0 || g.pixels() <= 0 || one.N == 0) return;
    const int threads = threads_for(g.B * g.pixels() * one.N * g.C * g.taps());
    int64_t parts = (g.OH + TASK_LINES - 1) / TASK_LINES;
    if (threads > 1 && g.B * parts < 4 * threads) parts = g.OH < 4 * threads ? g.OH : 4 * threads;
    share_out(g.B * parts, threads, [&](int64_t i) {
        const int64_t part = i % parts, y0 = g.OH * part / parts, y1 = g.OH * (part + 1) / parts;
        if (y0 < y1) one.task(i / parts, y0, y1);
    });
}
