// Zeros and ones from the stream of torch's generator (mt19937), as at::native's bernoulli_ draws them: two words an
// element, of which 53 bits are compared with the probability. See kernels/rng.py.
#include "vectors.h"

#define WORDS 624
#define MIDDLE 397

// torch.get_rng_state() of a CPU generator begins so
namespace {
struct State {
    uint64_t initial_seed;
    int32_t left, seeded;  // left: words before the next twist, and one
    uint64_t next;
    uint64_t words[WORDS];
};
}

INLINE uint32_t twisted(uint32_t u, uint32_t v) {
    return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ (0u - (v & 1u) & 0x9908b0dfu);
}
static NOINLINE void twist(uint32_t* s) {
    uint32_t old[WORDS + LANES];  // loops read what they have not written yet
    memcpy(old, s, WORDS * 4);
#pragma omp simd
    for (int j = 0; j < WORDS - MIDDLE; j++) s[j] = old[j + MIDDLE] ^ twisted(old[j], old[j + 1]);
#pragma omp simd safelen(16)
    for (int j = WORDS - MIDDLE; j < WORDS - 1; j++) s[j] = s[j + MIDDLE - WORDS] ^ twisted(old[j], old[j + 1]);
    s[WORDS - 1] = s[MIDDLE - 1] ^ twisted(old[WORDS - 1], s[0]);
}
static NOINLINE void temper(const uint32_t* s, uint32_t* to, int64_t count) {
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        uint32_t y = s[j];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        to[j] = y ^ (y >> 18);
    }
}
static NOINLINE void compare(const uint32_t* words, uint8_t* out, int64_t count, uint64_t bound) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const uint64_t high = words[2 * i] & 0x1fffffu, low = words[2 * i + 1];
        out[i] = (high << 32 | low) < bound;
    }
}

// a: the state, which moves on; where `count` zeros and ones (bytes) go; ones are numbers of 53 bits below `bound`
EXPORT void run_bernoulli(const int64_t* a) {
    State& state = *(State*)a[0];
    uint8_t* out = (uint8_t*)a[1];
    int64_t count = a[2];
    const uint64_t bound = (uint64_t)a[3];
    uint32_t s[WORDS], ready[WORDS + 2];
    for (int j = 0; j < WORDS; j++) s[j] = (uint32_t)state.words[j];
    int64_t left = state.left, next = (int64_t)state.next, kept = 0;  // kept: a word without its partner
    while (count > 0) {
        if (left == 1) {
            twist(s);
            left = WORDS + 1;
            next = 0;
        }
        int64_t take = 2 * count - kept < left - 1 ? 2 * count - kept : left - 1;
        temper(s + next, ready + kept, take);
        left -= take;
        next += take;
        const int64_t have = kept + take, pairs = have / 2;
        compare(ready, out, pairs, bound);
        out += pairs;
        count -= pairs;
        kept = have % 2;
        ready[0] = ready[have - 1];
    }
    for (int j = 0; j < WORDS; j++) state.words[j] = s[j];
    state.left = (int32_t)left;
    state.next = (uint64_t)next;
}
