// What the kernels of this folder are written with: vectors of the processor's width, blocks of rows, scratch memory.
//
// Every file here is a translation unit of its own, built when the first graph needs it (kernels/native.py says which
// kernels it belongs to). This header and tensors.h include nothing heavy: a unit costs the compiler what its loops cost.
// Units of all families may be linked into one library, so a name that is neither HIDDEN nor EXPORT is the unit's own: functions
// are static, and structs with functions stand in a namespace without a name (the linker keeps one of equal names).
#pragma once
#include <cstdint>
#include <cstring>

#ifndef LANES
#error "LANES: floats in a vector, from kernels/native.py, which sizes packed weights by it"
#endif
#if LANES == 16 || defined(__aarch64__)
#define REGISTERS 32
#define NB 4        // vectors of a block
#define ROWS_OF(vectors) ((vectors) > 2 ? 6 : 12)
#else
#define REGISTERS 16
#define NB 2
#define ROWS_OF(vectors) ((vectors) > 2 ? 12 / (vectors) : (vectors) == 2 ? 6 : 12)
#endif
#define MB 6             // rows of a block of NB vectors: as many sums as registers hold beside the operands
#define PANEL_VECTORS 4  // vectors of a panel, of which a block takes NB at once
#define KC (2048 / LANES)  // rows of a panel: 32 KB of PANEL_VECTORS vectors (measured with AVX2: 1.5 % over half of that)
#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 32")

typedef float V __attribute__((vector_size(LANES * 4)));
typedef float VU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(LANES * 4)));

INLINE V load(const float* p) { return *(const VU*)p; }
INLINE void put(float* p, V v) { *(VU*)p = v; }
// the first `count` of LANES; nothing after them is touched
#if defined(__AVX512F__) && LANES == 16
INLINE V load_some(const float* p, int64_t count) { return __builtin_ia32_loadups512_mask(p, V{}, (uint16_t)((1u << count) - 1)); }
INLINE void put_some(float* p, V v, int64_t count) { __builtin_ia32_storeups512_mask(p, v, (uint16_t)((1u << count) - 1)); }
#else
INLINE V load_some(const float* p, int64_t count) {
    V v = {};
    memcpy(&v, p, count * 4);
    return v;
}
INLINE void put_some(float* p, V v, int64_t count) { memcpy(p, &v, count * 4); }
#endif
INLINE V same(float v) { return v - V{}; }
// The value stays in a register from here on: left to itself GCC loads operands again for every multiplication, and
// then the two loads a multiplication bound the speed (measured: 45 GFLOP/s instead of 100 on one core).
#if defined(__AVX512F__)
#define KEEP(value) asm("" : "+v"(value))
#elif defined(__x86_64__)
#define KEEP(value) asm("" : "+x"(value))
#elif defined(__aarch64__)
#define KEEP(value) asm("" : "+w"(value))
#else
#define KEEP(value)
#endif

// acc[i][j] += row(i) * column(j). The columns stay in registers while the rows pass, or the other way round where the sums
// leave no room for that (16 registers hold 3 x 4 sums, 3 rows and 1 column; measured with AVX2: 34 GFLOP/s, then 56 on one core).
// 6 x 2 sums read less of a panel that lies in L2 than 3 x 4 (measured with AVX2: 100 and 94 GFLOP/s on one core).
template <class T, int R, int C, class Row, class Column> INLINE void add_products(T (&acc)[R][C], Row row, Column column) {
    T kept[R > C ? R : C];
    if (R * C + C + 1 <= REGISTERS) {
        UNROLL for (int j = 0; j < C; j++) {
            kept[j] = column(j);
            KEEP(kept[j]);
        }
        UNROLL for (int i = 0; i < R; i++) {
            T one = row(i);
            KEEP(one);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] += one * kept[j];
        }
        return;
    }
    UNROLL for (int i = 0; i < R; i++) {
        kept[i] = row(i);
        KEEP(kept[i]);
    }
    UNROLL for (int j = 0; j < C; j++) {
        T one = column(j);
        KEEP(one);
        UNROLL for (int i = 0; i < R; i++) acc[i][j] += kept[i] * one;
    }
}

