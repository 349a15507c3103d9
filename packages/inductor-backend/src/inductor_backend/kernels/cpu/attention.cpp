// Attention of a few hundred keys: softmax(q @ k^T * scale + mask) @ v, a head at a time, by one thread where heads are enough.
//
// In: q [B,H,S,D], k [B,H,T,D], v [B,H,T,E] with dense rows, mask [B,H,S,T] of any strides (0 where it is the same) or null.
// Out: [B,H,S,E] with dense rows. What always holds: the scores of a block of rows stay in the thread's cache; sums over T are
// sums of at most 128 products before they join; a row whose scores are all -infinity is NaN, or 0 where `empty` says so.
#include "prelude.h"
#include "softmax.h"

#define WIDE (NB * LANES)  // columns of a panel
#define BLOCK_ROWS (8 * MB)
#define DEEP 128

// R rows of a times C vectors of a panel (rows WIDE apart): c = (add ? c : 0) + a @ b, times a factor a row at the end
template <int R, int C>
static NOINLINE void block(const float* a, int64_t lda, const float* b, int64_t K, float* c, int64_t ldc, bool add, const float* factor) {
    V acc[R][C] = {};
    for (int64_t k = 0; k < K; k++)
        add_products(acc, [&](int i) { return same(a[i * lda + k]); }, [&](int j) { return load(b + k * WIDE + j * LANES); });
    UNROLL for (int i = 0; i < R; i++) {
        const V f = same(factor ? factor[i] : 1.0f);
        UNROLL for (int j = 0; j < C; j++) {
            float* p = c + i * ldc + j * LANES;
            V v = add ? load(p) + acc[i][j] : acc[i][j];
            put(p, factor ? v * f : v);
        }
    }
}
typedef void (*block_function)(const float*, int64_t, const float*, int64_t, float*, int64_t, bool, const float*);
#define BY_ROWS(C) {block<1, C>, block<2, C>, block<3, C>, block<4, C>, block<5, C>, block<6, C>}
#if NB == 4
static const block_function BLOCK[NB][MB] = {BY_ROWS(1), BY_ROWS(2), BY_ROWS(3), BY_ROWS(4)};
#else
static const block_function BLOCK[NB][MB] = {BY_ROWS(1), BY_ROWS(2)};
#endif

// rows [rows, K] times panels of `columns` columns, panels `apart` floats from each other
static void product(const float* a, int64_t lda, const float* panels, int64_t apart, int64_t rows, int64_t columns, int64_t K, float* c,
                    int64_t ldc, const float* factor) {
    const Cut cut(rows, MB);
    for (int64_t n = 0; n < columns; n += WIDE) {
        const int64_t left = columns - n, vectors = left >= WIDE ? NB : (left + LANES - 1) / LANES;
        for (int64_t k = 0; k < K; k += DEEP) {
            const int64_t kc = K - k < DEEP ? K - k : DEEP;
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
                BLOCK[vectors - 1][cut.at(i) - 1](a + m * lda + k, lda, panels + n / WIDE * apart + k * WIDE, kc, c + m * ldc + n, ldc,
                                                  k != 0, factor && k + kc == K ? factor + m : nullptr);
        }
    }
}

// [T] rows of D values to panels[T / WIDE][D][WIDE], zeros after the last row
static void turned(const float* k, int64_t row, int64_t T, int64_t D, float* panels) {
    const int64_t whole = (T + LANES - 1) / LANES * LANES;
    for (int64_t t = 0; t < whole; t += LANES) {
        float* to = panels + t / WIDE * D * WIDE + t % WIDE;
        const float* from = k + t * row;
        int64_t d = 0;
        if (t + LANES <= T)
            for (; d + LANES <= D; d += LANES) {
                V v[LANES];
                UNROLL for (int i = 0; i < LANES; i++) v[i] = load(from + i * row + d);
                transpose(v);
                UNROLL for (int i = 0; i < LANES; i++) put(to + (d + i) * WIDE, v[i]);
            }
        for (; d < D; d++)
            for (int64_t i = 0; i < LANES; i++) to[d * WIDE + i] = t + i < T ? from[i * row + d] : 0.0f;
    }
}
// [T] rows of E values, of which these, to panels[E / WIDE][T][WIDE], zeros up to a whole vector
static void copied(const float* v, int64_t row, int64_t first, int64_t end, int64_t T, int64_t E, float* panels) {
    for (int64_t e = 0; e < E; e += WIDE) {
        const int64_t count = E - e < WIDE ? E - e : WIDE, whole = (count + LANES - 1) / LANES * LANES;
        for (int64_t t = first; t < end; t++) {
            float* to = panels + e * T + t * WIDE;
            memcpy(to, v + t * row + e, count * 4);
            for (int64_t i = count; i < whole; i++) to[i] = 0.0f;
        }
    }
}

struct Heads { const float* data; int64_t batch, head, row; };
INLINE int64_t whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

static thread_local Scratch scratch, of_heads;

