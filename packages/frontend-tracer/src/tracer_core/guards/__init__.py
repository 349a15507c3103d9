"""Guards: what a trace relied on, the generated checks, and the guard cache that makes them
fast.
"""
