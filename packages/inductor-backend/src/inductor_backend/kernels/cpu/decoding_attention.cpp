// Attention of few queries: softmax(q @ k^T * scale + mask) @ v, keys and values read from memory once for the heads that share them.
//
// In: q [B,H,S,D] of floats, k [B,G,T,D] and v [B,G,T,E] of type WEIGHT with dense rows, where G divides H; mask [B,H,S,T] of any
// strides (0 where it is the same): bools, which add `hidden` where they are false, or floats, or null. Out: [B,H,S,E] of floats
// with dense rows. What always holds: a task has CHUNK keys of a head and leaves the greatest score, the sum and the products of
// its rows, which are joined in the order of the keys, so that the result is the same for any number of threads; keys that the
// mask hides with -infinity from all rows are not read, if a chunk has no others; a row without visible keys is NaN, or 0 where
// `empty` says so.
#include "prelude.h"
#define GROUP 48
#define CHUNK 256
#define NK_COLUMNS CHUNK
#include "row_blocks.h"
#include "softmax.h"

#define DEPTH 64  // values that a block adds while it holds its sums
#define INFINITE __builtin_inff()
enum Mask { NOTHING, BOOLS, FLOATS };

static thread_local Scratch scratch, of_parts;

struct Heads { int64_t batch, head, row; };

namespace {
struct Attention {
    const float* q;
    const WEIGHT *k, *v;
    const void* mask;
    float* out;
    int64_t kind, B, H, G, S, T, D, E;
    Heads of_q, of_k, of_v, of_out, of_mask;
    int64_t mask_step;
    float scale, hidden;
    bool causal, empty;

    int64_t rows() const { return H / G * S; }  // that share keys: query r % S of head r / S
    int64_t seen() const { return causal && S < T ? S : T; }
    int64_t chunks() const { return (seen() + CHUNK - 1) / CHUNK; }
    int64_t groups() const { return (rows() + GROUP - 1) / GROUP; }
    int64_t deep() const { return (D + LINE - 1) / LINE * LINE; }
    int64_t wide() const { return (E + LINE - 1) / LINE * LINE; }
    int64_t part_floats() const { return (rows() < GROUP ? rows() : GROUP) * (wide() + LINE); }
    int64_t place(const Heads& of, int64_t b, int64_t g, int64_t r) const {
        return b * of.batch + (g * (H / G) + r / S) * of.head + r % S * of.row;
    }

    // [part of a line][row][LANES], in the order in which `part` widens a line
    void pack(const float* const* from, int64_t rows, float* to) const {
        WEIGHT places[LINE];
        for (int i = 0; i < LINE; i++) tc_store(places, i, (float)i);
        for (int64_t d = 0; d < D; d += LINE, to += rows * LINE)
            UNROLL for (int p = 0; p < PARTS; p++) {
                const V at = part(places, p);
                for (int64_t i = 0; i < rows; i++)
                    for (int lane = 0; lane < LANES; lane++) {
                        const int64_t element = d + (int64_t)at[lane];
                        to[(p * rows + i) * LANES + lane] = element < D ? from[i][element] : 0.0f;
                    }
            }
    }
    // What is added to the scores of a row for keys [t, t + count). Whether one of them is not -infinity.
    bool added(int64_t place, int64_t t, int64_t count, float* to) const {
        bool visible = false;
        if (kind == BOOLS) {
            const bool* from = (const bool*)mask + place + t * mask_step;
            if (mask_step == 1)
                for (int64_t i = 0; i < count; i++) to[i] = from[i] ? 0.0f : hidden;
            else
                for (int64_t i = 0; i < count; i++) to[i] = from[i * mask_step] ? 0.0f : hidden;
        } else {
            const float* from = (const float*)mask + place + t * mask_step;
            for (int64_t i = 0; i < count; i++) to[i] = from[i * mask_step];
        }
        for (int64_t i = 0; i < count; i++) visible |= to[i] != -INFINITE;
        return visible;
    }

