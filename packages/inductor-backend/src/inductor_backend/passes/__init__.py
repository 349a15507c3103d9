"""Rewrites of the ATen graph before it is lowered: constant folding, our native kernels, packed
weights, repeated subgraphs.
"""
