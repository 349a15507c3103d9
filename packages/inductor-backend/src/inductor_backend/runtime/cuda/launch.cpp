// Launches a run of CUDA kernels in one call from Python: see runtime/cuda/launch.py.
//
// The driver is found at run time, so that this builds and loads on machines without one. A run is described by an array
// of int64: context, number of launches, address of `repair`, then for each launch: function, function for pointers that
// are not multiples of 16 (0: not loaded yet), slot of the grid or -1, grid, threads, bytes of shared memory, number of
// parameters, bytes of shared memory and threads of the second function, number of matrices, whether its blocks wait for the
// launch before by themselves; for each parameter: slot, offset added to it, whether it is a pointer; and for each matrix that
// bulk copies read: parameter, bytes from there on, slot of its rows or -1, rows, slot of its columns or -1, columns, bytes and
// elements from row to row, rows and columns of a copy, the driver's numbers for element type and swizzling. A matrix is five
// parameters after the others: the driver's description of it, by value, then rows, columns, and the elements between rows and
// between columns; the second function has none of them.
#include <cstdint>
#include <dlfcn.h>
#define TC_EXPORT extern "C" __attribute__((visibility("default")))
TC_EXPORT int tc_error[2];
int tc_error[2] = {0, 0};
// What a profile has called before each launch of a run, with its number (runtime/profile_rows.py).
TC_EXPORT void (*tc_row)(int64_t);
void (*tc_row)(int64_t) = nullptr;

typedef void* Handle;
typedef int (*LaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                            void**);
// The driver's CUlaunchConfig and CUlaunchAttribute (a number, then a union of 64 bytes).
struct Attribute {
    int name, room, value, rest[15];
};
struct Launch {
    unsigned grid[3], block[3], shared;
    Handle stream;
    const Attribute* attributes;
    unsigned count;
};
static const Attribute WHILE_THE_LAST_ENDS = {6, 0, 1, {}};   // programmatic stream serialization
typedef int (*LaunchWith)(const Launch*, Handle, void**, void**);
typedef int (*GetVersion)(int*);
typedef int (*GetContext)(Handle*);
typedef int (*SetContext)(Handle);
typedef int (*RetainContext)(Handle*, int);
typedef int (*EncodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int,
                           int, int, int);
static LaunchKernel launch_kernel;
static LaunchWith launch_with;
static GetContext get_context;
static SetContext set_context;
static RetainContext retain_context;
static EncodeTiled encode_tiled;
static const int HEAD = 11, MATRIX = 12, MAX_MATRICES = 2;
static const int DRIVER_MISSING = 2000, CUDA_ERROR = 1000;
static const int OVERLAPS_IN_GRAPHS = 12040;   // the first driver that captures launches which overlap

static void fail(int code) {
    __atomic_store_n(&tc_error[1], code, __ATOMIC_RELAXED);
    __atomic_fetch_add(&tc_error[0], 1, __ATOMIC_RELEASE);
}

static bool find_driver() {
    if (launch_kernel) return true;
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return false;
    get_context = (GetContext)dlsym(driver, "cuCtxGetCurrent");
    set_context = (SetContext)dlsym(driver, "cuCtxSetCurrent");
    retain_context = (RetainContext)dlsym(driver, "cuDevicePrimaryCtxRetain");
    LaunchKernel found = (LaunchKernel)dlsym(driver, "cuLaunchKernel");
    encode_tiled = (EncodeTiled)dlsym(driver, "cuTensorMapEncodeTiled");   // null: an old driver
    if (!get_context || !set_context || !retain_context || !found) return false;
    int version = 0;
    const GetVersion get_version = (GetVersion)dlsym(driver, "cuDriverGetVersion");
    if (get_version && !get_version(&version) && version >= OVERLAPS_IN_GRAPHS)
        launch_with = (LaunchWith)dlsym(driver, "cuLaunchKernelEx");
    __atomic_store_n(&launch_kernel, found, __ATOMIC_RELEASE);
    return true;
}

