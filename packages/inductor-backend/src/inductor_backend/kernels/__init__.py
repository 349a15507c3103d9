"""Kernels that are not generated: hand-written ones (cpu/*.cpp), oneDNN's, ATen's; how each is
called and when it is the fastest.
"""
