"""max-autotune on CUDA devices: configurations of matmul kernels and tiles, chosen by
measurement.
"""