typedef int (*LoadData)(Handle*, const void*);
typedef int (*GetFunction)(Handle*, Handle, const char*);
typedef int (*GetAttribute)(int*, int, Handle);
typedef int (*SetAttribute)(Handle, int, int);
typedef int (*SetCache)(Handle, int);
typedef int (*ErrorText)(int, const char**);
static const int MAX_THREADS = 0, STATIC_SHARED = 1, DYNAMIC_SHARED = 8, PREFER_SHARED = 1;   // the driver's numbers
static const int64_t SHARED_UNASKED = 48 << 10;   // a kernel has to ask for more
static const size_t WORDS = 256;

static int load(const int64_t* a, int64_t* found, void* driver) {
    const LoadData load_data = (LoadData)dlsym(driver, "cuModuleLoadData");
    const GetFunction get_function = (GetFunction)dlsym(driver, "cuModuleGetFunction");
    const GetAttribute get = (GetAttribute)dlsym(driver, "cuFuncGetAttribute");
    const SetAttribute set = (SetAttribute)dlsym(driver, "cuFuncSetAttribute");
    const SetCache set_cache = (SetCache)dlsym(driver, "cuFuncSetCacheConfig");
    Handle before = nullptr, module = nullptr, function = nullptr;
    int threads = 0, taken = 0;
    int status = get_context(&before);
    if (!status) status = set_context((Handle)a[4]);
    if (!status) status = load_data(&module, (const void*)a[0]);
    if (!status) status = get_function(&function, module, (const char*)a[1]);
    if (!status) status = get(&threads, MAX_THREADS, function);
    if (!status && a[2] > SHARED_UNASKED) {
        status = get(&taken, STATIC_SHARED, function);
        if (!status) status = set_cache(function, PREFER_SHARED);
        if (!status) status = set(function, DYNAMIC_SHARED, (int)a[3] - taken);
    }
    if (before) set_context(before);
    found[0] = (int64_t)function, found[1] = threads;
    return status;
}

// a: addresses of the machine code and of the kernel's name; bytes of shared memory of a launch, and those that the device has;
// the device's context; where to write the function, the most threads and the driver's error; where to write its words
TC_EXPORT void load_kernel(const int64_t* a) {
    if (!find_driver()) return fail(DRIVER_MISSING);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    int64_t* found = (int64_t*)a[5];
    const int status = load(a, found, driver);
    found[2] = status;
    const char* text = nullptr;
    if (status) ((ErrorText)dlsym(driver, "cuGetErrorString"))(status, &text);
    char* words = (char*)a[6];
    size_t at = 0;
    for (; text && text[at] && at < WORDS - 1; at++) words[at] = text[at];
    words[at] = 0;
}

// a: where to write the address of the context that the runtime uses for a device, and the device's number
TC_EXPORT void run_context(const int64_t* a) {
    if (!find_driver()) return fail(DRIVER_MISSING);
    Handle context = nullptr;
    const int status = retain_context(&context, (int)a[1]);   // for as long as the process lives, as its kernels
    if (status) return fail(CUDA_ERROR + status);
    *(int64_t*)a[0] = (int64_t)context;
}

static bool misaligned(const int64_t* parameters, int64_t count, const int64_t* values) {
    for (int64_t i = 0; i < count; i++)
        if (parameters[3 * i + 2] && (values[i] & 15)) return true;
    return false;
}

struct alignas(64) Map {
    uint64_t words[16];
};

struct Matrices {
    Map maps[MAX_MATRICES];
    int32_t sizes[MAX_MATRICES][2];
    int64_t steps[MAX_MATRICES][2];
};

