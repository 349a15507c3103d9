#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <algorithm>
#define TC_EXPORT extern "C" __attribute__((visibility("default")))
