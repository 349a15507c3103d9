"""Subgraph replication: lowers one instance of a repeated subgraph (`passes.repeated_subgraphs`)
and calls its kernels, with renamed buffers, for every instance.
"""
