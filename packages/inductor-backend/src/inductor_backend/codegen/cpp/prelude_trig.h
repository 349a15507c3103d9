// Vector variants of sin, cos and tan for float32, included by prelude.h.
//
// GCC calls these by their mangled names (x86-64 vector function ABI: `_ZGV<isa>N<lanes>v_<name>`) from loops
// over tc_sin, tc_cos, tc_tan. They are functions, not inline text, for one reason: a vector that holds a value too large
// for the fast reduction branches to libm, and a loop with such a branch in it would not be vectorised. They are compiled
// once a machine, with TC_TRIG_DEFINITIONS, and linked into the libraries that call them (runtime/cpp/objects.py: TRIG).
#pragma once

typedef int tc_trig_16 __attribute__((vector_size(64)));
typedef float tc_trig_4 __attribute__((vector_size(16)));
typedef float tc_trig_8 __attribute__((vector_size(32)));
typedef float tc_trig_w __attribute__((vector_size(64)));
template <class V, class I> struct tc_trig {
    static inline __attribute__((always_inline)) V splat(float x) { return x - V{}; }
    static inline __attribute__((always_inline)) V fma(V a, V b, V c) {
#if defined(__FMA__)
        if constexpr (sizeof(V) == 16) return (V)__builtin_ia32_vfmaddps((tc_trig_4)a, (tc_trig_4)b, (tc_trig_4)c);
        if constexpr (sizeof(V) == 32) return (V)__builtin_ia32_vfmaddps256((tc_trig_8)a, (tc_trig_8)b, (tc_trig_8)c);
#endif
#if defined(__AVX512F__)
        if constexpr (sizeof(V) == 64)
            return (V)__builtin_ia32_vfmaddps512_mask((tc_trig_w)a, (tc_trig_w)b, (tc_trig_w)c, (unsigned short)-1, 4);
#endif
        return a * b + c;
    }
    static inline __attribute__((always_inline)) V fma(V a, V b, float c) { return fma(a, b, splat(c)); }
    static inline __attribute__((always_inline)) V fma(V a, float b, V c) { return fma(a, splat(b), c); }
    static inline __attribute__((always_inline)) V fma(V a, float b, float c) { return fma(a, splat(b), splat(c)); }
    // r in [-pi/4, pi/4] and q with x = r + q pi/2
    static inline __attribute__((always_inline)) V reduce(V x, I* q) {
        V shifted = fma(x, 0x1.45f306p-1f, 0x1.8p23f);  // adding 1.5 * 2^23 rounds to an integer in the low bits
        *q = (I)shifted;
        V n = shifted - 0x1.8p23f;
        V r = fma(n, -0x1.921fb4p+0f, x);  // pi/2 in three positive parts
        r = fma(n, -0x1.4442d0p-24f, r);
        return fma(n, -0x1.846988p-48f, r);
    }
    static inline __attribute__((always_inline)) V sine(V r, V s) {
        V p = fma(s, -0x1.9aaee2p-13f, 0x1.110bdep-7f);
        p = fma(p, s, -0x1.555552p-3f);
        return (V)((I)fma(p, s * r, r) | ((I)r & INT32_MIN));  // the sign of -0.0 would be lost in the sum
    }
    static inline __attribute__((always_inline)) V cosine(V s) {
        V p = fma(s, 0x1.9bc37cp-16f, -0x1.6c1298p-10f);
        p = fma(p, s, 0x1.555554p-5f);
        return fma(p, s * s, fma(s, -0.5f, 1.0f));
    }
    static inline __attribute__((always_inline)) bool any(I mask) {
#ifdef __AVX512F__
        if constexpr (sizeof(V) == 64) return __builtin_ia32_ptestmd512((tc_trig_16)mask, (tc_trig_16)mask, (unsigned short)-1) != 0;
#endif
        bool result = false;
        for (unsigned i = 0; i < sizeof(V) / 4; i++) result |= mask[i] != 0;
        return result;
    }
    static inline __attribute__((always_inline)) bool large(V x) {
        I magnitude = (I)x & 0x7fffffff;
        return any(magnitude > 0x46ea6000);  // |x| > 30000, infinity, NaN
    }
    template <float (*exact)(float)> static __attribute__((noinline)) V by_lane(V x) {
        V y = x;
        for (unsigned i = 0; i < sizeof(V) / 4; i++) y[i] = exact(x[i]);
        return y;
    }
    // sin(x + turn pi/2)
    static inline __attribute__((always_inline)) V wave(V x, int turn) {
        I q;
        V r = reduce(x, &q), s = r * r;
        q += turn;
        V y = (q & 1) != 0 ? cosine(s) : sine(r, s);
        return (V)((I)y ^ (q & 2) << 30);
    }
    static inline __attribute__((always_inline)) V tangent(V x) {
        I q;
        V r = reduce(x, &q), s = r * r;
        V p = fma(s, 0x1.ff211ep-9f, 0x1.1b9958p-10f);  // (tan(r) - r) / r^3 in r^2
        p = fma(p, s, 0x1.48cac4p-7f);
        p = fma(p, s, 0x1.61db8cp-6f);
        p = fma(p, s, 0x1.ba5a18p-5f);
        p = fma(p, s, 0x1.11106ap-3f);
        p = fma(p, s, 0x1.555556p-2f);
        V t = (V)((I)fma(p, s * r, r) | ((I)r & INT32_MIN));
        return (q & 1) != 0 ? -1.0f / t : t;
    }
};
TC_INLINE float tc_libm_sin(float x) { return __builtin_sinf(x); }
TC_INLINE float tc_libm_cos(float x) { return __builtin_cosf(x); }
TC_INLINE float tc_libm_tan(float x) { return __builtin_tanf(x); }