#if LANES == 16
// Half vectors: where one vector of columns is all there is, a broadcast of 16 floats takes as long as a multiplication, one of
// 8 half of that (measured: 87 GFLOP/s with 8 rows of a whole vector, 113 with 8 rows of two halves).
#define HALVES
typedef float H __attribute__((vector_size(32)));
typedef float HU __attribute__((vector_size(32), aligned(4), may_alias));
INLINE H half(const float* p) { return *(const HU*)p; }
INLINE H same_half(float v) { return v - H{}; }
INLINE V joined(H low, H high) { return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
#endif

// the lanes of a vector, or of two one after the other, that `from` counts
#if defined(__clang__)
INLINE V shuffled(V a, I from) {
    V out;
    UNROLL for (int i = 0; i < LANES; i++) out[i] = a[from[i]];
    return out;
}
INLINE V shuffled(V a, V b, I from) {
    V out;
    UNROLL for (int i = 0; i < LANES; i++) out[i] = from[i] < LANES ? a[from[i] & (LANES - 1)] : b[from[i] & (LANES - 1)];
    return out;
}
#else
INLINE V shuffled(V a, I from) { return __builtin_shuffle(a, from); }
INLINE V shuffled(V a, V b, I from) { return __builtin_shuffle(a, b, from); }
#endif

// Half (0 or 1) of 2 * LANES floats, widened: those at even places and those at odd ones of bfloat16, the first and the last of
// others. `in_order` undoes that.
struct tc_bf16;
struct tc_half;
INLINE V widened(const float* p, int half) { return load(p + half * LANES); }
INLINE void in_order(const float*, V&, V&) {}
typedef I IU __attribute__((aligned(2), may_alias));
INLINE V widened(const tc_bf16* p, int half) {
    const I pairs = *(const IU*)p;
    return (V)(half ? pairs & (int32_t)0xffff0000 : pairs << 16);
}
INLINE void in_order(const tc_bf16*, V& a, V& b) {
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i / 2 + i % 2 * LANES;
    const V low = shuffled(a, b, lane);
    b = shuffled(a, b, lane + LANES / 2);
    a = low;
}
#if defined(__AVX512F__) && LANES == 16
typedef int16_t S __attribute__((vector_size(32)));
INLINE V from_half(S v) { return __builtin_ia32_vcvtph2ps512_mask(v, V{}, 0xffff, 4); }
#elif defined(__F16C__) && LANES == 8
typedef int16_t S __attribute__((vector_size(16)));
INLINE V from_half(S v) { return __builtin_ia32_vcvtph2ps256(v); }
#endif
#if defined(__F16C__) && LANES >= 8
typedef S SU __attribute__((aligned(2), may_alias));
INLINE V widened(const tc_half* p, int half) { return from_half(((const SU*)p)[half]); }
INLINE void in_order(const tc_half*, V&, V&) {}
#endif

// LANES integers of 8 bits, widened.
#if defined(__AVX512F__) && LANES == 16
typedef char C16U __attribute__((vector_size(16), aligned(1), may_alias));
typedef char C16 __attribute__((vector_size(16)));
INLINE V widened(const int8_t* p) { return __builtin_convertvector((I)__builtin_ia32_pmovsxbd512_mask((C16) * (const C16U*)p, I{}, 0xffff), V); }
INLINE I integers(const uint8_t* p) { return (I)__builtin_ia32_pmovzxbd512_mask((C16) * (const C16U*)p, I{}, 0xffff); }
#elif defined(__AVX2__) && LANES == 8
typedef char C16 __attribute__((vector_size(16)));
typedef int64_t L2 __attribute__((vector_size(16)));
INLINE C16 eight_bytes(const void* p) {
    int64_t bytes;
    memcpy(&bytes, p, 8);
    return (C16)L2{bytes, 0};
}
INLINE V widened(const int8_t* p) { return __builtin_convertvector((I)__builtin_ia32_pmovsxbd256(eight_bytes(p)), V); }
INLINE I integers(const uint8_t* p) { return (I)__builtin_ia32_pmovzxbd256(eight_bytes(p)); }
#else
INLINE I integers(const uint8_t* p) {
    I v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
}
template <class T> INLINE V widened(const T* p) {
    V v;
    for (int i = 0; i < LANES; i++) v[i] = p[i];
    return v;
}
#endif

#if LANES >= 8 && defined(__AVX2__)
INLINE V widened(const uint8_t* p) { return __builtin_convertvector(integers(p), V); }
#endif

typedef float V4 __attribute__((vector_size(16)));
typedef float V4U __attribute__((vector_size(16), aligned(4), may_alias));

INLINE V4 fold(V a) {
#if LANES == 16
    typedef float V8 __attribute__((vector_size(32)));
    V8 h = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif LANES == 8
    return __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
#else
    return a;
#endif
}
// the sums over the lanes of four vectors
INLINE V4 sum4(V a, V b, V c, V d) {
    V4 p = fold(a), q = fold(b), r = fold(c), s = fold(d);
    V4 pq = __builtin_shufflevector(p, q, 0, 1, 4, 5) + __builtin_shufflevector(p, q, 2, 3, 6, 7);
    V4 rs = __builtin_shufflevector(r, s, 0, 1, 4, 5) + __builtin_shufflevector(r, s, 2, 3, 6, 7);
    return __builtin_shufflevector(pq, rs, 0, 2, 4, 6) + __builtin_shufflevector(pq, rs, 1, 3, 5, 7);
}
// LANES vectors turned round: log2(LANES) stages of block swaps
INLINE void transpose(V* a) {
    I lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    UNROLL for (int s = 1; s < LANES; s *= 2) {
        I low = (lane & s) != 0 ? lane - s + LANES : lane;   // a_i, with a_(i+s)'s lower blocks moved up
        I high = (lane & s) != 0 ? lane + LANES : lane + s;  // a_(i+s), with a_i's upper blocks moved down
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            V p = a[i], q = a[i + s];
            a[i] = shuffled(p, q, low);
            a[i + s] = shuffled(p, q, high);
        }
    }
}

struct Cut {  // rows in blocks of nearly equal size, none above `most`: 7 is 4 + 3, not 6 + 1
    int64_t small, large, count;
    Cut(int64_t rows, int64_t most) : count((rows + most - 1) / most) { small = rows / count; large = rows % count; }
    int64_t at(int64_t i) const { return small + (i < large); }
    int64_t from(int64_t i) const { return i * small + (i < large ? i : large); }
};
