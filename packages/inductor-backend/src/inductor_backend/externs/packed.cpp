// Convolutions and products with packed weights, on channels-last data. See packed.py for the arguments.
//
// A product is a convolution of one tap. The result's pixels are rows, its channels columns; a column panel is
// PANEL = 4 vectors wide and lies in memory as it is read: panel[tap][channel][column], its last one cut down to whole vectors.
// Nothing is unfolded: each row of a block points at the pixel that a tap reads (or at zeros), so that padding, strides
// and dilation cost one pointer a tap. Three kernels: `run_packed` (each group by itself), `run_depthwise` (one channel a
// group) and `run_narrow` (groups of 2, 4 or 8 channels: one vector holds several groups).
#include "gemm.h"
#include <cstdlib>

#if defined(__AVX512F__)
#define LANES 16
#define MB 6
#elif defined(__AVX2__)
#define LANES 8
#define MB 3
#else
#define LANES 4
#define MB 3
#endif
#define NB 4
#define PANEL (NB * LANES)
#define KC 128          // channels of a tap at once: a panel of KC x PANEL floats stays in L1
#define MOST_ROWS 96    // rows of a tile

extern "C" int omp_get_max_threads();
extern "C" int omp_in_parallel();

typedef float V __attribute__((vector_size(LANES * 4)));
typedef float VU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
TC_INLINE V load(const float* p) { return *(const VU*)p; }
TC_INLINE void put(float* p, V v) { *(VU*)p = v; }
TC_INLINE V load_some(const float* p, int64_t count) {
    V v = {};
    memcpy(&v, p, count * 4);
    return v;
}
#if defined(__AVX512F__)
#define KEEP(value) asm("" : "+v"(value))
#elif defined(__x86_64__)
#define KEEP(value) asm("" : "+x"(value))
#elif defined(__aarch64__)
#define KEEP(value) asm("" : "+w"(value))
#else
#define KEEP(value)
#endif
#define UNROLL _Pragma("GCC unroll 32")
#define NOINLINE __attribute__((noinline))

// ---- epilogues: after(before(acc * scale + bias) + residual), each of them one of POSTS in own.py
enum Post { NONE, RELU, GELU_ERF, GELU_TANH, SILU, TANH, SIGMOID, HARDSWISH, RELU6 };
template <int P> TC_INLINE float post(float v) {
    switch (P) {
    case RELU: return tc_relu(v);
    case GELU_ERF: return tc_gelu_erf(v);
    case GELU_TANH: return tc_gelu_tanh(v);
    case SILU: return tc_silu(v);
    case TANH: return tc_tanh(v);
    case SIGMOID: return tc_sigmoid(v);
    case HARDSWISH: {
        const float s = v + 3.0f, low = s < 0.0f ? 0.0f : s, c = low > 6.0f ? 6.0f : low;
        return v * c / 6.0f;
    }
    case RELU6: {
        const float low = v < 0.0f ? 0.0f : v;
        return low > 6.0f ? 6.0f : low;
    }
    default: return v;
    }
}
template <int P> NOINLINE static void post_line(float* __restrict__ line, int64_t count) {
#pragma omp simd
    for (int64_t j = 0; j < count; j++) line[j] = post<P>(line[j]);
}
typedef void (*post_function)(float*, int64_t);
static const post_function POST_LINE[] = {nullptr, post_line<RELU>, post_line<GELU_ERF>, post_line<GELU_TANH>, post_line<SILU>,
    post_line<TANH>, post_line<SIGMOID>, post_line<HARDSWISH>, post_line<RELU6>};