    // keys [t, t + count) for rows [first, first + rows) of head g: sums of products, and each row's greatest score and sum
    void chunk(int64_t b, int64_t g, int64_t first, int64_t rows, int64_t t, int64_t count, float* memory, float* result) const {
        const int64_t deep = this->deep(), wide = this->wide();
        float *packed = memory, *scores = packed + GROUP * deep, *weights = scores + GROUP * CHUNK, *lines = weights + GROUP * CHUNK;
        float *greatest = result + rows * wide, *sums = greatest + rows;
        const float *from[GROUP], *masks[GROUP];
        bool visible = kind == NOTHING;
        int64_t before = -1, line = -1;
        for (int64_t i = 0; i < rows; i++) {
            from[i] = q + place(of_q, b, g, first + i);
            const int64_t of_row = place(of_mask, b, g, first + i);
            if (kind != NOTHING && of_row != before) visible |= added(before = of_row, t, count, lines + ++line * CHUNK);
            masks[i] = kind == NOTHING ? nullptr : lines + line * CHUNK;
        }
        memset(result, 0, rows * wide * 4);
        if (!visible) {
            for (int64_t i = 0; i < rows; i++) greatest[i] = -INFINITE, sums[i] = 0.0f;
            return;
        }
        const Cut cut(rows, MOST);
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) pack(from + m, cut.at(i), packed + m * deep);
        const WEIGHT* keys = k + b * of_k.batch + g * of_k.head + t * of_k.row;
        for (int64_t n = 0, now; n < count; n += now) {
            now = n + 4 <= count ? 4 : 1;
            const bool more = n + 8 <= count;
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
                (now == 4 ? FOUR : ONE)[PLAIN][cut.at(i) - 1](packed + m * deep, keys + n * of_k.row, of_k.row, D, scores + m * CHUNK + n,
                                                       keys + (n + 4) * of_k.row, more && i == 0 ? 4 : 0, nullptr);
        }
        for (int64_t i = 0; i < rows; i++) {
            const int64_t query = (first + i) % S, own = causal && query + 1 - t < count ? query + 1 - t : count;
            float* row = scores + i * CHUNK;
            greatest[i] = -INFINITE, sums[i] = 0.0f;
            if (own > 0) sums[i] = softmax(row, own, scale, masks[i], masks[i] != nullptr, true, greatest + i);
            for (int64_t n = own > 0 ? own : 0; n < count; n++) row[n] = 0.0f;
        }
        for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++)
            for (int64_t n = 0; n < count; n++)
                for (int64_t j = 0; j < cut.at(i); j++) weights[m * CHUNK + n * cut.at(i) + j] = scores[(m + j) * CHUNK + n];
        const int64_t whole = E / LINE * LINE;
        const WEIGHT* values = v + b * of_v.batch + g * of_v.head + t * of_v.row;
        WEIGHT last[DEPTH * LINE] = {};
        for (int64_t n = 0; n < count; n += DEPTH) {
            const int64_t depth = count - n < DEPTH ? count - n : DEPTH;
            const WEIGHT* here = values + n * of_v.row;
            if (whole < E)
                for (int64_t j = 0; j < depth; j++) memcpy(last + j * LINE, here + j * of_v.row + whole, (E - whole) * sizeof(WEIGHT));
            for (int64_t i = 0, m = 0; i < cut.count; m += cut.at(i), i++) {
                const float* shares = weights + m * CHUNK + n * cut.at(i);
                LINES[cut.at(i) - 1](shares, here, of_v.row, depth, whole, result + m * wide, wide, false);
                if (whole < E) LINES[cut.at(i) - 1](shares, last, LINE, depth, LINE, result + m * wide + whole, wide, false);
            }
        }
    }

    // row i of `rows` of a head, of whose parts this is the first
    void join(const float* parts, int64_t i, int64_t rows, float* line, float* to) const {
        const int64_t wide = this->wide(), count = chunks();
        float most = -INFINITE, sum = 0.0f;
        for (int64_t c = 0; c < count; c++) {
            const float greatest = parts[c * part_floats() + rows * wide + i];
            most = greatest > most ? greatest : most;
        }
        const float from = most == -INFINITE ? 0.0f : most;
        memset(line, 0, wide * 4);
        for (int64_t c = 0; c < count; c++) {
            const float *part = parts + c * part_floats(), *numbers = part + rows * wide, found = numbers[i];
            const float weight = tc_exp((found == -INFINITE ? 0.0f : found) - from);
            if (found == -INFINITE && numbers[rows + i] == 0.0f) continue;
            sum += weight * numbers[rows + i];
            for (int64_t e = 0; e < wide; e++) line[e] += weight * part[i * wide + e];
        }
        const float factor = empty && sum == 0.0f ? 0.0f : 1.0f / sum;
        for (int64_t e = 0; e < wide; e += 2 * LANES) {
            V low = load(line + e), high = load(line + e + LANES);
            in_order(k, low, high);
            put(line + e, low * factor);
            put(line + e + LANES, high * factor);
        }
        memcpy(to, line, E * 4);
    }

    void run() const {
        const int64_t tasks = B * G * groups() * chunks(), size = part_floats();
        float* const parts = of_parts.get(tasks * size);
        const auto rows_of = [&](int64_t group) { return rows() - group * GROUP < GROUP ? rows() - group * GROUP : GROUP; };
        share_out(tasks, threads_for(B * H * S * seen() * (D + E)), [&](int64_t task) {
            const int64_t c = task % chunks(), group = task / chunks() % groups(), head = task / chunks() / groups();
            const int64_t t = c * CHUNK, count = seen() - t < CHUNK ? seen() - t : CHUNK;
            float* memory = scratch.get(GROUP * (deep() + 3 * CHUNK));
            chunk(head / G, head % G, group * GROUP, rows_of(group), t, count, memory, parts + task * size);
        });
        share_out(B * G * groups(), threads_for(B * H * S * chunks() * wide()), [&](int64_t task) {
            const int64_t group = task % groups(), head = task / groups(), first = group * GROUP;
            float* line = scratch.get(wide());
            for (int64_t i = 0; i < rows_of(group); i++)
                join(parts + task * chunks() * size, i, rows_of(group), line, out + place(of_out, head / G, head % G, first + i));
        });
    }
};
}

static float as_float(int64_t bits) {
    const int32_t low = (int32_t)bits;
    float result;
    memcpy(&result, &low, 4);
    return result;
}

// q, k, v, mask, out; the mask's kind; B, H, G, S, T, D, E; strides (batch, head, row) of q, k, v, out, of mask (and from key to
// key); scale and hidden (a float's bits), causal, empty
EXPORT void RUN(const int64_t* a) {
    const auto strides = [&](int64_t at) { return Heads{a[at], a[at + 1], a[at + 2]}; };
    const Attention call{
        (const float*)a[0], (const WEIGHT*)a[1], (const WEIGHT*)a[2], (const void*)a[3], (float*)a[4], a[5], a[6], a[7], a[8], a[9],
        a[10], a[11], a[12], strides(13), strides(16), strides(19), strides(22), strides(25), a[28], as_float(a[29]), as_float(a[30]),
        (bool)a[31], (bool)a[32]};
    if (call.B * call.H * call.S * call.E != 0) call.run();
}
