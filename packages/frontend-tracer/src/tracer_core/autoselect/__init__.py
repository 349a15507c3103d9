"""``backend="auto"`` or a list of backends: several compile each graph, the fastest right one is
kept.
"""