struct Epilogue {
    const float *bias, *residual;
    int64_t ldr, before, after;
    const float* scale;
    bool plain() const { return !residual && before <= RELU && after == NONE && !scale; }
    // one row of the result: channels [n, n + columns)
    __attribute__((always_inline)) void row(const float* __restrict__ acc, float* __restrict__ to, int64_t m, int64_t n, int64_t columns) const {
        if (plain()) {
            const float low = before == RELU ? 0.0f : -__builtin_inff();
            const float* b = bias ? bias + n : nullptr;
            if (b) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) { const float v = acc[j] + b[j]; to[j] = v < low ? low : v; }
            } else {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) { const float v = acc[j]; to[j] = v < low ? low : v; }
            }
            return;
        }
        float line[PANEL];
        if (scale && bias) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] * scale[n + j] + bias[n + j];
        } else if (scale) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] * scale[n + j];
        } else if (bias) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] = acc[j] + bias[n + j];
        } else {
            memcpy(line, acc, columns * 4);
        }
        if (before) POST_LINE[before](line, columns);
        if (residual) {
            const float* r = residual + m * ldr + n;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) line[j] += r[j];
        }
        if (after) POST_LINE[after](line, columns);
        memcpy(to, line, columns * 4);
    }
};

// ---- the product of a block of rows with a panel: acc[R][C] vectors in registers
// FETCH: the panel comes from memory. The fewer rows, the less time a line of it takes and the further ahead it is
// fetched; the processor's own fetching stops at each page (measured: 12 rows 74 -> 111 GFLOP/s, 1 row 24 -> 70 GB/s).
template <int R, int C, bool FETCH>
static NOINLINE void block(const float* const* __restrict__ rows, int64_t at, const float* __restrict__ w, int64_t ldw, int64_t K, float* tile,
                           bool add) {
    V acc[R][C] = {};
    const float* x[R];
    UNROLL for (int i = 0; i < R; i++) x[i] = rows[i] + at;
    for (int64_t k = 0; k < K; k++) {
        V wv[C];
        UNROLL for (int j = 0; j < C; j++) {
            wv[j] = load(w + k * ldw + j * LANES);
            KEEP(wv[j]);
            if (FETCH) __builtin_prefetch(w + (k + 128 / R + 8) * ldw + j * LANES, 0, 2);
        }
        UNROLL for (int i = 0; i < R; i++) {
            V xv = x[i][k] - V{};
            KEEP(xv);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += xv * wv[j];
        }
    }
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int j = 0; j < C; j++) {
            float* p = tile + i * PANEL + j * LANES;
            put(p, add ? load(p) + acc[i][j] : acc[i][j]);
        }
}
typedef void (*block_function)(const float* const*, int64_t, const float*, int64_t, int64_t, float*, bool);
#if MB == 6
#define BY_ROWS(C, F) {block<1, C, F>, block<2, C, F>, block<3, C, F>, block<4, C, F>, block<5, C, F>, block<6, C, F>}
#define BY_MORE_ROWS(C, F) {block<1, C, F>, block<2, C, F>, block<3, C, F>, block<4, C, F>, block<5, C, F>, block<6, C, F>, \
    block<7, C, F>, block<8, C, F>, block<9, C, F>, block<10, C, F>, block<11, C, F>, block<12, C, F>}
#define MORE 12
#else
#define BY_ROWS(C, F) {block<1, C, F>, block<2, C, F>, block<3, C, F>}
#define BY_MORE_ROWS(C, F) {block<1, C, F>, block<2, C, F>, block<3, C, F>, block<4, C, F>, block<5, C, F>, block<6, C, F>}
#define MORE 6
#endif
static const block_function FOUR[2][MB] = {BY_ROWS(4, false), BY_ROWS(4, true)}, THREE[MB] = BY_ROWS(3, false);
static const block_function TWO[MORE] = BY_MORE_ROWS(2, false), ONE[MORE] = BY_MORE_ROWS(1, false);

struct Cut {  // rows in blocks of nearly equal size, none above `most`
    int64_t small, large, count;
    Cut(int64_t rows, int64_t most) : count((rows + most - 1) / most) { small = rows / count; large = rows % count; }
    int64_t at(int64_t i) const { return small + (i < large); }
};

struct Window { int64_t B, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, OH, OW; };

