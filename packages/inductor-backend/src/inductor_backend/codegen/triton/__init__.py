"""Triton text for CUDA devices: kernels from fused bodies, and the module around them."""
