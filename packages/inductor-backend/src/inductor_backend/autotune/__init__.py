"""max-autotune on CUDA devices: benchmarks candidate configurations of matmul kernels and tiles."""