struct Scratch {  // one a thread, only ever grown
    float* data = nullptr;
    size_t size = 0;
    ~Scratch() { free(data); }
    float* get(size_t count) {
        if (count > size) {
            free(data);
            data = (float*)aligned_alloc(64, (count * 4 + 63) / 64 * 64);
            size = data ? count : 0;
        }
        return data;
    }
};
static thread_local Scratch padded_input, packed_weight;
static float* zeros(int64_t count) {  // shared, never written to after it was made; a larger one replaces it and it is kept
    static float* data = nullptr;
    static int64_t size = 0;
    static int lock = 0;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {}
    if (count > size) {
        size = count < 4096 ? 4096 : count;
        data = (float*)calloc(size, 4);
    }
    float* found = data;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    return found;
}

// One group: C input channels at x (pixels ldx apart), N result channels at out (pixels ldo apart).
struct Conv {
    const float* x;
    int64_t ldx;
    const float* w;
    float* out;
    int64_t ldo, N;
    Window g;
    Epilogue e;

    static int64_t width(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }
    int64_t depth() const { return g.C * g.KH * g.KW; }
    static int64_t packed_size(int64_t N, int64_t K) { return width(N) * K; }

    void tile_of(int64_t m0, int64_t rows, int64_t n0, const float* nothing, float* tile) const {
        const int64_t columns = N - n0 < PANEL ? N - n0 : PANEL, wide = width(columns), vectors = wide / LANES;
        const float* panel = w + n0 * depth();  // all panels before this one are whole
        const Cut cut(rows, vectors > 2 ? MB : MORE);
        const block_function* by_rows = vectors == 3 ? THREE : vectors == 2 ? TWO : ONE;
        const float* from[MOST_ROWS];
        int64_t oy[MOST_ROWS], ox[MOST_ROWS], base[MOST_ROWS];
        const int64_t pixels = g.OH * g.OW;
        for (int64_t i = 0, b = m0 / pixels, y = m0 / g.OW % g.OH, xx = m0 % g.OW; i < rows; i++) {
            oy[i] = y * g.sh - g.ph, ox[i] = xx * g.sw - g.pw, base[i] = b * g.H * g.W;
            if (++xx == g.OW) { xx = 0; if (++y == g.OH) { y = 0; b++; } }
        }
        bool add = false;
        for (int64_t ky = 0; ky < g.KH; ky++)
            for (int64_t kx = 0; kx < g.KW; kx++) {
                bool some = false;
                for (int64_t i = 0; i < rows; i++) {
                    const int64_t y = oy[i] + ky * g.dh, xx = ox[i] + kx * g.dw;
                    const bool inside = (uint64_t)y < (uint64_t)g.H && (uint64_t)xx < (uint64_t)g.W;
                    from[i] = inside ? x + (base[i] + y * g.W + xx) * ldx : nothing;
                    some |= inside;
                }
                const float* tap = panel + (ky * g.KW + kx) * g.C * wide;
                if (!some) continue;  // every row reads padding
                for (int64_t k0 = 0; k0 < g.C; k0 += KC) {
                    const int64_t kc = g.C - k0 < KC ? g.C - k0 : KC;
                    for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                        const block_function f = vectors == 4 ? FOUR[i == 0][cut.at(i) - 1] : by_rows[cut.at(i) - 1];
                        f(from + m, k0, tap + k0 * wide, wide, kc, tile + m * PANEL, add);
                    }
                    add = true;
                }
            }
        if (!add) memset(tile, 0, rows * PANEL * 4);
        for (int64_t i = 0; i < rows; i++) e.row(tile + i * PANEL, out + (m0 + i) * ldo + n0, m0 + i, n0, columns);
    }
};

static int threads_for(int64_t work) { return work < 150000 || omp_in_parallel() ? 1 : omp_get_max_threads(); }