// Describes each matrix of a launch, and puts its parameters where pointers[] goes on. False: one cannot be copied so.
static bool describe(const int64_t* m, int64_t count, const int64_t* slots, const int64_t* values, Matrices& room,
                     void** pointers) {
    if (!encode_tiled || count > MAX_MATRICES) return false;
    for (int64_t i = 0; i < count; i++, m += MATRIX) {
        const int64_t base = values[m[0]] + m[1], rows = m[2] < 0 ? m[3] : slots[m[2]], columns = m[4] < 0 ? m[5] : slots[m[4]];
        if ((base & 15) || rows < 1 || columns < 1 || rows > INT32_MAX || columns > INT32_MAX || columns > m[7]) return false;
        const uint64_t sizes[2] = {(uint64_t)columns, (uint64_t)rows}, strides[1] = {(uint64_t)m[6]};
        const uint32_t box[2] = {(uint32_t)m[9], (uint32_t)m[8]}, steps[2] = {1, 1};
        // No interleaving; rows of 128 bytes are fetched into the L2 cache; beyond the ends are zeros.
        if (encode_tiled(&room.maps[i], (int)m[10], 2, (void*)base, sizes, strides, box, steps, 0, (int)m[11], 2, 0)) return false;
        room.sizes[i][0] = (int32_t)rows, room.sizes[i][1] = (int32_t)columns;
        room.steps[i][0] = m[7], room.steps[i][1] = 1;
        *pointers++ = &room.maps[i];
        *pointers++ = &room.sizes[i][0], *pointers++ = &room.sizes[i][1];
        *pointers++ = &room.steps[i][0], *pointers++ = &room.steps[i][1];
    }
    return true;
}

static int launch_all(const int64_t* run, const int64_t* slots, Handle stream) {
    const int64_t* at = run + 3;
    bool after_own = false;   // the launch before, if any, is of this run
    for (int64_t left = run[1]; left > 0; left--) {
        const int64_t* launch = at;
        if (auto begin = tc_row) begin(run[1] - left);
        const int64_t* parameters = launch + HEAD;
        const int64_t count = launch[6], matrices = launch[9], grid = launch[2] < 0 ? launch[3] : slots[launch[2]];
        at = parameters + 3 * count + MATRIX * matrices;
        if (grid == 0) continue;
        int64_t values[256];
        void* pointers[258 + 5 * MAX_MATRICES];
        Matrices room;
        for (int64_t i = 0; i < count; i++) {
            values[i] = slots[parameters[3 * i]] + parameters[3 * i + 1];
            pointers[i] = values + i;
        }
        int64_t scratch = 0, last = count + 5 * matrices;
        Handle function = (Handle)launch[0];
        int64_t shared = launch[5], threads = launch[4];
        bool plain = misaligned(parameters, count, values);
        if (matrices && !plain) plain = !describe(parameters + 3 * count, matrices, slots, values, room, pointers + count);
        if (__builtin_expect(plain, 0)) {
            if (!launch[1]) ((void (*)())run[2])();   // Python: compiles what does without alignment, fills it in
            function = (Handle)__atomic_load_n(&launch[1], __ATOMIC_ACQUIRE);
            if (!function) return 1;             // CUDA_ERROR_INVALID_VALUE; Python has printed why
            shared = launch[7], threads = launch[8], last = count;
        }
        pointers[last] = pointers[last + 1] = &scratch;   // Triton's own two pointers, which these kernels do not use
        const Launch with = {{(unsigned)grid, 1, 1}, {(unsigned)threads, 1, 1}, (unsigned)shared, stream, &WHILE_THE_LAST_ENDS, 1};
        const int status = after_own && launch[10] && launch_with
                               ? launch_with(&with, function, pointers, nullptr)
                               : launch_kernel(function, (unsigned)grid, 1, 1, (unsigned)threads, 1, 1, (unsigned)shared,
                                               stream, pointers, nullptr);
        if (status) return status;
        after_own = true;
    }
    return 0;
}

// a: where the run's address is (launch.py replaces it between two calls), the stream, then its slots
TC_EXPORT void run_kernels(const int64_t* a) {
    const int64_t* run = (const int64_t*)__atomic_load_n((const int64_t*)a[0], __ATOMIC_ACQUIRE);
    Handle context = nullptr;
    get_context(&context);
    const bool other = context != (Handle)run[0];   // another device, or a thread that CUDA does not know yet
    if (other) set_context((Handle)run[0]);
    const int status = launch_all(run, a + 2, (Handle)a[1]);
    if (other) set_context(context);
    if (status) fail(CUDA_ERROR + status);
}
