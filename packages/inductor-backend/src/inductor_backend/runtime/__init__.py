"""What a compiled graph needs while it is built and while it runs: compiler, disk cache, launcher,
arenas.
"""