// groups of the same shape, side by side in the channels
static void convolve(Conv conv, int64_t groups) {
    const int64_t M = conv.g.B * conv.g.OH * conv.g.OW, N = conv.N, C = conv.g.C;
    if (M == 0 || N == 0) return;
    const int64_t chunks = (N + PANEL - 1) / PANEL;
    const int threads = threads_for(M * N * conv.depth() * groups);
    // enough tasks for all threads, rows as many as share a panel in L1
    int64_t blocks = (M + MOST_ROWS - 1) / MOST_ROWS;
    while (threads > 1 && groups * chunks * blocks < 2 * threads && M / (blocks + 1) >= MB) blocks++;
    const int64_t step = (M + blocks - 1) / blocks, whole = Conv::packed_size(N, conv.depth());
    const float* nothing = zeros(C);
    const int64_t rounds = (M + step - 1) / step, tasks = groups * chunks * rounds;
    const bool rows_last = M <= MOST_ROWS;  // few rows: neighbours in time read neighbouring weights
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        alignas(64) float tile[MOST_ROWS * PANEL];
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t group = rows_last ? task / (chunks * rounds) : task % groups, left = rows_last ? task % (chunks * rounds) : task / groups;
            const int64_t chunk = rows_last ? left / rounds : left % chunks, m0 = (rows_last ? left % rounds : left / chunks) * step;
            Conv one = conv;
            one.x += group * C;
            one.w += group * whole;
            one.out += group * N;
            if (one.e.bias) one.e.bias += group * N;
            if (one.e.scale) one.e.scale += group * N;
            if (one.e.residual) one.e.residual += group * N;
            one.tile_of(m0, M - m0 < step ? M - m0 : step, chunk * PANEL, nothing, tile);
        }
    }
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

TC_EXPORT void run_packed(const int64_t* a) {
    Window g{a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18]};
    const int64_t N = a[19], ldx = a[20], ldo = a[21], ldr = a[22], groups = a[23];
    Conv conv{(const float*)a[0], ldx, (const float*)a[1], (float*)a[4], ldo, N, g, {(const float*)a[2], (const float*)a[3], ldr, a[24], a[25], (const float*)a[27]}};
    if (a[26]) {  // few channels: a line of taps is one run of KW * C values (a[26]: 1 planes, 2 channels last)
        const int64_t H = g.H + 2 * g.ph, W = g.W + 2 * g.pw;
        conv.x = with_border(conv.x, a[26] == 2, g, H, W);
        // pixel p of a line starts at p * sw * C: a "pixel" of the new window is one value, and its channels run on
        conv.ldx = 1;
        conv.g = {g.B, g.KW * g.C, H, W * g.C, g.KH, 1, g.sh, g.sw * g.C, 0, 0, g.dh, 1, g.OH, g.OW};
    }
    convolve(conv, groups);
}

// ---- packing: weights [N][C][taps] (strides given) to panels, group after group
TC_INLINE void transpose(V* a) {
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    UNROLL for (int s = 1; s < LANES; s *= 2) {
        I low = (lane & s) != 0 ? lane - s + LANES : lane;
        I high = (lane & s) != 0 ? lane + LANES : lane + s;
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            V p = a[i], q = a[i + s];
            a[i] = __builtin_shuffle(p, q, low);
            a[i + s] = __builtin_shuffle(p, q, high);
        }
    }
}
struct Source { const float* w; int64_t N, C, taps, sn, sc, st; };
static void pack_vector(const Source& s, int64_t n0, int64_t lanes, float* panel, int64_t wide) {
    const int64_t K = s.C * s.taps;
    int64_t done = 0;
    // dense rows, in the order (channel, tap) or (tap, channel)
    const bool by_channel = s.st == 1 && s.sc == s.taps, by_tap = s.sc == 1 && (s.taps == 1 || s.st == s.C);
    if (lanes == LANES && (by_channel || by_tap))
        for (; done + LANES <= K; done += LANES) {
            V rows[LANES];
            UNROLL for (int i = 0; i < LANES; i++) rows[i] = load(s.w + (n0 + i) * s.sn + done);
            transpose(rows);
            UNROLL for (int i = 0; i < LANES; i++) {
                const int64_t k = done + i, at = by_tap ? k : k % s.taps * s.C + k / s.taps;
                put(panel + at * wide, rows[i]);
            }
        }
    for (int64_t c = 0; c < s.C; c++)
        for (int64_t t = 0; t < s.taps; t++) {
            const int64_t k = by_tap ? t * s.C + c : c * s.taps + t;
            if (k < done) continue;
            float* to = panel + (t * s.C + c) * wide;
            for (int64_t j = 0; j < LANES; j++) to[j] = j < lanes ? s.w[(n0 + j) * s.sn + c * s.sc + t * s.st] : 0.0f;
        }
}
static void pack(const Source& all, int64_t groups, float* out) {
    const int64_t N = all.N / groups, K = all.C * all.taps, vectors = (N + LANES - 1) / LANES;
    const int threads = threads_for(all.N * K);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < groups * vectors; task++) {
        const int64_t group = task / vectors, n = task % vectors * LANES, n0 = n / PANEL * PANEL;
        Source s = all;
        s.w += group * N * s.sn;
        const int64_t columns = N - n0 < PANEL ? N - n0 : PANEL, wide = Conv::width(columns);
        float* panel = out + group * Conv::packed_size(N, K) + n0 * K;
        pack_vector(s, n, N - n < LANES ? N - n : LANES, panel + (n - n0), wide);
    }
}
TC_EXPORT void run_pack(const int64_t* a) {  // w, out, N, C, taps, strides of the three, groups
    pack({(const float*)a[0], a[2], a[3], a[4], a[5], a[6], a[7]}, a[8], (float*)a[1]);
}
TC_EXPORT void packed_lanes(const int64_t* a) { *(int64_t*)a[0] = LANES; }

