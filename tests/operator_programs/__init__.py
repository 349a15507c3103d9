"""Random programs of a few operators each, on tensors that break compilers: eager beside compiled,
judged by float64.
"""
