"""CUDA: compilation, loading and launch of Triton kernels, CUDA graphs, measurements on the
device.
"""