// ---- one channel a group: lanes along the channels, weights [tap][channel]
template <int KW, int S, bool INSIDE>
TC_INLINE void depthwise_line(const float* const* lines, const float* w, int64_t ldw, const Window& g, int64_t ox, int64_t count, V* acc) {
    constexpr int OUT = 4, SPAN = (OUT - 1) * S + KW;
    for (int64_t ky = 0; ky < g.KH; ky++) {
        if (!lines[ky]) continue;
        const float* line = lines[ky];
        V wv[KW];
        UNROLL for (int j = 0; j < KW; j++) wv[j] = load(w + (ky * KW + j) * ldw);
        const int64_t x0 = ox * S - g.pw;
        UNROLL for (int i = 0; i < SPAN; i++) {
            V xv = {};
            if (INSIDE || (uint64_t)(x0 + i) < (uint64_t)g.W) xv = load(line + (x0 + i) * g.C);
            UNROLL for (int o = 0; o < OUT; o++)
                if (i - o * S >= 0 && i - o * S < KW) acc[o] += xv * wv[i - o * S];
        }
    }
    (void)count;
}
template <int KW, int S> static void depthwise_row(const float* x, const float* w, int64_t ldw, const Window& g, int64_t b, int64_t oy, int64_t c,
                                                   int64_t lanes, float* out, int64_t m, const Epilogue& e) {
    const float* lines[16];
    for (int64_t ky = 0; ky < g.KH; ky++) {
        const int64_t y = oy * g.sh - g.ph + ky * g.dh;
        lines[ky] = (uint64_t)y < (uint64_t)g.H ? x + ((b * g.H + y) * g.W) * g.C + c : nullptr;
    }
    for (int64_t ox = 0; ox < g.OW; ox += 4) {
        const int64_t count = g.OW - ox < 4 ? g.OW - ox : 4, x0 = ox * S - g.pw;
        V acc[4] = {};
        if (x0 >= 0 && x0 + 3 * S + KW <= g.W) depthwise_line<KW, S, true>(lines, w, ldw, g, ox, count, acc);
        else depthwise_line<KW, S, false>(lines, w, ldw, g, ox, count, acc);
        for (int64_t o = 0; o < count; o++) {
            float line[LANES];
            put(line, acc[o]);
            e.row(line, out + (m + ox + o) * g.C + c, m + ox + o, c, lanes);
        }
    }
}
typedef void (*depthwise_function)(const float*, const float*, int64_t, const Window&, int64_t, int64_t, int64_t, int64_t, float*, int64_t,
                                   const Epilogue&);
