"""``backend="auto"`` or a list of backends: each graph is compiled by several, and the fastest
correct one is kept.
"""