#ifdef TC_TRIG_DEFINITIONS
#define TC_TRIG_VARIANT(isa, lanes)                                                                      \
    typedef float tc_v##isa __attribute__((vector_size(lanes * 4)));                                     \
    typedef int32_t tc_i##isa __attribute__((vector_size(lanes * 4)));                                   \
    typedef tc_trig<tc_v##isa, tc_i##isa> tc_trig##isa;                                                  \
    TC_TRIG_FUNCTION(isa, lanes, sin, tc_trig##isa::wave(x, 0), x)                                       \
    TC_TRIG_FUNCTION(isa, lanes, cos, tc_trig##isa::wave(x, 1), x)                                       \
    TC_TRIG_FUNCTION(isa, lanes, tan, tc_trig##isa::tangent(x), x)
#define TC_TRIG_FUNCTION(isa, lanes, name, value, x)                                                     \
    extern "C" __attribute__((weak, visibility("hidden"))) tc_v##isa _ZGV##isa##N##lanes##v_tc_##name##_f32(tc_v##isa x) { \
        return __builtin_expect(tc_trig##isa::large(x), 0) ? tc_trig##isa::by_lane<tc_libm_##name>(x) : value; \
    }
TC_TRIG_VARIANT(b, 4)
#ifdef __AVX__
TC_TRIG_VARIANT(c, 8)
#endif
#ifdef __AVX2__
TC_TRIG_VARIANT(d, 8)
#endif
#ifdef __AVX512F__
TC_TRIG_VARIANT(e, 16)
#endif
// The scalar forms, under the names that the declarations in prelude.h have. Defined through another
// declaration: a definition of the declared ones would make GCC emit vector variants of its own.
#define TC_TRIG_SCALAR(name)                                                                             \
    extern "C" float tc_scalar_##name(float) __asm__("tc_" #name "_f32");                                \
    extern "C" __attribute__((weak, visibility("hidden"))) float tc_scalar_##name(float x) { return __builtin_##name##f(x); }
TC_TRIG_SCALAR(sin)
TC_TRIG_SCALAR(cos)
TC_TRIG_SCALAR(tan)
#endif
