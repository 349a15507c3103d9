"""C++ text for CPU kernels."""
