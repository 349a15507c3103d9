"""Random programs of what Triton kernels compute, run beside eager: by Triton's interpreter, or on
a GPU.
"""
