// Large matmuls of float32 in tiles of bfloat16 (AMX): epilogue(a @ b + bias) + residual, as blocked.cpp computes it.
//
// A float is the sum of three bfloat16 (8 + 8 + 8 bits), exactly. Of the nine products of two floats' parts, six are summed in
// float32: the other three are below 2^-25 of a term. A tile multiplies as fast as sixteen vectors of floats, so that six
// products take less than half of the time of one, and errors are below those of the usual sums (docs/lab/cpu_kernels.md).
//
// Tiles flush denormals, and parts of an infinity would be NaN. While operands are packed, the largest value of each line is
// seen; where one of these is not finite, or so small that what is flushed might show, `multiply_in_tiles` returns false, and
// its caller computes the product with floats.
#include "tiles.h"

#if LANES == 16 && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <cpuid.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINES 32                // rows of `a` and columns of b in a block: two tiles of 16 each
#define STEP 32                 // products of a tile's element
#define TILE 1024               // bytes
#define PART (2 * TILE)         // one of the three parts of a block of STEP
#define PIECE (3 * PART)        // all of them
#define MAX_STEPS 24            // of a sum before it joins others
#define PANELS 3                // of NC columns of b, packed, stay in L2 (0.9 MB) while the rows of `a` pass
#define PANELS_AHEAD 2          // of a b that was packed before: the next ones come in meanwhile. One, where `a` stays in L2 itself,
#define IN_L2 (1 << 20)         // in so many bytes
#define PACKED_BYTES (12 << 20) // of `a` at once, in the last-level cache
#define MAX_BLOCKS 16           // are packed side by side
#define HUGE_PAGE (2 << 20)
// exponents: of the two largest values of lines, which are multiplied, at least and at most; of numbers that have none above
#define BIAS 127
#define SMALLEST (BIAS - 86)
#define LARGEST (BIAS + 120)
#define NOT_FINITE 254

// tiles 0 to 3: sums, of rows 4, 5 and columns 6, 7
#define LOAD(tile, from) asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"((int64_t)64) : "memory")
#define STORE(tile, to) asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(NC * 4)) : "memory")
#define ZERO(tile) asm volatile("tilezero %tmm" #tile)
#define ADD_PRODUCT(sum, a, b) asm volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #sum)
#define ADD_PRODUCTS ADD_PRODUCT(0, 4, 6); ADD_PRODUCT(1, 4, 7); ADD_PRODUCT(2, 5, 6); ADD_PRODUCT(3, 5, 7)
#define ROWS_OF_A(part) LOAD(4, a + part * PART); LOAD(5, a + part * PART + TILE)
#define COLUMNS_OF_B(part) LOAD(6, b + part * PART); LOAD(7, b + part * PART + TILE)

// Tiles of 16 rows of 64 bytes in this thread. Another library's are put back, which may rely on them in later calls.
namespace {
struct Configured {
    alignas(64) uint8_t before[64], ours[64] = {1};
    Configured() {
        asm volatile("sttilecfg %0" : "=m"(before));
        for (int i = 0; i < 8; i++) ours[16 + 2 * i] = 64, ours[48 + i] = 16;
        asm volatile("ldtilecfg %0" : : "m"(ours));
    }
    ~Configured() {
        if (before[0]) asm volatile("ldtilecfg %0" : : "m"(before));
        else asm volatile("tilerelease");
    }
};
}
// The largest exponent of the lines' largest values, and the least one of lines that are not zero.
namespace {
struct Range {
    int32_t most = 0, least = 255;
    void add(int32_t bits) {
        const int32_t exponent = bits >> 23;
        if (bits && exponent < least) least = exponent;
        if (exponent > most) most = exponent;
    }
    void add(const Range& other) {
        if (other.most > most) most = other.most;
        if (other.least < least) least = other.least;
    }
};
}

static bool find_tiles() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
}
static bool has_tiles() {
    static const bool result = find_tiles();
    return result;
}

