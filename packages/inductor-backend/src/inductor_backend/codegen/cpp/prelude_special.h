// Special functions, for the texts that use them (codegen/cpp/module.py includes it then).
//
// Goes in: scalars. Comes out: scalars. Always holds: NaN and infinities come out as in eager. Errors in ulp are
// the greatest found against float64 (tests/inductor_runtime/test_special.py holds them).
#pragma once
#include "prelude.h"

// log(exp(a) + exp(b)) as eager's scans have it: exact where either is -inf, NaN where either is NaN.
TC_INLINE double ts_log_add_exp(double a, double b) {
    double low = a != a || a < b ? a : b, high = b != b || a < b ? b : a;
    if (a != a) return a;
    if (b != b) return b;
    return low != high || low - low == 0 ? tc_log1p(tc_exp(low - high)) + high : b;
}