static depthwise_function depthwise_of(const Window& g) {
    if (g.KW == 3) return g.sw == 1 ? depthwise_row<3, 1> : depthwise_row<3, 2>;
    if (g.KW == 5) return g.sw == 1 ? depthwise_row<5, 1> : depthwise_row<5, 2>;
    return g.sw == 1 ? depthwise_row<7, 1> : depthwise_row<7, 2>;
}
// Channels beyond whole vectors are done with the last whole vector again where there is one: C >= LANES.
TC_EXPORT void run_depthwise(const int64_t* a) {
    const Window g{a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18]};
    const Epilogue e{(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[22]};
    const float *x = (const float*)a[0], *w = (const float*)a[1];
    float* out = (float*)a[4];
    const depthwise_function row = depthwise_of(g);
    const int64_t vectors = (g.C + LANES - 1) / LANES;
    const int threads = threads_for(g.B * g.OH * g.OW * g.C * g.KH * g.KW);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t task = 0; task < g.B * g.OH; task++)
        for (int64_t v = 0; v < vectors; v++) {
            int64_t c = v * LANES;
            c = c + LANES <= g.C ? c : g.C - LANES;
            row(x, w + c, g.C, g, task / g.OH, task % g.OH, c, LANES, out, task * g.OW, e);
        }
}

// weights [C][taps] (contiguous) to [tap][channel]
TC_EXPORT void pack_depthwise(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t C = a[2], taps = a[3];
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < C; c++) out[t * C + c] = w[c * taps + t];
}

// ---- groups of 2, 4 or 8 channels in and out: a vector of channels holds LANES / c of them
template <int CG, int R>
static NOINLINE void narrow_block(const float* const* from, const float* w, int64_t taps, float* tile) {
    V acc[R] = {};
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    const I first = lane & -CG;
    for (int64_t t = 0; t < taps; t++, from += R) {
        V x[R];
        UNROLL for (int i = 0; i < R; i++) x[i] = load(from[i]);
        UNROLL for (int k = 0; k < CG; k++) {
            const V wv = load(w + (t * CG + k) * LANES);
            const I at = first + k;
            UNROLL for (int i = 0; i < R; i++) acc[i] += __builtin_shuffle(x[i], at) * wv;
        }
    }
    UNROLL for (int i = 0; i < R; i++) put(tile + i * LANES, acc[i]);
}
typedef void (*narrow_function)(const float* const*, const float*, int64_t, float*);
#define NARROW(CG) {narrow_block<CG, 1>, narrow_block<CG, 2>, narrow_block<CG, 3>, narrow_block<CG, 4>, narrow_block<CG, 5>, narrow_block<CG, 6>}
static const narrow_function NARROW_2[6] = NARROW(2), NARROW_4[6] = NARROW(4), NARROW_8[6] = NARROW(8);

// weights [C][cg][taps] (contiguous) to [vector][tap][k][lane]
TC_EXPORT void pack_narrow(const int64_t* a) {
    const float* w = (const float*)a[0];
    float* out = (float*)a[1];
    const int64_t C = a[2], cg = a[3], taps = a[4];
    for (int64_t v = 0; v < C / LANES; v++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t k = 0; k < cg; k++)
                for (int64_t l = 0; l < LANES; l++) *out++ = w[((v * LANES + l) * cg + k) * taps + t];
}
TC_EXPORT void run_narrow(const int64_t* a) {
    const Window g{a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18]};
    const Epilogue e{(const float*)a[2], (const float*)a[3], a[19], a[20], a[21], (const float*)a[23]};
    const int64_t cg = a[22], taps = g.KH * g.KW, vectors = g.C / LANES;
    const float *x = (const float*)a[0], *w = (const float*)a[1], *nothing = zeros(LANES);
    float* out = (float*)a[4];
    const narrow_function* by_rows = cg == 2 ? NARROW_2 : cg == 4 ? NARROW_4 : NARROW_8;
    const int threads = threads_for(g.B * g.OH * g.OW * g.C * taps * cg);
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
                by_rows[count - 1](from, w + v * taps * cg * LANES, taps, tile);
                for (int64_t i = 0; i < count; i++) {
                    const int64_t m = task * g.OW + ox + i;
                    e.row(tile + i * LANES, out + m * g.C + v * LANES, m, v * LANES, LANES);
                }
            }
        }
    }
}
