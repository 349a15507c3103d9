// What kernels that Python calls share: threads, scratch memory, the window of a convolution, activations by number.
#pragma once
#include "vectors.h"
#include <cstdlib>

extern "C" int omp_get_max_threads();
extern "C" int omp_in_parallel();
extern "C" int omp_get_thread_num();
// waking the other threads costs some 5 us
INLINE int threads_for(int64_t work) { return work < 150000 || omp_in_parallel() ? 1 : omp_get_max_threads(); }

// work(task) for each task, by these threads. Each begins with tasks that are neighbours, so that it mostly reads what
// it wrote itself a layer before; who is done takes others'.
#define MAX_SHARES 64
template <class Work> INLINE void share_out(int64_t tasks, int threads, const Work& work) {
    if (threads <= 1) {
        for (int64_t task = 0; task < tasks; task++) work(task);
        return;
    }
    struct alignas(64) Share { int64_t next, end; } shares[MAX_SHARES];
    const int64_t count = threads < MAX_SHARES ? threads : MAX_SHARES;
    for (int64_t i = 0; i < count; i++) shares[i] = {tasks * i / count, tasks * (i + 1) / count};
#pragma omp parallel num_threads(threads)
    for (int64_t i = 0, own = omp_get_thread_num(); i < count; i++) {
        Share& share = shares[(own + i) % count];
        for (int64_t task; (task = __atomic_fetch_add(&share.next, 1, __ATOMIC_RELAXED)) < share.end;) work(task);
    }
}

// Rows, `most` at most, that a task takes of each chunk of columns, so that the last thread ends soonest. A task brings its
// columns into the cache, which takes about as long as COLUMN_ROWS rows.
#define COLUMN_ROWS 16
INLINE int64_t rows_of_task(int64_t rows, int64_t most, int64_t chunks, int64_t threads) {
    int64_t best = rows < most ? rows : most, least = INT64_MAX;
    for (int64_t parts = (rows + most - 1) / most, last = parts + 4 * threads; parts <= last; parts++) {
        const int64_t part = ((rows + parts - 1) / parts + MB - 1) / MB * MB, tasks = chunks * ((rows + part - 1) / part);
        const int64_t time = (tasks + threads - 1) / threads * (part + COLUMN_ROWS);
        if (part <= most && time < least) best = part, least = time;
        if (part <= MB) break;
    }
    return best;
}

// Elements, a multiple of LANES, of each of `rows` rows that a task takes where these are too few for the threads.
INLINE int64_t share_of(int64_t row, int64_t rows, int64_t threads) {
    const int64_t parts = threads > 1 && rows % threads && rows < 4 * threads ? 4 * threads / rows : 1, share = (row + parts - 1) / parts + !row;
    return (share + LANES - 1) / LANES * LANES;
}

// For sizes that a unit was not built for: the launcher raises (3: see runtime/cpp/launch.py).
extern "C" __attribute__((visibility("default"))) int tc_error[2];
INLINE void not_built() {
    __atomic_store_n(&tc_error[1], 3, __ATOMIC_RELAXED);
    __atomic_fetch_add(&tc_error[0], 1, __ATOMIC_RELEASE);
}

// Activations: the numbers of kernels/native.py. `post_line` is in epilogues.cpp: only that unit
// pays for them.
enum Post { NONE, RELU, GELU_ERF, GELU_TANH, SILU, TANH, SIGMOID, HARDSWISH, RELU6 };
HIDDEN void post_line(int64_t epilogue, float* line, int64_t count);

namespace {
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
}

struct Window {
    int64_t B, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, OH, OW;
    explicit Window(const int64_t* a) { memcpy(this, a, sizeof *this); }
    int64_t pixels() const { return OH * OW; }
    int64_t taps() const { return KH * KW; }
    // a 1x1 convolution of channels-last data is a product as it is
    bool plain() const { return taps() == 1 && sh == 1 && sw == 1 && ph == 0 && pw == 0; }
};

// shared, never written to after it was made; a larger one replaces it and it is kept
static inline float* zeros(int64_t count) {
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
