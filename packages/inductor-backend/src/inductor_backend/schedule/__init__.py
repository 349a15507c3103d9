"""Turns loop nodes into kernels: dependencies, inlining, fusion, fused bodies, order, memory plan."""