// Where threads share heads, keys and values are prepared first, so many keys a task, if they are no more floats than that.
#define SHARED_KEYS (4 * WIDE)
#define SHARED_FLOATS (8 << 20)

// q, k, v, mask, out; B, H, S, T, D, E; strides (batch, head, row) of q, k, v, out; of mask (and from key to key);
// scale (a float's bits), causal, empty
EXPORT void run_attention(const int64_t* a) {
    const int64_t B = a[5], H = a[6], S = a[7], T = a[8], D = a[9], E = a[10];
    const Heads q{(const float*)a[0], a[11], a[12], a[13]}, k{(const float*)a[1], a[14], a[15], a[16]}, v{(const float*)a[2], a[17], a[18], a[19]};
    const Heads mask{(const float*)a[3], a[23], a[24], a[25]};
    float* const result = (float*)a[4];
    const int64_t ob = a[20], oh = a[21], orow = a[22], mt = a[26];
    const int32_t bits = (int32_t)a[27];
    float scale;
    memcpy(&scale, &bits, 4);
    const bool causal = a[28], empty = a[29];
    if (B * H * S * E == 0) return;
    const int64_t keys = whole(T, WIDE), columns = whole(E, WIDE);
    const int threads = threads_for(B * H * S * T * (D + E));
    // heads are shared where there are too few for all threads; else each task turns the keys of its head
    int64_t parts = B * H < 2 * threads && threads > 1 ? (2 * threads + B * H - 1) / (B * H) : 1;
    const int64_t size = keys * D + columns * T, pieces = (T + SHARED_KEYS - 1) / SHARED_KEYS;
    float* const shared = parts > 1 && B * H * size <= SHARED_FLOATS ? of_heads.get(B * H * size) : nullptr;
    const int64_t share = shared ? rows_of_task(S, BLOCK_ROWS, B * H, threads) : whole((S + parts - 1) / parts, BLOCK_ROWS);
    parts = (S + share - 1) / share;
    const auto prepare = [&](int64_t head, int64_t first, int64_t end, float* turned_k) {
        const int64_t b = head / H, h = head % H;
        turned(k.data + b * k.batch + h * k.head + first * k.row, k.row, end - first, D, turned_k + first * D);
        copied(v.data + b * v.batch + h * v.head, v.row, first, end, T, E, turned_k + keys * D);
    };
    if (shared) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < B * H * pieces; i++) {
            const int64_t first = i % pieces * SHARED_KEYS;
            prepare(i / pieces, first, T - first < SHARED_KEYS ? T : first + SHARED_KEYS, shared + i / pieces * size);
        }
    }
    share_out(B * H * parts, threads, [&](int64_t task) {
        float* memory = scratch.get((shared ? 0 : size) + BLOCK_ROWS * (keys + columns) + keys);
        const int64_t head = task / parts, b = head / H, h = head % H;
        const int64_t first = task % parts * share, end = S - first < share ? S : first + share;
        float *turned_k = shared ? shared + head * size : memory, *copied_v = turned_k + keys * D, *scores = memory + (shared ? 0 : size);
        float *tile = scores + BLOCK_ROWS * keys, *line = tile + BLOCK_ROWS * columns;
        if (!shared) prepare(head, 0, T, turned_k);
        const float* qs = q.data + b * q.batch + h * q.head;
        const float* masks = mask.data ? mask.data + b * mask.batch + h * mask.head : nullptr;
        float* out = result + b * ob + h * oh;
        for (int64_t s = first; s < end; s += BLOCK_ROWS) {
            const int64_t rows = end - s < BLOCK_ROWS ? end - s : BLOCK_ROWS;
            const int64_t seen = causal && s + rows < T ? s + rows : T;  // keys that one of these rows sees
            float factor[BLOCK_ROWS];
            product(qs + s * q.row, q.row, turned_k, D * WIDE, rows, seen, D, scores, keys, nullptr);
            for (int64_t i = 0; i < rows; i++) {
                float* row = scores + i * keys;
                const int64_t own = causal && s + i + 1 < seen ? s + i + 1 : seen;
                const float* added = masks ? masks + (s + i) * mask.row : nullptr;
                if (added && mt != 1) {
                    for (int64_t t = 0; t < own; t++) line[t] = added[t * mt];
                    added = line;
                }
                const float sum = softmax(row, own, scale, added, added != nullptr, empty);
                factor[i] = empty && sum == 0.0f ? 0.0f : 1.0f / sum;
                for (int64_t t = own; t < seen; t++) row[t] = 0.0f;
            }
            if (E % LANES == 0) {
                product(scores, keys, copied_v, T * WIDE, rows, E, seen, out + s * orow, orow, factor);
                continue;
            }
            product(scores, keys, copied_v, T * WIDE, rows, E, seen, tile, columns, factor);
            for (int64_t i = 0; i < rows; i++) memcpy(out + (s + i) * orow, tile + i * columns, E * 4);
        }
    });
}
