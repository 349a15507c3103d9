"""Generated text: the C++ kernels and the Python module that calls them."""
