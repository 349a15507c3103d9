"""From the torch level to ATen: functionalization, joint graph, partitioner, output aliasing,
runtime wrappers.
"""
