// act(x @ w + bias) + residual: codegen/native_calls.py writes the arguments.
#include "gemm.h"

EXPORT void run_linear(const int64_t* a) {
    const Rows rows{(float*)a[5], a[6], (const float*)a[10], (const float*)a[11], a[12], a[13]};
    gemm(a[0], (const float*)a[1], a[2], (const float*)a[3], a[4], a[7], a[8], a[9], store_rows, &rows);
}