INLINE I larger(I a, I b) { return a > b ? a : b; }
INLINE I magnitude(V v) { return (I)v & 0x7fffffff; }
// two floats' bfloat16 side by side
INLINE I pair(V first, V second) {
    typedef int16_t W __attribute__((vector_size(64)));
    W both;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(second), "v"(first));
    W order;
    for (int i = 0; i < 32; i++) order[i] = i / 2 + i % 2 * 16;
    return (I)__builtin_shuffle(both, order);
}
// the three parts of 16 pairs of floats, in row `row` of three tiles
INLINE void split(V first, V second, V (*parts)[16], int row) {
    UNROLL for (int part = 0; part < 3; part++) {
        const I both = pair(first, second);
        parts[part][row] = (V)both;
        first -= (V)(both << 16);
        second -= (V)(both & (int32_t)0xffff0000);
    }
}

// Packs one piece (STEP products, `count` of which exist) of 16 lines (a row of `a`, a column of b), `lines` of which exist, as the
// first of two tiles of each part. by_lines: a tile's rows are lines (else pairs of products). Element k of a tile's row is products
// k / 2 and k / 2 + 16. most: of each line, its largest value's bits.
static NOINLINE void pack(const float* from, int64_t line, int64_t next, int64_t lines, int64_t count, bool by_lines, char* to, I& most) {
    V parts[3][16];
    const bool whole = lines >= 16 && count >= STEP, rows = !whole || next == 1;
    if (!rows) {
        UNROLL for (int i = 0; i < 16; i++) {
            const V first = load(from + i * next), second = load(from + (i + 16) * next);
            most = larger(most, larger(magnitude(first), magnitude(second)));
            split(first, second, parts, i);
        }
    } else {
        alignas(64) float some[16][STEP];
        V along[16];
        if (!whole)
            for (int i = 0; i < 16; i++)
                for (int j = 0; j < STEP; j++) some[i][j] = i < lines && j < count ? from[i * line + j * next] : 0.0f;
        UNROLL for (int i = 0; i < 16; i++) {
            const float* at = whole ? from + i * line : some[i];
            const V first = load(at), second = load(at + 16);
            along[i] = (V)larger(magnitude(first), magnitude(second));
            split(first, second, parts, i);
        }
        transpose(along);
        UNROLL for (int i = 0; i < 16; i++) most = larger(most, (I)along[i]);
    }
    for (int part = 0; part < 3; part++) {
        if (rows != by_lines) transpose(parts[part]);
        UNROLL for (int i = 0; i < 16; i++) put((float*)(to + part * PART + i * 64), parts[part][i]);
    }
}
// Packs lines by blocks of LINES, `size` bytes each. Of lines side by side in memory, piece after piece: rows of memory are read on.
static void pack_lines(const float* from, int64_t line, int64_t next, int64_t lines, int64_t count, bool by_lines, char* to, int64_t size, Range& range) {
    I most[MAX_BLOCKS][2] = {};
    for (int64_t first = 0; first < lines; first += MAX_BLOCKS * LINES, to += MAX_BLOCKS * size) {
        const int64_t blocks = ((lines - first < MAX_BLOCKS * LINES ? lines - first : MAX_BLOCKS * LINES) + LINES - 1) / LINES, pieces = (count + STEP - 1) / STEP;
        for (int64_t task = 0; task < blocks * pieces; task++) {
            const int64_t b = next == 1 ? task / pieces : task % blocks, k = next == 1 ? task % pieces : task / blocks;
            for (int64_t i = 0; i < 2; i++) {
                const int64_t l = first + b * LINES + 16 * i;
                pack(from + l * line + k * STEP * next, line, next, lines - l, count - k * STEP, by_lines, to + b * size + k * PIECE + i * TILE, most[b][i]);
            }
        }
        for (int64_t b = 0; b < blocks; b++)
            for (int i = 0; i < LINES; i++) range.add(most[b][i / 16][i % 16]), most[b][i / 16][i % 16] = 0;
    }
}

