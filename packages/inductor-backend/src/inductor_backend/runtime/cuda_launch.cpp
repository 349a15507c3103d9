// Launches a run of CUDA kernels in one call from Python: see runtime/cuda_launch.py.
//
// The driver is found at run time, so that this builds and loads on machines without one. A run is described by an array
// of int64: context, number of launches, address of `repair`, then for each launch: function, function for pointers that
// are not multiples of 16 (0: not loaded yet), slot of the grid or -1, grid, threads, bytes of shared memory, number of
// parameters, bytes of shared memory of the second function, and for each parameter: slot, offset added to it, whether it is a pointer.
#include <cstdint>
#include <dlfcn.h>
#define TC_EXPORT extern "C" __attribute__((visibility("default")))
TC_EXPORT int tc_error;
int tc_error = 0;

typedef void* Handle;
typedef int (*LaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                            void**);
typedef int (*GetContext)(Handle*);
typedef int (*SetContext)(Handle);
static LaunchKernel launch_kernel;
static GetContext get_context;
static SetContext set_context;
static const int DRIVER_MISSING = 2000, CUDA_ERROR = 1000;

static void fail(int code) { __atomic_store_n(&tc_error, code, __ATOMIC_RELAXED); }

static bool find_driver() {
    if (launch_kernel) return true;
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return false;
    get_context = (GetContext)dlsym(driver, "cuCtxGetCurrent");
    set_context = (SetContext)dlsym(driver, "cuCtxSetCurrent");
    LaunchKernel found = (LaunchKernel)dlsym(driver, "cuLaunchKernel");
    if (!get_context || !set_context || !found) return false;
    __atomic_store_n(&launch_kernel, found, __ATOMIC_RELEASE);
    return true;
}

// a: where to write the current context's address (0: none)
TC_EXPORT void run_context(const int64_t* a) {
    if (!find_driver()) return fail(DRIVER_MISSING);
    Handle context = nullptr;
    const int status = get_context(&context);
    if (status) return fail(CUDA_ERROR + status);
    *(int64_t*)a[0] = (int64_t)context;
}

static bool misaligned(const int64_t* parameters, int64_t count, const int64_t* values) {
    for (int64_t i = 0; i < count; i++)
        if (parameters[3 * i + 2] && (values[i] & 15)) return true;
    return false;
}

static int launch_all(const int64_t* run, const int64_t* slots, Handle stream) {
    const int64_t* at = run + 3;
    for (int64_t left = run[1]; left > 0; left--) {
        const int64_t* launch = at;
        const int64_t* parameters = launch + 8;
        const int64_t count = launch[6], grid = launch[2] < 0 ? launch[3] : slots[launch[2]];
        at = parameters + 3 * count;
        if (grid == 0) continue;
        int64_t values[256];
        void* pointers[258];
        for (int64_t i = 0; i < count; i++) {
            values[i] = slots[parameters[3 * i]] + parameters[3 * i + 1];
            pointers[i] = values + i;
        }
        int64_t scratch = 0;                     // Triton's own two pointers, which these kernels do not use
        pointers[count] = pointers[count + 1] = &scratch;
        Handle function = (Handle)launch[0];
        int64_t shared = launch[5];
        if (__builtin_expect(misaligned(parameters, count, values), 0)) {
            if (!launch[1]) ((void (*)())run[2])();   // Python: compiles what does without alignment, fills it in
            function = (Handle)__atomic_load_n(&launch[1], __ATOMIC_ACQUIRE);
            if (!function) return 1;             // CUDA_ERROR_INVALID_VALUE; Python has printed why
            shared = launch[7];
        }
        const int status = launch_kernel(function, (unsigned)grid, 1, 1, (unsigned)launch[4], 1, 1, (unsigned)shared, stream,
                                         pointers, nullptr);
        if (status) return status;
    }
    return 0;
}

// a: the run, the stream, then its slots
TC_EXPORT void run_kernels(const int64_t* a) {
    const int64_t* run = (const int64_t*)a[0];
    Handle context = nullptr;
    get_context(&context);
    const bool other = context != (Handle)run[0];   // another device, or a thread that CUDA does not know yet
    if (other) set_context((Handle)run[0]);
    const int status = launch_all(run, a + 2, (Handle)a[1]);
    if (other) set_context(context);
    if (status) fail(CUDA_ERROR + status);
}
