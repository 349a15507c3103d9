"""Rewrites of the ATen graph before it is lowered: constant folding, our own kernels, packed
weights, repeated subgraphs.
"""