// LINES rows times LINES columns of `steps` pieces. ahead: what is fetched into L2 meanwhile, so many lines of the cache a piece.
static NOINLINE void block(const char* a, const char* b, int64_t steps, float* c, const char* ahead, int64_t lines) {
    ZERO(0); ZERO(1); ZERO(2); ZERO(3);
    for (int64_t i = 0; i < steps; i++, a += PIECE, b += PIECE) {
        for (int64_t j = 0; j < lines; j++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        ROWS_OF_A(0); COLUMNS_OF_B(2); ADD_PRODUCTS;
        COLUMNS_OF_B(1); ADD_PRODUCTS;
        ROWS_OF_A(1); ADD_PRODUCTS;
        COLUMNS_OF_B(0); ADD_PRODUCTS;
        ROWS_OF_A(2); ADD_PRODUCTS;
        ROWS_OF_A(0); ADD_PRODUCTS;
    }
    STORE(0, c); STORE(1, c + 16); STORE(2, c + 16 * NC); STORE(3, c + 16 * NC + 16);
}

// add: to what is there; last: bias, activation and residual come, too
static void store(const Rows& out, float* sums, int64_t m, int64_t rows, int64_t n, int64_t columns, bool add, bool last) {
    for (int64_t r = 0; r < rows && (add || !last); r++) {
        float *line = sums + r * NC, *to = out.out + (m + r) * out.ldo + n;
        if (add)
            for (int64_t j = 0; j < columns; j++) line[j] += to[j];
        if (!last) memcpy(to, line, columns * 4);
    }
    if (last) store_rows(&out, sums, m, rows, n, columns);
}

// Memory in huge pages, where the system has them: with others a third of the time went into finding pages.
namespace {
struct Pages {
    char* data = nullptr;
    size_t size = 0;
    ~Pages() { free(data); }
    char* get(size_t bytes) {
        if (bytes > size) {
            free(data);
            bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
            data = (char*)aligned_alloc(HUGE_PAGE, bytes);
            size = data ? bytes : 0;
            if (data) madvise(data, bytes, MADV_HUGEPAGE);
        }
        return data;
    }
};
}
static thread_local Pages packed_a, packed_b;

// The parts of all of b, by pieces of its depth and blocks of LINES columns, after its Range.
static const char* block_of_b(const char* packed, const Cut& depths, int64_t d, int64_t N, int64_t n) {
    return packed + TILE + (depths.from(d) * ((N + LINES - 1) / LINES) + n / LINES * depths.at(d)) * PIECE;
}
static Cut depths_of(int64_t K) { return Cut((K + STEP - 1) / STEP, MAX_STEPS); }

void pack_for_tiles(const Side& b, int64_t N, int64_t K, char* packed) {
    Range range;
    if (!has_tiles()) range.most = NOT_FINITE;
    const Cut depths = depths_of(K);
    for (int64_t d = 0; d < depths.count && has_tiles(); d++) {
        const int64_t deep = depths.at(d), k0 = depths.from(d) * STEP, count = K - k0 < deep * STEP ? K - k0 : deep * STEP;
        pack_lines(b.data + k0 * b.rows, b.columns, b.rows, N, count, false, (char*)block_of_b(packed, depths, d, N, 0), deep * PIECE, range);
    }
    memcpy(packed, &range, sizeof range);
}

bool multiply_in_tiles(const Side& a, const Side& b, int64_t M, int64_t N, int64_t K, const Rows& out, const char* packed) {
    if (packed ? !has_tiles() : K < TILED_DEPTH || M * N < TILED_SIDE * (M + N) || !has_tiles()) return false;
    const int threads = threads_for(M * N * K);
    const Cut depths = depths_of(K), steps((M + LINES - 1) / LINES, PACKED_BYTES / PIECE / depths.at(0));
    const int64_t panels = (N + NC - 1) / NC, share = (panels + threads - 1) / threads, fit = !packed ? PANELS : M * depths.at(0) * PIECE / LINES > IN_L2 ? PANELS_AHEAD : 1,
                  most = share < fit ? share : fit;
    const Cut strips(panels, most);
    const int64_t wanted = threads > 1 ? (2 * threads + strips.count - 1) / strips.count : 1;
    char* memory = packed_a.get((size_t)(steps.at(0) * depths.at(0) * PIECE));
    if (!memory) return false;
    Range of_a, of_b;
    if (packed) memcpy(&of_b, packed, sizeof of_b);
    for (int64_t at = 0; at < steps.count * depths.count; at++) {
        const int64_t s = at / depths.count, d = at % depths.count, blocks = steps.at(s), m0 = steps.from(s) * LINES, deep = depths.at(d), size = deep * PIECE;
        const int64_t k0 = depths.from(d) * STEP, count = K - k0 < deep * STEP ? K - k0 : deep * STEP;
        const Cut parts(blocks, (blocks + wanted - 1) / wanted), together(blocks, MAX_BLOCKS);
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            const Configured tiles;
            char* scratch = packed ? nullptr : packed_b.get((size_t)(most * NC / LINES * size));
            Range mine_a, mine_b;
#pragma omp for schedule(static)
            for (int64_t i = 0; i < together.count; i++) {
                const int64_t first = together.from(i), m = m0 + first * LINES, lines = together.at(i) * LINES;
                pack_lines(a.data + m * a.rows + k0 * a.columns, a.rows, a.columns, M - m < lines ? M - m : lines, count, true, memory + first * size, size, mine_a);
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t task = 0; task < strips.count * parts.count; task++) {
                const int64_t n = task / parts.count, part = task % parts.count, n0 = strips.from(n) * NC, wide = strips.at(n) * NC;
                const int64_t columns = N - n0 < wide ? N - n0 : wide;
                const char* strip = packed ? block_of_b(packed, depths, d, N, n0) : scratch;
                if (!packed) pack_lines(b.data + n0 * b.columns + k0 * b.rows, b.columns, b.rows, columns, count, false, scratch, size, mine_b);
                const int64_t lines = packed ? (PIECE / 64 + parts.at(part) - 1) / parts.at(part) : 0;
                const char* ahead = strip + (columns + LINES - 1) / LINES * size;
                for (int64_t i = parts.from(part); i < parts.from(part) + parts.at(part); i++) {
                    const int64_t m = m0 + i * LINES, rows = M - m < LINES ? M - m : LINES;
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t j = 0; j < columns; j += LANES) __builtin_prefetch(out.out + (m + r) * out.ldo + n0 + j, 1, 2);
                    for (int64_t j = 0; j < columns; j += NC) {
                        alignas(64) float sums[LINES * NC];
                        for (int64_t q = 0; q < NC && j + q < columns; q += LINES) {
                            block(memory + i * size, strip + (j + q) / LINES * size, deep, sums + q, ahead, lines);
                            ahead += deep * lines * 64;
                        }
                        store(out, sums, m, rows, n0 + j, columns - j < NC ? columns - j : NC, d != 0, d + 1 == depths.count);
                    }
                }
            }
#pragma omp critical(tiles_range)
            of_a.add(mine_a), of_b.add(mine_b);
        }
    }
    return of_a.most < NOT_FINITE && of_b.most < NOT_FINITE && of_a.most + of_b.most - BIAS <= LARGEST && of_a.least + of_b.least - BIAS >= SMALLEST;
}
#else
void pack_for_tiles(const Side&, int64_t, int64_t, char*) {}
bool multiply_in_tiles(const Side&, const Side&, int64_t, int64_t, int64_t, const Rows&, const char*) { return false; }
#endif
