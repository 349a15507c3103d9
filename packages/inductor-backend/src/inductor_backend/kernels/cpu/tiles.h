// What blocked.cpp and tiles.cpp share.
#pragma once
#include "gemm.h"

struct Side { const float* data; int64_t rows, columns; };  // a matrix with its strides

// Returns false where it did not compute, or not right: `out` is then to be written anew. packed: b, as `pack_for_tiles` writes it, or
// null.
HIDDEN bool multiply_in_tiles(const Side& a, const Side& b, int64_t M, int64_t N, int64_t K, const Rows& out, const char* packed);
HIDDEN void pack_for_tiles(const Side& b, int64_t N, int64_t K, char* packed);
