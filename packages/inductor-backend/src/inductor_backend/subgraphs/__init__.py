"""Subgraph replication: kernels of repeated subgraphs (`passes.repeated_subgraphs`) are renamed and
called for each instance.
"""
